//! The objects that a pipeline wants, each with its place in the order of writes.
//!
//! Everything whose absence could lose, loop or strand a message is an argument
//! of its queue; policies carry only numbers that may change at any time.
//!
//! A dead letter of the source passes a chain of exchanges, each one's alternate
//! exchange being the next:
//!
//! ```text
//! Q.dlx, Q.dlx.alt   fanout   the slots: exactly one is bound to the chain's generation in use
//!   Q.dlx.dead       headers  asked for the DLQ             -> DLQ
//!   Q.dlx.category.c headers  one per quarantine category   -> its queue
//!   Q.dlx.ladder     headers  rejected after tier N         -> tier N + 1, at last the DLQ
//!   Q.dlx.guard      headers  rejected after any tier       -> Q.dlx.rest
//!   Q.dlx.first      headers  rejected                      -> the first tier
//!   Q.dlx.rest       fanout   everything else               -> DLQ
//! Q.dlx.fallback     fanout   neither slot is bound         -> DLQ
//! ```
//!
//! Two slots, because a change of the chain must reach the messages in one atomic
//! step: the new generation is built beside the old one, bound to the slot that is
//! not in use, and comes into use by one bind or one unbind. A headers exchange
//! can't do that itself, since it routes to *every* binding that matches. The end
//! of the chain is part of the generation, so that another DLQ is such a change too.

mod chain;
mod queues;
mod source;

use super::generations::Generations;
use super::model::{ApplyTo, Arg, Args, Binding, Destination, Exchange, Policy, Queue, QueueType};
use super::names;
use super::observed::BrokerFacts;
use super::plan::Stage;
use super::spec::{Mode, Settings};
use super::validate::Pipeline;
pub(super) use queues::retry_queue;
use queues::{holding_queue, new_queue};
pub use source::delivery_limit;

/// The broker's own delivery limit of quorum queues since 4.0.
pub const DEFAULT_DELIVERY_LIMIT: i64 = 20;

/// What a queue is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueRole {
    /// The work queue.
    Source,
    /// Holds messages for one delay.
    Retry {
        /// The tier's number in names.
        number: u32,
    },
    /// The end of the line.
    DeadLetter,
    /// Quarantine of a category.
    Quarantine(String),
    /// Long-term holds.
    ParkingLot,
}

/// A queue that a pipeline wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredQueue {
    /// When to declare it.
    pub stage: Stage,
    /// What it is for.
    pub role: QueueRole,
    /// The queue itself.
    pub queue: Queue,
    /// `false` for an External source: it must exist and is never declared.
    pub declared: bool,
    /// Its generation; only retry queues have later ones.
    pub generation: u32,
}

/// An exchange that a pipeline wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredExchange {
    /// When to declare it.
    pub stage: Stage,
    /// The exchange itself.
    pub exchange: Exchange,
    /// Whether other pipelines may own it too: only the user's exchange.
    pub shared: bool,
    /// Whether every binding of it is ours, so that others are drift.
    pub closed: bool,
    /// Its generation.
    pub generation: u32,
}

/// A binding that a pipeline wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredBinding {
    /// When to bind.
    pub stage: Stage,
    /// The binding itself.
    pub binding: Binding,
    /// Whether it is one of the user's, which an inventory records one by one.
    pub user: bool,
}

/// A policy that a pipeline wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredPolicy {
    /// When to write it.
    pub stage: Stage,
    /// The queue it is for.
    pub queue: String,
    /// The policy itself.
    pub policy: Policy,
}

/// Everything that a pipeline wants on its broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Queues, in the order of their stages.
    pub queues: Vec<DesiredQueue>,
    /// Exchanges.
    pub exchanges: Vec<DesiredExchange>,
    /// Bindings, but those of the slots.
    pub bindings: Vec<DesiredBinding>,
    /// Policies.
    pub policies: Vec<DesiredPolicy>,
    /// The slots, where the pipeline has a chain.
    pub slots: Option<Slots>,
}

/// The two slots in front of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The source's dead-letter exchange.
    pub head: String,
    /// Its alternate exchange.
    pub alternate: String,
    /// The first exchange of the generation that must be in use.
    pub entry: String,
}

impl Slots {
    /// The binding that puts a chain into use at a slot.
    #[must_use]
    pub fn binding(slot: &str, entry: &str) -> Binding {
        bind(slot, Destination::Exchange(entry.to_owned()), Args::new())
    }
}

/// DLQ, quarantine and parking lot as they are wanted, under their own names.
#[must_use]
pub fn holding_queues(pipeline: &Pipeline, facts: &BrokerFacts) -> Vec<Queue> {
    let generations = Generations::default();
    let mut builder = Builder { pipeline, facts, generations: &generations, desired: Desired::default() };
    builder.holding_queues();
    builder.desired.queues.into_iter().map(|wanted| wanted.queue).collect()
}

/// A queue that takes messages for a while: safe, whatever the one is that it stands in for.
#[must_use]
pub(super) fn stand_in(name: String, group_size: Option<i64>) -> Queue {
    holding_queue(name, QueueType::Quorum, group_size)
}

/// Computes what a pipeline wants.
#[must_use]
pub fn build(pipeline: &Pipeline, facts: &BrokerFacts, generations: &Generations) -> Desired {
    let mut builder = Builder { pipeline, facts, generations, desired: Desired::default() };
    builder.holding_queues();
    builder.tiers();
    if pipeline.has_chain() {
        builder.chain();
    }
    builder.source();
    builder.user_side();
    builder.desired
}

struct Builder<'a> {
    pipeline: &'a Pipeline,
    facts: &'a BrokerFacts,
    generations: &'a Generations,
    desired: Desired,
}

impl Builder<'_> {
    fn queue(&mut self, stage: Stage, role: QueueRole, queue: Queue, generation: u32) {
        self.desired.queues.push(DesiredQueue { stage, role, queue, declared: true, generation });
    }

    fn exchange(&mut self, stage: Stage, name: String, kind: &str, alternate: Option<&str>, generation: u32) {
        let arguments =
            alternate.map(|next| ("alternate-exchange".to_owned(), Arg::from(next))).into_iter().collect();
        let exchange = Exchange { name, kind: kind.to_owned(), internal: true, arguments };
        self.desired.exchanges.push(DesiredExchange {
            stage,
            exchange,
            shared: false,
            closed: true,
            generation,
        });
    }

    fn bind(&mut self, stage: Stage, source: &str, destination: Destination, arguments: Args) {
        let binding = bind(source, destination, arguments);
        self.desired.bindings.push(DesiredBinding { stage, binding, user: false });
    }

    fn dlq(&self) -> Destination {
        Destination::Queue(self.in_use(&self.pipeline.dlq))
    }

    /// The name of a holding queue, or of its stand-in.
    fn in_use(&self, queue: &str) -> String {
        self.generations.stand_ins.in_use(queue)
    }

    /// DLQ, quarantine and parking lot: they end the line, so nothing may leave
    /// them by itself. Without `x-delivery-limit: -1` merely reading a quorum DLQ
    /// destroys messages on 4.3, which carries the count over.
    fn holding_queues(&mut self) {
        let names = self.pipeline.names();
        let dead_letter = &self.pipeline.spec.dead_letter;
        let mut queue =
            holding_queue(self.in_use(&self.pipeline.dlq), dead_letter.kind, dead_letter.group_size);
        let tunables = [("message-ttl", dead_letter.retention), ("max-length", dead_letter.max_length)];
        self.settle(Stage::Policy, "dlq", &mut queue, &tunables);
        self.queue(Stage::DeadLetter, QueueRole::DeadLetter, queue, 1);
        for category in self.pipeline.quarantine_categories() {
            let name = self.in_use(&names.quarantine(category));
            let queue = holding_queue(name, dead_letter.kind, dead_letter.group_size);
            self.queue(Stage::DeadLetter, QueueRole::Quarantine(category.to_owned()), queue, 1);
        }
        if dead_letter.parking_lot {
            let name = self.in_use(&names.parking_lot());
            let queue = holding_queue(name, dead_letter.kind, dead_letter.group_size);
            self.queue(Stage::DeadLetter, QueueRole::ParkingLot, queue, 1);
        }
    }

    fn tiers(&mut self) {
        let pipeline = self.pipeline;
        let names = pipeline.names();
        for tier in &pipeline.tiers {
            let generation = self.generations.tier(tier.number);
            for shard in &tier.shards {
                let queue = retry_queue(pipeline, tier, tier.queue(generation, shard), shard.ttl);
                self.queue(Stage::Tier, QueueRole::Retry { number: tier.number }, queue, generation);
            }
            if pipeline.spec.mode == Mode::Broker && tier.shards.len() > 1 {
                let exchange = tier.spreader(generation);
                // A message that finds all its shards gone ends in the DLQ, as with any lost tier.
                self.exchange(Stage::Tier, exchange.clone(), "x-random", Some(&names.fallback()), generation);
                for shard in &tier.shards {
                    self.bind(
                        Stage::Spread,
                        &exchange,
                        Destination::Queue(tier.queue(generation, shard)),
                        Args::new(),
                    );
                }
            }
        }
        for number in self.return_numbers() {
            let exchange = names.returns(number);
            self.exchange(Stage::Tier, exchange.clone(), "fanout", None, 1);
            self.bind(
                Stage::Return,
                &exchange,
                Destination::Queue(pipeline.spec.source.queue.clone()),
                Args::new(),
            );
        }
    }

    /// Numbers of the ladder, and of tiers that were removed but whose messages
    /// may still be on their way.
    fn return_numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.generations.retired.iter().copied().collect();
        if self.pipeline.spec.mode == Mode::Broker {
            numbers.extend(self.pipeline.tiers.iter().map(|tier| tier.number));
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Puts numbers into a policy or into the queue's arguments; no policy is
    /// written where the broker's defaults are wanted.
    fn settle(
        &mut self,
        stage: Stage,
        role: &str,
        queue: &mut Queue,
        numbers: &[(&'static str, Option<i64>)],
    ) {
        let keys = policy_keys(queue, numbers);
        if keys.is_empty() {
            return;
        }
        match self.pipeline.spec.settings {
            Settings::Arguments => {
                queue.arguments.extend(keys.into_iter().map(|(key, value)| (format!("x-{key}"), value)));
            }
            Settings::Policy { .. } => {
                let policy = self.policy(role, queue, keys);
                self.desired.policies.push(DesiredPolicy { stage, queue: queue.name.clone(), policy });
            }
        }
    }

    fn policy(&self, role: &str, queue: &Queue, definition: Args) -> Policy {
        let priority = match self.pipeline.spec.settings {
            Settings::Policy { priority } => priority,
            Settings::Arguments => 0,
        };
        Policy {
            name: policy_name(&self.pipeline.identity, role),
            pattern: names::exact_pattern(&queue.name),
            apply_to: ApplyTo::queues_of(queue.kind),
            priority,
            definition,
        }
    }
}

/// The name of a policy, which is its owner's marker as well.
#[must_use]
pub fn policy_name(owner: &super::spec::Identity, role: &str) -> String {
    format!("redrive:{}:{}:{}:{role}", owner.cluster, owner.namespace, owner.name)
}

fn policy_keys(queue: &Queue, numbers: &[(&'static str, Option<i64>)]) -> Args {
    let mut keys: Args =
        numbers.iter().filter_map(|(key, value)| Some(((*key).to_owned(), Arg::from((*value)?)))).collect();
    if keys.contains_key("delayed-retry-min") && queue.kind == QueueType::Quorum {
        keys.insert("delayed-retry-type".into(), "failed".into());
    }
    keys
}

fn bind(source: &str, destination: Destination, arguments: Args) -> Binding {
    Binding { source: source.to_owned(), destination, routing_key: String::new(), arguments }
}
