//! What is due once a replay has ended, or is being deleted: it is remembered, its worker goes,
//! and then it may go itself.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;

use super::conditions::{self, Verdict};
use super::{Runner, Trouble, finalizer, history, run, uid, update_status};
use crate::api::DlqReplay;
use crate::api::conditions::ReplayReason;
use crate::controller::Context;

/// How soon a worker that is to end is looked at again.
const SOON: Duration = Duration::from_secs(1);

/// How long the worker of a deleted replay may take to end by itself and say how it went. Later it
/// is stopped from outside, and its last numbers are those of the last checkpoint.
const OWN_END: Duration = Duration::from_secs(20);

/// A replay with a summary.
pub(super) async fn ended(object: &DlqReplay, context: &Context) -> Result<Action, Trouble> {
    if finalizer::has(object) {
        if let Some(record) = update_status::record(object) {
            history::remember(&context.client, object, &record).await?;
        }
        if !stop(object, context).await? {
            return Ok(Action::requeue(SOON));
        }
        super::forget(object, context);
        finalizer::remove(&context.client, object).await?;
    }
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    acknowledge(object, context).await?;
    expire(object, context).await
}

/// Says that an edit was seen, which changes nothing any more: whoever waits for that goes on.
async fn acknowledge(object: &DlqReplay, context: &Context) -> Result<(), Trouble> {
    let status = object.status.clone().unwrap_or_default();
    if status.observed_generation == object.metadata.generation {
        return Ok(());
    }
    if let (Some(reason), Some(summary)) = (conditions::reason(object), status.summary.clone()) {
        update_status::save(object, status, &Verdict::ended(reason, summary.message), context).await?;
    }
    Ok(())
}

/// Deletes it once `ttlAfterFinished` has passed.
async fn expire(object: &DlqReplay, context: &Context) -> Result<Action, Trouble> {
    let summary = object.status.as_ref().and_then(|status| status.summary.as_ref());
    let (Some(ttl), Some(summary)) = (object.spec.ttl_after_finished, summary) else {
        return Ok(Action::await_change());
    };
    let age = Timestamp::now().duration_since(summary.finished.0);
    let age = Duration::try_from(age).unwrap_or_default();
    match ttl.to_std().checked_sub(age) {
        Some(left) if !left.is_zero() => Ok(Action::requeue(left + Duration::from_millis(100))),
        _ => {
            finalizer::delete(&context.client, object).await?;
            Ok(Action::await_change())
        }
    }
}

/// A replay that is deleted before it has ended: its worker sees that too, and settles.
pub(super) async fn deleted(object: &DlqReplay, context: &Context) -> Result<Action, Trouble> {
    if !finalizer::has(object) {
        return Ok(super::forget(object, context));
    }
    if let Some(verdict) = run::outcome(object) {
        update_status::conclude(object, &verdict, context).await?;
        return Ok(Action::requeue(Duration::ZERO));
    }
    let since = object.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let waited = since.and_then(|since| Duration::try_from(Timestamp::now().duration_since(since)).ok());
    if run::is_at_work(object, context).await? && waited.is_none_or(|waited| waited < OWN_END) {
        return Ok(Action::requeue(SOON));
    }
    if !stop(object, context).await? {
        return Ok(Action::requeue(SOON));
    }
    // It may have said how it ended in its last moment.
    let object = super::latest(object, context).await?;
    let verdict = run::outcome(&object)
        .unwrap_or_else(|| Verdict::ended(ReplayReason::Cancelled, "the replay was deleted"));
    update_status::conclude(&object, &verdict, context).await?;
    Ok(Action::requeue(Duration::ZERO))
}

/// Ends the worker, if there is one, and says whether it is gone.
async fn stop(object: &DlqReplay, context: &Context) -> Result<bool, Trouble> {
    context.replays.plans.forget(&uid(object));
    match &context.replays.runner {
        Runner::Jobs(jobs) => Ok(jobs.stop(object).await?),
        Runner::InProcess(tasks) => Ok(tasks.stop(&uid(object))),
    }
}
