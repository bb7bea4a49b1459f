//! Edits that ask for what can't be changed in place.
//!
//! An object with our marker never comes to differ by itself: arguments can't be changed,
//! and whoever declares it anew takes its marker away. Where one differs from a specification
//! that was not carried out yet, the edit asks for it. Such an edit is refused whole, field
//! by field and before anything of it is written, so that messages go their ways as before.

use super::super::desired::{Desired, QueueRole, policy_name};
use super::super::model::{Arg, Destination, ObjectKey};
use super::super::names;
use super::super::ownership::standing;
use super::super::spec::{Mode, Ownership, Settings};
use super::super::validate::{MAX_NUMBER_FROM, MAX_TIERS};
use super::Differ;
use super::mismatch::Mismatch;
use super::refusals::Refusal;

pub(super) const OWNERSHIP: &str = "source.ownership";
pub(super) const EXCHANGE_TYPE: &str = "source.exchange.type";

const ANOTHER_PIPELINE: &str = "create another RetryPipeline with another source queue";
const ANOTHER_DLQ: &str =
    "give deadLetter.name another value in the same edit, so that new queues come beside the old ones";
const ANOTHER_EXCHANGE: &str = "give source.exchange.name another value in the same edit";

/// A field that was edited.
struct Change {
    field: &'static str,
    from: String,
    to: String,
}

impl Change {
    fn new(field: &'static str, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self { field, from: from.into(), to: to.into() }
    }

    /// The found becomes the wanted, in the words of the broker.
    fn of(field: &'static str, mismatch: &Mismatch) -> Self {
        Self::new(field, mismatch.found.as_str(), mismatch.wanted.as_str())
    }
}

impl<'a> Differ<'a> {
    fn refuse(&mut self, change: Change, object: &ObjectKey) {
        let Change { field, from, to } = change;
        let instead = self.instead(field);
        let refusal =
            self.refusals.entry(field).or_insert(Refusal { from, to, instead, objects: Vec::new() });
        if let ObjectKey::Queue(name) = object {
            self.going.insert(name.clone());
        }
        let object = object.to_string();
        if !refusal.objects.contains(&object) {
            refusal.objects.push(object);
        }
    }

    fn instead(&self, field: &str) -> &'static str {
        match field {
            EXCHANGE_TYPE => ANOTHER_EXCHANGE,
            // Without a chain the DLQ's name is an argument of the source.
            "deadLetter.queueType"
            | "deadLetter.groupSize"
            | "deadLetter.retention"
            | "deadLetter.maxLength"
                if self.context.pipeline.has_chain() =>
            {
                ANOTHER_DLQ
            }
            _ => ANOTHER_PIPELINE,
        }
    }

    /// Refuses the edit by which an object of ours differs; `false` where it is none.
    pub(super) fn refuse_edit(
        &mut self,
        key: &ObjectKey,
        role: Option<&QueueRole>,
        mismatches: &[Mismatch],
    ) -> bool {
        if !self.context.edited || !self.context.inventory.contains_key(key) {
            return false;
        }
        let Some(changes) = self.changes(role, mismatches) else { return false };
        for change in changes {
            self.refuse(change, key);
        }
        true
    }

    /// The fields that ask for these differences, or `None` where no field does.
    fn changes(&self, role: Option<&QueueRole>, mismatches: &[Mismatch]) -> Option<Vec<Change>> {
        let Some(role) = role else {
            return mismatches
                .iter()
                .map(|found| (found.key == "type").then(|| Change::of(EXCHANGE_TYPE, found)))
                .collect();
        };
        if let Some(kind) = mismatches.iter().find(|found| found.key == "x-queue-type") {
            // All other differences follow from this one.
            return Some(vec![Change::of(kind_field(role), kind)]);
        }
        let is_way = |found: &&Mismatch| found.key.starts_with("x-dead-letter-");
        let (way, others): (Vec<&Mismatch>, Vec<&Mismatch>) = mismatches.iter().partition(is_way);
        let mut changes: Vec<Change> =
            others.into_iter().map(|found| self.number(role, found)).collect::<Option<_>>()?;
        if !way.is_empty() {
            changes.push(self.way(role, &way)?);
        }
        Some(changes)
    }

    /// A number or switch among a queue's arguments.
    fn number(&self, role: &QueueRole, found: &Mismatch) -> Option<Change> {
        let field = argument_field(role, &found.key)?;
        let (from, to) = (value(&found.key, &found.found)?, value(&found.key, &found.wanted)?);
        Some(match self.moved_settings(role, found) {
            Some((before, after)) if is_setting(role, &found.key) => Change::new("settings", before, after),
            // Its value is always the same, in mode Native alone.
            _ if found.key == "x-delayed-retry-type" => {
                let before = if from == "none" { "another" } else { "Native" };
                Change::new(field, before, mode_name(self.context.pipeline.spec.mode))
            }
            _ => Change::new(field, from, to),
        })
    }

    /// Whether a number moves between a policy and the arguments.
    fn moved_settings(&self, role: &QueueRole, found: &Mismatch) -> Option<(&'static str, &'static str)> {
        let policy = match role {
            QueueRole::Source => "source",
            _ => "dlq",
        };
        let policy = ObjectKey::Policy(policy_name(&self.context.pipeline.identity, policy));
        match self.context.pipeline.spec.settings {
            Settings::Policy { .. } if found.found != "none" => Some(("arguments", "policy")),
            Settings::Arguments if self.context.inventory.contains_key(&policy) => {
                Some(("policy", "arguments"))
            }
            _ => None,
        }
    }

    /// Another way for the dead letters of the source or of a retry queue.
    fn way(&self, role: &QueueRole, way: &[&Mismatch]) -> Option<Change> {
        let pipeline = self.context.pipeline;
        let mode = mode_name(pipeline.spec.mode);
        match role {
            QueueRole::Retry { .. } => Some(Change::new("retry.mode", "Broker", mode)),
            QueueRole::Source => Some(match way.iter().find(|found| found.key == "x-dead-letter-exchange") {
                None => {
                    let name = way.iter().find(|found| found.key == "x-dead-letter-routing-key")?;
                    Change::of("deadLetter.name", name)
                }
                Some(_) if pipeline.spec.mode != Mode::Application => {
                    Change::new("retry.mode", "Application", mode)
                }
                // In this mode categories alone decide whether there is a chain.
                Some(_) if pipeline.has_chain() => {
                    Change::new("deadLetter.quarantine", "no category", "some")
                }
                Some(_) if self.has_client_queues() => {
                    Change::new("deadLetter.quarantine", "some categories", "none")
                }
                Some(_) => Change::new("retry.mode", self.mode_before(), mode),
            }),
            _ => None,
        }
    }

    fn mode_before(&self) -> &'static str {
        if self.own_queues().any(|(_, way)| way == Way::Return) { "Broker" } else { "Native or None" }
    }

    fn has_client_queues(&self) -> bool {
        self.own_queues().any(|(_, way)| way == Way::Client)
    }

    /// Retry queues of ours, wanted or not, and where they lead to.
    pub(super) fn own_queues(&self) -> impl Iterator<Item = (&'a ObjectKey, Way)> + use<'a> {
        let context = self.context;
        let names = context.pipeline.names();
        let source = &context.pipeline.spec.source.queue;
        context.inventory.keys().filter_map(move |key| {
            let ObjectKey::Queue(name) = key else { return None };
            let found = context.observed.queues.get(name)?;
            let way = match found.arguments.get("x-dead-letter-exchange") {
                _ if found.leads_to(source) => Way::Client,
                Some(Arg::Str(target)) if names.return_number(target).is_some() => Way::Return,
                _ => return None,
            };
            let object = Destination::Queue(name.clone());
            standing(context.observed, &object, &context.pipeline.identity).is_ours().then_some((key, way))
        })
    }

    /// Refuses what would take queues away that clients publish to, or hand them over.
    pub(super) fn refuse_lost_tiers(&mut self, desired: &Desired) {
        if !self.context.edited {
            return;
        }
        let mode = self.context.pipeline.spec.mode;
        let is_wanted = |key: &ObjectKey| {
            desired
                .queues
                .iter()
                .any(|queue| matches!(key, ObjectKey::Queue(name) if *name == queue.queue.name))
        };
        let mut refused = Vec::new();
        for (key, way) in self.own_queues() {
            let change = match way {
                Way::Return if mode == Mode::Application => {
                    Some(Change::new("retry.mode", "Broker", mode_name(mode)))
                }
                Way::Client if mode != Mode::Application => {
                    Some(Change::new("retry.mode", "Application", mode_name(mode)))
                }
                Way::Client if !is_wanted(key) => self.renamed(key),
                _ => None,
            };
            refused.extend(change.map(|change| (change, key.clone())));
        }
        for (change, key) in refused {
            self.refuse(change, &key);
        }
    }

    /// Which field takes a client's queue away. With `{delay}` in the template it stays.
    fn renamed(&self, key: &ObjectKey) -> Option<Change> {
        let (spec, tiers) = (&self.context.pipeline.spec, &self.context.pipeline.tiers);
        if spec.retry_template.contains("{delay}") {
            return None;
        }
        let ObjectKey::Queue(name) = key else { return None };
        let unsharded = name.rsplit_once(".s").map_or(name.as_str(), |(base, _)| base);
        let first = tiers.first().map_or("", |tier| tier.name.as_str());
        let known = (0..=MAX_NUMBER_FROM + u32::try_from(MAX_TIERS).unwrap_or_default()).find(|number| {
            let tier = names::expand(&spec.retry_template, &spec.source.queue, *number, "");
            tier == *name || tier == unsharded
        });
        Some(match known {
            None => Change::new(
                "retry.naming.template",
                format!("names like {name}"),
                format!("names like {first}"),
            ),
            Some(number) if tiers.iter().any(|tier| tier.number == number) => Change::new(
                "retry.jitter",
                format!("queues like {name}"),
                format!("other shards of {unsharded}"),
            ),
            Some(number) if number < spec.number_from => {
                Change::new("retry.naming.numberFrom", number.to_string(), spec.number_from.to_string())
            }
            Some(number) => Change::new(
                "retry.delays",
                format!("{} or more", number - spec.number_from + 1),
                tiers.len().to_string(),
            ),
        })
    }

    /// Whether the source is not to be judged by what the other owner would want.
    pub(super) fn is_ownership_refused(&self) -> bool {
        self.refusals.contains_key(OWNERSHIP)
    }

    /// Refuses to take a source over from its application, or to give it away.
    pub(super) fn refuse_ownership(&mut self) {
        let context = self.context;
        let source = ObjectKey::Queue(context.pipeline.spec.source.queue.clone());
        let is_ours = context.inventory.contains_key(&source);
        match context.pipeline.spec.source.ownership {
            Ownership::External if is_ours => {
                self.refuse(Change::new(OWNERSHIP, "Managed", "External"), &source);
            }
            Ownership::Managed if !is_ours => {
                let policy = context.policies.named(&policy_name(&context.pipeline.identity, "source"));
                // Only the policy of an External source says where its dead letters go.
                if policy.is_some_and(|policy| policy.definition.contains_key("dead-letter-exchange")) {
                    self.refuse(Change::new(OWNERSHIP, "External", "Managed"), &source);
                }
            }
            Ownership::External | Ownership::Managed => {}
        }
    }
}

/// Where a retry queue of ours leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Through a return exchange: the broker walks the ladder.
    Return,
    /// Straight to the source: a client publishes to it.
    Client,
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Broker => "Broker",
        Mode::Application => "Application",
        Mode::Native { .. } => "Native",
        Mode::None => "None",
    }
}

fn kind_field(role: &QueueRole) -> &'static str {
    match role {
        QueueRole::Source => "source.queue.type",
        QueueRole::Retry { .. } => "retry.queueType",
        QueueRole::DeadLetter | QueueRole::Quarantine(_) | QueueRole::ParkingLot => "deadLetter.queueType",
    }
}

/// The field behind an argument, but for type and way.
fn argument_field(role: &QueueRole, key: &str) -> Option<&'static str> {
    Some(match (role, key) {
        (QueueRole::Source, "x-quorum-initial-group-size") => "source.queue.groupSize",
        (QueueRole::Source, "x-single-active-consumer") => "source.queue.singleActiveConsumer",
        // Only a classic source with a limit has this argument.
        (QueueRole::Source, "x-max-length" | "x-overflow") => "source.queue.maxLength",
        (QueueRole::Source, "x-message-ttl") => "source.queue.messageTTL",
        (QueueRole::Source, "x-consumer-timeout") => "source.queue.consumerTimeout",
        // Mode and number of retries count as well.
        (QueueRole::Source, "x-delivery-limit") => {
            "source.deliveryLimit, retry.mode or the number of retries"
        }
        (QueueRole::Source, "x-delayed-retry-min") => "retry.native.min",
        (QueueRole::Source, "x-delayed-retry-max") => "retry.native.max",
        (QueueRole::Source, "x-delayed-retry-type") => "retry.mode",
        (QueueRole::Retry { .. }, "x-quorum-initial-group-size") => "retry.groupSize",
        (QueueRole::Retry { .. }, "x-message-ttl") => "retry.delays",
        (QueueRole::DeadLetter, "x-message-ttl") => "deadLetter.retention",
        (QueueRole::DeadLetter, "x-max-length") => "deadLetter.maxLength",
        (
            QueueRole::DeadLetter | QueueRole::Quarantine(_) | QueueRole::ParkingLot,
            "x-quorum-initial-group-size",
        ) => "deadLetter.groupSize",
        _ => return None,
    })
}

/// Whether `settings` decides where this number goes.
fn is_setting(role: &QueueRole, key: &str) -> bool {
    let moves = [
        "x-max-length",
        "x-message-ttl",
        "x-consumer-timeout",
        "x-delivery-limit",
        "x-delayed-retry-type",
        "x-delayed-retry-min",
        "x-delayed-retry-max",
    ];
    matches!(role, QueueRole::Source | QueueRole::DeadLetter) && moves.contains(&key)
}

/// How a value reads in the specification; `None` for one that Redrive never writes.
fn value(key: &str, text: &str) -> Option<String> {
    match (key, text) {
        // A full classic source refuses publishers only by this argument.
        ("x-overflow", "none") => Some("no limit".to_owned()),
        ("x-overflow", _) => Some("a limit".to_owned()),
        (_, "none") => Some("none".to_owned()),
        ("x-message-ttl" | "x-consumer-timeout" | "x-delayed-retry-min" | "x-delayed-retry-max", number) => {
            Some(names::duration(number.parse().ok()?))
        }
        ("x-single-active-consumer", "true") => Some("true".to_owned()),
        ("x-delayed-retry-type", word) => Some(word.to_owned()),
        (_, number) => number.parse::<i64>().ok().map(|_| number.to_owned()),
    }
}
