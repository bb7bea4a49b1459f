//! The seam to the engine: from the resources to one run.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::{DlqReplay, RetryPipeline};
use crate::broker::replay::{Journal, Orders, Report, Site};
use crate::broker::{AddressGuard, BrokerError, Endpoint};
use crate::replay::outcome::{Checkpoint, Outcome};

/// One run, ready to be driven.
pub(super) struct Task {
    pub(super) site: Site,
    pub(super) checkpoint: Option<Checkpoint>,
}

/// How driving a run ended.
pub(super) enum Ended {
    /// It is over.
    Over(Outcome),
    /// It was told to stop, and has settled.
    Interrupted,
}

impl Task {
    /// Where messages go that were replayed too often.
    pub(super) fn replay_limit_queue(&self) -> Option<String> {
        None
    }
}

/// The run that a replay and its pipeline describe, or all that is wrong with them.
pub(super) fn task(
    replay: &DlqReplay,
    pipeline: &RetryPipeline,
    endpoint: Arc<Endpoint>,
    guard: AddressGuard,
    checkpoint: Option<Checkpoint>,
) -> Result<Task, String> {
    let run = super::plan::run(replay, pipeline).map_err(|problems| problems.join("; "))?;
    let site = Site { endpoint, guard, vhost: pipeline.spec.vhost().to_owned(), queue: run.origin.clone() };
    Ok(Task { site, checkpoint })
}

/// Drives a run.
pub(super) async fn drive(
    task: Task,
    _orders: watch::Receiver<Orders>,
    _reports: watch::Sender<Report>,
    _journal: impl Journal,
    _stop: CancellationToken,
) -> Result<Ended, BrokerError> {
    let _ = task.checkpoint;
    Ok(Ended::Over(Outcome::Failed("moving messages is not supported by this build".to_owned())))
}
