//! What goes: objects that a pipeline does not want any more, and all of them
//! when the pipeline itself goes.
//!
//! Something is deleted only where inventory and marker agree that it is ours,
//! where it is proven empty, and where nothing leads to it. Adopted objects are
//! let go, not deleted.

mod obsolete;
mod references;

use std::collections::BTreeSet;

use super::desired::policy_name;
use super::model::{Binding, Destination, ObjectKey};
use super::names::{self, OWNER_EXCHANGE};
use super::observed::Observed;
use super::ownership::{Inventory, Record, Standing, State, markers_of, standing};
use super::plan::{Plan, Stage, Step};
use super::spec::Identity;
pub(super) use obsolete::{Obsolete, wanted_keys};
use references::Going;

/// What a removal needs to know; never a valid specification.
#[derive(Clone, Copy, Debug)]
pub struct Removal<'a> {
    /// Whose objects go.
    pub identity: &'a Identity,
    /// The source queue, to which the recorded bindings lead.
    pub source: &'a str,
    /// What status says we have.
    pub inventory: &'a Inventory,
    /// What the vhost holds.
    pub observed: &'a Observed,
    /// Whether adopted objects go as well.
    pub delete_adopted: bool,
}

impl Removal<'_> {
    /// The queues that would be deleted.
    #[must_use]
    pub fn queues(&self) -> Vec<&str> {
        let names = self.inventory.iter().filter_map(|(key, record)| match key {
            ObjectKey::Queue(name) => Some((name, record.state)),
            _ => None,
        });
        names
            .filter(|(name, _)| self.observed.queues.contains_key(*name))
            .filter(|(name, state)| self.deletes(&Destination::Queue((*name).clone()), *state))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The queues that must be proven empty before anything goes: those that would be
    /// deleted, and recorded ones that do not work. Of a queue whose nodes are down the
    /// broker may not show the marker (measured on 4.0.5, once the other nodes have
    /// restarted), and that it is not seen to be ours makes it no less full.
    #[must_use]
    pub fn queues_to_prove(&self) -> Vec<&str> {
        let mut queues = self.queues();
        let recorded = self.inventory.iter().filter_map(|(key, record)| match key {
            ObjectKey::Queue(name) if self.delete_adopted || record.state != State::Adopted => {
                Some(name.as_str())
            }
            _ => None,
        });
        let down = recorded.filter(|name| self.observed.unavailable.contains(*name));
        queues.extend(down);
        queues.sort_unstable();
        queues.dedup();
        queues
    }

    fn deletes(&self, object: &Destination, state: State) -> bool {
        match standing(self.observed, object, self.identity) {
            Standing::Ours { adopted, others } => {
                others.is_empty() && (self.delete_adopted || !(adopted || state == State::Adopted))
            }
            _ => false,
        }
    }

    /// Cuts the inflow: the user's bindings go, everything else stays. Those that
    /// were there before us go only where adopted objects do, or with their queue.
    #[must_use]
    pub fn unbind(&self) -> Plan {
        let mut plan = Plan::default();
        let source = Destination::Queue(self.source.to_owned());
        let recorded = self.inventory.get(&ObjectKey::Queue(self.source.to_owned()));
        let source_goes = recorded.is_some_and(|record| self.deletes(&source, record.state));
        for (binding, record) in self.recorded_bindings() {
            let ours = record.state != State::Adopted || self.delete_adopted || source_goes;
            if ours && self.observed.has_binding(&binding) {
                plan.push(Stage::Unbind, Step::Unbind(binding));
            }
        }
        for binding in self.diverted() {
            plan.push(Stage::Unbind, Step::Unbind(binding.clone()));
        }
        plan
    }

    /// What is led past a source that is being made anew.
    fn diverted(&self) -> impl Iterator<Item = &Binding> {
        let divert = Destination::Exchange(names::stand_in(self.source, 1));
        let is_ours = self.deletes(&divert, State::Created);
        let found: Vec<&Binding> = self.observed.bindings_to(&divert).collect();
        found.into_iter().filter(move |binding| is_ours && binding.source != OWNER_EXCHANGE)
    }

    /// Puts the inflow back where a removal can't go on.
    #[must_use]
    pub fn rebind(&self) -> Plan {
        let mut plan = Plan::default();
        let possible = self.observed.queues.contains_key(self.source);
        let missing = self.recorded_bindings().map(|(binding, _)| binding).filter(|binding| {
            possible
                && !self.observed.has_binding(binding)
                && self.observed.exchanges.contains_key(&binding.source)
        });
        for binding in missing {
            plan.push(Stage::UserBinding, Step::Bind(binding));
        }
        plan
    }

    /// Deletes all that is ours: what holds messages first, policies last.
    #[must_use]
    pub fn delete(&self) -> Plan {
        let mut plan = self.unbind();
        self.delete_policies(&mut plan);
        self.delete_queues(&mut plan);
        self.delete_exchanges(&mut plan);
        plan.sort();
        plan
    }

    /// A policy outlives the queue that it protects. That of an External source
    /// goes before all else: while it stands, the source dead-letters to us.
    fn delete_policies(&self, plan: &mut Plan) {
        let source_is_external = !self.inventory.contains_key(&ObjectKey::Queue(self.source.to_owned()));
        let of_source = policy_name(self.identity, "source");
        for key in self.inventory.keys() {
            let ObjectKey::Policy(name) = key else { continue };
            if self.observed.policy(name).is_some() {
                let first = source_is_external && *name == of_source;
                let stage = if first { Stage::RemoveSource } else { Stage::RemovePolicy };
                plan.push(stage, Step::ClearPolicy(name.clone()));
            }
        }
    }

    fn delete_queues(&self, plan: &mut Plan) {
        let going: BTreeSet<&str> = self.queues().into_iter().collect();
        for key in self.inventory.keys() {
            let ObjectKey::Queue(name) = key else { continue };
            if going.contains(name.as_str()) {
                let stage = if name == self.source { Stage::RemoveSource } else { Stage::RemoveQueue };
                plan.push(stage, Step::DeleteQueue(name.clone()));
            } else {
                self.unmark(plan, &Destination::Queue(name.clone()));
            }
        }
    }

    fn delete_exchanges(&self, plan: &mut Plan) {
        let deletable = self.inventory.iter().filter_map(|(key, record)| match key {
            ObjectKey::Exchange(name) if self.observed.exchanges.contains_key(name) => {
                self.deletes(&Destination::Exchange(name.clone()), record.state).then_some(name.as_str())
            }
            _ => None,
        });
        let going = Going {
            observed: self.observed,
            exchanges: deletable.collect(),
            queues: self.queues().into_iter().collect(),
            policies: self
                .inventory
                .keys()
                .filter_map(|key| match key {
                    ObjectKey::Policy(name) => Some(name.as_str()),
                    _ => None,
                })
                .collect(),
            bindings: unbound(plan),
        };
        let held = going.held();
        for key in self.inventory.keys() {
            let ObjectKey::Exchange(name) = key else { continue };
            if going.exchanges.contains(name.as_str()) && !held.contains(name.as_str()) {
                plan.push(Stage::RemoveExchange, Step::DeleteExchange(name.clone()));
            } else {
                self.unmark(plan, &Destination::Exchange(name.clone()));
            }
        }
    }

    fn unmark(&self, plan: &mut Plan, object: &Destination) {
        for marker in markers_of(self.observed, object, self.identity) {
            plan.push(Stage::RemoveExchange, Step::Unmark(marker.clone()));
        }
    }

    fn recorded_bindings(&self) -> impl Iterator<Item = (Binding, Record)> {
        self.inventory.iter().filter_map(|(key, record)| match key {
            ObjectKey::Binding { exchange, routing_key } => {
                Some((user_binding(self.source, exchange, routing_key), *record))
            }
            _ => None,
        })
    }
}

fn unbound(plan: &Plan) -> Vec<Binding> {
    let steps = plan.steps.iter();
    steps
        .filter_map(|planned| match &planned.step {
            Step::Unbind(binding) => Some(binding.clone()),
            _ => None,
        })
        .collect()
}

pub(super) fn user_binding(queue: &str, exchange: &str, routing_key: &str) -> Binding {
    Binding {
        source: exchange.to_owned(),
        destination: Destination::Queue(queue.to_owned()),
        routing_key: routing_key.to_owned(),
        arguments: [].into(),
    }
}
