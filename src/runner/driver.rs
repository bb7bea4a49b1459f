//! From the resources to one run of the engine.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::orders::in_force;
use super::plan::{check_again, judge, run};
use crate::api::{DlqReplay, ReplayRun, RetryPipeline};
use crate::broker::replay::{self, Assignment, Journal, Orders, Report, Site};
use crate::broker::{AddressGuard, BrokerError, Endpoint, Management};
use crate::replay::outcome::{Checkpoint, Ended, Outcome};
use crate::replay::run::Fence;

/// One run, ready to be driven.
pub(super) struct Task {
    pub(super) site: Site,
    run: ReplayRun,
    checkpoint: Option<Checkpoint>,
    planned: Option<Fence>,
    /// The queues that the target reached when the plan was made.
    routes: Vec<String>,
    frame_max: u32,
    sets_consumer_timeout: bool,
}

impl Task {
    /// Where messages go that were replayed too often.
    pub(super) fn replay_limit_queue(&self) -> Option<String> {
        self.run.rewriting.replay_limit_queue.clone()
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
    let mut replay = replay.clone();
    let policy = pipeline.spec.replay_policy.clone().unwrap_or_default();
    replay.spec = in_force(&replay.spec, &policy);
    let mut run = run(&replay, pipeline).map_err(|problems| problems.join("; "))?;
    let status = replay.status.clone().unwrap_or_default();
    let admitted = status.admission.and_then(|admission| admission.max_messages);
    let admitted = admitted.map(|most| most.max(0).unsigned_abs());
    run.limits.messages = run.limits.messages.into_iter().chain(admitted).min();
    let plan = status.plan.as_ref();
    let planned = plan.map(|plan| Fence {
        count: plan.in_source.max(0).unsigned_abs(),
        time: plan.made.0.as_millisecond().max(0).unsigned_abs(),
    });
    let routes = plan.map(|plan| plan.routes.clone()).unwrap_or_default();
    let site = Site { endpoint, guard, vhost: pipeline.spec.vhost().to_owned(), queue: run.origin.clone() };
    Ok(Task { site, run, checkpoint, planned, routes, frame_max: 0, sets_consumer_timeout: false })
}

impl Task {
    /// Looks once more at what the run touches; a danger is what keeps it from starting. A run that
    /// has started goes on, and guards itself.
    ///
    /// # Errors
    /// Every error of a connection.
    pub(super) async fn check(&mut self, management: &Management) -> Result<Option<String>, BrokerError> {
        let checked = check_again(&self.run, &self.routes, management, &self.site).await?;
        self.frame_max = checked.frame_max;
        self.sets_consumer_timeout = checked.hold.is_none();
        self.run.limits.hold = checked.hold;
        Ok(checked.danger.filter(|_| self.checkpoint.is_none()))
    }
}

/// Drives a run.
///
/// # Errors
/// As [`replay::run`].
pub(super) async fn drive(
    task: Task,
    orders: watch::Receiver<Orders>,
    reports: watch::Sender<Report>,
    journal: impl Journal,
    stop: CancellationToken,
) -> Result<Ended, BrokerError> {
    let judge = match judge(&task.run, task.frame_max) {
        Ok(judge) => judge,
        Err(why) => return Ok(Ended::Finished(Outcome::Failed(why))),
    };
    let Task { site, run, checkpoint, planned, routes, sets_consumer_timeout, .. } = task;
    let watched = match routes.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    };
    let assignment = Assignment {
        site,
        target: run.target,
        judge,
        limits: run.limits,
        checkpoint,
        planned,
        watched,
        sets_consumer_timeout,
    };
    replay::run(assignment, orders, reports, journal, stop).await
}
