//! What a pipeline asks for, with all defaults applied and nothing yet checked.
//!
//! These are the topology's own types: they know neither Kubernetes nor HTTP.
//! Durations are milliseconds.

use super::model::{Args, QueueType};

/// Who a pipeline is. All four together are what marks an object on the broker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The id of the Kubernetes cluster (UID of the namespace `kube-system`).
    pub cluster: String,
    /// The namespace of the resource.
    pub namespace: String,
    /// The name of the resource.
    pub name: String,
    /// The UID of the resource; a recreated one has another.
    pub uid: String,
}

/// A pipeline as its resource describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The work queue and what leads to it.
    pub source: Source,
    /// Who walks the retry ladder.
    pub mode: Mode,
    /// The delays of the ladder; ignored in the modes Native and None.
    pub delays: Delays,
    /// Spreads each delay over several queues.
    pub jitter: Option<Jitter>,
    /// How retry queues are called, such as `{queue}.retry.{attempt}`.
    pub retry_template: String,
    /// The number of the first tier in names.
    pub number_from: u32,
    /// Type of the retry queues.
    pub retry_type: QueueType,
    /// Initial group size of the retry queues.
    pub retry_group_size: Option<i64>,
    /// Where messages end that no retry can help.
    pub dead_letter: DeadLetter,
    /// Where the tunable numbers go.
    pub settings: Settings,
    /// For an External source that has a policy already: merge its keys.
    pub merge_policy: bool,
}

/// Who declares the source queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Redrive declares it.
    Managed,
    /// The application does; it must exist.
    External,
}

/// The work queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Who declares it.
    pub ownership: Ownership,
    /// Its name.
    pub queue: String,
    /// Its type.
    pub kind: QueueType,
    /// Most messages it holds before publishers are refused.
    pub max_length: Option<i64>,
    /// How long a message may wait before it goes to the DLQ, in milliseconds.
    pub message_ttl: Option<i64>,
    /// How long a consumer may hold a message, in milliseconds.
    pub consumer_timeout: Option<i64>,
    /// Whether one consumer at a time is active.
    pub single_active_consumer: bool,
    /// Initial group size.
    pub group_size: Option<i64>,
    /// An exchange to declare for it.
    pub exchange: Option<SourceExchange>,
    /// The bindings that bring messages.
    pub bindings: Vec<SourceBinding>,
    /// Whether bindings that are not listed are drift.
    pub exclusive_bindings: bool,
    /// Crashes and requeues before a message counts as poison (quorum only);
    /// `None` where the user said nothing.
    pub delivery_limit: Option<i64>,
}

/// The user's exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceExchange {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: String,
}

/// One of the user's bindings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceBinding {
    /// The exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
}

/// Who walks the retry ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The broker; consumers only reject.
    Broker,
    /// The client library, which publishes to the retry queues itself.
    Application,
    /// The source queue itself, by delayed retry (4.3.1 and newer).
    Native {
        /// The first delay, in milliseconds.
        min: i64,
        /// The largest delay, in milliseconds.
        max: i64,
        /// Failed deliveries before a message is dead-lettered.
        attempts: i64,
    },
    /// Nobody.
    None,
}

impl Mode {
    /// Whether the mode has retry queues.
    #[must_use]
    pub fn has_tiers(self) -> bool {
        matches!(self, Self::Broker | Self::Application)
    }
}

/// The delays of the ladder, in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub enum Delays {
    /// One by one.
    List(Vec<i64>),
    /// Growing by a factor up to a maximum.
    Backoff {
        /// The first delay.
        initial: i64,
        /// What each delay is multiplied by for the next.
        factor: f64,
        /// No delay is longer.
        max: i64,
        /// How many there are.
        steps: u32,
    },
}

/// Spreads a delay by ± `percent` over `shards` queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// How far the delays spread, 0 to 100.
    pub percent: u32,
    /// Over how many queues.
    pub shards: u32,
}

/// Where messages end that no retry can help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Template of the DLQ's name.
    pub template: String,
    /// How long messages stay, in milliseconds; `None`: for ever.
    pub retention: Option<i64>,
    /// Type of the DLQ, the quarantine queues and the parking lot.
    pub kind: QueueType,
    /// Their initial group size.
    pub group_size: Option<i64>,
    /// Most messages the DLQ takes before it refuses more.
    pub max_length: Option<i64>,
    /// First match wins; the rest goes to the DLQ.
    pub quarantine: Vec<Category>,
    /// Whether there is a queue for long-term holds.
    pub parking_lot: bool,
}

/// A quarantine category: any of the reasons, and all of the headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Category {
    /// Its name.
    pub name: String,
    /// Reasons of the last death, such as `delivery_limit`; empty: any.
    pub reasons: Vec<String>,
    /// Headers that must all be equal; empty: any.
    pub headers: Args,
}

/// Where the tunable numbers go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// Into policies, which can be changed at any time.
    Policy {
        /// Priority of our policies.
        priority: i64,
    },
    /// Into queue arguments, which can't be changed later.
    Arguments,
}
