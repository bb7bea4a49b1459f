//! What one run is told: checked, with every default filled in.

use std::time::Duration;

use super::message::Outgoing;

/// Where messages move to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A queue, through the default exchange.
    Queue(String),
    /// An exchange with a routing key.
    Exchange {
        /// Its name.
        name: String,
        /// The routing key.
        routing_key: String,
    },
    /// The exchange and routing key that each message was first published with, where the
    /// exchange is one of these.
    Origin {
        /// Exchanges that are bound to the source or listed in the pipeline.
        exchanges: Vec<String>,
    },
    /// Nowhere: each message is recorded and deleted.
    Discard,
}

/// What happens to a moved message that fails again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Straight back to the dead-letter queue.
    DeadLetter,
    /// Through all retries again.
    Retry,
}

/// A header by which consumers recognise a message that they have seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// Its name.
    pub header: String,
    /// Whether messages that lack it get it.
    pub generate: bool,
}

/// How moved messages are rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewriting {
    /// The replay as `namespace/name`, kept in a header.
    pub request: String,
    /// The resource's UID, part of each replay id.
    pub run: String,
    /// What happens to a message that fails again.
    pub on_failure: OnFailure,
    /// Whether a message keeps its own time to live.
    pub keep_expiration: bool,
    /// The header for consumers.
    pub idempotency: Option<Idempotency>,
    /// How often one message may be replayed.
    pub max_replays: u32,
    /// The queue for those that were replayed too often; without it they stay.
    pub replay_limit_queue: Option<String>,
}

/// How fast messages move. May change during a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// The most per second.
    pub per_second: u32,
    /// Messages between two pauses.
    pub batch: u32,
    /// How long each pause lasts; zero for none.
    pub pause: Duration,
    /// A slow start.
    pub ramp: Option<Ramp>,
    /// Messages in flight; a crash doubles at most so many.
    pub window: u32,
}

/// A slow start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ramp {
    /// Messages per second at the start.
    pub from: u32,
    /// How long each step lasts.
    pub every: Duration,
    /// By how much the rate grows with each step.
    pub factor: u32,
}

/// When a run pauses or stops by itself. May change during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Pause when so many percent of the last `sample` came back.
    pub stop_on_return_percent: u32,
    /// How many of the last moved messages count.
    pub sample: u32,
    /// Messages that must have come back before the percentage counts.
    pub min_returns: u32,
    /// How it tests whether the failures are over.
    pub canary: Canary,
    /// Pause while the target holds more.
    pub pause_above_target_depth: Option<u64>,
    /// Move only while the target has a consumer.
    pub require_consumers: bool,
    /// Stop when so many messages found no queue.
    pub max_unroutable: u32,
}

/// A few messages that test, after a pause, whether the failures are over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    /// Messages per test.
    pub messages: u32,
    /// How long to wait before each test.
    pub after: Duration,
    /// Failed tests before it stops for good.
    pub tries: u32,
}

/// How far a run may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most messages to move: of the selection, and of the approval.
    pub messages: Option<u64>,
    /// The most messages to read.
    pub scan: u64,
    /// The longest time from the first message on.
    pub deadline: Duration,
    /// For how long the broker lets a message be held unacknowledged, where that can't be set by
    /// the consumer: in half that time all is returned, and read again.
    pub hold: Option<Duration>,
}

/// Where reading stops: what comes later stands behind the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Messages ready at the start, by a passive declaration.
    pub count: u64,
    /// That moment, in milliseconds since 1970.
    pub time: u64,
}

/// What is to become of a message that was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// Publish it; the flag says that it goes to the queue for messages replayed too often.
    Publish {
        /// The message as it will be.
        message: Box<Outgoing>,
        /// Whether it goes to the queue for those replayed too often.
        over_limit: bool,
    },
    /// Record it and delete it.
    Discard,
    /// Leave it where it is.
    Leave(Left),
}

/// Why a message is left where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Left {
    /// The selection does not want it.
    NotSelected,
    /// It was moved by this run before, and came back.
    Returned,
    /// It died after the fence.
    BehindFence,
    /// With `to: origin`: where it came from is unknown, or not allowed.
    UnknownOrigin,
    /// It was replayed too often, and there is no queue for such messages.
    TooManyReplays,
    /// It can't be published any more, however it is tried.
    Unmovable,
}

/// What may change while a run is under way. A change ends the batch under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Orders {
    /// How fast.
    pub pace: Pace,
    /// When to pause or stop.
    pub guard: Guard,
    /// Why nothing may move for now, in words; nothing stays unacknowledged meanwhile.
    pub hold: Option<String>,
    /// End it for good.
    pub cancel: bool,
}
