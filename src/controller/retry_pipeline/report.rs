//! Tells what came of a pass: status where it differs, events on transitions.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use kube::ResourceExt;

use super::super::Context;
use super::super::api_server::WriteError;
use super::super::events::Kind;
use super::super::lane::{Action, Cause, Finding, Maintain, Maintained};
use super::conditions::{self, Verdict};
use super::{Obstacle, inventory, uid, update_status};
use crate::api::conditions::{PipelineCondition, PipelineReason};
use crate::api::{DeletionPolicy, RetryPipeline, RetryPipelineStatus};
use crate::topology::plan::Blocked;

/// No more findings wait for the API server; the next look finds anew what is not repaired.
const MOST_OWED: usize = 256;

/// What was reported of each pipeline, by UID.
#[derive(Debug, Default)]
pub(crate) struct Reported(Mutex<HashMap<String, Memory>>);

#[derive(Debug, Default)]
struct Memory {
    /// What it differs in: found again at every look, it is news only once. Unknown after
    /// a start.
    open: Option<BTreeSet<String>>,
    /// News that the API server would not take: once repaired, no look finds it again.
    owed: Vec<Finding>,
    /// How many were repaired since the start.
    repaired: i64,
}

/// Drift of a pipeline, for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DriftNumbers {
    /// What differs at present.
    pub(crate) open: usize,
    /// What was repaired since the start.
    pub(crate) repaired: i64,
}

impl Reported {
    /// What is known of a pipeline's drift.
    pub(crate) fn drift(&self, uid: &str) -> DriftNumbers {
        let reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = |memory: &Memory| DriftNumbers {
            open: memory.open.as_ref().map_or(0, BTreeSet::len),
            repaired: memory.repaired,
        };
        reported.get(uid).map(numbers).unwrap_or_default()
    }

    /// The findings that are news, given what status said before.
    fn news(&self, object: &RetryPipeline, findings: &[Finding], verdicts: &[Verdict]) -> Vec<Finding> {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = reported.entry(uid(object)).or_default();
        let open: BTreeSet<String> =
            findings.iter().filter(|finding| finding.is_open()).map(ToString::to_string).collect();
        // After a start the status is the only memory.
        let in_status = |text: &&String| is_in_status(object, text, verdicts);
        let known = memory.open.take().unwrap_or_else(|| open.iter().filter(in_status).cloned().collect());
        memory.open = Some(open);
        let is_new = |finding: &&Finding| !finding.is_open() || !known.contains(&finding.to_string());
        let repaired = findings.iter().filter(|finding| finding.action == Action::Repaired).count();
        memory.repaired += i64::try_from(repaired).unwrap_or_default();
        let mut news = std::mem::take(&mut memory.owed);
        news.extend(findings.iter().filter(is_new).cloned());
        news
    }

    /// Keeps news for the next time.
    fn owe(&self, object: &RetryPipeline, mut news: Vec<Finding>) {
        news.truncate(MOST_OWED);
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reported.entry(uid(object)).or_default().owed = news;
    }

    /// Forgets a pipeline that is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

/// Whether the condition Drifted says so already: by name, or whole, where it
/// could not name all.
fn is_in_status(object: &RetryPipeline, finding: &str, verdicts: &[Verdict]) -> bool {
    let drifted = |kind: &str| kind == PipelineCondition::Drifted.as_str();
    let said = object.status.iter().flat_map(|status| &status.conditions);
    let now = verdicts.iter().find(|verdict| drifted(verdict.condition.as_str()));
    said.filter(|condition| drifted(&condition.type_)).any(|condition| {
        condition.message.contains(finding) || now.is_some_and(|now| now.message == condition.message)
    })
}

/// Reports a pipeline whose broker was looked at.
pub(super) async fn maintained(
    object: &RetryPipeline,
    task: &Maintain,
    found: &Maintained,
    context: &Context,
) -> Result<(), WriteError> {
    let mut next = update_status::maintained(object, task, found);
    let news = context.reported.news(object, &found.findings, &conditions::of_maintained(found));
    next.drift = update_status::drift(next.drift, &news);
    if let Err(error) = write(object, &next, context, !is_told_by_findings(found)).await {
        context.reported.owe(object, news);
        return Err(error);
    }
    for finding in &news {
        publish_finding(object, finding, context).await;
    }
    Ok(())
}

/// Whether findings, which have events of their own, tell all that keeps a pipeline from being
/// Ready.
fn is_told_by_findings(found: &Maintained) -> bool {
    let open = found.findings.iter().filter(|finding| finding.is_open());
    let told: Vec<String> = open.map(ToString::to_string).collect();
    let is_told = |blocked: &Blocked| told.contains(&blocked.to_string());
    !told.is_empty() && found.unsupported.is_empty() && found.blocked.iter().all(is_told)
}

async fn publish_finding(object: &RetryPipeline, finding: &Finding, context: &Context) {
    let (action, done) = match finding.action {
        Action::Repaired => ("Repair", "repaired"),
        Action::Reported => ("Report", "left as it is"),
        Action::Blocked => ("Block", "blocked"),
    };
    let by = author(finding).map(|user| format!("; by the user {user}")).unwrap_or_default();
    let note = format!("{finding}{by}; {done}");
    context.events.publish(object, Kind::Warning, PipelineReason::DriftFound.as_str(), action, &note).await;
}

/// Who did it, unless the finding itself says so.
fn author(finding: &Finding) -> Option<&str> {
    let user = finding.by.as_deref().filter(|user| user.len() <= update_status::MAX_USER)?;
    (!finding.what.starts_with("the user ")).then_some(user)
}

/// Reports what keeps a pipeline from being worked on.
pub(super) async fn obstacle(
    object: &RetryPipeline,
    obstacle: &Obstacle,
    context: &Context,
) -> Result<(), WriteError> {
    let permanent = obstacle.is_permanent();
    let mut next = object.status.clone().unwrap_or_default();
    update_status::judge(&mut next, object, conditions::of_obstacle(obstacle, permanent));
    if permanent {
        next.observed_generation = object.metadata.generation;
    }
    if let Obstacle::Lane(failure) = obstacle {
        tracing::debug!(name = object.name_any(), cause = ?failure.cause, "the lane failed");
        if let Some(inventory) = &failure.inventory {
            next.inventory = inventory::write(inventory);
        }
        if matches!(failure.cause, Cause::Stopped) {
            return Ok(());
        }
    }
    save(object, &next, context).await
}

/// Reports a pipeline that is to be left alone; Ready stays as it was.
pub(super) async fn suspended(object: &RetryPipeline, context: &Context) -> Result<(), WriteError> {
    let mut next = object.status.clone().unwrap_or_default();
    let mut verdicts = conditions::of_suspended();
    let known = |verdict: &Verdict| {
        let kind = verdict.condition.as_str();
        next.conditions.iter().any(|condition| condition.type_ == kind)
    };
    verdicts.retain(|verdict| verdict.condition == PipelineCondition::Suspended || !known(verdict));
    update_status::judge(&mut next, object, verdicts);
    context.backoff.reset(&uid(object));
    context.lanes.forget(&uid(object));
    save(object, &next, context).await
}

/// Writes a status, and an event where Ready has changed.
pub(super) async fn save(
    object: &RetryPipeline,
    next: &RetryPipelineStatus,
    context: &Context,
) -> Result<(), WriteError> {
    write(object, next, context, true).await
}

async fn write(
    object: &RetryPipeline,
    next: &RetryPipelineStatus,
    context: &Context,
    tells_transition: bool,
) -> Result<(), WriteError> {
    match update_status::write(&context.client, object, next).await {
        Ok(Some(written)) => {
            context.last_written.note(&written);
            if tells_transition {
                publish_transition(object, next, context).await;
            }
        }
        // A pipeline that is gone needs no status.
        Ok(None) | Err(WriteError::Gone) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn publish_transition(object: &RetryPipeline, next: &RetryPipelineStatus, context: &Context) {
    let ready = |status: &RetryPipelineStatus| {
        let condition =
            status.conditions.iter().find(|condition| condition.type_ == PipelineCondition::Ready.as_str());
        condition
            .map(|condition| (condition.status.clone(), condition.reason.clone(), condition.message.clone()))
    };
    let before = object.status.as_ref().and_then(ready);
    let Some(after) =
        ready(next).filter(|after| before.as_ref().map(|b| (&b.0, &b.1)) != Some((&after.0, &after.1)))
    else {
        return;
    };
    let good = after.0 == "True" || after.1 == PipelineReason::Progressing.as_str();
    let kind = if good { Kind::Normal } else { Kind::Warning };
    context.events.publish(object, kind, &after.1, "Reconcile", &after.2).await;
}

/// Forgets all that is remembered of a pipeline that is gone.
pub(super) fn forget(object: &RetryPipeline, context: &Context) {
    context.lanes.forget(&uid(object));
    context.backoff.reset(&uid(object));
    context.backoff.reset(&super::deletion_pace(object));
    context.reported.forget(&uid(object));
    context.last_written.forget(&uid(object));
    context.convergence.forget(&uid(object));
}

/// An event that lists what stays on the broker, if anything does.
pub(super) async fn left_behind(object: &RetryPipeline, context: &Context, why: &str) {
    let names: Vec<String> = inventory::read(object).keys().map(ToString::to_string).collect();
    let kind =
        if object.spec.deletion_policy() == DeletionPolicy::Retain { Kind::Normal } else { Kind::Warning };
    orphaned(object, context, kind, why, &names).await;
}

/// An event that lists some of what stays on the broker.
pub(super) async fn orphaned(
    object: &RetryPipeline,
    context: &Context,
    kind: Kind,
    why: &str,
    names: &[String],
) {
    if names.is_empty() {
        return;
    }
    let note = format!("{why}; left on the broker: {}", names.join(", "));
    context.events.publish(object, kind, "Orphaned", "Delete", &note).await;
}
