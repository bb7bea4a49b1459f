use rstest::rstest;
use serde_json::Value;

use super::*;

fn plan() -> Value {
    json!({
        "hash": "abc", "made": "2026-11-29T22:00:00Z", "inSource": 9, "matching": 7, "routeCount": 1,
        "collidingIds": 0,
    })
}

fn replay(spec: Value, status: Value) -> DlqReplay {
    let mut object = json!({
        "apiVersion": "redrive.dev/v1alpha1", "kind": "DlqReplay", "metadata": {"name": "r"},
        "spec": {
            "pipelineRef": {"name": "orders"}, "justification": "the fix is deployed",
            "requestedBy": "requester@example.com",
        },
        "status": status,
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

fn refused(spec: Value, status: Value, me: &str) -> String {
    approvable(&replay(spec, status), me).unwrap_err()
}

#[test]
fn a_second_person_approves_a_plan() {
    let replay = replay(json!({}), json!({"plan": plan()}));
    assert_eq!(approvable(&replay, "approver@example.com").unwrap().hash, "abc");
}

#[rstest]
#[case::own(json!({}), "requester@example.com", "requester@example.com asked for this replay")]
#[case::dry_run(json!({"dryRun": true}), "approver@example.com", "the replay is a dry run")]
#[case::cancelled(json!({"cancel": true}), "approver@example.com", "the replay was cancelled")]
#[case::twice(
    json!({"approval": {"approvedBy": "other@example.com", "maxMessages": 5000, "planHash": "abc"}}),
    "approver@example.com",
    "other@example.com has approved it already, for at most 5,000 messages"
)]
fn what_nobody_can_approve_is_refused(#[case] spec: Value, #[case] me: &str, #[case] beginning: &str) {
    let why = refused(spec, json!({"plan": plan()}), me);
    assert!(why.starts_with(beginning), "{why}");
}

#[test]
fn without_a_plan_there_is_nothing_to_approve() {
    let condition = json!([{
        "type": "Succeeded", "status": "Unknown", "reason": "Planning", "message": "the queue is being read",
        "lastTransitionTime": "2026-11-29T22:00:00Z",
    }]);
    let why = refused(json!({}), json!({"conditions": condition}), "approver@example.com");
    assert_eq!(
        why,
        "there is no plan to approve yet (Planning: the queue is being read): try again in a moment"
    );
}

#[test]
fn a_plan_that_can_not_start_or_moves_nothing_is_not_approved() {
    let mut bad = plan();
    bad["findings"] = json!([
        {"severity": "Error", "check": "TargetMissing", "message": "the target does not exist: create it"},
        {"severity": "Info", "check": "A", "message": "not this"},
    ]);
    let why = refused(json!({}), json!({"plan": bad}), "approver@example.com");
    assert_eq!(why, "by its plan it can't start: the target does not exist: create it");
    let mut empty = plan();
    empty["matching"] = json!(0);
    let why = refused(json!({}), json!({"plan": empty}), "approver@example.com");
    assert_eq!(why, "its plan selects no message: there is nothing to approve");
}

#[test]
fn what_has_ended_is_not_approved() {
    let summary = json!({
        "result": "Stopped", "message": "it came back", "finished": "2026-11-29T22:00:00Z", "matched": 1,
        "replayed": 1, "failed": 0, "skipped": 0, "duplicatesPossible": 0,
    });
    let why = refused(json!({}), json!({"plan": plan(), "summary": summary}), "approver@example.com");
    assert_eq!(why, "the replay has ended (Stopped: it came back): create a new one");
}
