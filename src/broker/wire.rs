//! What the management API's answers look like, and what we keep of them.

use serde::de::MapAccess;

use super::lenient::{Row, Scalar, take, take_table};
use crate::topology::model::{ApplyTo, Arg, Args, Binding, Destination, Policy, QueueType};
use crate::topology::observed::{Observed, ObservedExchange, ObservedQueue, Totals};

/// A queue of `/api/queues`.
#[derive(Default)]
pub(crate) struct QueueRow {
    pub(crate) name: Option<String>,
    kind: Option<String>,
    durable: Option<bool>,
    auto_delete: Option<bool>,
    exclusive: Option<bool>,
    arguments: Option<Args>,
    state: Option<String>,
    messages: Option<i64>,
    ready: Option<i64>,
    unacknowledged: Option<i64>,
    /// Dead letters that wait for their next queue.
    pub(crate) dead_lettering: Option<i64>,
    /// Delayed retries of the queue itself.
    pub(crate) delayed: Option<i64>,
}

impl Row for QueueRow {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "name" => take(&mut self.name, map, Scalar::text),
            "type" => take(&mut self.kind, map, Scalar::text),
            "durable" => take(&mut self.durable, map, Scalar::bool),
            "auto_delete" => take(&mut self.auto_delete, map, Scalar::bool),
            "exclusive" => take(&mut self.exclusive, map, Scalar::bool),
            "arguments" => take_table(&mut self.arguments, map),
            "state" => take(&mut self.state, map, Scalar::text),
            "messages" => take(&mut self.messages, map, Scalar::int),
            "messages_ready" => take(&mut self.ready, map, Scalar::int),
            "messages_unacknowledged" => take(&mut self.unacknowledged, map, Scalar::int),
            "messages_dlx" => take(&mut self.dead_lettering, map, Scalar::int),
            "messages_delayed" => take(&mut self.delayed, map, Scalar::int),
            _ => Ok(false),
        }
    }
}

impl QueueRow {
    /// The counts that the row holds; none of a queue that does not work (QQ-07), of which
    /// the broker says zero.
    pub(crate) fn totals(&self) -> Totals {
        if !self.is_available() {
            return Totals::default();
        }
        Totals { messages: self.messages, ready: self.ready, unacknowledged: self.unacknowledged }
    }

    /// Whether the queue works; as it lies on nodes that are down, or has no majority, it does not.
    pub(crate) fn is_available(&self) -> bool {
        self.state.as_deref().is_none_or(|state| matches!(state, "running" | "idle" | "flow"))
    }

    /// Adds the queue to what was observed, unless it is there.
    pub(crate) fn add_to(self, observed: &mut Observed) {
        let available = self.is_available();
        let Some((name, queue)) = self.into_queue() else { return };
        if !available {
            observed.unavailable.insert(name.clone());
        }
        observed.queues.entry(name).or_insert(queue);
    }

    /// Name and queue, or nothing if the row has no name.
    pub(crate) fn into_queue(self) -> Option<(String, ObservedQueue)> {
        let totals = self.totals();
        let mut arguments = self.arguments.unwrap_or_default();
        let argument = match arguments.remove("x-queue-type") {
            Some(Arg::Str(text)) => Some(text),
            _ => None,
        };
        let kind = match self.kind.or(argument).as_deref() {
            Some("quorum") => QueueType::Quorum,
            None | Some("classic") => QueueType::Classic,
            Some(_) => QueueType::Stream,
        };
        let queue = ObservedQueue {
            kind,
            durable: self.durable.unwrap_or_default(),
            auto_delete: self.auto_delete.unwrap_or_default(),
            exclusive: self.exclusive.unwrap_or_default(),
            arguments,
            totals,
        };
        Some((self.name?, queue))
    }
}

/// An exchange of `/api/exchanges`.
#[derive(Default)]
pub(crate) struct ExchangeRow {
    name: Option<String>,
    kind: Option<String>,
    durable: Option<bool>,
    auto_delete: Option<bool>,
    internal: Option<bool>,
    arguments: Option<Args>,
}

impl Row for ExchangeRow {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "name" => take(&mut self.name, map, Scalar::text),
            "type" => take(&mut self.kind, map, Scalar::text),
            "durable" => take(&mut self.durable, map, Scalar::bool),
            "auto_delete" => take(&mut self.auto_delete, map, Scalar::bool),
            "internal" => take(&mut self.internal, map, Scalar::bool),
            "arguments" => take_table(&mut self.arguments, map),
            _ => Ok(false),
        }
    }
}

impl ExchangeRow {
    /// Name and exchange; nothing for the default exchange, which is nobody's.
    pub(crate) fn into_exchange(self) -> Option<(String, ObservedExchange)> {
        let name = self.name.filter(|name| !name.is_empty())?;
        let exchange = ObservedExchange {
            kind: self.kind.unwrap_or_default(),
            durable: self.durable.unwrap_or_default(),
            auto_delete: self.auto_delete.unwrap_or_default(),
            internal: self.internal.unwrap_or_default(),
            arguments: self.arguments.unwrap_or_default(),
        };
        Some((name, exchange))
    }
}

/// A binding of `/api/bindings`.
#[derive(Default)]
pub(crate) struct BindingRow {
    source: Option<String>,
    destination: Option<String>,
    destination_type: Option<String>,
    routing_key: Option<String>,
    arguments: Option<Args>,
    /// The last segment of the binding's own path, as it was before encoding.
    pub(crate) properties_key: Option<String>,
}

impl Row for BindingRow {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "source" => take(&mut self.source, map, Scalar::text),
            "destination" => take(&mut self.destination, map, Scalar::text),
            "destination_type" => take(&mut self.destination_type, map, Scalar::text),
            "routing_key" => take(&mut self.routing_key, map, Scalar::text),
            "arguments" => take_table(&mut self.arguments, map),
            "properties_key" => take(&mut self.properties_key, map, Scalar::text),
            _ => Ok(false),
        }
    }
}

impl BindingRow {
    /// The queue that a binding of the default exchange stands for: each has one.
    pub(crate) fn queue_by_default(&self) -> Option<&str> {
        let by_default = self.source.as_deref() == Some("");
        self.destination.as_deref().filter(|_| by_default)
    }

    /// The binding; nothing for those of the default exchange.
    pub(crate) fn into_binding(self) -> Option<Binding> {
        let source = self.source.filter(|source| !source.is_empty())?;
        let destination = self.destination?;
        let destination = match self.destination_type.as_deref() {
            Some("exchange") => Destination::Exchange(destination),
            _ => Destination::Queue(destination),
        };
        Some(Binding {
            source,
            destination,
            routing_key: self.routing_key.unwrap_or_default(),
            arguments: self.arguments.unwrap_or_default(),
        })
    }
}

/// A policy or operator policy.
#[derive(Default)]
pub(crate) struct PolicyRow {
    name: Option<String>,
    pattern: Option<String>,
    apply_to: Option<String>,
    priority: Option<i64>,
    definition: Option<Args>,
}

impl Row for PolicyRow {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "name" => take(&mut self.name, map, Scalar::text),
            "pattern" => take(&mut self.pattern, map, Scalar::text),
            "apply-to" => take(&mut self.apply_to, map, Scalar::text),
            "priority" => take(&mut self.priority, map, whole),
            "definition" => take_table(&mut self.definition, map),
            _ => Ok(false),
        }
    }
}

/// Priorities may be fractions (POL-22); what is behind the point is dropped.
#[allow(clippy::cast_possible_truncation, reason = "saturates, and nobody orders by such numbers")]
fn whole(value: Scalar) -> Option<i64> {
    match value {
        Scalar::Int(value) => Some(value),
        Scalar::Float(value) => Some(value as i64),
        _ => None,
    }
}

impl PolicyRow {
    /// The policy; nothing without name or pattern. What it applies to is
    /// taken as everything where we don't know the word.
    pub(crate) fn into_policy(self) -> Option<Policy> {
        let apply_to = match self.apply_to.as_deref() {
            Some("queues") => ApplyTo::Queues,
            Some("exchanges") => ApplyTo::Exchanges,
            Some("quorum_queues") => ApplyTo::QuorumQueues,
            Some("classic_queues") => ApplyTo::ClassicQueues,
            Some("streams") => ApplyTo::Streams,
            _ => ApplyTo::All,
        };
        Some(Policy {
            name: self.name?,
            pattern: self.pattern?,
            apply_to,
            priority: self.priority.unwrap_or_default(),
            definition: self.definition.unwrap_or_default(),
        })
    }
}
