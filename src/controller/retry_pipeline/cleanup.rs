//! The deletion of a pipeline: never stuck, never a message lost unasked.
//!
//! Delete removes all that is ours. DeleteIfEmpty first proves all queues empty
//! with their bindings in place, cuts the inflow, waits for the longest delay,
//! proves again, and only then deletes; whatever it finds in between, it puts the
//! bindings back. Each stage is recorded before it begins, so that an operator
//! that was killed goes on where it stopped. Inventory and markers are all it
//! needs, never a valid specification.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;

use super::super::Context;
use super::super::api_server::WriteError;
use super::super::events::Kind;
use super::super::lane::{APART, Cause, Done, Failure, RemovalStep, Remove, Removed, Task};
use super::conditions;
use super::{deletion_pace, dereference, finalizer, freshness, identity, inventory, report, update_status};
use crate::api::annotations::RELEASE;
use crate::api::conditions::PipelineReason;
use crate::api::{Cleanup, CleanupStage, DeletionPolicy, RetryPipeline};
use crate::broker::{BrokerError, Endpoint};

/// How soon queues that hold messages are looked at again.
const RECHECK: Duration = Duration::from_secs(15);

/// Why something is left where all that is ours was deleted.
const NOT_OURS: &str = "not ours to delete, or still in use";

/// What messages may take beyond their delay.
const MARGIN: Duration = Duration::from_secs(2);

/// What to do next with a deletion.
enum Next {
    /// The resource may go.
    Release,
    /// Look again after this time.
    Wait(Duration),
}

/// Says what stays on the broker of a pipeline that was deleted without cleanup, or
/// cleans up where there was no time to ask for it.
pub(crate) async fn deleted(object: RetryPipeline, context: &Context) {
    report::forget(&object, context);
    if object.spec.deletion_policy() == DeletionPolicy::Retain {
        report::left_behind(&object, context, "deletionPolicy is Retain").await;
    } else if object.metadata.deletion_timestamp.is_none() {
        vanished(Arc::new(object), context).await;
    }
}

/// Whether the next pass, which is near, may delete queues.
pub(crate) fn is_about_to_delete(object: &RetryPipeline) -> bool {
    let stage =
        object.status.as_ref().and_then(|status| status.cleanup.as_ref()).map(|cleanup| cleanup.stage);
    object.metadata.deletion_timestamp.is_some()
        && match object.spec.deletion_policy() {
            DeletionPolicy::Retain => false,
            DeletionPolicy::DeleteIfEmpty => stage == Some(CleanupStage::ProvingAgain),
            DeletionPolicy::Delete => stage.is_none(),
        }
}

/// One pass over a pipeline that is being deleted.
pub(super) async fn run(object: Arc<RetryPipeline>, context: &Context) -> Action {
    if !finalizer::has(&object) {
        return Action::await_change();
    }
    // The stage decides, so it must be the one that was recorded last.
    let object = match freshness::current(object.clone(), context).await {
        Ok(object) => object,
        Err(WriteError::Gone) => return Action::await_change(),
        Err(error) => return try_again(&object, context, &error),
    };
    match pass(&object, context).await {
        Ok(Next::Wait(wait)) => Action::requeue(wait),
        Ok(Next::Release) => match finalizer::release(&object, context).await {
            Ok(()) => {
                report::forget(&object, context);
                Action::await_change()
            }
            Err(error) => try_again(&object, context, &error),
        },
        Err(error) => try_again(&object, context, &error),
    }
}

/// Cleans up after a pipeline that is gone although its cleanup was due: the API
/// server deletes a resource at once if the request came before the finalizer,
/// however much later it is carried out.
async fn vanished(object: Arc<RetryPipeline>, context: &Context) {
    let began = Instant::now();
    let why = loop {
        let why = match delete_vanished(&object, context).await {
            Ok(()) => break None,
            Err(why) => why,
        };
        if object.spec.deletion_policy() != DeletionPolicy::Delete
            || began.elapsed() >= context.settings.release_after
        {
            break Some(why);
        }
        tokio::time::sleep(context.backoff.next(&deletion_pace(&object))).await;
    };
    if let Some(why) = why {
        report::left_behind(&object, context, &why).await;
    }
    report::forget(&object, context);
}

async fn delete_vanished(object: &Arc<RetryPipeline>, context: &Context) -> Result<(), String> {
    if object.spec.deletion_policy() != DeletionPolicy::Delete {
        return Err("the resource was gone before its queues could be proven empty".to_owned());
    }
    if dereference::another_cluster(object, context).await.is_some() {
        return Ok(());
    }
    let endpoint = match dereference::last_endpoint(object, context).await {
        Ok(endpoint) => endpoint,
        Err(error) if error.is_broker_gone() => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    match (Removing { object, context, endpoint }).delete().await {
        Ok(_) => Ok(()),
        Err(Stop::Write(error)) => Err(error.to_string()),
        Err(Stop::Lane(failure)) => Err(conditions::explain_lane(&failure.cause).1),
    }
}

async fn pass(object: &Arc<RetryPipeline>, context: &Context) -> Result<Next, WriteError> {
    if inventory::read(object).is_empty() {
        return Ok(Next::Release);
    }
    if object.spec.deletion_policy() == DeletionPolicy::Retain {
        return Ok(let_go(object, context, "deletionPolicy is Retain").await);
    }
    if object.annotations().get(RELEASE).is_some_and(|value| value == "true") {
        return Ok(let_go(object, context, "released by annotation").await);
    }
    if dereference::another_cluster(object, context).await.is_some() {
        return Ok(Next::Release);
    }
    let endpoint = match dereference::last_endpoint(object, context).await {
        Ok(endpoint) => endpoint,
        // Nothing is left to clean.
        Err(error) if error.is_broker_gone() => return Ok(Next::Release),
        // Only where the credentials are gone for good does the wait end.
        Err(error) => {
            return give_up_later(object, context, error.reason(), error.to_string(), error.is_gone()).await;
        }
    };
    let removal = Removing { object, context, endpoint };
    let result = match object.spec.deletion_policy() {
        DeletionPolicy::DeleteIfEmpty => removal.delete_if_empty().await,
        _ => removal.delete().await,
    };
    match result {
        Ok(next) => Ok(next),
        Err(Stop::Write(error)) => Err(error),
        Err(Stop::Lane(failure)) => {
            let (reason, message) = conditions::explain_lane(&failure.cause);
            let bounded = matches!(failure.cause, Cause::Broker(_) | Cause::BrokerChanged { .. });
            give_up_later(object, context, reason, message, bounded).await
        }
    }
}

/// Leaves everything as it was before the deletion began: an inflow that was cut
/// is put back, if that can be done at once.
async fn let_go(object: &Arc<RetryPipeline>, context: &Context, why: &str) -> Next {
    let cleanup = object.status.as_ref().and_then(|status| status.cleanup.as_ref());
    let is_back = match cleanup.map(|cleanup| cleanup.stage) {
        None | Some(CleanupStage::Proving) => true,
        // What came before the waiting is not known: nothing may have been cut.
        Some(CleanupStage::Waiting) => {
            put_back(object, context).await;
            true
        }
        Some(_) => put_back(object, context).await,
    };
    let lost = if is_back { "" } else { ", and the bindings that fed the queues could not be put back" };
    report::left_behind(object, context, &format!("{why}{lost}")).await;
    Next::Release
}

async fn put_back(object: &Arc<RetryPipeline>, context: &Context) -> bool {
    match dereference::last_endpoint(object, context).await {
        Ok(endpoint) => Removing { object, context, endpoint }.step(RemovalStep::Rebind).await.is_ok(),
        Err(_) => false,
    }
}

fn try_again(object: &RetryPipeline, context: &Context, error: &WriteError) -> Action {
    tracing::warn!(namespace = object.namespace(), name = object.name_any(), %error, "trying to delete again later");
    Action::requeue(context.backoff.next(&deletion_pace(object)))
}

/// Waits for what can't be reached, at most as long as the operator is told. The
/// time runs from the first failure, however long the deletion has waited for
/// queues to become empty.
async fn give_up_later(
    object: &RetryPipeline,
    context: &Context,
    reason: PipelineReason,
    message: String,
    bounded: bool,
) -> Result<Next, WriteError> {
    let mut next = object.status.clone().unwrap_or_default();
    let waiting = next.cleanup.as_ref().filter(|cleanup| cleanup.stage == CleanupStage::Waiting);
    let waited = waiting.map_or(Duration::ZERO, |cleanup| since(cleanup.since.0));
    let left = context.settings.release_after.saturating_sub(waited);
    if bounded && waiting.is_some() && left.is_zero() {
        report::left_behind(object, context, &message).await;
        return Ok(Next::Release);
    }
    if bounded && waiting.is_none() {
        next.cleanup = Some(Cleanup { stage: CleanupStage::Waiting, since: conditions::now() });
    }
    update_status::judge(&mut next, object, conditions::of_deletion(reason, &message));
    report::save(object, &next, context).await?;
    let wait = context.backoff.next(&deletion_pace(object));
    Ok(Next::Wait(if bounded { wait.min(left + Duration::from_millis(100)) } else { wait }))
}

fn since(time: Timestamp) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(time)).unwrap_or(Duration::ZERO)
}

/// Why a pass ends early.
enum Stop {
    Write(WriteError),
    Lane(Failure),
}

impl From<WriteError> for Stop {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

struct Removing<'a> {
    object: &'a Arc<RetryPipeline>,
    context: &'a Context,
    endpoint: Arc<Endpoint>,
}

impl Removing<'_> {
    async fn delete(&self) -> Result<Next, Stop> {
        if let Removed::Deleted { left } = self.step(RemovalStep::Delete).await?
            && !left.is_empty()
        {
            report::orphaned(self.object, self.context, Kind::Normal, NOT_OURS, &left).await;
        }
        Ok(Next::Release)
    }

    async fn delete_if_empty(&self) -> Result<Next, Stop> {
        let cleanup = self.object.status.as_ref().and_then(|status| status.cleanup.clone());
        match cleanup.as_ref().map(|cleanup| cleanup.stage) {
            None | Some(CleanupStage::Proving | CleanupStage::Waiting) => self.prove().await,
            Some(CleanupStage::Draining) => self.drain(cleanup.map(|cleanup| cleanup.since.0)).await,
            Some(CleanupStage::ProvingAgain) => self.prove_again().await,
        }
    }

    async fn prove(&self) -> Result<Next, Stop> {
        match self.step(RemovalStep::Prove).await? {
            Removed::Empty => {
                self.record(CleanupStage::Draining, None).await?;
                Ok(match self.step(RemovalStep::Unbind).await? {
                    Removed::Unbound { longest_delay } => Next::Wait(way_home(longest_delay)),
                    _ => Next::Release,
                })
            }
            Removed::NotEmpty(queues) => {
                self.put_back(PipelineReason::QueueNotEmpty, not_empty(&queues, self.object)).await
            }
            Removed::Unprovable(error) => self.put_back_unproven(&error).await,
            Removed::Deleted { .. } => Ok(Next::Release),
            _ => self.look_again(CleanupStage::Proving).await,
        }
    }

    /// The inflow is cut; waits until the last message on its way must have come.
    async fn drain(&self, began: Option<Timestamp>) -> Result<Next, Stop> {
        let Removed::Unbound { longest_delay } = self.step(RemovalStep::Unbind).await? else {
            return Ok(Next::Release);
        };
        let needed = way_home(longest_delay);
        let passed = began.map_or(Duration::ZERO, since);
        if passed < needed {
            return Ok(Next::Wait(needed.checked_sub(passed).unwrap_or_default()));
        }
        self.prove_again().await
    }

    async fn prove_again(&self) -> Result<Next, Stop> {
        match self.step(RemovalStep::Prove).await? {
            // At once: what is empty now may hold messages by the next pass.
            Removed::Empty => self.delete().await,
            Removed::NotEmpty(queues) => {
                self.put_back(PipelineReason::QueueNotEmpty, not_empty(&queues, self.object)).await
            }
            Removed::Unprovable(error) => self.put_back_unproven(&error).await,
            Removed::Deleted { .. } => Ok(Next::Release),
            _ => self.look_again(CleanupStage::ProvingAgain).await,
        }
    }

    /// Records the stage while the second look has to wait.
    async fn look_again(&self, stage: CleanupStage) -> Result<Next, Stop> {
        let looked = Instant::now();
        self.record(stage, None).await?;
        let wait = APART + Duration::from_millis(200);
        Ok(Next::Wait(wait.saturating_sub(looked.elapsed())))
    }

    /// Queues may hold messages: the inflow is put back where it was cut already.
    async fn put_back(&self, reason: PipelineReason, why: String) -> Result<Next, Stop> {
        self.step(RemovalStep::Rebind).await?;
        self.record(CleanupStage::Proving, Some((reason, why))).await?;
        Ok(Next::Wait(RECHECK))
    }

    async fn put_back_unproven(&self, error: &BrokerError) -> Result<Next, Stop> {
        let reason = PipelineReason::from_word(error.reason()).unwrap_or(PipelineReason::Progressing);
        self.put_back(reason, conditions::shortened(format!("no queue can be proven empty: {error}"))).await
    }

    async fn step(&self, step: RemovalStep) -> Result<Removed, Stop> {
        let task = Remove {
            object: self.object.clone(),
            identity: identity(self.object, &self.context.cluster),
            inventory: inventory::read(self.object),
            step,
        };
        let task = Task::Remove(Box::new(task));
        match self.context.lanes.submit(&self.endpoint, self.object.spec.vhost(), task).await {
            Ok(Done::Removed(removed)) => Ok(removed),
            Ok(Done::Maintained(_)) => Err(Stop::Lane(Failure::stopped())),
            Err(failure) => Err(Stop::Lane(failure)),
        }
    }

    /// Records how far the deletion has come; its time starts with the stage.
    async fn record(
        &self,
        stage: CleanupStage,
        obstacle: Option<(PipelineReason, String)>,
    ) -> Result<(), WriteError> {
        let mut next = self.object.status.clone().unwrap_or_default();
        let same = next.cleanup.as_ref().is_some_and(|cleanup| cleanup.stage == stage);
        if !same {
            next.cleanup = Some(Cleanup { stage, since: conditions::now() });
        }
        let verdicts = match obstacle {
            Some((reason, message)) => conditions::of_deletion(reason, &message),
            None => conditions::of_deletion(PipelineReason::Progressing, under_way(stage)),
        };
        update_status::judge(&mut next, self.object, verdicts);
        report::save(self.object, &next, self.context).await
    }
}

/// How long messages may be on their way after the inflow is cut.
fn way_home(longest_delay: i64) -> Duration {
    Duration::from_millis(longest_delay.unsigned_abs()) + MARGIN
}

fn under_way(stage: CleanupStage) -> &'static str {
    match stage {
        CleanupStage::Proving => {
            "is being deleted: all queues must prove empty, with their bindings in place"
        }
        CleanupStage::Draining => {
            "is being deleted: no bindings lead to it, and messages on their way have time to arrive"
        }
        CleanupStage::ProvingAgain => "is being deleted: all queues must prove empty once more",
        CleanupStage::Waiting => "is being deleted: the broker or its Secret is out of reach",
    }
}

fn not_empty(queues: &[(String, Option<i64>)], object: &RetryPipeline) -> String {
    let text = |(name, count): &(String, Option<i64>)| match count {
        Some(count) => format!("{name} holds {count} messages"),
        None => format!("{name} can't be proven empty"),
    };
    let texts: Vec<String> = queues.iter().take(5).map(text).collect();
    let release = match object.annotations().get(RELEASE) {
        // Whoever wrote it waits for something that does not come.
        Some(value) => {
            let value: String = value.chars().take(20).collect();
            format!("{RELEASE} is {value:?}, which does nothing: write \"true\"")
        }
        None => format!("set the annotation {RELEASE} to \"true\""),
    };
    let advice = format!("replay, move or purge them, or leave all in place: {release}");
    conditions::shortened(format!("{}: {advice}", texts.join(", ")))
}
