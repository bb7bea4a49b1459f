//! Objects that a pipeline has and does not want any more.

use std::collections::BTreeSet;

use super::super::desired::Desired;
use super::super::diff::Context;
use super::super::model::{Arg, Args, Binding, Destination, ObjectKey, Policy};
use super::super::names::{OWNER_EXCHANGE, exact_pattern};
use super::super::observed::Observed;
use super::super::ownership::{Inventory, Standing, State, marker, markers_of, standing};
use super::super::plan::{Move, Plan, Stage, Step};
use super::super::stand_in;
use super::references::Going;
use super::user_binding;

/// What the inventory has and the pipeline wants no more.
pub(in crate::topology) struct Obsolete<'a> {
    pub(in crate::topology) context: &'a Context<'a>,
    pub(in crate::topology) desired: &'a Desired,
    /// Queues that are not as wanted yet: their policies stay.
    pub(in crate::topology) unequal: &'a BTreeSet<String>,
}

enum Verdict {
    /// Something still needs it.
    Keep,
    /// It goes when it is proven empty.
    Drain(String),
    /// It is gone, or not ours: off the inventory, untouched.
    Forget,
    /// We were killed before we could mark it; once marked, it goes.
    Mark(Binding),
    /// It goes now.
    Remove(Stage, Vec<Step>),
}

impl Obsolete<'_> {
    /// Plans its removal.
    pub(in crate::topology) fn plan(
        &self,
        plan: &mut Plan,
        inventory: &mut Inventory,
        forgotten: &mut Vec<ObjectKey>,
    ) {
        let wanted = wanted_keys(self.desired);
        let obsolete: Vec<(&ObjectKey, State)> = self
            .context
            .inventory
            .iter()
            .filter(|(key, _)| !wanted.contains(key))
            .map(|(key, record)| (key, record.state))
            .collect();
        let held = self.held_exchanges(&obsolete);
        for (key, state) in obsolete {
            match self.verdict(key, state, &held) {
                Verdict::Keep => {}
                Verdict::Drain(name) => {
                    plan.moves.extend(self.destination(&name));
                    plan.draining.push(name);
                }
                Verdict::Mark(marker) => plan.push(Stage::Owner, Step::Mark(marker)),
                Verdict::Forget => {
                    inventory.remove(key);
                    forgotten.push(key.clone());
                }
                Verdict::Remove(stage, steps) => {
                    inventory.remove(key);
                    for step in steps {
                        // Exclusive bindings may have found the same one.
                        if !plan.steps.iter().any(|planned| planned.step == step) {
                            plan.push(stage, step);
                        }
                    }
                }
            }
        }
    }

    /// Where the messages of a queue go that drains.
    fn destination(&self, queue: &str) -> Option<Move> {
        let Context { pipeline, observed, .. } = self.context;
        stand_in::destination(pipeline, observed, &self.desired.queues, queue)
    }

    /// Queues and policies that go in this plan still count: what they lead to
    /// goes one comparison later.
    fn held_exchanges(&self, obsolete: &[(&ObjectKey, State)]) -> BTreeSet<String> {
        let observed = self.context.observed;
        let ours = obsolete.iter().filter_map(|(key, state)| match key {
            ObjectKey::Exchange(name) if observed.exchanges.contains_key(name) => {
                self.claim(&Destination::Exchange(name.clone()), *state).is_ok().then_some(name.as_str())
            }
            _ => None,
        });
        let going = Going { exchanges: ours.collect(), ..Going::nothing(observed) };
        going.held().into_iter().map(str::to_owned).collect()
    }

    fn verdict(&self, key: &ObjectKey, state: State, held: &BTreeSet<String>) -> Verdict {
        match key {
            ObjectKey::Queue(name) => self.queue_verdict(name, state),
            ObjectKey::Exchange(name) if !self.context.observed.exchanges.contains_key(name) => {
                Verdict::Forget
            }
            ObjectKey::Exchange(name) => match self.claim(&Destination::Exchange(name.clone()), state) {
                Err(verdict) => verdict,
                Ok(()) if held.contains(name) => Verdict::Keep,
                Ok(()) => Verdict::Remove(Stage::RemoveExchange, vec![Step::DeleteExchange(name.clone())]),
            },
            ObjectKey::Policy(name) => self.policy_verdict(name),
            ObjectKey::Binding { exchange, routing_key } => {
                self.binding_verdict(exchange, routing_key, state)
            }
        }
    }

    /// Whether an object is ours to remove, or what to do instead.
    fn claim(&self, object: &Destination, state: State) -> Result<(), Verdict> {
        let us = &self.context.pipeline.identity;
        match standing(self.context.observed, object, us) {
            Standing::Ours { adopted: false, others } if others.is_empty() && state != State::Adopted => {
                Ok(())
            }
            // Adopted, or owned by others as well: only our marker goes.
            Standing::Ours { .. } => {
                let markers = markers_of(self.context.observed, object, us);
                let steps = markers.map(|marker| Step::Unmark(marker.clone())).collect();
                Err(Verdict::Remove(Stage::Unbind, steps))
            }
            Standing::Unmarked if state == State::Intended && self.is_half_made(object) => {
                Err(Verdict::Mark(marker(us, object.clone())))
            }
            _ => Err(Verdict::Forget),
        }
    }

    /// Whether nobody but this pipeline can have declared an object, and nobody can
    /// have used it: an unused exchange or queue that leads to our own routing.
    fn is_half_made(&self, object: &Destination) -> bool {
        let observed = self.context.observed;
        let names = self.context.pipeline.names();
        let leads_to_us = |arguments: &Args, key: &str| matches!(arguments.get(key), Some(Arg::Str(target)) if names.is_reserved(target));
        let unbound = observed.bindings_to(object).next().is_none();
        let ours = match object {
            Destination::Exchange(name) => observed.exchanges.get(name).is_some_and(|found| {
                found.internal
                    && observed.bindings_from(name).next().is_none()
                    && (names.is_reserved(name) || leads_to_us(&found.arguments, "alternate-exchange"))
            }),
            Destination::Queue(name) => observed.queues.get(name).is_some_and(|found| {
                found.totals.messages == Some(0) && leads_to_us(&found.arguments, "x-dead-letter-exchange")
            }),
        };
        unbound && ours
    }

    fn queue_verdict(&self, name: &str, state: State) -> Verdict {
        let observed = self.context.observed;
        let object = Destination::Queue(name.to_owned());
        if !observed.queues.contains_key(name) {
            return Verdict::Forget;
        }
        if observed.unavailable.contains(name) {
            // Its bindings may not be shown, nor whose it is.
            return Verdict::Drain(name.to_owned());
        }
        if let Err(verdict) = self.claim(&object, state) {
            return verdict;
        }
        let bound = observed.bindings_to(&object).any(|binding| binding.source != OWNER_EXCHANGE);
        let source = &self.context.pipeline.spec.source.queue;
        let clients_publish = observed.queues.get(name).is_some_and(|queue| queue.leads_to(source));
        if bound || clients_publish || is_dead_letter_queue(observed, name) {
            // No proof that it is empty would last.
            Verdict::Keep
        } else if self.context.proven_empty.contains(name) {
            Verdict::Remove(Stage::RemoveQueue, vec![Step::DeleteQueue(name.to_owned())])
        } else {
            Verdict::Drain(name.to_owned())
        }
    }

    /// A policy stays as long as its queue is not what is wanted instead.
    fn policy_verdict(&self, name: &str) -> Verdict {
        let Some(policy) = self.context.policies.named(name) else { return Verdict::Forget };
        let is_for = |queue: &String| exact_pattern(queue) == policy.pattern;
        if self.unequal.iter().any(is_for) {
            return Verdict::Keep;
        }
        Verdict::Remove(Stage::RemovePolicy, vec![Step::ClearPolicy(name.to_owned())])
    }

    fn binding_verdict(&self, exchange: &str, routing_key: &str, state: State) -> Verdict {
        let binding = user_binding(&self.context.pipeline.spec.source.queue, exchange, routing_key);
        // What was bound before us goes its own way again.
        if state == State::Adopted || !self.context.observed.has_binding(&binding) {
            return Verdict::Forget;
        }
        Verdict::Remove(Stage::Unbind, vec![Step::Unbind(binding)])
    }
}

/// Whether a queue dead-letters here through the default exchange.
fn is_dead_letter_queue(observed: &Observed, name: &str) -> bool {
    let is = |value: Option<&Arg>, text: &str| matches!(value, Some(Arg::Str(found)) if found == text);
    let by_argument = observed.queues.values().any(|queue| queue.leads_to(name));
    let leads_here = |policy: &Policy| {
        is(policy.definition.get("dead-letter-exchange"), "")
            && is(policy.definition.get("dead-letter-routing-key"), name)
    };
    by_argument || observed.policies.iter().any(leads_here)
}

/// The keys under which an inventory records what is wanted.
pub(in crate::topology) fn wanted_keys(desired: &Desired) -> BTreeSet<ObjectKey> {
    let queues = desired
        .queues
        .iter()
        .filter(|queue| queue.declared)
        .map(|queue| ObjectKey::Queue(queue.queue.name.clone()));
    let exchanges =
        desired.exchanges.iter().map(|exchange| ObjectKey::Exchange(exchange.exchange.name.clone()));
    let policies = desired.policies.iter().map(|policy| ObjectKey::Policy(policy.policy.name.clone()));
    let bindings = desired.bindings.iter().filter(|binding| binding.user).map(|wanted| ObjectKey::Binding {
        exchange: wanted.binding.source.clone(),
        routing_key: wanted.binding.routing_key.clone(),
    });
    queues.chain(exchanges).chain(policies).chain(bindings).collect()
}
