//! The controller's part of a replay's status, written only where it differs, with an event
//! where the phase has changed.

use kube::ResourceExt;

use super::super::Context;
use super::super::api_server::WriteError;
use super::super::events::Kind;
use super::super::patch_status::{patch_status, steps};
use super::conditions::{self, Phase, Verdict};
use crate::api::conditions::ReplayReason;
use crate::api::{DlqReplay, DlqReplayStatus, ReplayProgress, ReplayRecord, ReplaySummary};
use crate::controller::retry_pipeline::conditions::now;

/// The worker's part.
const OF_THE_WORKER: [&str; 1] = ["progress"];

/// Writes what there is to say, with whatever else of the status is new.
pub(super) async fn save(
    object: &DlqReplay,
    mut next: DlqReplayStatus,
    verdict: &Verdict,
    context: &Context,
) -> Result<DlqReplay, WriteError> {
    conditions::judge(&mut next, object, verdict);
    let before = object.status.clone().unwrap_or_default();
    let steps = steps(&before, &next, &OF_THE_WORKER);
    if steps.is_empty() {
        return Ok(object.clone());
    }
    let seen = object.status.is_some();
    let written = patch_status(&context.client, object, seen, steps, seen).await?;
    if conditions::reason(object) != Some(verdict.reason) {
        let bad = verdict.phase == Phase::Ended && verdict.reason != ReplayReason::Completed;
        let warns = bad || matches!(verdict.reason, ReplayReason::Paused) && !object.spec.suspend;
        let kind = if warns { Kind::Warning } else { Kind::Normal };
        context.events.publish(object, kind, verdict.reason.as_str(), "Replay", &verdict.message).await;
    }
    Ok(written)
}

/// Ends a replay for good.
pub(super) async fn conclude(
    object: &DlqReplay,
    verdict: &Verdict,
    context: &Context,
) -> Result<DlqReplay, WriteError> {
    let mut next = object.status.clone().unwrap_or_default();
    let progress = next.progress.clone().unwrap_or_default();
    next.summary = Some(summary(verdict, &progress));
    tracing::info!(
        namespace = object.namespace(),
        name = object.name_any(),
        result = verdict.reason.as_str(),
        replayed = progress.replayed,
        "a replay has ended"
    );
    save(object, next, verdict, context).await
}

fn summary(verdict: &Verdict, progress: &ReplayProgress) -> ReplaySummary {
    ReplaySummary {
        result: verdict.reason.to_string(),
        message: verdict.message.clone(),
        started: progress.started.clone(),
        finished: progress.outcome.as_ref().map_or_else(now, |outcome| outcome.finished.clone()),
        matched: progress.matched,
        replayed: progress.replayed,
        failed: progress.failed,
        skipped: progress.skipped,
        duplicates_possible: progress.duplicates_possible,
    }
}

/// What the pipeline remembers of a replay that has ended; nothing of one that never had a chance
/// to move a message, and may be tried again.
pub(super) fn record(object: &DlqReplay) -> Option<ReplayRecord> {
    let status = object.status.as_ref()?;
    let summary = status.summary.as_ref()?;
    let quarantined = status.progress.as_ref().map_or(0, |progress| progress.quarantined);
    let is_approved =
        status.admission.as_ref().map(|admission| admission.by == crate::api::AdmittedBy::Approval);
    if is_approved.is_none() && !object.spec.cancel {
        return None;
    }
    Some(ReplayRecord {
        name: object.name_any(),
        spec_hash: super::history::spec_hash(&object.spec),
        result: summary.result.clone(),
        finished: summary.finished.clone(),
        moved: summary.replayed.saturating_add(quarantined),
        approved: is_approved.unwrap_or(false),
    })
}
