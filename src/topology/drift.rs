//! What counts as drift: somebody else's changes, one finding for each cause.
//!
//! An object that is gone is a finding whatever else is to be done. Every other
//! difference is one only once the specification has been carried out: before that it
//! is the change itself. What merely follows from a cause, such as the bindings of a
//! queue that is declared again, is none of its own.

use std::collections::BTreeSet;
use std::fmt;

use super::desired::{self, Desired};
use super::diff::{Context, Diff, describe_mismatches, exchange_mismatches, queue_mismatches};
use super::generations;
use super::model::{Binding, Destination, ObjectKey};
use super::names::OWNER_EXCHANGE;
use super::observed::Observed;
use super::ownership::standing;
use super::plan::{PlannedStep, Stage, Step};
use super::spec::Ownership;
use super::uses;

/// More markers than this are not lost one by one: somebody took the owner exchange away.
const FEW_MARKERS: usize = 3;

/// One difference that somebody else has made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// The object, such as `queue orders.dlq`.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
}

impl Found {
    fn new(object: impl ToString, what: impl Into<String>) -> Self {
        Self { object: object.to_string(), what: what.into() }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.object, self.what)
    }
}

/// What a comparison shows of others' changes. What stands in the way of a repair is not
/// here but in the plan, as blocked.
#[must_use]
pub fn findings(context: &Context<'_>, comparison: &Diff) -> Vec<Found> {
    let mut found: Vec<Found> = comparison.missing.iter().filter_map(missing).collect();
    if context.edited {
        return found;
    }
    let causes = Causes::new(context, comparison);
    found.extend(causes.replaced());
    found.extend(causes.markers());
    found.extend(causes.steps().filter(|planned| causes.is_cause(planned)).filter_map(|planned| {
        let known = |policy: &str| context.inventory.contains_key(&ObjectKey::Policy(policy.to_owned()));
        undone(&planned.step, known)
    }));
    if found.is_empty() && causes.switches {
        // Nothing is gone, but rules were changed so that another chain must replace this one.
        found.extend(causes.rules());
    }
    found
}

fn missing(key: &ObjectKey) -> Option<Found> {
    match key {
        ObjectKey::Queue(_) => Some(Found::new(key, "is missing; the messages that it held are gone")),
        ObjectKey::Exchange(_) => Some(Found::new(key, "is missing")),
        // The steps tell.
        ObjectKey::Policy(_) | ObjectKey::Binding { .. } => None,
    }
}

/// What a step undoes; declarations are among what is missing, markers by themselves.
fn undone(step: &Step, is_known: impl Fn(&str) -> bool) -> Option<Found> {
    match step {
        // The owner exchange is nobody's, and in no inventory.
        Step::CreateExchange { exchange, marker: None } => {
            Some(Found::new(format!("exchange {}", exchange.name), "is missing"))
        }
        Step::Bind(binding) => Some(Found::new(format!("binding {binding}"), "is missing")),
        Step::Unbind(binding) => {
            Some(Found::new(format!("binding {binding}"), "is there and changes the way of messages"))
        }
        Step::SetPolicy(policy) => {
            let what = if is_known(&policy.name) { "is missing or was changed" } else { "is missing" };
            Some(Found::new(format!("policy {}", policy.name), what))
        }
        Step::CreateQueue { .. }
        | Step::CreateExchange { .. }
        | Step::Mark(_)
        | Step::Unmark(_)
        | Step::ClearPolicy(_)
        | Step::DeleteQueue(_)
        | Step::DeleteExchange(_) => None,
    }
}

/// A comparison, and what in it follows from something else.
struct Causes<'a> {
    context: &'a Context<'a>,
    comparison: &'a Diff,
    /// What the plan declares.
    declared: BTreeSet<Destination>,
    /// What was deleted and declared again by somebody else, without its bindings.
    bare: BTreeSet<Destination>,
    /// Old generations drain or go.
    migrates: bool,
    /// A chain is built beside one that is damaged.
    switches: bool,
}

impl<'a> Causes<'a> {
    fn new(context: &'a Context<'a>, comparison: &'a Diff) -> Self {
        let steps = || comparison.plan.steps.iter();
        let removes =
            |planned: &PlannedStep| matches!(planned.step, Step::DeleteQueue(_) | Step::DeleteExchange(_));
        let marked = steps().filter_map(|planned| match &planned.step {
            Step::Mark(marker) => Some(marker.destination.clone()),
            _ => None,
        });
        // An External source has no marker.
        let candidates = marked.chain(external_source(context, comparison));
        Self {
            context,
            comparison,
            declared: steps().filter_map(|planned| declared(&planned.step)).collect(),
            bare: candidates
                .filter(|object| is_bare(object, &comparison.desired, context.observed))
                .collect(),
            // An old generation's rules go when its messages have gone.
            migrates: !comparison.plan.draining.is_empty() || steps().any(removes),
            switches: steps().any(rebuilds_chain),
        }
    }

    fn steps(&self) -> impl Iterator<Item = &'a PlannedStep> {
        self.comparison.plan.steps.iter()
    }

    /// Whether a step undoes something by itself.
    fn is_cause(&self, planned: &PlannedStep) -> bool {
        match &planned.step {
            Step::Bind(binding) => {
                let source = Destination::Exchange(binding.source.clone());
                let follows = [&binding.destination, &source]
                    .into_iter()
                    .any(|end| self.declared.contains(end) || self.bare.contains(end));
                !(follows || (self.switches && planned.stage == Stage::Activate))
            }
            Step::Unbind(binding) => {
                let goes = self.migrates || (self.switches && planned.stage < Stage::Source);
                !(goes && self.may_be_ours(binding))
            }
            _ => true,
        }
    }

    /// Whether we may have made a binding that is not wanted any more.
    fn may_be_ours(&self, binding: &Binding) -> bool {
        let pipeline = self.context.pipeline;
        let key = match &binding.destination {
            Destination::Queue(name) => ObjectKey::Queue(name.clone()),
            Destination::Exchange(name) => ObjectKey::Exchange(name.clone()),
        };
        let to_source = binding.destination == Destination::Queue(pipeline.spec.source.queue.clone());
        let closes_loop = to_source && pipeline.names().return_number(&binding.source).is_none();
        let leads_out = !to_source && !self.context.inventory.contains_key(&key);
        uses::is_internal(pipeline, &binding.source) && !closes_loop && !leads_out
    }

    /// Markers that are gone, and what that means.
    fn markers(&self) -> Vec<Found> {
        let lost = self.steps().filter_map(|planned| match &planned.step {
            Step::Mark(marker) => Some(&marker.destination),
            _ => None,
        });
        let (bare, unmarked): (Vec<_>, Vec<_>) = lost.partition(|object| self.bare.contains(object));
        let source =
            external_source(self.context, self.comparison).filter(|source| self.bare.contains(source));
        let mut found: Vec<Found> = bare.into_iter().chain(&source).map(declared_again).collect();
        if self.declared.contains(&Destination::Exchange(OWNER_EXCHANGE.to_owned())) {
            // That it is missing says it all.
            return found;
        }
        if unmarked.len() > FEW_MARKERS {
            let what = format!("has lost the markers of {} objects", unmarked.len());
            found.push(Found::new(format!("exchange {OWNER_EXCHANGE}"), what));
        } else {
            found.extend(unmarked.into_iter().map(without_marker));
        }
        found
    }

    /// Objects of ours in whose place there are others now, which another generation replaces.
    fn replaced(&self) -> Vec<Found> {
        let observed = self.context.observed;
        let is_there = |key: &&ObjectKey| match key {
            ObjectKey::Queue(name) => observed.queues.contains_key(name),
            ObjectKey::Exchange(name) => observed.exchanges.contains_key(name),
            ObjectKey::Policy(_) | ObjectKey::Binding { .. } => false,
        };
        let taken: Vec<&ObjectKey> = self.comparison.forgotten.iter().filter(is_there).collect();
        if taken.is_empty() {
            return Vec::new();
        }
        let before = self.before();
        let us = &self.context.pipeline.identity;
        let is_foreign = |object: &Destination| !standing(observed, object, us).is_ours();
        taken.into_iter().filter_map(|key| replacement(key, &before, observed, is_foreign)).collect()
    }

    /// Rules of the chain before that were changed.
    fn rules(&self) -> Vec<Found> {
        let observed = self.context.observed;
        let before = self.before();
        let wanted: BTreeSet<&Binding> = before.bindings.iter().map(|rule| &rule.binding).collect();
        let of_chain = |exchange: &&desired::DesiredExchange| generations::is_chain_stage(exchange.stage);
        let chain: Vec<&str> = before
            .exchanges
            .iter()
            .filter(of_chain)
            .map(|exchange| exchange.exchange.name.as_str())
            .collect();
        let extra = chain.iter().flat_map(|name| observed.bindings_from(name));
        let extra = extra.filter(|rule| !wanted.contains(rule)).map(|rule| Step::Unbind(rule.clone()));
        let lost = wanted.iter().filter(|rule| chain.contains(&rule.source.as_str()));
        let lost = lost.filter(|rule| !observed.has_binding(rule)).map(|rule| Step::Bind((*rule).clone()));
        extra.chain(lost).filter_map(|step| undone(&step, |_| true)).collect()
    }

    /// What was wanted in the generations that are recorded.
    fn before(&self) -> Desired {
        let Context { pipeline, facts, inventory, .. } = *self.context;
        let nothing = Observed::default();
        let generations = generations::choose(pipeline, facts, &nothing, inventory, false);
        desired::build(pipeline, facts, &generations)
    }
}

/// The source, where it belongs to an application and is bound anew.
fn external_source(context: &Context<'_>, comparison: &Diff) -> Option<Destination> {
    let source = &context.pipeline.spec.source;
    let object = Destination::Queue(source.queue.clone());
    let is_bound = comparison
        .plan
        .steps
        .iter()
        .any(|planned| matches!(&planned.step, Step::Bind(binding) if binding.destination == object));
    (source.ownership == Ownership::External && is_bound).then_some(object)
}

/// Whether a step is part of building a chain beside the damaged one.
fn rebuilds_chain(planned: &PlannedStep) -> bool {
    let in_chain = planned.stage < Stage::Slot && planned.stage > Stage::Tier;
    in_chain && matches!(planned.step, Step::CreateExchange { .. })
}

fn declared(step: &Step) -> Option<Destination> {
    match step {
        Step::CreateQueue { queue, .. } => Some(Destination::Queue(queue.name.clone())),
        Step::CreateExchange { exchange, .. } => Some(Destination::Exchange(exchange.name.clone())),
        _ => None,
    }
}

/// Whether nothing is bound where something ought to be: who deletes an object takes its
/// bindings with it.
fn is_bare(object: &Destination, desired: &Desired, observed: &Observed) -> bool {
    let touches = |binding: &Binding| {
        binding.destination == *object || *object == Destination::Exchange(binding.source.clone())
    };
    let is_slot = |slots: &desired::Slots| {
        let (both, name) = ([&slots.head, &slots.alternate], object.name());
        // Only one of them leads anywhere.
        let is_lost = both.iter().all(|slot| observed.bindings_from(slot).next().is_none());
        matches!(object, Destination::Exchange(_)) && is_lost && both.iter().any(|slot| *slot == name)
    };
    let wanted = desired.bindings.iter().any(|wanted| touches(&wanted.binding))
        || desired.slots.as_ref().is_some_and(is_slot);
    let leads_on = match object {
        Destination::Exchange(name) => observed.bindings_from(name).next().is_some(),
        Destination::Queue(_) => false,
    };
    wanted && !leads_on && observed.bindings_to(object).next().is_none()
}

fn declared_again(object: &Destination) -> Found {
    let what = match object {
        Destination::Queue(_) => {
            "was deleted and declared again by somebody else; the messages that it held are gone"
        }
        Destination::Exchange(_) => "was deleted and declared again by somebody else, without its bindings",
    };
    Found::new(object, what)
}

fn without_marker(object: &Destination) -> Found {
    let what = match object {
        Destination::Queue(_) => {
            "has lost its owner marker; if it was deleted and declared again, the messages that it held are gone"
        }
        Destination::Exchange(_) => "has lost its owner marker",
    };
    Found::new(object, what)
}

/// What stands in the place of an object of ours.
fn replacement(
    key: &ObjectKey,
    before: &Desired,
    observed: &Observed,
    is_foreign: impl Fn(&Destination) -> bool,
) -> Option<Found> {
    let (object, mismatches, lost) = match key {
        ObjectKey::Queue(name) => {
            let wanted = before.queues.iter().find(|queue| queue.queue.name == *name)?;
            let mismatches = queue_mismatches(&wanted.queue, observed.queues.get(name)?);
            (Destination::Queue(name.clone()), mismatches, "; the messages that it held are gone")
        }
        ObjectKey::Exchange(name) => {
            let wanted = before.exchanges.iter().find(|exchange| exchange.exchange.name == *name)?;
            let mismatches = exchange_mismatches(&wanted.exchange, observed.exchanges.get(name)?);
            (Destination::Exchange(name.clone()), mismatches, "")
        }
        ObjectKey::Policy(_) | ObjectKey::Binding { .. } => return None,
    };
    if mismatches.is_empty() || !is_foreign(&object) {
        return None;
    }
    let how = describe_mismatches(&mismatches);
    Some(Found::new(
        object,
        format!("was replaced by somebody else's{lost}: {how}, and another takes its place"),
    ))
}
