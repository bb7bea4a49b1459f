//! One worker's life, from the first look at its replay to the outcome.

use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::API_TIMEOUT;
use super::audit::{About, Stream, Trail};
use super::driver::{self, Task};
use super::lease::{Claim, Held};
use super::orders::{Verdict, is_looked_at};
use super::progress::{Progress, now, shortened, total};
use super::supervise::Supervision;
use crate::api::conditions::ReplayReason;
use crate::api::{AuditLevel, DlqReplay, ProgressOutcome, ProgressState, RetryPipeline};
use crate::broker::replay::{Entry, Journal, Report};
use crate::broker::{AddressGuard, BrokerError, Endpoint, Management};
use crate::replay::outcome::{Activity, Checkpoint, Counts, Ended, Outcome};

/// How often what a run shows is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// How long to wait between two attempts at something that failed.
const AGAIN: Duration = Duration::from_secs(2);

/// How often a pipeline that was just edited is looked at.
const LOOKS: usize = 5;

/// How long a worker that was told to stop tries to write its outcome.
const LAST_WORDS: Duration = Duration::from_secs(15);

/// What a worker is started with.
pub(crate) struct Work {
    pub(crate) client: Client,
    /// The replay's namespace.
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Another replay of the same name is none of its business.
    pub(crate) uid: String,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) guard: AddressGuard,
    pub(crate) lease_namespace: String,
    pub(crate) stream: Option<Stream>,
    /// Whether audit records go to standard output as well.
    pub(crate) print_records: bool,
}

/// How a worker's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The run is over, and its outcome is in the status.
    Finished,
    /// It was told to stop; another one goes on.
    Interrupted,
}

/// Why a worker failed; another one may fare better.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API server refused or failed.
    #[error("the {what} can't be read: {source}")]
    Kubernetes {
        /// What was asked for.
        what: &'static str,
        /// What the API server said.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("the {0} can't be read: the API server does not answer")]
    Timeout(&'static str),
    /// The pipeline was edited, and nobody knows yet whether it may.
    #[error("the operator has not looked at the newest edit of the pipeline yet")]
    NotLookedAt,
    /// The broker.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The outcome could not be kept.
    #[error("{0}")]
    Unrecorded(String),
}

/// Runs a replay until it is over or `stop` is cancelled; nothing stays unacknowledged then.
///
/// # Errors
/// What another attempt may cure. What none cures is an outcome.
pub(crate) async fn work(work: Work, stop: CancellationToken) -> Result<End, Error> {
    let Some(replay) = work.replay().await? else { return Ok(End::Finished) };
    if replay
        .status
        .as_ref()
        .is_some_and(|status| status.progress.as_ref().is_some_and(|at| at.outcome.is_some()))
    {
        return Ok(End::Finished);
    }
    let pipeline = work.pipeline(&replay).await?;
    let progress = Arc::new(Progress::new(&work.client, &replay, total(&replay)));
    let started = Supervision::start(&work.client, &replay, pipeline.as_ref(), work.stream.is_some());
    let (supervision, pipeline) = match (started, pipeline) {
        (Ok(supervision), Some(pipeline)) => (supervision, pipeline),
        (Err(verdict), _) => return finish(&progress, told(&verdict), &stop).await,
        (Ok(_), None) => return Ok(End::Interrupted),
    };
    let worker =
        Worker { work: &work, replay: &replay, pipeline: &pipeline, progress: &progress, supervision };
    match worker.run(&stop).await? {
        Over::Interrupted => {
            // It has settled: these numbers are exact, and the next worker goes on from them.
            progress.write_now().await.map_err(Error::Unrecorded)?;
            Ok(End::Interrupted)
        }
        Over::Ended(outcome) => finish(&progress, outcome, &stop).await,
    }
}

impl Work {
    async fn replay(&self) -> Result<Option<Arc<DlqReplay>>, Error> {
        let api: Api<DlqReplay> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = read("DlqReplay", api.get_opt(&self.name)).await?;
        Ok(found.filter(|found| found.metadata.uid.as_ref() == Some(&self.uid)).map(Arc::new))
    }

    /// The pipeline, once the operator has looked at it as it is.
    async fn pipeline(&self, replay: &DlqReplay) -> Result<Option<Arc<RetryPipeline>>, Error> {
        let api: Api<RetryPipeline> = Api::namespaced(self.client.clone(), &self.namespace);
        for _ in 0..LOOKS {
            match read("RetryPipeline", api.get_opt(&replay.spec.pipeline_ref.name)).await? {
                Some(edited) if !is_looked_at(&edited) => tokio::time::sleep(AGAIN).await,
                found => return Ok(found.map(Arc::new)),
            }
        }
        Err(Error::NotLookedAt)
    }
}

async fn read<T>(what: &'static str, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(API_TIMEOUT, call).await {
        Ok(result) => result.map_err(|source| Error::Kubernetes { what, source: Box::new(source) }),
        Err(_) => Err(Error::Timeout(what)),
    }
}

/// How the work is over.
enum Over {
    /// For good.
    Ended(ProgressOutcome),
    /// For this worker.
    Interrupted,
}

struct Worker<'a> {
    work: &'a Work,
    replay: &'a Arc<DlqReplay>,
    pipeline: &'a Arc<RetryPipeline>,
    progress: &'a Arc<Progress>,
    supervision: Supervision,
}

impl Worker<'_> {
    async fn run(&self, stop: &CancellationToken) -> Result<Over, Error> {
        let failed = |why: &str| Ok(Over::Ended(outcome(ReplayReason::Failed, why)));
        let management = Management::new(&self.work.endpoint, self.work.guard.clone())?;
        let id = management.internal_cluster_id().await?;
        let recorded = self.pipeline.status.as_ref().and_then(|status| status.broker_id.as_ref());
        if let (Some(recorded), Some(found)) = (recorded, &id)
            && recorded != found
        {
            return failed(&format!(
                "the connection leads to the broker {found}, and the pipeline is on {recorded}"
            ));
        }
        let task = match self.task() {
            Ok(task) => task,
            Err(why) => return failed(&why),
        };
        let broker = id.unwrap_or_else(|| self.work.endpoint.amqp.to_string());
        let Some(held) = self.turn(&broker, &task, stop).await else { return Ok(self.early_end()) };
        let halt = stop.child_token();
        let over = tokio::select! {
            over = self.with_the_queue(task, &management, &halt) => over,
            // Cancels `halt`, upon which the line above settles.
            never = async { held.keep(&halt).await; std::future::pending().await } => never,
        };
        held.release().await;
        over
    }

    /// Drives the run, as often as it takes until the broker's own lock is ours as well.
    async fn with_the_queue(
        &self,
        mut task: Task,
        management: &Management,
        halt: &CancellationToken,
    ) -> Result<Over, Error> {
        loop {
            if let Some(danger) = task.check(management).await? {
                return Ok(Over::Ended(outcome(ReplayReason::PreflightFailed, &danger)));
            }
            match self.drive(task, halt).await {
                Err(Error::Broker(BrokerError::InUse { .. })) => {
                    self.pause("another replay holds the queue's lock on the broker");
                }
                other => return other,
            }
            if self.is_over_within(AGAIN, halt).await {
                return Ok(self.early_end());
            }
            task = match self.task() {
                Ok(task) => task,
                Err(why) => return Ok(Over::Ended(outcome(ReplayReason::Failed, &why))),
            };
        }
    }

    /// Waits, and says whether the run is over meanwhile.
    async fn is_over_within(&self, time: Duration, halt: &CancellationToken) -> bool {
        let _ = self.progress.write_news().await;
        tokio::select! {
            () = tokio::time::sleep(time) => false,
            () = halt.cancelled() => true,
            () = self.supervision.ended.cancelled() => true,
        }
    }

    fn task(&self) -> Result<Task, String> {
        let Work { endpoint, guard, .. } = self.work;
        // Not what the status said when this worker began: it may have moved messages since.
        let checkpoint = self.progress.checkpoint_so_far();
        driver::task(self.replay, self.pipeline, endpoint.clone(), guard.clone(), checkpoint)
    }

    /// Waits for the queue's Lease; nothing where the run ends first.
    async fn turn(&self, broker: &str, task: &Task, stop: &CancellationToken) -> Option<Held> {
        let about = format!("{}/{}", self.work.namespace, self.work.name);
        let queue = [broker, &task.site.vhost, &task.site.queue];
        let claim = Claim::new(&self.work.client, &self.work.lease_namespace, queue, &self.work.uid, &about);
        let wait = claim.acquire(|by| self.pause(&format!("{by} reads the same queue")));
        tokio::select! {
            held = wait => Some(held),
            () = self.tell() => None,
            () = stop.cancelled() => None,
            () = self.supervision.ended.cancelled() => None,
        }
    }

    fn early_end(&self) -> Over {
        match self.supervision.verdict() {
            Some(verdict) => Over::Ended(told(&verdict)),
            None => Over::Interrupted,
        }
    }

    fn pause(&self, why: &str) {
        self.progress.note(|progress| {
            progress.state = Some(ProgressState::Paused);
            progress.message = Some(shortened(why));
        });
    }

    /// Writes what is new, for ever.
    async fn tell(&self) {
        loop {
            if let Err(why) = self.progress.write_news().await {
                tracing::warn!(why, "trying again");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn drive(&self, task: Task, halt: &CancellationToken) -> Result<Over, Error> {
        let required = self.pipeline.spec.replay_policy.as_ref().and_then(|policy| policy.audit);
        let about = About::new(self.replay, self.pipeline, &task.site.queue, task.replay_limit_queue());
        let (stream, guard) = (self.work.stream.clone(), self.work.guard.clone());
        let required = required == Some(AuditLevel::Required);
        let trail = Trail::new(about, stream, guard, required, self.work.print_records);
        while let Err(why) = trail.check().await {
            self.pause(&why);
            if self.is_over_within(AGAIN, halt).await {
                return Ok(self.early_end());
            }
        }
        let nothing =
            Report { activity: Activity::Running, fence: None, counts: Counts::default(), rate: 0.0 };
        let (sender, reports) = watch::channel(nothing);
        let journal = Keeper { trail, progress: self.progress.clone() };
        let orders = self.supervision.orders.clone();
        let ended = tokio::select! {
            ended = driver::drive(task, orders, sender, journal, halt.clone()) => ended?,
            never = self.show(reports.clone()) => never,
        };
        if reports.borrow().fence.is_some() {
            self.progress.show(&reports.borrow());
        }
        Ok(match ended {
            Ended::Interrupted => Over::Interrupted,
            Ended::Finished(ended) => Over::Ended(outcome_of(ended, self.supervision.verdict(), self.replay)),
        })
    }

    /// Shows what the run says of itself, for ever.
    async fn show(&self, mut reports: watch::Receiver<Report>) -> Ended {
        loop {
            if reports.has_changed().unwrap_or(false) {
                self.progress.show(&reports.borrow_and_update());
            }
            if let Err(why) = self.progress.write_news().await {
                tracing::warn!(why, "trying again");
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// What outlives the worker.
struct Keeper {
    trail: Trail,
    progress: Arc<Progress>,
}

impl Journal for Keeper {
    async fn record(&self, entries: Vec<Entry>) -> Result<(), String> {
        self.trail.record(&entries).await
    }

    async fn checkpoint(&self, checkpoint: Checkpoint) -> Result<(), String> {
        self.progress.checkpoint(&checkpoint).await
    }
}

/// Writes the outcome; without it in the status the run is not over.
async fn finish(
    progress: &Progress,
    outcome: ProgressOutcome,
    stop: &CancellationToken,
) -> Result<End, Error> {
    let last_words = async {
        stop.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::pin!(last_words);
    loop {
        let why = match progress.end(&outcome).await {
            Ok(()) => return Ok(End::Finished),
            Err(why) => why,
        };
        tracing::warn!(why, "the outcome can't be written yet");
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = &mut last_words => return Err(Error::Unrecorded(why)),
        }
    }
}

/// The outcome of a run that was told to end.
fn told(verdict: &Verdict) -> ProgressOutcome {
    outcome(verdict.reason, &verdict.why)
}

fn outcome(reason: ReplayReason, message: &str) -> ProgressOutcome {
    ProgressOutcome { result: reason.to_string(), message: shortened(message), finished: now() }
}

fn outcome_of(ended: Outcome, verdict: Option<Verdict>, replay: &DlqReplay) -> ProgressOutcome {
    match ended {
        Outcome::Completed => outcome(ReplayReason::Completed, "every selected message was moved"),
        Outcome::CompletedWithFailures => outcome(
            ReplayReason::CompletedWithFailures,
            "the end was reached, but some messages stayed where they are: status.progress counts them",
        ),
        Outcome::Cancelled => {
            verdict.map_or_else(|| outcome(ReplayReason::Cancelled, "it was cancelled"), |one| told(&one))
        }
        Outcome::Stopped(why) => outcome(ReplayReason::Stopped, &why),
        Outcome::Unroutable => outcome(
            ReplayReason::Unroutable,
            "the target routed messages nowhere, and they stayed: bind a queue for them, or choose another target",
        ),
        Outcome::ScanLimitReached => {
            let limit = replay.spec.select.as_ref().and_then(|select| select.scan_limit).unwrap_or(1_000_000);
            let text =
                format!("{limit} messages were read: raise select.scanLimit in a new replay to go further");
            outcome(ReplayReason::ScanLimitReached, &text)
        }
        Outcome::DeadlineExceeded => {
            outcome(ReplayReason::DeadlineExceeded, "spec.deadline has passed: a new replay moves the rest")
        }
        Outcome::Failed(why) => outcome(ReplayReason::Failed, &why),
    }
}
