//! Runs replays: one code path, in the pod of a Job or inside the operator.
//!
//! What it is: a worker reads its DlqReplay and its RetryPipeline, holds the queue's Lease,
//! drives the engine, obeys live edits, writes `status.progress` and the audit trail, and says at
//! the end how it went.
//!
//! What it guarantees: a run that has ended never starts again; a worker that is stopped leaves
//! nothing unacknowledged, and the next one goes on from the last checkpoint.
//!
//! What it leaves out: whether a replay may run at all, and its conditions; the controller
//! decides that.

pub(crate) mod audit;
mod driver;
pub(crate) mod files;
mod follow;
pub(crate) mod in_process;
pub(crate) mod job;
mod lease;
mod orders;
pub(crate) mod plan;
mod progress;
mod supervise;
mod worker;

use std::time::Duration;

pub(crate) use worker::{End, Work, work};

/// How long the API server may take for one answer.
const API_TIMEOUT: Duration = Duration::from_secs(30);

/// The exit code of a worker that was told to stop: another one goes on.
pub(crate) const INTERRUPTED: u8 = 75;

/// How a worker is, as far as can be seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It works, or is about to.
    Working,
    /// It took much longer than it may.
    Overdue,
    /// It is given up, with the reason in words.
    Failed(String),
}
