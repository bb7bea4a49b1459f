//! Golden texts below `tests/golden/replay`; `UPDATE_GOLDEN=1` writes them anew.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;

/// Compares with a file below `tests/golden/replay`, or writes it.
fn assert_golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/replay").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, found).unwrap();
        return;
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} differs; is this right?\n{found}");
}

fn replay(spec: Value, status: Value) -> DlqReplay {
    let mut object = json!({
        "apiVersion": "redrive.dev/v1alpha1", "kind": "DlqReplay",
        "metadata": {"name": "orders-after-fix", "namespace": "shop"},
        "spec": {
            "pipelineRef": {"name": "orders"}, "justification": "fix for ORD-1123 deployed in 4.2.1",
            "requestedBy": "requester@example.com",
        },
        "status": status,
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

fn made() -> Value {
    let many: Vec<Value> =
        (0..21).map(|tenant| json!({"value": format!("tenant-{tenant}"), "count": 40 - tenant})).collect();
    json!({
        "hash": "5f0c1d0e9a", "made": "2026-11-29T22:00:00Z", "inSource": 12_345, "matching": 1_204,
        "routes": ["orders.queue"], "routeCount": 1, "collidingIds": 2, "expectedDuration": "62s",
        "histogram": {
            "reasons": [{"value": "rejected", "count": 1_200}, {"value": "delivery_limit", "count": 4}],
            "errorTypes": [{"value": "Timeout\u{1b}[2J", "count": 1_204}],
            "ages": [{"value": "under 1m", "count": 1_204}],
            "headers": [{"name": "x-tenant-id", "values": many}],
        },
        "findings": [
            {"severity": "Info", "check": "OriginExpires", "message": "messages in the queue expire"},
            {"severity": "Error", "check": "TargetMissing", "message": "the target queue does not exist: create it, or choose another target, since messages that are routed nowhere would stay where they are"},
            {"severity": "Warning", "check": "OriginHasConsumers", "message": "the queue has 1 consumer"},
        ],
    })
}

fn plan_of(replay: &DlqReplay) -> String {
    plan(replay, replay.status.as_ref().unwrap().plan.as_ref().unwrap())
}

#[test]
fn a_plan_shows_what_an_approver_needs() {
    assert_golden("plan.txt", &plan_of(&replay(json!({"select": {"limit": 500}}), json!({"plan": made()}))));
}

#[test]
fn a_plan_of_an_empty_queue_is_short() {
    let empty = json!({
        "hash": "5f0c1d0e9a", "made": "2026-11-29T22:00:00Z", "inSource": 0, "matching": 0, "routeCount": 0,
        "collidingIds": 0,
    });
    let spec = json!({"dryRun": true, "from": {"parkingLot": {}}, "to": {"discard": {}}});
    assert_golden("plan-empty.txt", &plan_of(&replay(spec, json!({"plan": empty}))));
}

#[test]
fn routes_beyond_the_named_ones_are_counted() {
    let mut fanned = made();
    fanned["routeCount"] = json!(9);
    assert!(plan_of(&replay(json!({}), json!({"plan": fanned}))).contains("orders.queue and 8 more"));
}

#[test]
fn an_end_shows_what_became_of_the_messages() {
    let status = json!({
        "progress": {
            "examined": 12, "matched": 9, "replayed": 5, "failed": 3, "unroutable": 0, "nacked": 0,
            "quarantined": 0, "unmovable": 1, "unmovableMessages": ["id-7"], "skipped": 1, "duplicatesPossible": 2,
            "beyondFence": 0, "underWay": 0, "inFlight": 0,
        },
        "summary": {
            "result": "CompletedWithFailures", "message": "3 of 9 messages stayed",
            "started": "2026-11-29T22:00:00Z", "finished": "2026-11-29T22:01:05Z", "matched": 9, "replayed": 5,
            "failed": 3, "skipped": 1, "duplicatesPossible": 2,
        },
    });
    let ended = replay(json!({}), status);
    assert_golden("summary.txt", &summary(&ended, ended.status.as_ref().unwrap().summary.as_ref().unwrap()));
}

#[test]
fn progress_is_one_line_with_rate_and_time_left() {
    let status = json!({
        "plan": made(),
        "progress": {
            "examined": 2_000, "matched": 600, "replayed": 480, "failed": 1, "unroutable": 1, "nacked": 0,
            "quarantined": 0, "unmovable": 0, "skipped": 0, "duplicatesPossible": 0, "beyondFence": 0, "underWay": 0, "inFlight": 0,
            "rate": "19.8", "eta": "36s",
        },
    });
    let running = replay(json!({}), status);
    let line = progress(&running, running.status.as_ref().unwrap().progress.as_ref().unwrap());
    assert_eq!(line, "480 of 1,204 moved, 2,000 read, 1 failed, 19.8/s, 36s left");
}

#[test]
fn what_moved_past_the_fence_is_told_while_it_runs_and_at_its_end() {
    let status = json!({
        "progress": {
            "examined": 20, "matched": 20, "replayed": 20, "failed": 0, "unroutable": 0, "nacked": 0,
            "quarantined": 0, "unmovable": 0, "skipped": 0, "duplicatesPossible": 0, "beyondFence": 1_010,
            "underWay": 0, "inFlight": 0,
        },
        "summary": {
            "result": "Completed", "message": "all moved", "finished": "2026-11-29T22:01:05Z", "matched": 20,
            "replayed": 20, "failed": 0, "skipped": 0, "duplicatesPossible": 0,
        },
    });
    let replay = replay(json!({}), status);
    let status = replay.status.as_ref().unwrap();
    let line = progress(&replay, status.progress.as_ref().unwrap());
    assert_eq!(line, "20 moved, 20 read, 1,010 past the fence");
    assert_golden("summary-past-fence.txt", &summary(&replay, status.summary.as_ref().unwrap()));
}

#[test]
fn an_approval_limits_what_moves() {
    let approval =
        json!({"approvedBy": "approver@example.com", "maxMessages": 300, "planHash": "5f0c1d0e9a"});
    let approved = replay(json!({"approval": approval, "select": {"limit": 500}}), json!({"plan": made()}));
    assert_eq!(most(&approved, approved.status.as_ref().unwrap().plan.as_ref().unwrap()), 300);
}

#[test]
fn nothing_from_a_producer_reaches_the_terminal_as_a_command() {
    assert_eq!(clean("a\u{1b}[2J\r\nb\u{202e}c"), "a\\u{1b}[2J\\r\\nb\\u{202e}c");
    assert_eq!(clean("Müller 東京"), "Müller 東京");
}

#[test]
fn the_phase_says_why() {
    assert_eq!(phase(&replay(json!({}), json!({}))), "waiting for the operator to see it");
    let condition = json!([{
        "type": "Succeeded", "status": "Unknown", "reason": "Paused", "message": "12 of the last 50 came back",
        "lastTransitionTime": "2026-11-29T22:00:00Z",
    }]);
    let paused = replay(json!({}), json!({"conditions": condition}));
    assert_eq!(phase(&paused), "Paused: 12 of the last 50 came back");
}

#[test]
fn a_place_in_an_expression_is_shown_below_it_at_the_end_alone() {
    let why = "the expression is no CEL (line 1, column 3)\n  a b\n    ^";
    let status = json!({
        "conditions": [{
            "type": "Succeeded", "status": "False", "reason": "InvalidSpec", "message": why,
            "lastTransitionTime": "2026-11-29T22:00:00Z",
        }],
        "summary": {
            "result": "InvalidSpec", "message": why, "finished": "2026-11-29T22:01:05Z", "matched": 0,
            "replayed": 0, "failed": 0, "skipped": 0, "duplicatesPossible": 0,
        },
    });
    let ended = replay(json!({}), status);
    assert_eq!(phase(&ended), "InvalidSpec: the expression is no CEL (line 1, column 3)");
    let text = summary(&ended, ended.status.as_ref().unwrap().summary.as_ref().unwrap());
    assert!(text.starts_with(&format!("InvalidSpec: {why}\n")), "{text}");
}
