//! The source, and queues that clients publish to, made anew under their names.
//!
//! Their arguments can't be changed, and others know the names. What is published to the user's
//! exchanges is led to a stand-in, in one step and with one way for each message at every moment;
//! then all that is in the source and its retry queues is moved there. With nothing left to
//! consume, nothing fails and no client publishes to a retry queue, so that a proof that all are
//! empty lasts. The queues that differ are deleted, and the usual comparison declares them:
//!
//! ```text
//! E -> Q                            as before
//! E -> Q.moving -> Q                Q.moving is a fanout exchange; Q gets one copy, by two ways
//! E -> Q.moving --alternate exchange--> Q.moving.aside -> queue Q.moving     one unbind
//! Q, retry queues ==> queue Q.moving; proven empty, then deleted, then declared
//! E -> Q.moving -> Q                one bind; then E -> Q as before, and the rest goes
//! queue Q.moving ==> Q
//! ```
//!
//! Which of these is the present is read from what exists. It takes consent: what is published to
//! `Q` by its name alone finds no queue for a moment, and its consumers are cancelled.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::desired;
use super::diff::Context;
use super::model::{Arg, Args, Binding, Destination, Exchange, ObjectKey, Queue};
use super::names::{self, OWNER_EXCHANGE};
use super::ownership::{Inventory, Record, Standing, State, marker, standing};
use super::plan::{Move, Plan, Stage, Step};
use super::spec::{Identity, Ownership};

/// Queues that are made anew.
pub(super) struct Recreation<'a> {
    pub(super) context: &'a Context<'a>,
    /// Queues that differ, or that are wanted no more.
    pub(super) going: BTreeSet<String>,
    /// All retry queues of the pipeline that there are.
    pub(super) tiers: BTreeSet<String>,
}

/// Whether one is under way: its stand-in is there.
pub(super) fn is_under_way(context: &Context<'_>) -> bool {
    let source = &context.pipeline.spec.source.queue;
    is_ours(context, &Destination::Queue(names::stand_in(source, 1)))
}

/// What a person consents to: the fields, and the queues that are made anew. A plan that is made
/// from a file has the same.
pub(super) fn hash(us: &Identity, changes: &[(String, String, String)], going: &BTreeSet<String>) -> String {
    // As JSON, whose lists and texts have an end, so that no two plans give the same bytes.
    let covered = serde_json::json!(["redrive recreation 1", us.namespace, us.name, changes, going]);
    let mut text = String::with_capacity(16);
    for byte in Sha256::digest(covered.to_string()).iter().take(8) {
        // Writing into a text never fails.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl Recreation<'_> {
    /// Why it can't be done, whatever a person says.
    pub(super) fn obstacle(&self) -> Option<String> {
        let Context { pipeline, .. } = self.context;
        if pipeline.spec.source.ownership == Ownership::External {
            return Some("the source belongs to its application, and so do its bindings".to_owned());
        }
        let kept = self.going.iter().find(|queue| !self.is_deletable(queue));
        if let Some(queue) = kept {
            return Some(format!("queue {queue} was there before, or is shared, and is not ours to delete"));
        }
        let stranger = self.inflow().find(|binding| !self.comes_back(binding))?;
        Some(format!(
            "the binding {stranger} is not this pipeline's and would be lost: list it in source.bindings first"
        ))
    }

    /// The steps from what there is, and the inventory after them.
    pub(super) fn plan(&self, inventory: &mut Inventory) -> Plan {
        let mut plan = Plan::default();
        self.declare(&mut plan, inventory);
        self.divert(&mut plan);
        let emptied = self.emptied();
        if !plan.steps.is_empty() {
            plan.draining.extend(emptied);
        } else if emptied.is_subset(self.context.proven_empty) {
            self.delete(&mut plan, inventory);
        } else {
            plan.moves.extend(emptied.iter().map(|queue| self.way_out(queue)));
            plan.draining.extend(emptied);
        }
        plan
    }

    /// What takes the messages meanwhile.
    fn declare(&self, plan: &mut Plan, inventory: &mut Inventory) {
        let source = &self.context.pipeline.spec.source;
        let mut queues = vec![desired::stand_in(names::stand_in(&source.queue, 1), source.group_size)];
        let holding = self.going.iter().filter(|queue| self.ends_the_line(queue));
        queues.extend(holding.map(|queue| desired::stand_in(names::stand_in(queue, 1), None)));
        for queue in queues {
            self.declare_queue(queue, plan, inventory);
        }
        let names = self.context.pipeline.names();
        let alternate = [("alternate-exchange".to_owned(), Arg::from(names.aside().as_str()))].into();
        for (name, arguments) in [(names.aside(), Args::new()), (names.divert(), alternate)] {
            let exchange = Exchange { name, kind: "fanout".to_owned(), internal: true, arguments };
            self.declare_exchange(exchange, plan, inventory);
        }
    }

    fn declare_queue(&self, queue: Queue, plan: &mut Plan, inventory: &mut Inventory) {
        let object = Destination::Queue(queue.name.clone());
        record(inventory, ObjectKey::Queue(queue.name.clone()));
        let marker = marker(&self.context.pipeline.identity, object.clone());
        if !self.context.observed.queues.contains_key(&queue.name) {
            plan.push(Stage::DeadLetter, Step::CreateQueue { queue, marker });
        } else if !is_ours(self.context, &object) {
            plan.push(Stage::Owner, Step::Mark(marker));
        }
    }

    fn declare_exchange(&self, exchange: Exchange, plan: &mut Plan, inventory: &mut Inventory) {
        let object = Destination::Exchange(exchange.name.clone());
        record(inventory, ObjectKey::Exchange(exchange.name.clone()));
        let marker = marker(&self.context.pipeline.identity, object.clone());
        if !self.context.observed.exchanges.contains_key(&exchange.name) {
            // The alternate exchange before the one that names it.
            let stage = if exchange.arguments.is_empty() { Stage::Fallback } else { Stage::Rest };
            plan.push(stage, Step::CreateExchange { exchange, marker: Some(marker) });
        } else if !is_ours(self.context, &object) {
            plan.push(Stage::Owner, Step::Mark(marker));
        }
    }

    /// Leads what comes in to the stand-in.
    fn divert(&self, plan: &mut Plan) {
        let Context { pipeline, observed, .. } = self.context;
        let (names, source) = (pipeline.names(), &pipeline.spec.source.queue);
        let stand_in = Destination::Queue(names::stand_in(source, 1));
        let to_stand_in = fanout(&names.aside(), stand_in);
        if !observed.has_binding(&to_stand_in) {
            plan.push(Stage::Fallback, Step::Bind(to_stand_in));
        }
        let to_source = fanout(&names.divert(), Destination::Queue(source.clone()));
        let (is_open, inflow) = (observed.has_binding(&to_source), self.inflow().collect::<Vec<_>>());
        if !is_open && !inflow.is_empty() {
            plan.push(Stage::Return, Step::Bind(to_source.clone()));
        }
        for binding in &inflow {
            let diverted =
                Binding { destination: Destination::Exchange(names.divert()), ..(*binding).clone() };
            if !observed.has_binding(&diverted) {
                plan.push(Stage::UserBinding, Step::Bind(diverted));
            }
            plan.push(Stage::Unbind, Step::Unbind((*binding).clone()));
        }
        if is_open || !inflow.is_empty() {
            plan.push(Stage::Divert, Step::Unbind(to_source));
        }
    }

    /// Bindings by which messages come to the source for the first time.
    fn inflow(&self) -> impl Iterator<Item = &Binding> {
        let Context { pipeline, observed, .. } = self.context;
        let names = pipeline.names();
        let source = Destination::Queue(pipeline.spec.source.queue.clone());
        let found: Vec<&Binding> = observed.bindings_to(&source).collect();
        found.into_iter().filter(move |binding| {
            let from = &binding.source;
            from != OWNER_EXCHANGE && *from != names.divert() && names.return_number(from).is_none()
        })
    }

    /// Whether it is the pipeline's, so that it is bound again or goes by the user's own wish.
    fn comes_back(&self, binding: &Binding) -> bool {
        is_listed(self.context, binding) || self.is_recorded(binding)
    }

    fn is_recorded(&self, binding: &Binding) -> bool {
        let key =
            ObjectKey::Binding { exchange: binding.source.clone(), routing_key: binding.routing_key.clone() };
        binding.arguments.is_empty() && self.context.inventory.contains_key(&key)
    }

    /// The queues that must be empty at the same time.
    fn emptied(&self) -> BTreeSet<String> {
        let source = [self.context.pipeline.spec.source.queue.clone()];
        let all = self.going.iter().chain(&self.tiers).cloned().chain(source);
        all.filter(|queue| self.context.observed.queues.contains_key(queue)).collect()
    }

    /// What fails waits with what has not failed yet; what has ended waits by itself.
    fn way_out(&self, queue: &str) -> Move {
        let source = self.context.pipeline.spec.source.queue.as_str();
        let stood_in_for = if self.ends_the_line(queue) { queue } else { source };
        Move { from: queue.to_owned(), to: names::stand_in(stood_in_for, 1) }
    }

    fn ends_the_line(&self, queue: &str) -> bool {
        queue != self.context.pipeline.spec.source.queue && !self.tiers.contains(queue)
    }

    fn delete(&self, plan: &mut Plan, inventory: &mut Inventory) {
        let source = &self.context.pipeline.spec.source.queue;
        for queue in self.going.iter().filter(|queue| self.context.observed.queues.contains_key(*queue)) {
            let stage = if queue == source { Stage::RemoveSource } else { Stage::RemoveQueue };
            plan.push(stage, Step::DeleteQueue(queue.clone()));
            inventory.remove(&ObjectKey::Queue(queue.clone()));
        }
    }

    fn is_deletable(&self, queue: &str) -> bool {
        let Context { pipeline, observed, inventory, .. } = self.context;
        let adopted = inventory
            .get(&ObjectKey::Queue(queue.to_owned()))
            .is_none_or(|record| record.state == State::Adopted);
        let object = Destination::Queue(queue.to_owned());
        let standing = standing(observed, &object, &pipeline.identity);
        !adopted && matches!(standing, Standing::Ours { adopted: false, others } if others.is_empty())
    }
}

/// The way back: what takes the place of a queue that is there again, before and after the user's
/// own bindings come back.
pub(super) fn rejoin(context: &Context<'_>, plan: &mut Plan) {
    let Context { pipeline, observed, .. } = context;
    let (names, source) = (pipeline.names(), Destination::Queue(pipeline.spec.source.queue.clone()));
    let divert = Destination::Exchange(names.divert());
    if !observed.exchanges.contains_key(divert.name()) || !is_ours(context, &divert) {
        return;
    }
    let to_source = fanout(divert.name(), source.clone());
    if !observed.has_binding(&to_source) {
        plan.push(Stage::Return, Step::Bind(to_source));
    }
    for diverted in observed.bindings_to(&divert).filter(|binding| binding.source != OWNER_EXCHANGE) {
        let direct = Binding { destination: source.clone(), ..diverted.clone() };
        let is_wanted = is_listed(context, &direct);
        let comes = plan.steps.iter().any(|planned| planned.step == Step::Bind(direct.clone()));
        if !is_wanted || comes || observed.has_binding(&direct) {
            plan.push(Stage::Unbind, Step::Unbind(diverted.clone()));
        }
    }
}

/// Whether the specification has this binding of the source.
fn is_listed(context: &Context<'_>, binding: &Binding) -> bool {
    let mut listed = context.pipeline.spec.source.bindings.iter();
    binding.arguments.is_empty()
        && listed.any(|wanted| wanted.exchange == binding.source && wanted.routing_key == binding.routing_key)
}

fn is_ours(context: &Context<'_>, object: &Destination) -> bool {
    standing(context.observed, object, &context.pipeline.identity).is_ours()
}

fn record(inventory: &mut Inventory, key: ObjectKey) {
    inventory.insert(key, Record { state: State::Created, generation: 1 });
}

fn fanout(source: &str, destination: Destination) -> Binding {
    Binding { source: source.to_owned(), destination, routing_key: String::new(), arguments: Args::new() }
}
