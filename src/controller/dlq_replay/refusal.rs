//! Why a replay can't begin. Pure; each reason is a sentence that says what to do.

use std::time::Duration;

use kube::ResourceExt;

use crate::api::conditions::{PipelineCondition, PipelineReason, ReplayReason};
use crate::api::{AuditLevel, DlqReplay, Finding, ReplayPlan, RetryPipeline, Severity};
use crate::runner::plan::run;

/// How many findings one message names.
const NAMED: usize = 4;

/// A reason and a sentence.
pub(super) type Refusal = (ReplayReason, String);

/// Why the pipeline can't be replayed at present; it may be in a moment.
pub(super) fn pipeline(replay: &DlqReplay, pipeline: Option<&RetryPipeline>) -> Option<Refusal> {
    let name = &replay.spec.pipeline_ref.name;
    let Some(pipeline) = pipeline else {
        let namespace = replay.namespace().unwrap_or_default();
        let text = format!(
            "there is no RetryPipeline {name:?} in the namespace {namespace:?}, and one of that name in another \
             namespace does not count: correct spec.pipelineRef.name in a new replay beside its pipeline"
        );
        return Some((ReplayReason::PipelineNotFound, text));
    };
    let refused = |text: String| Some((ReplayReason::PreflightFailed, text));
    if pipeline.metadata.deletion_timestamp.is_some() {
        return refused(format!("the pipeline {name:?} is being deleted"));
    }
    if pipeline.spec.suspend {
        return refused(format!("the pipeline {name:?} is suspended: set its spec.suspend to false"));
    }
    let status = pipeline.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().find(|one| one.type_ == PipelineCondition::Ready.as_str());
    match ready {
        // Dead letters that are held wait for room where they lead to, which a replay makes.
        Some(ready)
            if (ready.status == "True" || ready.reason == PipelineReason::DeadLettersStuck.as_str())
                && ready.observed_generation == pipeline.metadata.generation =>
        {
            None
        }
        Some(ready) if ready.status != "True" => {
            refused(format!("the pipeline {name:?} is not Ready ({}): {}", ready.reason, ready.message))
        }
        _ => refused(format!("the pipeline {name:?} is not Ready yet")),
    }
}

/// What of the spec can't be used, or is not allowed by the pipeline's policy, all of it.
pub(super) fn policy(replay: &DlqReplay, pipeline: &RetryPipeline, has_trail: bool) -> Option<Refusal> {
    let policy = pipeline.spec.replay_policy.clone().unwrap_or_default();
    if policy.audit == Some(AuditLevel::Required) && !has_trail {
        let text = "the pipeline requires an audit stream, and the operator has none: start it with --audit-vhost \
                    and --audit-secret, or set replayPolicy.audit to BestEffort";
        return Some((ReplayReason::PreflightFailed, text.to_owned()));
    }
    let problems = run(replay, pipeline).err()?;
    Some((ReplayReason::InvalidSpec, problems.join("; ")))
}

/// The dangers that a plan found.
pub(super) fn dangers(plan: &ReplayPlan) -> Option<Refusal> {
    let grave = |finding: &&Finding| finding.severity == Severity::Error;
    let texts: Vec<&str> =
        plan.findings.iter().filter(grave).map(|finding| finding.message.as_str()).collect();
    if texts.is_empty() {
        return None;
    }
    let more = texts.len().saturating_sub(NAMED);
    let mut text = texts.iter().take(NAMED).copied().collect::<Vec<_>>().join("; ");
    if more > 0 {
        text.push_str(&format!("; and {more} more in status.plan.findings"));
    }
    Some((ReplayReason::PreflightFailed, text))
}

/// Whether a new replay has waited long enough for what may come in a moment.
pub(super) fn is_out_of_patience(age: Duration, patience: Duration) -> bool {
    age >= patience
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn replay(spec: Value) -> DlqReplay {
        let mut object = json!({
            "apiVersion": "redrive.dev/v1alpha1", "kind": "DlqReplay",
            "metadata": {"name": "r", "namespace": "shop"},
            "spec": {"pipelineRef": {"name": "orders"}, "justification": "the fix is deployed"},
        });
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn orders(policy: Value, ready: &str) -> RetryPipeline {
        serde_json::from_value(json!({
            "apiVersion": "redrive.dev/v1alpha1", "kind": "RetryPipeline",
            "metadata": {"name": "orders", "generation": 2},
            "spec": {
                "broker": {"secretRef": {"name": "s"}}, "source": {"queue": {"name": "q"}}, "replayPolicy": policy,
            },
            "status": {"conditions": [{
                "type": "Ready", "status": ready, "reason": "Reconciled", "message": "m",
                "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn only_a_ready_pipeline_is_replayed() {
        let one = replay(json!({}));
        let (reason, text) = pipeline(&one, None).unwrap();
        assert_eq!(reason, ReplayReason::PipelineNotFound);
        assert!(text.contains("another namespace does not count"), "{text}");
        assert_eq!(pipeline(&one, Some(&orders(json!({}), "True"))), None);
        let why = |object: &RetryPipeline| pipeline(&one, Some(object)).unwrap().1;
        assert!(why(&orders(json!({}), "False")).contains("not Ready (Reconciled)"));
        // Its cure may be the replay.
        let mut stuck = orders(json!({}), "False");
        stuck.status.as_mut().unwrap().conditions[0].reason = PipelineReason::DeadLettersStuck.to_string();
        assert_eq!(pipeline(&one, Some(&stuck)), None);
        let mut edited = orders(json!({}), "True");
        edited.metadata.generation = Some(3);
        assert!(why(&edited).contains("not Ready yet"));
        let mut suspended = orders(json!({}), "True");
        suspended.spec.suspend = true;
        assert!(why(&suspended).contains("suspended"));
    }

    #[test]
    fn all_that_the_policy_does_not_allow_is_said_at_once() {
        let fast = replay(json!({"to": {"discard": {}}, "pace": {"messagesPerSecond": 101}}));
        let (reason, text) = policy(&fast, &orders(json!({}), "True"), false).unwrap();
        assert_eq!(reason, ReplayReason::InvalidSpec);
        assert!(text.contains("WorkQueue, Quarantine, ParkingLot and not Discard"), "{text}");
        assert!(text.contains("at most 100"), "{text}");
        assert_eq!(policy(&replay(json!({})), &orders(json!({}), "True"), false), None);
        let slow = orders(json!({"maxRate": 9}), "True");
        let ten = replay(json!({"pace": {"messagesPerSecond": 10}}));
        assert!(policy(&ten, &slow, false).is_some());
        // The rate that nobody named gives way to the pipeline's.
        assert_eq!(policy(&replay(json!({})), &slow, false), None);
    }

    #[test]
    fn a_required_trail_that_is_missing_is_no_replay() {
        let strict = orders(json!({"audit": "Required"}), "True");
        let (reason, text) = policy(&replay(json!({})), &strict, false).unwrap();
        assert_eq!(reason, ReplayReason::PreflightFailed);
        assert!(text.contains("--audit-vhost"), "{text}");
        assert_eq!(policy(&replay(json!({})), &strict, true), None);
    }

    #[test]
    fn only_grave_findings_stop_a_replay() {
        let plan = |severity: &str| -> ReplayPlan {
            serde_json::from_value(json!({
                "hash": "h", "made": "2026-01-01T00:00:00Z", "inSource": 1, "matching": 1, "routeCount": 1,
                "collidingIds": 0, "findings": [{"severity": severity, "check": "C", "message": "what it is"}],
            }))
            .unwrap()
        };
        assert_eq!(dangers(&plan("Warning")), None);
        assert_eq!(dangers(&plan("Error")), Some((ReplayReason::PreflightFailed, "what it is".to_owned())));
    }
}
