//! What differs between the wanted and the observed, and the plan that closes it.
//!
//! The comparison is stateless: it takes whatever exists, half-done work of an
//! operator that was killed included, and plans what is left. Nothing that a
//! marker does not show to be ours is ever changed or deleted.

mod bindings;
mod edits;
mod mismatch;
mod objects;
mod policies;
mod refusals;

use std::collections::{BTreeMap, BTreeSet};

use super::desired::{self, Desired, DesiredQueue, QueueRole};
use super::effective::PolicyIndex;
use super::generations;
use super::model::{Binding, Destination, ObjectKey, Queue};
use super::observed::{BrokerFacts, Observed};
use super::ownership::{Inventory, Record, State};
use super::plan::{Blocked, BlockedBy, Plan};
use super::recreation::{self, Recreation};
use super::removal;
use super::spec::Settings;
use super::stand_in;
use super::validate::Pipeline;
pub use mismatch::{Mismatch, queue_mismatches};
pub(super) use mismatch::{describe_mismatches, exchange_mismatches};

/// Everything that a comparison looks at.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The checked pipeline.
    pub pipeline: &'a Pipeline,
    /// The broker's version and abilities.
    pub facts: &'a BrokerFacts,
    /// What the vhost holds.
    pub observed: &'a Observed,
    /// The vhost's policies, compiled.
    pub policies: &'a PolicyIndex<'a>,
    /// What status says we have.
    pub inventory: &'a Inventory,
    /// Whether equal objects that exist already may be taken over.
    pub adopt: bool,
    /// Queues proven empty twice, with nothing leading to them.
    pub proven_empty: &'a BTreeSet<String>,
    /// Names that an older claim than ours takes, with whose it is.
    pub contested: &'a BTreeMap<ObjectKey, String>,
    /// Whether the specification is another one than that which was carried out last,
    /// or none was yet.
    pub edited: bool,
    /// The hash of the pending plan that a person has consented to.
    pub consent: Option<&'a str>,
}

/// The result of a comparison.
#[derive(Clone, Debug)]
pub struct Diff {
    /// What the pipeline wants, in the generations chosen.
    pub desired: Desired,
    /// What to do.
    pub plan: Plan,
    /// The inventory once the plan is applied.
    pub inventory: Inventory,
    /// Objects to take off the inventory without touching them: they are gone, or
    /// somebody else's by now.
    pub forgotten: Vec<ObjectKey>,
    /// Objects that we had, that are still needed, and that somebody took away.
    /// A chain that lost an exchange is built anew beside the old one, so the
    /// steps alone do not tell such damage from an edit.
    pub missing: Vec<ObjectKey>,
    /// Whether queues are being made anew, so that the specification is not carried out yet.
    pub recreates: bool,
}

impl Diff {
    /// What to record before the first write: all that exists or is about to. What
    /// is about to be adopted is recorded as that at once, so that it never passes
    /// for something that we declared.
    #[must_use]
    pub fn intended(&self, before: &Inventory) -> Inventory {
        let mut intended = before.clone();
        for (key, record) in &self.inventory {
            let state = if record.state == State::Adopted { State::Adopted } else { State::Intended };
            intended.entry(key.clone()).or_insert(Record { state, ..*record });
        }
        intended
    }
}

/// Compares.
#[must_use]
pub fn diff(context: &Context<'_>) -> Diff {
    // What is on its way goes on until it is done.
    let edited = context.edited || recreation::is_under_way(context);
    let context = &Context { edited, ..*context };
    let generations = generations::choose(
        context.pipeline,
        context.facts,
        context.observed,
        context.inventory,
        context.edited,
    );
    let desired = desired::build(context.pipeline, context.facts, &generations);
    let mut differ = Differ {
        context,
        plan: Plan::default(),
        inventory: context.inventory.clone(),
        usable: BTreeSet::new(),
        unequal: BTreeSet::new(),
        inflow: Vec::new(),
        forgotten: Vec::new(),
        refusals: refusals::Refusals::new(),
        going: BTreeSet::new(),
    };
    differ.contested(&desired);
    differ.refuse_ownership();
    differ.refuse_lost_tiers(&desired);
    differ.check_policies(&desired);
    differ.owner_exchange();
    for exchange in &desired.exchanges {
        differ.exchange(exchange);
    }
    for queue in &desired.queues {
        differ.queue(queue);
    }
    differ.bindings(&desired);
    if let Some(slots) = &desired.slots {
        differ.slots(slots);
    }
    differ.policies(&desired);
    let obsolete = removal::Obsolete { context, desired: &desired, unequal: &differ.unequal };
    obsolete.plan(&mut differ.plan, &mut differ.inventory, &mut differ.forgotten);
    differ.finish(desired)
}

struct Differ<'a> {
    context: &'a Context<'a>,
    plan: Plan,
    inventory: Inventory,
    /// Objects that are there and may be bound, or will be once the plan has
    /// declared them.
    usable: BTreeSet<Destination>,
    /// Queues of ours that are not as wanted.
    unequal: BTreeSet<String>,
    /// The user's bindings that are missing, with their key.
    inflow: Vec<(ObjectKey, Binding)>,
    forgotten: Vec<ObjectKey>,
    /// What the specification asks for and can't have.
    refusals: refusals::Refusals,
    /// The queues for whose sake.
    going: BTreeSet<String>,
}

impl<'a> Differ<'a> {
    fn block(&mut self, by: BlockedBy, object: impl ToString, why: impl Into<String>) {
        self.plan.blocked.push(Blocked { by, object: object.to_string(), why: why.into() });
    }

    fn record(&mut self, key: ObjectKey, state: State, generation: u32) {
        self.inventory.insert(key, Record { state, generation });
    }

    fn known(&self, key: &ObjectKey) -> Option<State> {
        self.context.inventory.get(key).map(|record| record.state)
    }

    fn is_usable(&self, object: &Destination) -> bool {
        self.usable.contains(object)
    }

    fn missing(&self, desired: &Desired) -> Vec<ObjectKey> {
        let Context { pipeline, observed, policies, .. } = self.context;
        let source = &pipeline.spec.source.queue;
        let is_there = |key: &ObjectKey| match key {
            ObjectKey::Queue(name) => observed.queues.contains_key(name),
            ObjectKey::Exchange(name) => observed.exchanges.contains_key(name),
            ObjectKey::Policy(name) => policies.named(name).is_some(),
            ObjectKey::Binding { exchange, routing_key } => {
                observed.has_binding(&removal::user_binding(source, exchange, routing_key))
            }
        };
        let recorded = self.context.inventory.iter().filter(|(_, record)| record.state != State::Intended);
        let gone = recorded.filter(|(key, _)| !is_there(key)).map(|(key, _)| key.clone());
        let gone: Vec<ObjectKey> = gone.collect();
        if gone.is_empty() {
            return gone;
        }
        let wanted = removal::wanted_keys(desired);
        let in_use = |key: &ObjectKey| match key {
            ObjectKey::Exchange(name) => generations::is_in_use(pipeline, observed, name),
            _ => false,
        };
        gone.into_iter().filter(|key| wanted.contains(key) || in_use(key)).collect()
    }

    /// What becomes of an edit that can't be carried out in place: queues are made anew where a
    /// person has consented, and else the whole of it waits.
    fn refused_edit(&mut self) -> Option<Recreation<'a>> {
        // What else an edit would need is for the one that replaces it.
        let needs = |blocked: &Blocked| matches!(blocked.by, BlockedBy::Missing | BlockedBy::PolicyConflict);
        self.plan.blocked.retain(|blocked| !needs(blocked));
        let refused = std::mem::take(&mut self.refusals);
        let recreation = self.recreation();
        let obstacle = refusals::obstacle(&refused).or_else(|| recreation.obstacle());
        if let Some(obstacle) = obstacle {
            self.plan.blocked.extend(refusals::describe(refused, &obstacle));
            return None;
        }
        let pending = refusals::pending(&refused, &self.context.pipeline.identity, &recreation.going);
        if self.context.consent == Some(pending.hash.as_str()) || recreation::is_under_way(self.context) {
            return Some(recreation);
        }
        self.plan.blocked.extend(refusals::awaits(refused, &pending));
        self.plan.pending = Some(pending);
        None
    }

    fn recreation(&self) -> Recreation<'a> {
        let tiers = self.own_queues().map(|(key, _)| key.name().to_owned());
        Recreation { context: self.context, going: self.going.clone(), tiers: tiers.collect() }
    }

    /// Withholds everything where the edit is refused, or where somebody else's rights
    /// or a dangerous policy stand against the first write.
    fn finish(mut self, desired: Desired) -> Diff {
        self.bind_inflow();
        let edit_refused = !self.refusals.is_empty();
        let recreation = if edit_refused { self.refused_edit() } else { None };
        recreation::rejoin(self.context, &mut self.plan);
        let conflict = self.plan.blocked.iter().any(|blocked| blocked.by == BlockedBy::Conflict);
        let first_time = !self.context.inventory.values().any(|record| record.state != State::Intended);
        let refused = |blocked: &Blocked| {
            matches!(blocked.by, BlockedBy::PolicyShadowed | BlockedBy::PolicyConflict)
                || (blocked.by == BlockedBy::Missing && blocked.object.starts_with("queue "))
        };
        if edit_refused || conflict || (first_time && self.plan.blocked.iter().any(refused)) {
            self.plan.steps.clear();
            self.plan.draining.clear();
            self.plan.moves.clear();
            self.inventory = self.context.inventory.clone();
            self.forgotten.clear();
        }
        let recreation = recreation.filter(|_| !conflict);
        let recreates = recreation.is_some() || stand_in::is_any(self.context.inventory);
        if let Some(recreation) = recreation {
            let blocked = std::mem::take(&mut self.plan.blocked);
            self.plan = Plan { blocked, ..recreation.plan(&mut self.inventory) };
        }
        self.plan.sort();
        let missing = self.missing(&desired);
        let inventory = self.inventory;
        Diff { desired, plan: self.plan, inventory, forgotten: self.forgotten, missing, recreates }
    }
}

/// Whether a classic queue that the user chose keeps the pipeline from
/// at-least-once, and which.
#[must_use]
pub fn at_most_once_queues(desired: &Desired) -> Vec<&str> {
    let classic = |queue: &&DesiredQueue| queue.queue.kind != super::model::QueueType::Quorum;
    desired.queues.iter().filter(classic).map(|queue| queue.queue.name.as_str()).collect()
}

/// The queues whose name and arguments an application may rely on: the DLQ, the
/// source unless it is the application's own and, in mode Application, the tiers.
#[must_use]
pub fn client_contract(pipeline: &Pipeline, desired: &Desired) -> Vec<Queue> {
    let application = pipeline.spec.mode == super::spec::Mode::Application;
    desired
        .queues
        .iter()
        .filter(|queue| queue.declared)
        .filter(|queue| match queue.role {
            QueueRole::Source | QueueRole::DeadLetter => true,
            QueueRole::Retry { .. } => application,
            QueueRole::Quarantine(_) | QueueRole::ParkingLot => false,
        })
        .map(|queue| queue.queue.clone())
        .collect()
}

/// How many policies a pipeline writes, which is what makes a vhost slow.
#[must_use]
pub fn policy_count(desired: &Desired, settings: Settings) -> usize {
    match settings {
        Settings::Policy { .. } => desired.policies.len(),
        Settings::Arguments => 0,
    }
}
