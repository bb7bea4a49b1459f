//! Whether a replay may move messages, and how many: by a second person's consent, or by what
//! may move without one within 24 hours.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::history::WHOLE;
use crate::api::{
    AdmittedBy, Approval, DlqReplaySpec, ReplayPlan, ReplayPolicy, ReplayRecord, ReplayTo,
    RetryPipelineStatus,
};

/// Over which time the budget counts.
const BUDGET_WINDOW: Duration = Duration::from_secs(24 * 3_600);

/// Messages per 24 hours that need no approval where approval is required.
const DEFAULT_BUDGET: i64 = 50;

/// What a replay has by way of consent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Consent {
    /// It may move so many messages; without a number as many as it likes.
    Given { by: AdmittedBy, max_messages: Option<i64> },
    /// A second person has to approve.
    Missing,
    /// The approval is too old.
    Expired,
    /// The approval is for another plan.
    Mismatch,
}

/// Messages that may move without approval in 24 hours; no limit without it.
pub(super) fn budget(policy: Option<&ReplayPolicy>) -> Option<i64> {
    let policy = policy?;
    policy.messages_without_approval.or(policy.require_approval.then_some(DEFAULT_BUDGET))
}

/// What is left of the budget, to the message. `running` are messages that replays which have
/// not ended may still move without approval.
pub(super) fn left(budget: i64, status: &RetryPipelineStatus, running: i64, now: Timestamp) -> i64 {
    let since = now - BUDGET_WINDOW;
    let recent = |record: &&ReplayRecord| record.finished.0 > since;
    // What the list had to forget may have been within these 24 hours too.
    if status.replays.len() >= WHOLE && status.replays.iter().all(|record| recent(&record)) {
        return 0;
    }
    let unapproved = status.replays.iter().filter(recent).filter(|record| !record.approved);
    let spent = unapproved.map(|record| record.moved).fold(running, i64::saturating_add);
    budget.saturating_sub(spent).max(0)
}

/// The most messages that a replay with this plan moves.
pub(super) fn needed(spec: &DlqReplaySpec, plan: &ReplayPlan) -> i64 {
    let limit = spec.select.as_ref().and_then(|select| select.limit);
    limit.map_or(plan.matching, |limit| limit.min(plan.matching))
}

/// Whether a replay may move its messages. `left` is what is left of the budget, nothing where
/// there is no limit; `age` is for how long the approval has been there.
pub(super) fn judge(
    spec: &DlqReplaySpec,
    plan: &ReplayPlan,
    left: Option<i64>,
    age: Duration,
    counts_for: Duration,
) -> Consent {
    // An approval binds even where none was needed: whoever gave it expects that.
    if let Some(approval) = &spec.approval {
        return judge_approval(approval, plan, age, counts_for);
    }
    let discards = matches!(spec.to(), ReplayTo::Discard {});
    let needed = needed(spec, plan);
    match left {
        _ if discards => Consent::Missing,
        None => Consent::Given { by: AdmittedBy::NotRequired, max_messages: None },
        // Whole or not at all; and what arrives after the plan does not count in.
        Some(left) if left > 0 && needed <= left => {
            Consent::Given { by: AdmittedBy::Budget, max_messages: Some(needed) }
        }
        Some(_) => Consent::Missing,
    }
}

fn judge_approval(approval: &Approval, plan: &ReplayPlan, age: Duration, counts_for: Duration) -> Consent {
    if approval.plan_hash != plan.hash {
        Consent::Mismatch
    } else if age > counts_for {
        Consent::Expired
    } else {
        Consent::Given { by: AdmittedBy::Approval, max_messages: Some(approval.max_messages) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Time;

    const DAY: Duration = Duration::from_secs(86_400);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn record(finished: i64, moved: i64, approved: bool) -> ReplayRecord {
        ReplayRecord {
            name: "before".to_owned(),
            spec_hash: "h".to_owned(),
            result: "Completed".to_owned(),
            finished: Time(at(finished)),
            moved,
            approved,
        }
    }

    fn history(replays: Vec<ReplayRecord>) -> RetryPipelineStatus {
        RetryPipelineStatus { replays, ..RetryPipelineStatus::default() }
    }

    fn plan(matching: i64) -> ReplayPlan {
        serde_json::from_value(json!({
            "hash": "p1", "made": "2026-01-01T00:00:00Z", "inSource": matching, "matching": matching,
            "routeCount": 1, "collidingIds": 0,
        }))
        .unwrap()
    }

    fn spec(more: serde_json::Value) -> DlqReplaySpec {
        let mut spec = json!({"pipelineRef": {"name": "orders"}, "justification": "the fix is deployed"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    fn ask(spec_more: serde_json::Value, matching: i64, left: Option<i64>) -> Consent {
        judge(&spec(spec_more), &plan(matching), left, Duration::ZERO, DAY)
    }

    #[test]
    fn the_budget_counts_what_moved_unapproved_within_a_day_and_what_still_may() {
        let day = 86_400;
        let status = history(vec![
            record(-day, 1_000, false),
            record(-day + 1, 5, false),
            record(-60, 7, false),
            record(-60, 500, true),
        ]);
        assert_eq!(left(50, &status, 0, at(0)), 38);
        assert_eq!(left(50, &status, 30, at(0)), 8);
        assert_eq!(left(50, &status, 38, at(0)), 0);
        assert_eq!(left(50, &status, i64::MAX, at(0)), 0);
        assert_eq!(left(50, &status, 0, at(2)), 43);
    }

    #[test]
    fn where_the_list_had_to_forget_nothing_is_left() {
        let full = history((0..50).map(|number| record(-number, 0, false)).collect());
        assert_eq!(left(50, &full, 0, at(0)), 0);
        let mut old = full.clone();
        old.replays[0] = record(-86_401, 0, false);
        assert_eq!(left(50, &old, 0, at(0)), 50);
    }

    #[test]
    fn what_fits_runs_and_anything_else_waits_whole() {
        let within = |max| Consent::Given { by: AdmittedBy::Budget, max_messages: Some(max) };
        assert_eq!(ask(json!({}), 50, Some(50)), within(50));
        assert_eq!(ask(json!({}), 51, Some(50)), Consent::Missing);
        assert_eq!(ask(json!({"select": {"limit": 50}}), 51, Some(50)), within(50));
        assert_eq!(ask(json!({}), 1, Some(0)), Consent::Missing);
        let free = Consent::Given { by: AdmittedBy::NotRequired, max_messages: None };
        assert_eq!(ask(json!({}), 1_000_000, None), free);
        assert_eq!(ask(json!({"to": {"discard": {}}}), 1, None), Consent::Missing);
    }

    #[test]
    fn an_approval_counts_for_its_plan_its_maximum_and_a_day() {
        let approval =
            |hash: &str| json!({"approval": {"approvedBy": "b", "maxMessages": 10, "planHash": hash}});
        let given = Consent::Given { by: AdmittedBy::Approval, max_messages: Some(10) };
        assert_eq!(ask(approval("p1"), 500, Some(50)), given);
        assert_eq!(ask(approval("p1"), 5, None), given);
        assert_eq!(ask(approval("p2"), 5, None), Consent::Mismatch);
        let old = judge(&spec(approval("p1")), &plan(5), Some(50), DAY + Duration::from_secs(1), DAY);
        assert_eq!(old, Consent::Expired);
        assert_eq!(judge(&spec(approval("p1")), &plan(5), None, DAY, DAY), given);
    }

    #[test]
    fn the_budget_is_50_where_approval_is_required_and_nothing_else_is_said() {
        let policy = |text: serde_json::Value| serde_json::from_value::<ReplayPolicy>(text).unwrap();
        assert_eq!(budget(None), None);
        assert_eq!(budget(Some(&policy(json!({})))), None);
        assert_eq!(budget(Some(&policy(json!({"requireApproval": true})))), Some(50));
        assert_eq!(budget(Some(&policy(json!({"messagesWithoutApproval": 0})))), Some(0));
    }
}
