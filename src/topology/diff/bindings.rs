//! Bindings: rules of the chain, the slots, the way back, and the user's own.

use std::collections::BTreeSet;

use super::super::desired::{Desired, DesiredExchange, DesiredQueue, QueueRole, Slots};
use super::super::generations::is_chain_stage;
use super::super::model::{Args, Binding, Destination, ObjectKey};
use super::super::names::OWNER_EXCHANGE;
use super::super::ownership::{State, standing};
use super::super::plan::{BlockedBy, Plan, Stage, Step};
use super::super::spec::Mode;
use super::super::uses;
use super::{Context, Differ};

impl Differ<'_> {
    /// Binds where both ends are usable, and unbinds what nobody asked for; never
    /// to or from what is not ours.
    pub(super) fn bindings(&mut self, desired: &Desired) {
        let extra = self.extra_bindings(desired);
        for wanted in &desired.bindings {
            if wanted.user {
                self.user_binding(desired, &wanted.binding);
                continue;
            }
            let binding = &wanted.binding;
            let source = Destination::Exchange(binding.source.clone());
            let usable = self.is_usable(&source) && self.is_usable(&binding.destination);
            // A fanout copies to all that it is bound to, so the wrong target goes
            // first, and the next comparison binds the right one.
            let would_copy = binding.arguments == Args::new()
                && wanted.stage != Stage::Spread
                && extra.iter().any(|(_, other)| other.source == binding.source);
            if usable && !would_copy && !self.context.observed.has_binding(binding) {
                let stage = self.stage_of(wanted.stage);
                self.plan.push(stage, Step::Bind(binding.clone()));
            }
        }
        for (stage, binding) in extra {
            self.plan.push(stage, Step::Unbind(binding));
        }
    }

    /// The way back must stand before the way there; only a source that does not
    /// exist yet can't be bound so early.
    fn stage_of(&self, wanted: Stage) -> Stage {
        let source = &self.context.pipeline.spec.source.queue;
        let exists = self.context.observed.queues.contains_key(source);
        if wanted == Stage::Return && exists { Stage::Tier } else { wanted }
    }

    /// Looks at one of the user's bindings, and records it where it holds.
    fn user_binding(&mut self, desired: &Desired, binding: &Binding) {
        let observed = self.context.observed;
        let ours = desired.exchanges.iter().any(|exchange| exchange.exchange.name == binding.source);
        let source = Destination::Exchange(binding.source.clone());
        let there =
            if ours { self.is_usable(&source) } else { observed.exchanges.contains_key(&binding.source) };
        if !there && !ours {
            let why = "does not exist: declare it as source.exchange, or create it first";
            self.block(BlockedBy::Missing, format!("exchange {}", binding.source), why);
        }
        if !there || !self.is_usable(&binding.destination) {
            return;
        }
        let key =
            ObjectKey::Binding { exchange: binding.source.clone(), routing_key: binding.routing_key.clone() };
        if observed.has_binding(binding) {
            // What was bound before us is not ours to unbind.
            let state = match self.known(&key) {
                Some(State::Created | State::Intended) => State::Created,
                Some(State::Adopted) | None => State::Adopted,
            };
            self.record(key, state, 1);
        } else {
            self.inflow.push((key, binding.clone()));
        }
    }

    /// Binds what the user wants, last of all. Nothing begins to flow into a
    /// pipeline that is not whole; what flowed before goes on.
    pub(super) fn bind_inflow(&mut self) {
        let whole = self.plan.blocked.is_empty();
        for (key, binding) in std::mem::take(&mut self.inflow) {
            let flowed = matches!(self.known(&key), Some(State::Created | State::Adopted));
            if whole || flowed {
                self.plan.push(Stage::UserBinding, Step::Bind(binding));
                self.record(key, State::Created, 1);
            }
        }
    }

    /// Brings the wanted chain into use, in one atomic step, and keeps the slots clean.
    pub(super) fn slots(&mut self, slots: &Slots) {
        let usable = [&slots.head, &slots.alternate, &slots.entry]
            .into_iter()
            .all(|name| self.is_usable(&Destination::Exchange(name.clone())));
        if !usable {
            return;
        }
        let observed = self.context.observed;
        let at_head = Slots::binding(&slots.head, &slots.entry);
        let at_alternate = Slots::binding(&slots.alternate, &slots.entry);
        let others = |slot: &str, wanted: &Binding| -> Vec<Binding> {
            observed.bindings_from(slot).filter(|found| *found != wanted).cloned().collect()
        };
        // What is no chain at all goes first, so that no message is left with it alone.
        let names = self.context.pipeline.names();
        let is_chain = |found: &Binding| match &found.destination {
            Destination::Exchange(name) => names.chain_generation(name).is_some(),
            Destination::Queue(_) => false,
        };
        let (head_others, strangers) = others(&slots.head, &at_head).into_iter().partition(is_chain);
        let head_others: Vec<Binding> = head_others;
        let alternate_others = others(&slots.alternate, &at_alternate);
        let alternate_all = observed.bindings_from(&slots.alternate).cloned().collect();
        let alternate_is_bound = observed.has_binding(&at_alternate);
        let plan = &mut self.plan;
        unbind(plan, Stage::Slot, strangers);
        if observed.has_binding(&at_head) {
            // The head decides; what the alternate slot holds is out of use.
            unbind(plan, Stage::Deactivate, head_others);
            unbind(plan, Stage::Deactivate, alternate_all);
        } else if !head_others.is_empty() {
            // Another chain is in use at the head: prepare the alternate slot, which
            // nothing reaches, then let the head go.
            unbind(plan, Stage::Slot, alternate_others);
            if !alternate_is_bound {
                plan.push(Stage::Activate, Step::Bind(at_alternate));
            }
            unbind(plan, Stage::Deactivate, head_others);
        } else if !alternate_is_bound || !alternate_others.is_empty() {
            // The head is free: what it holds is in use at once.
            plan.push(Stage::Activate, Step::Bind(at_head));
            unbind(plan, Stage::Deactivate, alternate_all);
        }
    }

    /// Bindings that nobody asked for and that change a message's way.
    fn extra_bindings(&self, desired: &Desired) -> Vec<(Stage, Binding)> {
        let wanted: BTreeSet<&Binding> = desired.bindings.iter().map(|wanted| &wanted.binding).collect();
        let observed = self.context.observed;
        let is_slot = |name: &String| {
            desired.slots.as_ref().is_some_and(|slots| slots.head == *name || slots.alternate == *name)
        };
        let closed = desired.exchanges.iter().filter(|exchange| {
            let name = &exchange.exchange.name;
            exchange.closed && !is_slot(name) && self.is_usable(&Destination::Exchange(name.clone()))
        });
        let mut extra = Vec::new();
        for exchange in closed {
            let found = observed.bindings_from(&exchange.exchange.name);
            let stage = extra_stage(exchange);
            extra.extend(found.filter(|found| !wanted.contains(found)).map(|found| (stage, found.clone())));
        }
        extra.extend(self.detours(desired).map(|found| (Stage::Unbind, found)));
        let source = Destination::Queue(self.context.pipeline.spec.source.queue.clone());
        if self.context.pipeline.spec.source.exclusive_bindings && self.is_usable(&source) {
            let listed = |binding: &&Binding| wanted.contains(binding) || binding.source == OWNER_EXCHANGE;
            let found = observed.bindings_to(&source).filter(|binding| !listed(binding));
            let divert = self.context.pipeline.names().divert();
            let found = found.filter(|binding| !self.is_of_the_ladder(binding) && binding.source != divert);
            extra.extend(found.map(|found| (Stage::Unbind, found.clone())));
        }
        extra
    }

    /// Bindings by which others lead messages into our own routing, past the source: each
    /// would be one message more, without a failure before it.
    fn detours(&self, desired: &Desired) -> impl Iterator<Item = Binding> {
        let Context { pipeline, observed, inventory, .. } = *self.context;
        let wanted = desired.exchanges.iter().filter(|exchange| exchange.closed);
        let wanted = wanted.map(|exchange| Destination::Exchange(exchange.exchange.name.clone()));
        let wanted = wanted.filter(|object| self.is_usable(object));
        // Those of before as well, whatever their names: what leads there keeps them from going.
        let is_routing = |name: &String| {
            let is_internal = observed.exchanges.get(name).is_some_and(|found| found.internal);
            is_internal && inventory.contains_key(&ObjectKey::Exchange(name.clone()))
        };
        let before = inventory.keys().filter_map(|key| match key {
            // What leads past the source goes as that comes back.
            ObjectKey::Exchange(name) if is_routing(name) && *name != pipeline.names().divert() => {
                Some(Destination::Exchange(name.clone()))
            }
            _ => None,
        });
        let before = before.filter(|object| standing(observed, object, &pipeline.identity).is_ours());
        // In mode Application clients publish to the tiers.
        let is_tier = |queue: &&DesiredQueue| {
            pipeline.spec.mode == Mode::Broker && matches!(queue.role, QueueRole::Retry { .. })
        };
        let tiers = desired.queues.iter().filter(is_tier);
        let tiers = tiers.map(|queue| Destination::Queue(queue.queue.name.clone()));
        let ours: BTreeSet<Destination> =
            wanted.chain(before).chain(tiers.filter(|tier| self.is_usable(tier))).collect();
        let into = ours.into_iter().flat_map(|object| observed.bindings_to(&object).collect::<Vec<_>>());
        let is_strange = move |found: &&Binding| {
            let source = &found.source;
            source != OWNER_EXCHANGE && !uses::is_internal(pipeline, source) && !is_routing(source)
        };
        into.filter(is_strange).cloned()
    }

    /// Whether a return exchange leads to the source; those go with their tier.
    fn is_of_the_ladder(&self, binding: &Binding) -> bool {
        self.context.pipeline.names().return_number(&binding.source).is_some()
    }
}

/// A chain must be clean before it comes into use.
fn extra_stage(exchange: &DesiredExchange) -> Stage {
    if is_chain_stage(exchange.stage) { Stage::Slot } else { Stage::Unbind }
}

fn unbind(plan: &mut Plan, stage: Stage, bindings: Vec<Binding>) {
    for binding in bindings {
        plan.push(stage, Step::Unbind(binding));
    }
}
