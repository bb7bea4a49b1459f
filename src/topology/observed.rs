//! What a vhost holds, normalised from the broker's answers.
//!
//! A snapshot serves every pipeline that shares its endpoint, vhost and
//! credentials. A key that the broker left out is unknown, never zero.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::model::{Arg, Args, Binding, Destination, Exchange, Policy, Queue, QueueType};
use super::plan::Step;

/// Version and abilities of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerFacts {
    /// Major, minor, patch.
    pub version: (u32, u32, u32),
    /// Exchange types that the broker knows.
    pub exchange_types: BTreeSet<String>,
}

impl BrokerFacts {
    /// Whether deliveries are counted over the whole walk (4.3 and newer) and
    /// not per stay in a queue.
    #[must_use]
    pub fn counts_deliveries_across_queues(&self) -> bool {
        self.version >= (4, 3, 0)
    }

    /// Whether policies may carry delayed-retry keys (4.3.1 and newer).
    #[must_use]
    pub fn has_delayed_retry(&self) -> bool {
        self.version >= (4, 3, 1)
    }
}

/// A queue as observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedQueue {
    /// Its type.
    pub kind: QueueType,
    /// Whether it survives a restart of the broker.
    pub durable: bool,
    /// Whether it goes away with its last consumer.
    pub auto_delete: bool,
    /// Whether it belongs to one connection.
    pub exclusive: bool,
    /// Its arguments, without `x-queue-type`, which `kind` holds.
    pub arguments: Args,
    /// How many messages it holds.
    pub totals: Totals,
}

/// Message counts; `None` means that the broker did not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ready, unacknowledged, delayed and waiting for dead-lettering together.
    pub messages: Option<i64>,
    /// Ready for delivery.
    pub ready: Option<i64>,
    /// Delivered and not settled.
    pub unacknowledged: Option<i64>,
}

impl Totals {
    /// Messages that are neither ready nor delivered: dead letters that wait for their next
    /// queue and, in mode Native, delayed retries.
    #[must_use]
    pub fn waiting(self) -> Option<i64> {
        Some(self.messages? - self.ready? - self.unacknowledged?)
    }

    /// Whether the broker said that nothing at all is in the queue. A missing
    /// count is no proof.
    #[must_use]
    pub fn proven_empty(self) -> bool {
        self.messages == Some(0) && self.ready == Some(0) && self.unacknowledged == Some(0)
    }
}

impl ObservedQueue {
    /// Whether its arguments lead dead letters straight to a queue, as those of a retry
    /// queue in mode Application do.
    #[must_use]
    pub fn leads_to(&self, queue: &str) -> bool {
        let is =
            |key: &str, text: &str| matches!(self.arguments.get(key), Some(Arg::Str(found)) if found == text);
        is("x-dead-letter-exchange", "") && is("x-dead-letter-routing-key", queue)
    }

    /// A queue that was declared a moment ago.
    fn fresh(queue: &Queue) -> Self {
        let mut arguments = queue.arguments.clone();
        arguments.remove("x-queue-type");
        let totals = Totals { messages: Some(0), ready: Some(0), unacknowledged: Some(0) };
        Self { kind: queue.kind, durable: true, auto_delete: false, exclusive: false, arguments, totals }
    }
}

/// An exchange as observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedExchange {
    /// Its type.
    pub kind: String,
    /// Whether it survives a restart of the broker.
    pub durable: bool,
    /// Whether it goes away with its last binding.
    pub auto_delete: bool,
    /// Whether clients are kept from publishing to it.
    pub internal: bool,
    /// Its arguments.
    pub arguments: Args,
}

impl ObservedExchange {
    /// An exchange that was declared a moment ago.
    fn fresh(exchange: &Exchange) -> Self {
        Self {
            kind: exchange.kind.clone(),
            durable: true,
            auto_delete: false,
            internal: exchange.internal,
            arguments: exchange.arguments.clone(),
        }
    }
}

/// Everything in one vhost that can matter to a pipeline.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Queues by name.
    pub queues: BTreeMap<String, ObservedQueue>,
    /// Those of them that have lost too many of their nodes: they are there, and nobody
    /// can tell what they hold.
    pub unavailable: BTreeSet<String>,
    /// Exchanges by name.
    pub exchanges: BTreeMap<String, ObservedExchange>,
    /// User policies.
    pub policies: Vec<Policy>,
    /// Operator policies; `None` where the credentials may not read them.
    pub operator_policies: Option<Vec<Policy>>,
    /// In the order of their destinations.
    bindings: Vec<Binding>,
    /// Indexes of the bindings, in the order of their sources.
    by_source: Vec<usize>,
}

impl Observed {
    /// Adds the vhost's bindings; those of the default exchange are left out,
    /// since every queue has one and nobody can change it.
    pub fn set_bindings(&mut self, bindings: impl IntoIterator<Item = Binding>) {
        self.bindings = bindings.into_iter().filter(|binding| !binding.source.is_empty()).collect();
        self.bindings.sort_by(by_destination);
        self.bindings.shrink_to_fit();
        self.by_source = (0..self.bindings.len()).collect();
        self.by_source.sort_by_key(|index| self.bindings[*index].source.as_str());
    }

    /// What there is after steps that declare, bind, unbind or write policies; other
    /// steps change nothing here. No binding is both made and taken away.
    pub fn advance<'a>(&mut self, steps: impl IntoIterator<Item = &'a Step>) {
        let mut bindings = std::mem::take(&mut self.bindings);
        let mut unbound = BTreeSet::new();
        let mut policies = BTreeMap::new();
        for step in steps {
            match step {
                Step::CreateQueue { queue, marker } => {
                    self.queues.insert(queue.name.clone(), ObservedQueue::fresh(queue));
                    bindings.push(marker.clone());
                }
                Step::CreateExchange { exchange, marker } => {
                    self.exchanges.insert(exchange.name.clone(), ObservedExchange::fresh(exchange));
                    bindings.extend(marker.clone());
                }
                Step::Bind(binding) | Step::Mark(binding) => bindings.push(binding.clone()),
                Step::Unbind(binding) => drop(unbound.insert(binding)),
                Step::SetPolicy(policy) => drop(policies.insert(&policy.name, policy)),
                Step::Unmark(_) | Step::ClearPolicy(_) | Step::DeleteQueue(_) | Step::DeleteExchange(_) => {}
            }
        }
        bindings.retain(|found| !unbound.contains(found));
        self.policies.retain(|found| !policies.contains_key(&found.name));
        self.policies.extend(policies.into_values().cloned());
        self.set_bindings(bindings);
    }

    /// All bindings but those of the default exchange.
    #[must_use]
    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// The bindings of an exchange.
    pub fn bindings_from<'a>(&'a self, exchange: &str) -> impl Iterator<Item = &'a Binding> {
        let source = |index: &usize| self.bindings[*index].source.as_str();
        let begin = self.by_source.partition_point(|index| source(index) < exchange);
        let count = self.by_source[begin..].partition_point(|index| source(index) == exchange);
        self.by_source[begin..begin + count].iter().map(|index| &self.bindings[*index])
    }

    /// The bindings that lead to a queue or exchange.
    pub fn bindings_to<'a>(&'a self, destination: &Destination) -> impl Iterator<Item = &'a Binding> {
        let begin = self.bindings.partition_point(|binding| binding.destination < *destination);
        let count = self.bindings[begin..].partition_point(|binding| binding.destination == *destination);
        self.bindings[begin..begin + count].iter()
    }

    /// Whether exactly this binding exists.
    #[must_use]
    pub fn has_binding(&self, wanted: &Binding) -> bool {
        self.bindings.binary_search_by(|found| by_destination(found, wanted)).is_ok()
    }

    /// A user policy by name.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| policy.name == name)
    }
}

/// The order in which bindings are kept, so that one is found by halving.
fn by_destination(a: &Binding, b: &Binding) -> Ordering {
    a.destination.cmp(&b.destination).then_with(|| a.cmp(b))
}
