//! What is said of an edit that can't be carried out in place.

use std::collections::{BTreeMap, BTreeSet};

use super::super::plan::{Blocked, BlockedBy, Pending};
use super::super::recreation;
use super::super::spec::Identity;
use super::edits::{EXCHANGE_TYPE, OWNERSHIP};

/// A field that asks for what can't be done, and for whose sake it can't.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) from: String,
    pub(super) to: String,
    /// The way round it.
    pub(super) instead: &'static str,
    pub(super) objects: Vec<String>,
}

/// What is refused, by field.
pub(super) type Refusals = BTreeMap<&'static str, Refusal>;

impl Refusal {
    fn objects(&self) -> String {
        let first = self.objects.first().map_or("what exists", String::as_str);
        match self.objects.len() {
            0 | 1 => first.to_owned(),
            count => format!("{first} and {} more", count - 1),
        }
    }
}

/// Which of these fields no consent helps with; an empty text says no more than that.
pub(super) fn obstacle(refusals: &Refusals) -> Option<String> {
    [OWNERSHIP, EXCHANGE_TYPE].iter().any(|field| refusals.contains_key(field)).then(String::new)
}

/// The sentences for a plan that can't be carried out at all.
pub(super) fn describe(refusals: Refusals, obstacle: &str) -> impl Iterator<Item = Blocked> {
    let obstacle = if obstacle.is_empty() { String::new() } else { format!(" ({obstacle})") };
    refusals.into_iter().map(move |(field, refusal)| {
        let Refusal { from, to, instead, .. } = &refusal;
        let why = format!(
            "from {from} to {to} is not supported yet, for {} can't be changed in place{obstacle}: {instead}, or take the edit back; nothing of it is carried out",
            refusal.objects()
        );
        Blocked { by: BlockedBy::NotSupportedYet, object: format!("spec.{field}"), why }
    })
}

/// What a person may consent to.
pub(super) fn pending(refusals: &Refusals, us: &Identity, going: &BTreeSet<String>) -> Pending {
    let changes: Vec<_> = refusals
        .iter()
        .map(|(field, refusal)| ((*field).to_owned(), refusal.from.clone(), refusal.to.clone()))
        .collect();
    let fields: Vec<String> =
        changes.iter().map(|(field, from, to)| format!("spec.{field} from {from} to {to}")).collect();
    let queues: Vec<&str> = going.iter().map(String::as_str).collect();
    let why = format!(
        "{} makes anew: {}. Their messages are moved aside and come back, and none is lost; meanwhile consumers get nothing and are cancelled for a moment, what waits for a retry is tried again at once, and what is published to a queue by its name, without an exchange, finds none for a moment",
        fields.join(", "),
        queues.join(", ")
    );
    Pending { hash: recreation::hash(us, &changes, going), why }
}

/// The sentences for a plan that waits for a person.
pub(super) fn awaits(refusals: Refusals, pending: &Pending) -> impl Iterator<Item = Blocked> {
    let hash = pending.hash.clone();
    refusals.into_iter().map(move |(field, refusal)| {
        let Refusal { from, to, instead, .. } = &refusal;
        let why = format!(
            "from {from} to {to} takes {} to be made anew: read status.pendingPlan and set the annotation redrive.dev/allow-recreate: \"{hash}\", {instead}, or take the edit back; nothing of it is carried out until then",
            refusal.objects()
        );
        Blocked { by: BlockedBy::AwaitsConsent, object: format!("spec.{field}"), why }
    })
}
