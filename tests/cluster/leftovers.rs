//! What a deletion leaves on the broker, and that it says so.

use serde_json::json;

use crate::deletion::{deletion, nothing_is_left, queue_names};
use crate::support::eventually;
use crate::support::world::{World, describe, inventory, message};

#[tokio::test]
async fn retain_leaves_everything_and_lists_it() {
    let mut world = World::new("retain").await;
    world.start();
    let pipeline = world.create_ready("orders", json!({"deletionPolicy": "Retain"})).await;
    assert!(pipeline.metadata.finalizers.is_none());
    let contents = world.broker.contents(&world.vhost).await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    let event = world.until_event("orders", "Orphaned").await;
    assert!(event.starts_with("Normal Orphaned: deletionPolicy is Retain; left on the broker: "), "{event}");
    assert!(event.contains("queue orders.queue.dlq"), "{event}");
    assert_eq!(world.broker.contents(&world.vhost).await, contents);
    world.leave().await;
}

#[tokio::test]
async fn the_annotation_lets_go_with_everything_in_place() {
    let mut world = World::new("release").await;
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    let contents = world.broker.contents(&world.vhost).await;
    world.broker.fill(&world.vhost, "orders.queue", 1).await;
    world.delete("orders").await;
    world.until_reason_of_deletion("QueueNotEmpty").await;
    world.patch("orders", json!({"metadata": {"annotations": {"redrive.dev/release": "true"}}})).await;
    world.until_gone("orders").await;
    let event = world.until_event("orders", "released by annotation").await;
    assert!(event.starts_with("Warning Orphaned"), "{event}");
    assert_eq!(world.broker.contents(&world.vhost).await, contents);
    world.leave().await;
}

#[tokio::test]
async fn a_change_to_retain_stops_a_deletion_and_puts_the_inflow_back() {
    let mut world = World::new("changed").await;
    world.start();
    let mut spec = deletion("DeleteIfEmpty");
    spec["retry"]["delays"] = json!(["1s", "30s"]);
    world.create_ready("orders", spec).await;
    let contents = world.broker.contents(&world.vhost).await;
    world.delete("orders").await;
    eventually("the inflow is cut", async || {
        let now = world.broker.contents(&world.vhost).await;
        if now.len() < contents.len() { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    world.edit("orders", json!({"deletionPolicy": "Retain"})).await;
    world.until_gone("orders").await;
    assert_eq!(world.broker.contents(&world.vhost).await, contents);
    world.until_event("orders", "deletionPolicy is Retain; left on the broker").await;
    world.leave().await;
}

#[tokio::test]
async fn adopted_objects_stay_unless_the_user_says_so() {
    let mut world = World::new("adopted").await;
    let (broker, vhost) = (world.broker.clone(), world.vhost.clone());
    let arguments = json!({"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-delivery-limit": -1});
    let dlq = json!({"durable": true, "arguments": arguments});
    broker.put(&["queues", &vhost, "orders.queue.dlq"], dlq.clone()).await;
    world.start();
    world.create(world.manifest("orders", deletion("Delete"))).await;
    let pipeline = world.until_reason("orders", "Conflict").await;
    assert!(message(&pipeline, "Ready").contains("set adopt: true"), "{}", describe(&pipeline));
    assert_eq!(queue_names(&world).await, ["orders.queue.dlq"], "nothing is begun beside a conflict");
    world.edit("orders", json!({"adopt": true})).await;
    let pipeline = world.ready("orders").await;
    assert_eq!(inventory(&pipeline, "Adopted"), ["Queue orders.queue.dlq"]);
    broker.fill(&vhost, "orders.queue.dlq", 1).await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    assert_eq!(queue_names(&world).await, ["orders.queue.dlq"]);
    assert!(broker.bindings(&vhost).await.is_empty(), "its marker goes");
    world
        .until_event(
            "orders",
            "not ours to delete, or still in use; left on the broker: queue orders.queue.dlq",
        )
        .await;

    let mut spec = deletion("Delete");
    (spec["adopt"], spec["deleteAdopted"]) = (json!(true), json!(true));
    world.create_ready("orders", spec).await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn a_shared_exchange_goes_with_its_last_owner() {
    let mut world = World::new("shared").await;
    world.start();
    let exchange = json!({"name": "events", "type": "topic"});
    let source =
        |key: &str| json!({"exchange": exchange, "bindings": [{"exchange": "events", "routingKey": key}]});
    for name in ["orders", "carts"] {
        let mut spec = deletion("Delete");
        spec["source"] = source(name);
        world.create_ready(name, spec).await;
    }
    world.delete("orders").await;
    world.until_gone("orders").await;
    assert!(world.broker.exists("exchanges", &world.vhost, "events").await);
    let bindings = world.broker.bindings(&world.vhost).await;
    assert!(
        bindings.iter().any(|binding| binding.starts_with("binding events -> carts.queue")),
        "{bindings:#?}"
    );
    world.ready("carts").await;
    world.delete("carts").await;
    world.until_gone("carts").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn an_exchange_that_others_use_stays() {
    let mut world = World::new("used").await;
    world.start();
    world.create_ready("orders", deletion("Delete")).await;
    world.broker.put(&["queues", &world.vhost, "audit"], json!({"durable": true})).await;
    world.broker.bind(&world.vhost, "orders.exchange", "q", "audit", "#").await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    assert!(world.broker.exists("exchanges", &world.vhost, "orders.exchange").await);
    assert_eq!(world.broker.bindings(&world.vhost).await, ["binding orders.exchange -> audit [#] {}"]);
    world.until_event("orders", "left on the broker: exchange orders.exchange").await;
    world.leave().await;
}
