//! What was observed on the broker before a run, as far as it matters to the run.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long a consumer may hold a message where nobody set anything.
const DEFAULT_CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How a queue works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A quorum queue.
    Quorum,
    /// A classic queue.
    Classic,
    /// A stream.
    Stream,
}

/// A queue, with what its arguments and policies make of it together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueFacts {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: Kind,
    /// Whether it answers.
    pub available: bool,
    /// Whether it belongs to one connection.
    pub exclusive: bool,
    /// Whether one consumer at a time is active.
    pub single_active_consumer: bool,
    /// Deliveries after which it gives a message up; `None` for the broker's default, a
    /// negative number for no limit. A classic queue has none.
    pub delivery_limit: Option<i64>,
    /// Its consumers; `None` where the broker did not say.
    pub consumers: Option<u64>,
    /// Messages ready; `None` where the broker did not say.
    pub ready: Option<u64>,
    /// The most messages it holds.
    pub max_length: Option<i64>,
    /// The most bytes it holds.
    pub max_length_bytes: Option<i64>,
    /// Whether it refuses what is too much, instead of dropping the oldest.
    pub rejects: bool,
    /// How long a message may wait in it, in milliseconds.
    pub message_ttl: Option<i64>,
    /// How long a consumer may hold a message; `None` for the broker's default.
    pub consumer_timeout: Option<Duration>,
}

/// An exchange that a run publishes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeFacts {
    /// Its name.
    pub name: String,
    /// Whether clients are kept from publishing to it.
    pub internal: bool,
    /// Where it sends what it can't route.
    pub alternate: Option<String>,
}

/// The queues that a publish reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Their names, with what is known of each; `None` for a queue that does not exist any
    /// more.
    pub queues: BTreeMap<String, Option<QueueFacts>>,
    /// Why there may be others: an exchange that looks at headers, or another one for each
    /// message.
    pub unknown: Option<String>,
}

/// Where a run publishes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetFacts {
    /// A queue, through the default exchange; `None` where it does not exist.
    Queue(String, Option<QueueFacts>),
    /// An exchange; `None` where it does not exist.
    Exchange(String, Option<ExchangeFacts>, Routes),
    /// The exchanges that messages may go back to, those alone that exist.
    Origin(Vec<ExchangeFacts>),
    /// Nowhere.
    Discard,
}

impl TargetFacts {
    /// The queues that are reached, as far as they are known.
    #[must_use]
    pub fn reached(&self) -> Vec<&QueueFacts> {
        match self {
            Self::Queue(_, queue) => queue.iter().collect(),
            Self::Exchange(_, _, routes) => routes.queues.values().flatten().collect(),
            Self::Origin(_) | Self::Discard => Vec::new(),
        }
    }

    /// The names of the queues that are reached.
    #[must_use]
    pub fn routes(&self) -> Vec<String> {
        match self {
            Self::Queue(name, queue) => queue.iter().map(|_| name.clone()).collect(),
            Self::Exchange(_, _, routes) => routes.queues.keys().cloned().collect(),
            Self::Origin(_) | Self::Discard => Vec::new(),
        }
    }
}

/// What was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The origin queue's name.
    pub origin: String,
    /// What is known of it; `None` where it does not exist.
    pub origin_queue: Option<QueueFacts>,
    /// Where the run publishes to.
    pub target: TargetFacts,
    /// The queue for messages replayed too often, where there is to be one.
    pub limit_queue: Option<(String, Option<QueueFacts>)>,
    /// The alarms in effect.
    pub alarms: Vec<String>,
    /// Whether consumers of quorum queues may bring their own timeout (4.3 and newer).
    pub own_timeout: bool,
    /// The largest frame of a connection; zero for no limit.
    pub frame_max: u32,
}

impl Facts {
    /// Whether the consumer that reads the origin queue may say how long it holds messages: a
    /// classic queue refuses the wish.
    #[must_use]
    pub fn takes_timeout(&self) -> bool {
        self.own_timeout && self.origin_queue.as_ref().is_some_and(|queue| queue.kind == Kind::Quorum)
    }

    /// For how long the broker lets a message of the origin queue be held, as far as can be seen;
    /// nothing where the consumer says so itself. A limit in the broker's own configuration shows
    /// nowhere: where it is shorter, the consumer is cut off, and the run begins to read anew.
    #[must_use]
    pub fn hold(&self) -> Option<Duration> {
        let set = self.origin_queue.as_ref().and_then(|queue| queue.consumer_timeout);
        (!self.takes_timeout()).then(|| set.unwrap_or(DEFAULT_CONSUMER_TIMEOUT))
    }
}
