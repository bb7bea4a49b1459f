//! The broker's objects, as Redrive declares and observes them.
//!
//! Keys stay structs and arguments stay typed from the specification to the
//! wire: an integer never becomes a string or a float on the way, because the
//! broker treats `30000`, `"30000"` and `3e4` as three different arguments.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::Serialize;

/// A typed value of an argument or a policy key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum Arg {
    /// A boolean.
    Bool(bool),
    /// An integer; every number that Redrive writes is one.
    Int(i64),
    /// A string.
    Str(String),
    /// Anything else that a broker may report (floats, tables, lists): the JSON
    /// text, kept for comparison and display only. It is never written.
    Other(String),
}

impl fmt::Display for Arg {
    /// Strings keep their quotes, so that `30000` and `"30000"` look different.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Str(value) => write!(f, "{value:?}"),
            Self::Other(value) => write!(f, "{value}"),
        }
    }
}

impl From<serde_json::Value> for Arg {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Bool(value) => Self::Bool(value),
            serde_json::Value::String(value) => Self::Str(value),
            // `is_i64` is false for 3e4, which is a float to the broker as well.
            serde_json::Value::Number(number) if number.is_i64() => {
                number.as_i64().map_or_else(|| Self::Other(number.to_string()), Self::Int)
            }
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<i64> for Arg {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for Arg {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Arg {
    fn from(value: &str) -> Self {
        Self::Str(value.to_owned())
    }
}

/// Arguments of a queue, exchange or binding, or the definition of a policy.
///
/// Clones share what they hold until one is changed: a vhost of a thousand pipelines
/// has tens of thousands of bindings with a few different arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Args(Arc<BTreeMap<String, Arg>>);

impl Args {
    /// No arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Deref for Args {
    type Target = BTreeMap<String, Arg>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Args {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

impl FromIterator<(String, Arg)> for Args {
    fn from_iter<I: IntoIterator<Item = (String, Arg)>>(arguments: I) -> Self {
        Self(Arc::new(arguments.into_iter().collect()))
    }
}

impl<const N: usize> From<[(String, Arg); N]> for Args {
    fn from(arguments: [(String, Arg); N]) -> Self {
        arguments.into_iter().collect()
    }
}

impl IntoIterator for Args {
    type Item = (String, Arg);
    type IntoIter = std::collections::btree_map::IntoIter<String, Arg>;

    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.0).into_iter()
    }
}

impl<'a> IntoIterator for &'a Args {
    type Item = (&'a String, &'a Arg);
    type IntoIter = std::collections::btree_map::Iter<'a, String, Arg>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl Serialize for Args {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// The type of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueType {
    /// Replicated; the only type with at-least-once dead-lettering.
    Quorum,
    /// Not replicated; dead-letters at most once.
    Classic,
    /// A stream, or a type that a plugin brings: seen, never declared.
    Stream,
}

impl QueueType {
    /// The value of `x-queue-type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
            Self::Stream => "stream",
        }
    }
}

impl fmt::Display for QueueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A queue to declare: always durable, never exclusive or auto-delete, always
/// with an explicit `x-queue-type` among its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Its name, at most 255 bytes.
    pub name: String,
    /// Its type, which `arguments` repeats.
    #[serde(rename = "type")]
    pub kind: QueueType,
    /// Its arguments.
    pub arguments: Args,
}

/// An exchange to declare: always durable, never auto-delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exchange {
    /// Its name, at most 255 bytes.
    pub name: String,
    /// Its type, such as `topic`, `headers` or `x-random`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether clients are kept from publishing to it.
    pub internal: bool,
    /// Its arguments.
    pub arguments: Args,
}

/// What a binding leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Destination {
    /// A queue.
    Queue(String),
    /// Another exchange.
    Exchange(String),
}

impl Destination {
    /// The name of the queue or exchange.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Queue(name) | Self::Exchange(name) => name,
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "queue {name}"),
            Self::Exchange(name) => write!(f, "exchange {name}"),
        }
    }
}

/// A binding; the broker identifies it by all four fields together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Binding {
    /// The exchange that routes.
    pub source: String,
    /// Where matching messages go.
    pub destination: Destination,
    /// The routing key.
    pub routing_key: String,
    /// The arguments; a headers exchange matches by them.
    pub arguments: Args,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.source, self.destination)?;
        if !self.routing_key.is_empty() {
            write!(f, " key {:?}", self.routing_key)?;
        }
        write_args(f, &self.arguments)
    }
}

/// Which objects a policy may apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyTo {
    /// Queues and exchanges.
    All,
    /// Queues of every type.
    Queues,
    /// Exchanges.
    Exchanges,
    /// Quorum queues.
    QuorumQueues,
    /// Classic queues.
    ClassicQueues,
    /// Streams.
    Streams,
}

impl ApplyTo {
    /// The value that the management API takes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Queues => "queues",
            Self::Exchanges => "exchanges",
            Self::QuorumQueues => "quorum_queues",
            Self::ClassicQueues => "classic_queues",
            Self::Streams => "streams",
        }
    }

    /// The narrowest choice that covers queues of this type.
    #[must_use]
    pub fn queues_of(kind: QueueType) -> Self {
        match kind {
            QueueType::Quorum => Self::QuorumQueues,
            QueueType::Classic => Self::ClassicQueues,
            QueueType::Stream => Self::Streams,
        }
    }
}

/// A user or operator policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Its name, unique in its vhost.
    pub name: String,
    /// The regular expression that queue or exchange names are searched with.
    pub pattern: String,
    /// What it may apply to.
    #[serde(rename = "apply-to")]
    pub apply_to: ApplyTo,
    /// The highest priority among matching policies wins.
    pub priority: i64,
    /// Its keys.
    pub definition: Args,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on {} {:?} priority {}",
            self.name,
            self.apply_to.as_str(),
            self.pattern,
            self.priority
        )?;
        write_args(f, &self.definition)
    }
}

/// Writes ` {key: value, …}`, or nothing for an empty map.
pub(crate) fn write_args(f: &mut fmt::Formatter<'_>, arguments: &Args) -> fmt::Result {
    if arguments.is_empty() {
        return Ok(());
    }
    f.write_str(" {")?;
    for (index, (key, value)) in arguments.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        write!(f, "{separator}{key}: {value}")?;
    }
    f.write_str("}")
}

/// What identifies an object in a vhost and in an inventory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ObjectKey {
    /// A queue, by name.
    Queue(String),
    /// An exchange, by name.
    Exchange(String),
    /// A policy, by name.
    Policy(String),
    /// One of the user's bindings of the source queue.
    Binding {
        /// The exchange that the source queue is bound to.
        exchange: String,
        /// The routing key.
        routing_key: String,
    },
}

impl ObjectKey {
    /// The object's own name; of a binding, its exchange's.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Queue(name) | Self::Exchange(name) | Self::Policy(name) => name,
            Self::Binding { exchange, .. } => exchange,
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "queue {name}"),
            Self::Exchange(name) => write!(f, "exchange {name}"),
            Self::Policy(name) => write!(f, "policy {name}"),
            Self::Binding { exchange, routing_key } => {
                write!(f, "binding {exchange} key {routing_key:?}")
            }
        }
    }
}
