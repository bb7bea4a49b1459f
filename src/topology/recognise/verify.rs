//! Puts a guess to the comparison that an operator would make.

use std::collections::{BTreeMap, BTreeSet};

use super::super::desired::{self, Desired};
use super::super::diff::{self, Context, Diff};
use super::super::generations;
use super::super::names::OWNER_EXCHANGE;
use super::super::ownership::Inventory;
use super::super::plan::{Blocked, BlockedBy, Plan, Step};
use super::super::spec::{Identity, Spec};
use super::super::validate::{self, Pipeline, Unsupported};
use super::Look;

/// What to do where the arguments of a queue are not those that a pipeline wants.
const REFUSED: &str = "the arguments of a queue can't be changed: let its application declare it anew as it is \
     wanted, once it is empty, or leave it as it is";

/// What to do where no manifest can say what there is.
pub const BY_HAND: &str = "write a RetryPipeline by hand, or leave it as it is";

/// What to do where two work queues have a queue in common.
const SHARED: &str =
    "a queue can belong to one RetryPipeline alone: let one of the two have a queue of its own there";

/// What to do where a policy is in the way.
const POLICY: &str = "change that policy, and import again";

/// What no resource has had as its UID yet.
const NEWCOMER: &str = "imported";

/// What applying a description with `adopt` would do on the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing but to write or renew markers of ownership.
    Nothing,
    /// These steps, as a plan shows them.
    Steps(Vec<String>),
}

impl Effect {
    /// How much it is.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Steps(steps) => steps.len(),
        }
    }
}

/// A queue or exchange that only one pipeline can have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    Queue(String),
    Exchange(String),
}

/// A resource that is still to be created.
pub(super) fn newcomer(look: &Look<'_>, name: String) -> Identity {
    Identity {
        cluster: look.cluster.to_owned(),
        namespace: look.namespace.to_owned(),
        name,
        uid: NEWCOMER.to_owned(),
    }
}

/// Why a guess does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) why: String,
    /// What to do about it.
    pub(super) instead: &'static str,
}

impl Refused {
    pub(super) fn new(why: impl Into<String>, instead: &'static str) -> Self {
        Self { why: why.into(), instead }
    }
}

/// What applying would do, or why it would be refused.
pub(super) fn judge(
    look: &Look<'_>,
    owner: &Identity,
    spec: Spec,
    taken: &BTreeMap<Object, String>,
) -> Result<(Pipeline, Effect), Refused> {
    // Whoever applies it creates a resource of that name, with a UID of its own.
    let identity = Identity { uid: NEWCOMER.to_owned(), ..owner.clone() };
    let pipeline = validate::validate(identity, spec)
        .map_err(|problems| Refused::new(sentence(problems.iter()), BY_HAND))?;
    let unsupported = validate::check_broker(&pipeline, look.facts);
    if let Some(Unsupported::Version(text) | Unsupported::Plugin(text)) = unsupported.into_iter().next() {
        return Err(Refused::new(text, BY_HAND));
    }
    let Diff { desired, plan, .. } = difference(look, &pipeline);
    let others = owned(&desired).find_map(|object| Some((taken.get(&object)?.clone(), object)));
    if let Some((who, Object::Queue(name) | Object::Exchange(name))) = others {
        return Err(Refused::new(format!("{name} is a part of {who} as well"), SHARED));
    }
    if !plan.blocked.is_empty() {
        return Err(Refused::new(sentence(plan.blocked.iter().map(short)), instead(&plan.blocked)));
    }
    Ok((pipeline, effect(&plan)))
}

fn difference(look: &Look<'_>, pipeline: &Pipeline) -> Diff {
    diff::diff(&Context {
        pipeline,
        facts: look.facts,
        observed: look.observed,
        policies: look.policies,
        inventory: &Inventory::new(),
        adopt: true,
        proven_empty: &BTreeSet::new(),
        contested: &BTreeMap::new(),
        edited: true,
        consent: None,
    })
}

fn effect(plan: &Plan) -> Effect {
    let is_marker = |step: &Step| match step {
        Step::Mark(_) | Step::Unmark(_) => true,
        Step::CreateExchange { exchange, .. } => exchange.name == OWNER_EXCHANGE,
        _ => false,
    };
    let steps = plan.steps.iter().map(|planned| &planned.step).filter(|step| !is_marker(step));
    let draining = plan.draining.iter().map(|queue| format!("… queue    {queue} goes when it is empty"));
    let steps: Vec<String> = steps.map(ToString::to_string).chain(draining).collect();
    if steps.is_empty() { Effect::Nothing } else { Effect::Steps(steps) }
}

/// What a pipeline declares and no other one may.
pub(super) fn objects(look: &Look<'_>, pipeline: &Pipeline) -> Vec<Object> {
    let generations = generations::choose(pipeline, look.facts, look.observed, &Inventory::new(), false);
    owned(&desired::build(pipeline, look.facts, &generations)).collect()
}

fn owned(desired: &Desired) -> impl Iterator<Item = Object> {
    let queues = desired.queues.iter().map(|queue| Object::Queue(queue.queue.name.clone()));
    let exchanges = desired.exchanges.iter().filter(|exchange| !exchange.shared);
    queues.chain(exchanges.map(|exchange| Object::Exchange(exchange.exchange.name.clone())))
}

/// What to do about the worst of several obstacles.
fn instead(blocked: &[Blocked]) -> &'static str {
    let is = |kinds: &[BlockedBy]| blocked.iter().any(|blocked| kinds.contains(&blocked.by));
    if is(&[BlockedBy::ArgumentMismatch]) {
        REFUSED
    } else if is(&[BlockedBy::PolicyShadowed, BlockedBy::PolicyConflict]) {
        POLICY
    } else {
        BY_HAND
    }
}

/// An obstacle without what a plan says about obstacles in general.
fn short(blocked: &Blocked) -> String {
    blocked.to_string().replace("; it can't be changed in place and is left alone", "")
}

fn sentence(parts: impl Iterator<Item = impl ToString>) -> String {
    const SHOWN: usize = 3;
    let parts: Vec<String> = parts.map(|part| part.to_string()).collect();
    let more = parts.len().saturating_sub(SHOWN);
    let shown = parts.into_iter().take(SHOWN).collect::<Vec<_>>().join("; ");
    if more > 0 { format!("{shown}; and {more} more") } else { shown }
}
