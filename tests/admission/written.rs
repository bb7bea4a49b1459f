//! Who writes a replay's status, and what the operator and its workers may write.

use serde_json::{Value, json};

use crate::people::{APPROVER, REQUESTER};
use crate::place::{Place, replay};

const PROGRESS_ALONE: &str =
    "a worker may write status.progress alone: leave the rest of the status to the operator";

fn conditions(kind: &str) -> Value {
    json!([{
        "type": kind, "status": "True", "reason": "Completed", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-11-29T22:00:00Z",
    }])
}

fn progress(replayed: i64) -> Value {
    json!({
        "examined": 9, "matched": 7, "replayed": replayed, "failed": 0, "unroutable": 0, "nacked": 0,
        "quarantined": 0, "unmovable": 0, "skipped": 0, "duplicatesPossible": 0, "beyondFence": 0, "underWay": 0, "inFlight": 0,
    })
}

fn summary() -> Value {
    json!({
        "result": "Completed", "message": "7 of 7 moved", "finished": "2026-11-29T22:00:00Z", "matched": 7,
        "replayed": 7, "failed": 0, "skipped": 0, "duplicatesPossible": 0,
    })
}

fn forbidden(user: &str, verb: &str, resource: &str, place: &Place) -> Option<String> {
    Some(format!(
        "dlqreplays.redrive.dev \"orders\" is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" \
         in API group \"redrive.dev\" in the namespace \"{}\"",
        place.namespace
    ))
}

#[tokio::test]
async fn people_write_no_status() {
    let place = Place::new("status-people").await;
    let requester = place.person(REQUESTER, &["redrive-requester"]).await;
    let approver = place.person(APPROVER, &["redrive-requester", "redrive-approver"]).await;
    let mut forged = replay("orders", json!({}));
    forged["status"] = json!({"conditions": conditions("Succeeded")});
    let created = requester.create(&forged).await.unwrap();
    assert_eq!(created["status"], Value::Null, "a status at creation is dropped");
    for person in [&requester, &approver] {
        let found = person.edit_status("orders", json!({"conditions": conditions("Approved")})).await;
        assert_eq!(found.err(), forbidden(&person.name, "patch", "dlqreplays/status", &place));
        let dropped = person.edit("orders", json!({"status": {"conditions": conditions("Approved")}})).await;
        assert_eq!(dropped.unwrap()["status"], Value::Null, "a status beside the spec is dropped");
    }
    place.leave().await;
}

#[tokio::test]
async fn a_worker_writes_how_far_it_has_come_and_nothing_else() {
    let place = Place::new("status-worker").await;
    let requester = place.person(REQUESTER, &["redrive-requester"]).await;
    let operator = place.account("redrive", &["redrive-operator"]).await;
    let worker = place.account("redrive-replay-worker", &["redrive-replay-worker"]).await;
    requester.create(&replay("orders", json!({}))).await.unwrap();
    worker.apply_status("orders", json!({"progress": progress(1)})).await.unwrap();
    for early in [json!({"conditions": conditions("Approved")}), json!({"summary": summary()})] {
        assert_eq!(worker.edit_status("orders", early).await.err().as_deref(), Some(PROGRESS_ALONE));
    }

    operator
        .edit_status("orders", json!({"observedGeneration": 1, "conditions": conditions("Running")}))
        .await
        .unwrap();
    let applied = worker.apply_status("orders", json!({"progress": progress(2)})).await.unwrap();
    assert_eq!(applied["status"]["progress"]["replayed"], 2);
    for change in [
        json!({"conditions": conditions("Succeeded")}),
        json!({"conditions": null}),
        json!({"observedGeneration": 2}),
        json!({"summary": summary()}),
        json!({"progress": progress(3), "summary": summary()}),
    ] {
        let found = worker.edit_status("orders", change.clone()).await;
        assert_eq!(found.err().as_deref(), Some(PROGRESS_ALONE), "{change}");
    }
    let found = worker.edit("orders", json!({"spec": {"suspend": true}})).await;
    assert_eq!(found.err(), forbidden(&worker.name, "patch", "dlqreplays", &place));
    place.leave().await;
}

#[tokio::test]
async fn a_worker_with_too_many_rights_is_held_to_progress_all_the_same() {
    let place = Place::new("status-rights").await;
    let requester = place.person(REQUESTER, &["redrive-requester"]).await;
    let roles = ["redrive-replay-worker", "redrive-operator", "redrive-approver"];
    let worker = place.account("redrive-replay-worker", &roles).await;
    requester.create(&replay("orders", json!({}))).await.unwrap();
    const REPLAY: &str =
        "a worker may write status.progress alone: leave the replay itself to people and to the operator";
    for change in
        [json!({"metadata": {"finalizers": ["redrive.dev/replay"]}}), json!({"spec": {"suspend": true}})]
    {
        assert_eq!(worker.edit("orders", change).await.err().as_deref(), Some(REPLAY));
    }
    assert_eq!(worker.approve("orders").await.err().as_deref(), Some(REPLAY));
    place.leave().await;
}

#[tokio::test]
async fn the_operator_goes_on_with_replays_that_it_may_not_ask_for() {
    let place = Place::new("operator").await;
    let requester = place.person(REQUESTER, &["redrive-requester"]).await;
    let approver = place.person(APPROVER, &["redrive-approver"]).await;
    let operator = place.account("redrive", &["redrive-operator"]).await;
    requester.create(&replay("orders", json!({}))).await.unwrap();
    approver.approve("orders").await.unwrap();
    let finalizers = json!({"metadata": {"finalizers": ["redrive.dev/replay"], "labels": {"a": "b"}}});
    let held = operator.edit("orders", finalizers).await.unwrap();
    assert_eq!(held["metadata"]["finalizers"], json!(["redrive.dev/replay"]));
    let status = json!({"conditions": conditions("Approved"), "progress": progress(7), "summary": summary()});
    let written = operator.edit_status("orders", status.clone()).await.unwrap();
    assert_eq!(written["status"], status);
    operator.edit("orders", json!({"metadata": {"finalizers": null}})).await.unwrap();

    // It can't ask or approve itself.
    let found = operator.create(&replay("mine", json!({"requestedBy": operator.name}))).await.unwrap_err();
    assert!(found.contains("cannot create resource \"dlqreplays\""), "{found}");
    requester.create(&replay("second", json!({}))).await.unwrap();
    let expected = format!(
        "{0} may not approve replays in namespace {1}: ask somebody who may, or let the role redrive-approver be \
         bound to {0}",
        operator.name, place.namespace
    );
    assert_eq!(operator.approve("second").await.err(), Some(expected));
    place.leave().await;
}
