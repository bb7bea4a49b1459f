//! What a worker is told while it runs: live edits of the replay, and what its pipeline allows.
//! Pure.

use crate::api::conditions::{PipelineCondition, PipelineReason, ReplayReason};
use crate::api::{
    AdmittedBy, AuditLevel, Broker, DlqReplay, DlqReplaySpec, ReplayPolicy, ReplayTo, RetryPipeline,
    TargetKind,
};
use crate::broker::replay::Orders;
use crate::replay::run::{Guard, Pace};

/// What a worker is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Directive {
    /// Go on like this, or wait as the orders say.
    Go(Orders),
    /// End for good.
    End(Verdict),
}

/// An end that was ordered: the reason that the condition gets, and why in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) reason: ReplayReason,
    pub(crate) why: String,
}

/// Where a replay may move messages to, unless its pipeline says otherwise.
const DEFAULT_TARGETS: [TargetKind; 3] =
    [TargetKind::WorkQueue, TargetKind::Quarantine, TargetKind::ParkingLot];

/// The most messages per second, unless the pipeline says otherwise.
const DEFAULT_MAX_RATE: i32 = 100;

/// What a worker is told by its replay and its pipeline as they are now; nothing stands for one
/// that was deleted. `has_trail` says whether there is a durable audit trail.
pub(crate) fn directive(
    replay: Option<&DlqReplay>,
    pipeline: Option<&RetryPipeline>,
    has_trail: bool,
) -> Directive {
    let end = |reason, why: &str| Directive::End(Verdict { reason, why: why.to_owned() });
    let replay = match replay {
        Some(replay) if replay.metadata.deletion_timestamp.is_none() => replay,
        _ => return end(ReplayReason::Cancelled, "the replay was deleted"),
    };
    if replay.spec.cancel {
        return end(ReplayReason::Cancelled, "spec.cancel is true");
    }
    let pipeline = match pipeline {
        Some(pipeline) if pipeline.metadata.deletion_timestamp.is_none() => pipeline,
        _ => return end(ReplayReason::Stopped, "the pipeline was deleted"),
    };
    if is_not_allowed(pipeline) {
        return end(ReplayReason::Stopped, "the cluster's owner no longer grants what the pipeline uses");
    }
    if let Some(why) = forbidden(replay, pipeline, has_trail) {
        return end(ReplayReason::Stopped, why);
    }
    let policy = pipeline.spec.replay_policy.clone().unwrap_or_default();
    let wrong = numbers(&slowed(&replay.spec, &policy), &policy).err();
    let hold = if replay.spec.suspend {
        Some("spec.suspend is true".to_owned())
    } else if pipeline.spec.suspend {
        Some("the pipeline is suspended".to_owned())
    } else {
        // No reason to end: it is put right, or cancelled.
        wrong.map(|why| format!("the newest edit can't be carried out: {why}"))
    };
    match numbers(&in_force(&replay.spec, &policy), &policy) {
        Ok((pace, guard)) => Directive::Go(Orders { pace, guard, hold, cancel: false }),
        Err(why) => end(ReplayReason::InvalidSpec, &why),
    }
}

/// A replay with settings that can be carried out, whatever was edited while it runs: never faster
/// than its pipeline lets it by now, and with the defaults where it can't be done as it says, for
/// which [`directive`] holds it.
pub(super) fn in_force(spec: &DlqReplaySpec, policy: &ReplayPolicy) -> DlqReplaySpec {
    let mut spec = slowed(spec, policy);
    if spec.to_pace(policy).is_err() {
        spec.pace = None;
    }
    if spec.to_guard().is_err() {
        spec.guard = None;
    }
    spec
}

fn slowed(spec: &DlqReplaySpec, policy: &ReplayPolicy) -> DlqReplaySpec {
    let most = policy.max_rate.unwrap_or(DEFAULT_MAX_RATE);
    let mut spec = spec.clone();
    if let Some(pace) = &mut spec.pace {
        pace.messages_per_second = pace.messages_per_second.map(|rate| rate.min(most));
        let rate = pace.messages_per_second.unwrap_or(most);
        pace.ramp.iter_mut().for_each(|ramp| ramp.from = ramp.from.min(rate));
    }
    spec
}

/// How fast it may go and when it stops.
fn numbers(spec: &DlqReplaySpec, policy: &ReplayPolicy) -> Result<(Pace, Guard), String> {
    match (spec.to_pace(policy), spec.to_guard()) {
        (Ok(pace), Ok(guard)) => Ok((pace, guard)),
        (pace, guard) => {
            let problems = pace.err().into_iter().chain(guard.err()).flatten();
            Err(problems.map(|problem| problem.to_string()).collect::<Vec<_>>().join("; "))
        }
    }
}

/// Whether the pipeline has lost its rights on a shared cluster.
fn is_not_allowed(pipeline: &RetryPipeline) -> bool {
    pipeline.status.iter().flat_map(|status| &status.conditions).any(|condition| {
        condition.type_ == PipelineCondition::Ready.as_str()
            && condition.status == "False"
            && condition.reason == PipelineReason::NamespaceNotAllowed.as_str()
    })
}

/// Whether the operator has looked at a pipeline of a shared cluster as it is now: what an edit
/// names may be more than the cluster's owner grants. One with a Secret of its own needs nobody's
/// leave.
pub(crate) fn is_looked_at(pipeline: &RetryPipeline) -> bool {
    let conditions = pipeline.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.filter(|condition| condition.type_ == PipelineCondition::Ready.as_str());
    matches!(pipeline.spec.broker, Broker::SecretRef(_))
        || ready.any(|ready| ready.observed_generation == pipeline.metadata.generation)
}

/// What the pipeline does not allow any more.
fn forbidden(replay: &DlqReplay, pipeline: &RetryPipeline, has_trail: bool) -> Option<&'static str> {
    let policy = pipeline.spec.replay_policy.clone().unwrap_or_default();
    let targets = policy.allowed_targets.clone().unwrap_or_else(|| DEFAULT_TARGETS.to_vec());
    let to = replay.spec.to();
    if !targets.contains(&to.kind()) {
        return Some("the pipeline's replayPolicy.allowedTargets no longer lists its target");
    }
    if policy.audit == Some(AuditLevel::Required) && !has_trail {
        return Some("the pipeline's replayPolicy.audit is Required now, and there is no audit stream");
    }
    let admission = replay.status.as_ref().and_then(|status| status.admission.as_ref());
    let is_approved = admission.is_some_and(|admission| admission.by == AdmittedBy::Approval);
    if is_approved {
        return None;
    }
    if matches!(to, ReplayTo::Discard {}) {
        return Some("it deletes messages, which takes an approval");
    }
    let free =
        policy.messages_without_approval.or(policy.require_approval.then_some(i64::from(DEFAULT_BUDGET)))?;
    let most = admission.and_then(|admission| admission.max_messages).unwrap_or(i64::MAX);
    (most > free).then_some("the pipeline lets fewer messages move without approval than when it started")
}

/// Messages per 24 hours that need no approval where approval is required.
const DEFAULT_BUDGET: i32 = 50;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::replay::run::Canary;

    fn replay(spec: Value, status: Value) -> DlqReplay {
        let mut object = json!({
            "apiVersion": "redrive.dev/v1alpha1", "kind": "DlqReplay", "metadata": {"name": "r"},
            "spec": {"pipelineRef": {"name": "orders"}, "justification": "the fix is deployed"},
            "status": status,
        });
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn admitted(by: &str, most: i64) -> Value {
        json!({"admission": {"by": by, "maxMessages": most, "time": "2026-01-01T00:00:00Z"}})
    }

    fn pipeline(policy: Value) -> RetryPipeline {
        serde_json::from_value(json!({
            "apiVersion": "redrive.dev/v1alpha1", "kind": "RetryPipeline", "metadata": {"name": "orders"},
            "spec": {
                "broker": {"secretRef": {"name": "s"}}, "source": {"queue": {"name": "q"}},
                "replayPolicy": policy,
            },
        }))
        .unwrap()
    }

    fn orders(replay: &DlqReplay, pipeline: &RetryPipeline) -> Orders {
        match directive(Some(replay), Some(pipeline), false) {
            Directive::Go(orders) => orders,
            other => panic!("{other:?}"),
        }
    }

    fn end(replay: Option<&DlqReplay>, pipeline: Option<&RetryPipeline>) -> ReplayReason {
        match directive(replay, pipeline, false) {
            Directive::End(verdict) => verdict.reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_page() {
        let orders = orders(&replay(json!({}), json!({})), &pipeline(json!({})));
        let pace = &orders.pace;
        assert_eq!((pace.per_second, pace.batch, pace.window, pace.pause), (10, 50, 500, Duration::ZERO));
        let guard = &orders.guard;
        assert_eq!((guard.stop_on_return_percent, guard.sample, guard.min_returns), (20, 50, 10));
        assert_eq!(guard.canary, Canary { messages: 5, after: Duration::from_secs(300), tries: 3 });
        assert!(guard.require_consumers && guard.pause_above_target_depth.is_none());
        assert_eq!((guard.max_unroutable, orders.hold, orders.cancel), (1, None, false));
    }

    /// A pipeline on a cluster, at generation 2, with a Ready condition.
    fn on_cluster(status: &str, reason: &str, observed: i64) -> RetryPipeline {
        let mut object = pipeline(json!({}));
        object.spec.broker = serde_json::from_value(json!({"clusterRef": {"name": "rmq"}})).unwrap();
        object.metadata.generation = Some(2);
        object.status = serde_json::from_value(json!({"conditions": [{
            "type": "Ready", "status": status, "reason": reason, "message": "m", "observedGeneration": observed,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}))
        .unwrap();
        object
    }

    #[test]
    fn an_edit_on_a_shared_cluster_is_looked_at_before_it_counts() {
        assert!(is_looked_at(&on_cluster("True", "Reconciled", 2)));
        assert!(!is_looked_at(&on_cluster("True", "Reconciled", 1)));
        let mut fresh = on_cluster("True", "Reconciled", 2);
        fresh.status = None;
        assert!(!is_looked_at(&fresh));
        assert!(is_looked_at(&pipeline(json!({}))), "a Secret of its own needs nobody's leave");
    }

    #[test]
    fn rights_that_are_withdrawn_end_it_and_other_troubles_do_not() {
        let plain = replay(json!({}), json!({}));
        let refused = on_cluster("False", "NamespaceNotAllowed", 2);
        assert_eq!(end(Some(&plain), Some(&refused)), ReplayReason::Stopped);
        orders(&plain, &on_cluster("False", "BrokerUnreachable", 2));
        orders(&plain, &on_cluster("True", "Reconciled", 1));
    }

    #[test]
    fn no_replay_is_faster_than_its_pipeline_lets_it() {
        let fast = replay(
            json!({"pace": {"messagesPerSecond": 90, "ramp": {"from": 50, "every": "1s", "factor": 2}}}),
            json!({}),
        );
        assert_eq!(orders(&fast, &pipeline(json!({}))).pace.per_second, 90);
        let slow = orders(&fast, &pipeline(json!({"maxRate": 20}))).pace;
        assert_eq!((slow.per_second, slow.ramp.unwrap().from), (20, 20));
    }

    #[test]
    fn a_suspended_replay_or_pipeline_is_held_and_not_ended() {
        let (plain, free) = (replay(json!({}), json!({})), pipeline(json!({})));
        assert!(orders(&replay(json!({"suspend": true}), json!({})), &free).hold.is_some());
        let mut suspended = free.clone();
        suspended.spec.suspend = true;
        assert!(orders(&plain, &suspended).hold.is_some());
        assert_eq!(orders(&plain, &free).hold, None);
    }

    #[test]
    fn a_cancel_and_a_deletion_end_it() {
        let (plain, free) = (replay(json!({}), json!({})), pipeline(json!({})));
        assert_eq!(
            end(Some(&replay(json!({"cancel": true}), json!({}))), Some(&free)),
            ReplayReason::Cancelled
        );
        assert_eq!(end(None, Some(&free)), ReplayReason::Cancelled);
        assert_eq!(end(Some(&plain), None), ReplayReason::Stopped);
        let mut deleted = plain.clone();
        deleted.metadata.deletion_timestamp = Some(crate::controller::retry_pipeline::conditions::now());
        assert_eq!(end(Some(&deleted), Some(&free)), ReplayReason::Cancelled);
    }

    #[test]
    fn a_stricter_pipeline_ends_what_it_no_longer_allows() {
        let budgeted = replay(json!({}), admitted("Budget", 40));
        for policy in [
            json!({"allowedTargets": ["ParkingLot"]}),
            json!({"audit": "Required"}),
            json!({"messagesWithoutApproval": 39}),
            json!({"requireApproval": true, "messagesWithoutApproval": 0}),
        ] {
            assert_eq!(
                end(Some(&budgeted), Some(&pipeline(policy.clone()))),
                ReplayReason::Stopped,
                "{policy}"
            );
        }
        let required = pipeline(json!({"requireApproval": true, "messagesWithoutApproval": 40}));
        assert_eq!(orders(&budgeted, &required).hold, None);
        let approved = replay(json!({}), admitted("Approval", 9_000));
        assert_eq!(orders(&approved, &required).hold, None);
        let free =
            replay(json!({}), json!({"admission": {"by": "NotRequired", "time": "2026-01-01T00:00:00Z"}}));
        assert_eq!(end(Some(&free), Some(&required)), ReplayReason::Stopped);
    }

    #[test]
    fn an_edit_that_can_not_be_carried_out_holds_it_until_it_is_put_right() {
        let wrong = json!({"guard": {"sample": 5, "minReturns": 6}, "pace": {"messagesPerSecond": 7}});
        let held = orders(&replay(wrong.clone(), json!({})), &pipeline(json!({})));
        assert!(held.hold.unwrap().contains("guard.minReturns"));
        assert_eq!((held.pace.per_second, held.guard.sample), (7, 50), "what is right, and the default");
        let mut suspended = wrong;
        suspended["suspend"] = json!(true);
        let held = orders(&replay(suspended, json!({})), &pipeline(json!({})));
        assert_eq!(held.hold.as_deref(), Some("spec.suspend is true"), "nothing disables that");
    }

    /// A worker that goes on begins by these.
    #[test]
    fn what_was_edited_on_the_way_is_no_reason_to_fail() {
        let policy = |most: i32| ReplayPolicy { max_rate: Some(most), ..ReplayPolicy::default() };
        let fast = replay(json!({"pace": {"messagesPerSecond": 90}}), json!({}));
        let slowed = in_force(&fast.spec, &policy(20));
        assert_eq!(slowed.to_pace(&policy(20)).unwrap().per_second, 20);
        let ramp = json!({"pace": {"messagesPerSecond": 9, "ramp": {"from": 1, "every": "0s", "factor": 2}}});
        assert_eq!(in_force(&replay(ramp, json!({})).spec, &policy(20)).pace, None);
    }

    #[test]
    fn an_audit_trail_is_enough_for_a_pipeline_that_requires_one() {
        let strict = pipeline(json!({"audit": "Required"}));
        assert!(matches!(
            directive(Some(&replay(json!({}), json!({}))), Some(&strict), true),
            Directive::Go(_)
        ));
    }
}
