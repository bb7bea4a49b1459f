//! How far a run has come, and how it ends.

use super::run::Fence;

/// The numbers of a run; they only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages read.
    pub examined: u64,
    /// Messages selected.
    pub matched: u64,
    /// Messages moved: confirmed, recorded and settled.
    pub replayed: u64,
    /// Messages that the target routed nowhere; they stayed.
    pub unroutable: u64,
    /// Publishes that the broker refused; tried again.
    pub nacked: u64,
    /// Messages that went to the queue for those replayed too often.
    pub quarantined: u64,
    /// Messages that can't be published any more; they stayed.
    pub unmovable: u64,
    /// The first ten of those, by message id or position.
    pub unmovable_messages: Vec<String>,
    /// Messages that were left on purpose: an unknown origin, too many replays.
    pub skipped: u64,
    /// Messages that may have been published twice.
    pub duplicates_possible: u64,
    /// Messages that moved and may have come after the fence: at most a batch for each crash or
    /// lost connection, and never fewer than really did.
    pub beyond_fence: u64,
}

/// What a run that goes on after a crash must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Where reading stops.
    pub fence: Fence,
    /// The numbers so far.
    pub counts: Counts,
    /// When the first message moved, in milliseconds since 1970; the deadline counts from it.
    pub started: Option<u64>,
    /// The most messages that may have moved since without being counted; zero where the
    /// run settled.
    pub under_way: u64,
    /// The most of them that may have been published without being settled; zero where the
    /// run settled.
    pub in_flight: u64,
}

/// How a worker's part in a run is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The run is finished for good.
    Finished(Outcome),
    /// The worker was told to stop: nothing is unacknowledged, and another worker may go on
    /// from the last checkpoint.
    Interrupted,
}

/// What a run does at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Messages move.
    Running,
    /// It is held, with the reason in words.
    Paused(String),
    /// A few messages test whether the failures are over.
    Canary,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every selected message was moved.
    Completed,
    /// It reached the end, but some messages stayed.
    CompletedWithFailures,
    /// A person ended it.
    Cancelled,
    /// A guard ended it for good, with the reason in words.
    Stopped(String),
    /// The target took no messages.
    Unroutable,
    /// The most messages that it may read were read.
    ScanLimitReached,
    /// Its time is over.
    DeadlineExceeded,
    /// It can't be done, with the reason in words.
    Failed(String),
}
