//! Somebody else writes a pipeline between the operator's look and its write. That is no failure,
//! and what was decided on the old state is not carried out.

use serde_json::{Value, json};

use crate::deletion::deletion;
use crate::support::eventually;
use crate::support::proxy::{Action, Request};
use crate::support::world::{World, describe, message, verdict};

/// What the API server says of a write that comes too late.
const TOO_LATE: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
    "message":"Operation cannot be fulfilled on retrypipelines: the object has been modified","reason":"Conflict","code":409}"#;

fn too_late() -> Action {
    Action::Answer(409, "Content-Type: application/json", TOO_LATE)
}

/// A world whose operator reaches both servers through the proxy.
async fn world(purpose: &str) -> World {
    let mut world = World::new(purpose).await;
    world.proxy_kubernetes().await;
    world
}

/// Refuses the first write that this is about, and all that follows passes.
fn refuse_once(world: &World, mut is_it: impl FnMut(&Request) -> bool + Send + 'static) {
    let mut refused = false;
    world.proxy.rule(move |request| {
        if !refused && is_it(request) {
            refused = true;
            return too_late();
        }
        Action::Pass
    });
}

/// How often the API server, or the proxy in its place, said that a write came too late.
fn conflicts(world: &World) -> usize {
    world.proxy.writes().iter().filter(|write| write.to_kubernetes && write.answer == Some(409)).count()
}

async fn until_conflict(world: &World) {
    eventually("a write comes too late", async || {
        let writes = world.proxy.writes();
        if conflicts(world) > 0 { Ok(()) } else { Err(format!("{writes:#?}")) }
    })
    .await;
}

async fn assert_no_warning(world: &World) {
    let events = world.events("orders").await;
    assert!(!events.iter().any(|event| event.starts_with("Warning")), "{events:#?}");
}

#[tokio::test]
async fn a_status_that_comes_too_late_is_written_again_and_is_no_failure() {
    let mut world = world("late").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    world.proxy.forget();
    let mut statuses = 0;
    world.proxy.rule(move |request| {
        statuses += usize::from(request.is_status_write());
        // The record of what is intended, and what came of it.
        if request.is_status_write() && statuses % 2 == 1 { too_late() } else { Action::Pass }
    });
    world.edit("orders", json!({"retry": {"delays": ["1s", "2s", "3s"]}})).await;
    let pipeline = world.ready("orders").await;
    assert!(conflicts(&world) >= 2, "{:#?}", world.proxy.writes());
    assert!(pipeline.status.unwrap().drift.is_none());
    assert!(world.broker.exists("queues", &world.vhost, "orders.queue.retry.2").await);
    assert_no_warning(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn an_edit_that_comes_while_another_is_recorded_is_the_only_one_carried_out() {
    let mut world = world("overtaken").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    world.proxy.forget();
    // The record of the first edit waits until the second one is made, and comes too late then.
    refuse_once(&world, Request::is_status_write);
    world.proxy.hold_writes();
    world.edit("orders", json!({"retry": {"delays": ["3s"]}})).await;
    world.proxy.write_arrived().await;
    world.edit("orders", json!({"retry": {"delays": ["4s"]}})).await;
    world.proxy.release();
    until_conflict(&world).await;
    eventually("the second edit is carried out", async || {
        let pipeline = world.get("orders").await;
        let applied = pipeline.status.as_ref().and_then(|status| status.applied_generation);
        if applied == pipeline.metadata.generation { Ok(()) } else { Err(describe(&pipeline)) }
    })
    .await;
    let declared = |write: &Request| write.path.contains("/queues/") && write.body.contains("x-message-ttl");
    let bodies: Vec<Value> = world
        .proxy
        .writes()
        .iter()
        .filter(|write| declared(write))
        .map(|write| write.body.parse().unwrap())
        .collect();
    let delays: Vec<&Value> = bodies.iter().map(|body| &body["arguments"]["x-message-ttl"]).collect();
    assert_eq!(delays, [&json!(4_000)], "no queue of the first edit is ever declared");
    assert_no_warning(&world).await;
    world.leave().await;
}

/// The finalizer's write names the version that it is for, so that the API server itself refuses it.
#[tokio::test]
async fn a_finalizer_for_an_older_version_is_set_on_the_newer_one() {
    let mut world = world("finalizer").await;
    world.proxy.hold_writes();
    world.start();
    world.create(world.manifest("orders", deletion("Delete"))).await;
    world.proxy.write_arrived().await;
    // Somebody else's finalizer must not be lost either.
    world.patch("orders", json!({"metadata": {"finalizers": ["example.com/theirs"]}})).await;
    world.proxy.release();
    let pipeline = world.ready("orders").await;
    assert!(conflicts(&world) >= 1, "{:#?}", world.proxy.writes());
    let finalizers = pipeline.metadata.finalizers.unwrap();
    assert_eq!(finalizers, ["example.com/theirs", "redrive.dev/cleanup"]);
    assert_no_warning(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn a_resource_that_was_made_again_gets_nothing_of_its_predecessor() {
    let mut world = world("remade").await;
    world.proxy.hold_writes();
    world.start();
    let first = json!({"retry": {"delays": ["1s", "2s"]}, "deletionPolicy": "Retain"});
    world.create(world.manifest("orders", first)).await;
    world.proxy.write_arrived().await;
    let record = &world.proxy.writes()[0];
    assert!(record.is_status_write(), "{record:#?}");
    world.delete("orders").await;
    let second = json!({"retry": {"mode": "None", "delays": null}});
    world.create(world.manifest("orders", second)).await;
    world.proxy.release();
    world.ready("orders").await;
    assert_eq!(world.proxy.writes()[0].answer, Some(422), "the record names the resource that it is for");
    assert_eq!(world.broker.names("queues", &world.vhost).await, ["orders.queue", "orders.queue.dlq"]);
    let declared = world.proxy.writes().into_iter().filter(|write| write.path.contains(".retry."));
    assert_eq!(declared.count(), 0, "{:#?}", world.proxy.writes());
    world.leave().await;
}

#[tokio::test]
async fn a_deletion_that_meets_a_conflict_proves_again_before_it_deletes() {
    let mut world = world("prove").await;
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    world.proxy.forget();
    refuse_once(&world, |request| request.is_status_write() && request.body.contains("\"ProvingAgain\""));
    world.delete("orders").await;
    // All was seen empty once more, and only the record of it fails: by the next try it is no
    // longer true.
    let vhost = world.vhost.clone();
    eventually("the last record is refused", async || match conflicts(&world) {
        0 => Err(describe(&world.get("orders").await)),
        _ => Ok(()),
    })
    .await;
    world.broker.fill(&vhost, "orders.queue.dlq", 1).await;
    let pipeline = world.until_reason_of_deletion("QueueNotEmpty").await;
    assert!(message(&pipeline, "Ready").contains("orders.queue.dlq holds 1"), "{}", describe(&pipeline));
    assert_eq!(verdict(&pipeline, "Stalled"), "False QueueNotEmpty");
    world.broker.purge(&vhost, "orders.queue.dlq").await;
    world.until_gone("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn a_repair_that_could_not_be_reported_at_once_is_reported_later() {
    let mut world = world("news").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    world.proxy.forget();
    refuse_once(&world, |request| request.is_status_write() && request.body.contains("\"/status/drift\""));
    world.broker.delete(&["queues", &world.vhost, "orders.queue.dlq"]).await;
    until_conflict(&world).await;
    world.until_event("orders", "queue orders.queue.dlq is missing").await;
    let counted = |pipeline: &redrive::api::RetryPipeline| {
        let drift = pipeline.status.as_ref().and_then(|status| status.drift.as_ref());
        drift.is_some_and(|drift| drift.count >= 1)
    };
    world.until("orders", "counts the difference", counted).await;
    world.leave().await;
}
