//! What a worker is told while it runs: live edits of the replay, and what its pipeline allows.
//! Pure.

use std::time::Duration;

use crate::api::conditions::ReplayReason;
use crate::api::{self, AdmittedBy, AuditLevel, DlqReplay, ReplayTo, RetryPipeline, TargetKind};
use crate::broker::replay::Orders;
use crate::replay::run::{Canary, Guard, Pace, Ramp};

/// What a worker is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Directive {
    /// Go on like this.
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
pub(crate) const DEFAULT_TARGETS: [TargetKind; 3] =
    [TargetKind::WorkQueue, TargetKind::Quarantine, TargetKind::ParkingLot];

/// The most messages per second, unless the pipeline says otherwise.
pub(crate) const DEFAULT_MAX_RATE: i32 = 100;

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
    if let Some(why) = forbidden(replay, pipeline, has_trail) {
        return end(ReplayReason::Stopped, why);
    }
    let hold = if replay.spec.suspend {
        Some("spec.suspend is true")
    } else if pipeline.spec.suspend {
        Some("the pipeline is suspended")
    } else {
        None
    };
    let max_rate = pipeline.spec.replay_policy.as_ref().and_then(|policy| policy.max_rate);
    Directive::Go(Orders {
        pace: pace(replay.spec.pace.as_ref(), max_rate.unwrap_or(DEFAULT_MAX_RATE)),
        guard: guard(replay.spec.guard.as_ref()),
        hold: hold.map(str::to_owned),
        cancel: false,
    })
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

/// How fast a replay goes: as it says, and never faster than its pipeline lets it.
pub(crate) fn pace(pace: Option<&api::Pace>, max_rate: i32) -> Pace {
    let pace = pace.cloned().unwrap_or_default();
    let ramp = pace.ramp.map(|ramp| Ramp {
        from: number(ramp.from.min(max_rate)),
        every: ramp.every.to_std(),
        factor: number(ramp.factor),
    });
    Pace {
        per_second: number(pace.messages_per_second.unwrap_or(10).min(max_rate)),
        batch: number(pace.batch.unwrap_or(50)),
        pause: pace.pause_between_batches.map_or(Duration::ZERO, api::Duration::to_std),
        ramp,
        window: number(pace.window.unwrap_or(500)),
    }
}

/// When a replay pauses or stops by itself.
pub(crate) fn guard(guard: Option<&api::Guard>) -> Guard {
    let guard = guard.cloned().unwrap_or_default();
    let canary = guard.canary.unwrap_or_default();
    Guard {
        stop_on_return_percent: number(guard.stop_on_return_percent.unwrap_or(20)),
        sample: number(guard.sample.unwrap_or(50)),
        min_returns: number(guard.min_returns.unwrap_or(10)),
        canary: Canary {
            messages: number(canary.messages.unwrap_or(5)),
            after: canary.after.map_or(Duration::from_secs(300), api::Duration::to_std),
            tries: number(canary.tries.unwrap_or(3)),
        },
        pause_above_target_depth: guard.pause_above_target_depth.map(i64::unsigned_abs),
        require_consumers: guard.require_consumers.unwrap_or(true),
        max_unroutable: number(guard.max_unroutable.unwrap_or(1)),
    }
}

/// The schema lets no number below one through.
fn number(value: i32) -> u32 {
    value.max(1).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

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
            Directive::End(verdict) => panic!("{verdict:?}"),
        }
    }

    fn end(replay: Option<&DlqReplay>, pipeline: Option<&RetryPipeline>) -> ReplayReason {
        match directive(replay, pipeline, false) {
            Directive::End(verdict) => verdict.reason,
            Directive::Go(orders) => panic!("{orders:?}"),
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
    fn an_audit_trail_is_enough_for_a_pipeline_that_requires_one() {
        let strict = pipeline(json!({"audit": "Required"}));
        assert!(matches!(
            directive(Some(&replay(json!({}), json!({}))), Some(&strict), true),
            Directive::Go(_)
        ));
    }
}
