//! Which exchanges must stay because something that stays sends messages there.

use std::collections::BTreeSet;

use super::super::model::{Arg, Args, Binding, Destination};
use super::super::names::OWNER_EXCHANGE;
use super::super::observed::Observed;

/// What is about to go.
pub(super) struct Going<'a> {
    pub(super) observed: &'a Observed,
    pub(super) exchanges: BTreeSet<&'a str>,
    pub(super) queues: BTreeSet<&'a str>,
    pub(super) policies: BTreeSet<&'a str>,
    pub(super) bindings: Vec<Binding>,
}

impl<'a> Going<'a> {
    pub(super) fn nothing(observed: &'a Observed) -> Self {
        Self {
            observed,
            exchanges: BTreeSet::new(),
            queues: BTreeSet::new(),
            policies: BTreeSet::new(),
            bindings: Vec::new(),
        }
    }

    /// The exchanges that must stay. An exchange that stays holds all those that
    /// it leads to: half a chain would lose what enters it.
    pub(super) fn held(&self) -> BTreeSet<&'a str> {
        if self.exchanges.is_empty() {
            return BTreeSet::new();
        }
        let mut held = self.dead_letter_targets();
        held.extend(self.alternates_of_others());
        held.extend(self.exchanges.iter().copied().filter(|name| self.is_bound(name)));
        let mut fresh: Vec<&str> = held.iter().copied().collect();
        while let Some(name) = fresh.pop() {
            for next in self.leads_to(name) {
                if held.insert(next) {
                    fresh.push(next);
                }
            }
        }
        held
    }

    fn going(&self, name: &str) -> Option<&'a str> {
        self.exchanges.get(name).copied()
    }

    fn target(&self, settings: &Args, key: &str) -> Option<&'a str> {
        match settings.get(key) {
            Some(Arg::Str(name)) => self.going(name),
            _ => None,
        }
    }

    fn dead_letter_targets(&self) -> BTreeSet<&'a str> {
        let queues = self.observed.queues.iter().filter(|(name, _)| !self.queues.contains(name.as_str()));
        let by_queue =
            queues.filter_map(|(_, queue)| self.target(&queue.arguments, "x-dead-letter-exchange"));
        let policies = self.observed.policies.iter();
        let policies = policies.filter(|policy| !self.policies.contains(policy.name.as_str()));
        let by_policy = policies.flat_map(|policy| {
            ["dead-letter-exchange", "alternate-exchange"].map(|key| self.target(&policy.definition, key))
        });
        by_queue.chain(by_policy.flatten()).collect()
    }

    fn alternates_of_others(&self) -> impl Iterator<Item = &'a str> {
        let staying = self.observed.exchanges.iter().filter(|(name, _)| self.going(name).is_none());
        staying.filter_map(|(_, exchange)| self.target(&exchange.arguments, "alternate-exchange"))
    }

    /// Whether an exchange that stays leads here, or a public exchange still leads
    /// to something that stays.
    fn is_bound(&self, name: &str) -> bool {
        let here = Destination::Exchange(name.to_owned());
        let mut inbound = self.observed.bindings_to(&here);
        let public = self.observed.exchanges.get(name).is_some_and(|exchange| !exchange.internal);
        let goes = |found: &Binding| match &found.destination {
            Destination::Queue(queue) => {
                self.queues.contains(queue.as_str()) || self.bindings.contains(found)
            }
            Destination::Exchange(exchange) => self.going(exchange).is_some(),
        };
        let stays = |found: &Binding| {
            found.source != OWNER_EXCHANGE
                && self.going(&found.source).is_none()
                && !self.bindings.contains(found)
        };
        inbound.any(stays) || (public && !self.observed.bindings_from(name).all(goes))
    }

    fn leads_to(&self, name: &str) -> Vec<&'a str> {
        let bound = self.observed.bindings_from(name).filter_map(|binding| match &binding.destination {
            Destination::Exchange(next) => self.going(next),
            Destination::Queue(_) => None,
        });
        let exchange = self.observed.exchanges.get(name);
        let alternate = exchange.and_then(|found| self.target(&found.arguments, "alternate-exchange"));
        bound.chain(alternate).collect()
    }
}
