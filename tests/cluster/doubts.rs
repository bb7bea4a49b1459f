//! Answers that are not to be believed at once, and questions that nobody may ask.

use serde_json::json;

use crate::deletion::{deletion, nothing_is_left};
use crate::support::eventually;
use crate::support::proxy::{Action, Request};
use crate::support::world::{World, describe, inventory, message, verdict};

/// What a broker says of a list in a vhost that it does not have.
const NO_VHOST: &str = r#"{"error":"Object Not Found","reason":"Not Found"}"#;

fn no_vhost() -> Action {
    Action::Answer(404, "Content-Type: application/json", NO_VHOST)
}

/// Whether a request asks for something in this vhost.
fn is_in(vhost: &str) -> impl Fn(&Request) -> bool + Send + 'static {
    let segment = format!("/{vhost}");
    move |request| !request.is_write() && request.path.contains(&segment)
}

/// The question that tells a missing vhost from a missing object.
fn asks_for_the_vhost(request: &Request) -> bool {
    request.path.contains("/amq.direct")
}

#[tokio::test]
async fn a_vhost_that_is_called_missing_costs_no_state() {
    let mut world = World::new("doubt").await;
    world.start();
    let before = world.create_ready("orders", json!({})).await;
    world.proxy.forget();
    let concerns = is_in(&world.vhost);
    world.proxy.rule(move |request| if concerns(request) { no_vhost() } else { Action::Pass });
    let pipeline = world.until_reason("orders", "VhostNotFound").await;
    assert_eq!(inventory(&pipeline, "Created"), inventory(&before, "Created"));
    world.proxy.heal();
    let pipeline = world.ready("orders").await;
    assert_eq!(inventory(&pipeline, "Created"), inventory(&before, "Created"));
    assert!(pipeline.status.unwrap().drift.is_none());
    assert!(world.proxy.writes().is_empty(), "nothing was missing: {:#?}", world.proxy.writes());
    world.leave().await;
}

#[tokio::test]
async fn a_deletion_does_not_believe_at_once_that_the_vhost_is_gone() {
    let mut world = World::new("once").await;
    world.start();
    world.create_ready("orders", deletion("Delete")).await;
    // The deletion is the first to ask.
    world.stop().await;
    world.proxy.forget();
    // One look finds no vhost, in each of its questions; the next one is answered rightly.
    let (concerns, mut is_over) = (is_in(&world.vhost), false);
    world.proxy.rule(move |request| {
        if is_over || !concerns(request) {
            return Action::Pass;
        }
        is_over = asks_for_the_vhost(request);
        no_vhost()
    });
    world.delete("orders").await;
    world.start();
    world.until_gone("orders").await;
    let answers: Vec<u16> =
        world.proxy.seen().into_iter().filter(asks_for_the_vhost).filter_map(|seen| seen.answer).collect();
    assert_eq!(answers, [404, 200], "it looked twice");
    // Had it believed the first answer, all would still be there.
    nothing_is_left(&world).await;
    world.assert_no_event("orders", "Orphaned").await;
    world.leave().await;
}

#[tokio::test]
async fn a_limit_of_connections_that_stops_a_deletion_is_told() {
    let mut world = World::new("connections").await;
    world.broker.put(&["vhost-limits", &world.vhost, "max-connections"], json!({"value": 0})).await;
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    let contents = world.broker.contents(&world.vhost).await;
    world.delete("orders").await;
    let pipeline = world.until_reason_of_deletion("Blocked").await;
    assert!(message(&pipeline, "Ready").contains("connection limit"), "{}", describe(&pipeline));
    assert_eq!(verdict(&pipeline, "Reconciling"), "True Blocked");
    assert_eq!(world.broker.contents(&world.vhost).await, contents, "nothing goes without a proof");
    world.broker.delete(&["vhost-limits", &world.vhost, "max-connections"]).await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn a_limit_of_connections_that_keeps_an_old_queue_deletes_nothing() {
    let mut world = World::new("oldqueue").await;
    world.broker.put(&["vhost-limits", &world.vhost, "max-connections"], json!({"value": 0})).await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    world.edit("orders", json!({"retry": {"delays": ["2s"]}})).await;
    let pipeline = world
        .until("orders", "keeps both generations", |pipeline| verdict(pipeline, "Ready") == "True Migrating")
        .await;
    assert!(message(&pipeline, "Ready").contains("orders.queue.retry.0"), "{}", describe(&pipeline));
    world.broker.delete(&["vhost-limits", &world.vhost, "max-connections"]).await;
    eventually("the old generation goes", async || {
        let queues = world.broker.names("queues", &world.vhost).await;
        if queues.contains(&"orders.queue.retry.0".to_owned()) { Err(format!("{queues:?}")) } else { Ok(()) }
    })
    .await;
    world.leave().await;
}
