//! Queues that are made anew under their names: with stand-ins where no client is led elsewhere,
//! with a person's consent where one is.

use std::collections::BTreeSet;

use kube::ResourceExt;
use redrive::api::RetryPipeline;
use serde_json::{Value, json};

use crate::support::amqp::{Wire, id, numbered};
use crate::support::eventually;
use crate::support::proxy::Request;
use crate::support::world::{World, describe, inventory, is_ready, message, verdict};

const MESSAGES: usize = 300;

async fn settled(world: &World) {
    world
        .until("orders", "has nothing left of before", |pipeline| {
            is_ready(pipeline)
                && verdict(pipeline, "Ready") == "True Reconciled"
                && verdict(pipeline, "Reconciling") == "False Reconciled"
        })
        .await;
}

/// Allows what the status says is pending.
async fn allow(world: &World) -> String {
    let pipeline = world.until_reason("orders", "Blocked").await;
    let pending = pipeline.status.unwrap().pending_plan.expect("a pending plan");
    let annotation = json!({"metadata": {"annotations": {"redrive.dev/allow-recreate": pending.hash}}});
    world.patch("orders", annotation).await;
    pending.why
}

async fn put(world: &World, amqp: &Wire, queue: &str) {
    amqp.publish("", queue, numbered(0..MESSAGES)).await;
    eventually("the messages are there", async || {
        let ready = amqp.ready(queue).await;
        if ready == MESSAGES { Ok(()) } else { Err(format!("{ready} {}", world.vhost)) }
    })
    .await;
}

/// Each message is there, once.
async fn assert_all(amqp: &Wire, queue: &str) {
    let found = amqp.drain(queue).await;
    let ids: BTreeSet<String> = found.iter().map(id).collect();
    assert_eq!((found.len(), ids.len()), (MESSAGES, MESSAGES), "{queue}");
}

/// Nothing tells that a queue was another one before.
async fn assert_nothing_stands_in(world: &World) {
    let left: Vec<String> = world
        .broker
        .contents(&world.vhost)
        .await
        .into_iter()
        .filter(|line| line.contains(".moving"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    let pipeline = world.get("orders").await;
    assert!(!inventory(&pipeline, "Created").iter().any(|line| line.contains(".moving")));
    let status = pipeline.status.as_ref().unwrap();
    assert!(status.drift.is_none(), "what we did ourselves is no drift: {:?}", status.drift);
    assert!(status.pending_plan.is_none(), "{}", describe(&pipeline));
}

/// The pipeline with the conditions that were once written with this text, which others may have
/// followed before anybody could look.
async fn once_said(world: &World, text: &str) -> RetryPipeline {
    let written = world.proxy.writes().into_iter().filter(Request::is_status_write);
    let steps = written.flat_map(|write| serde_json::from_str::<Vec<Value>>(&write.body).unwrap());
    let mut conditions = steps.filter(|step| step["path"] == "/status/conditions");
    let told = conditions.find(|step| step["value"].to_string().contains(text)).expect(text);
    let mut pipeline = world.get("orders").await;
    let status = pipeline.status.as_mut().unwrap();
    status.conditions = serde_json::from_value(told["value"].clone()).unwrap();
    pipeline
}

fn type_of(queue: &Value) -> &str {
    queue["type"].as_str().unwrap()
}

#[tokio::test]
async fn a_dlq_of_another_type_keeps_its_name_and_its_messages() {
    let mut world = World::new("anew").await;
    world.proxy_kubernetes().await;
    world.start();
    world
        .create_ready("orders", json!({"retry": {"delays": ["1s"]}, "deadLetter": {"parkingLot": true}}))
        .await;
    let amqp = Wire::open(&world).await;
    put(&world, &amqp, "orders.queue.dlq").await;
    world.edit("orders", json!({"deadLetter": {"queueType": "classic"}})).await;
    settled(&world).await;
    let pipeline = once_said(&world, "are moved to").await;
    assert_eq!(verdict(&pipeline, "Ready"), "True Migrating");
    assert_eq!(verdict(&pipeline, "Stalled"), "False Reconciled");
    for queue in ["orders.queue.dlq", "orders.queue.dlq.parking"] {
        assert_eq!(type_of(&world.broker.queue(&world.vhost, queue).await), "classic", "{queue}");
    }
    assert_all(&amqp, "orders.queue.dlq").await;
    assert_nothing_stands_in(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn a_change_of_mode_waits_for_the_hash_of_its_plan_and_keeps_all_messages() {
    let mut world = World::new("consent").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s", "2s"]}})).await;
    let amqp = Wire::open(&world).await;
    put(&world, &amqp, "orders.queue").await;
    let before = world.broker.contents(&world.vhost).await;

    world.edit("orders", json!({"retry": {"mode": "Application"}})).await;
    world.until_reason("orders", "Blocked").await;
    // Whoever copies an annotation from elsewhere has consented to nothing.
    let wrong = json!({"metadata": {"annotations": {"redrive.dev/allow-recreate": "0123456789abcdef"}}});
    let generation = world.patch("orders", wrong).await.metadata.generation;
    world.looked_at(2).await;
    assert_eq!(world.broker.contents(&world.vhost).await, before, "nothing of it is done");
    let why = allow(&world).await;
    for part in [
        "from Broker to Application",
        "orders.queue, orders.queue.retry.0",
        "none is lost",
        "without an exchange",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    settled(&world).await;
    let source = world.broker.queue(&world.vhost, "orders.queue").await;
    assert_eq!(source["arguments"]["x-dead-letter-routing-key"], "orders.queue.dlq");
    let tier = world.broker.queue(&world.vhost, "orders.queue.retry.1").await;
    assert_eq!(tier["arguments"]["x-dead-letter-routing-key"], "orders.queue");
    assert_eq!(amqp.ready("orders.queue").await, MESSAGES);
    assert_nothing_stands_in(&world).await;
    let pipeline = world.get("orders").await;
    assert_eq!(pipeline.metadata.generation, generation, "the annotation is no edit");
    let contract = &pipeline.status.as_ref().unwrap().client_contract;
    assert!(contract.iter().any(|queue| queue.name == "orders.queue.retry.1"), "{contract:?}");

    world.edit("orders", json!({"retry": {"mode": "Broker"}})).await;
    world.until_reason("orders", "Blocked").await;
    let old = pipeline.annotations()["redrive.dev/allow-recreate"].clone();
    let pending = world.get("orders").await.status.unwrap().pending_plan.unwrap();
    assert_ne!(pending.hash, old, "another change takes another consent");
    allow(&world).await;
    settled(&world).await;
    assert_all(&amqp, "orders.queue").await;
    assert_nothing_stands_in(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn a_binding_of_somebody_else_is_named_and_nothing_is_made_anew() {
    let mut world = World::new("strange").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    world.broker.bind(&world.vhost, "orders.exchange", "q", "orders.queue", "theirs").await;
    let before = world.broker.contents(&world.vhost).await;
    world.edit("orders", json!({"retry": {"mode": "Application"}})).await;
    let pipeline = world.until_reason("orders", "NotSupportedYet").await;
    let text = message(&pipeline, "Ready");
    assert!(text.contains("\"theirs\"") && text.contains("list it in source.bindings"), "{text}");
    assert_eq!(world.broker.contents(&world.vhost).await, before);
    world.leave().await;
}

/// Messages are published by the queue's name, which takes a right of its own.
#[tokio::test]
async fn what_the_user_may_not_publish_is_told_and_moves_once_it_may() {
    let mut world = World::new("noright").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    let wire = Wire::open(&world).await;
    put(&world, &wire, "orders.queue.dlq").await;
    let path = ["permissions", world.vhost.as_str(), world.namespace.as_str()];
    let rights = json!({"configure": ".*", "write": "^(orders|redrive)\\.", "read": ".*"});
    world.broker.put(&path, rights).await;
    world.edit("orders", json!({"deadLetter": {"queueType": "classic"}})).await;
    let pipeline = world
        .until("orders", "says what is missing", |pipeline| {
            message(pipeline, "Ready").contains("can't be moved")
        })
        .await;
    assert_eq!(verdict(&pipeline, "Ready"), "False Blocked");
    let text = message(&pipeline, "Ready");
    assert!(
        text.contains("queue orders.queue.dlq: its messages can't be moved to orders.queue.dlq.moving"),
        "{text}"
    );
    assert!(text.contains("does not let the user"), "{text}");
    world.broker.grant(&world.vhost, &world.namespace, ".*").await;
    settled(&world).await;
    assert_all(&wire, "orders.queue.dlq").await;
    assert_nothing_stands_in(&world).await;
    world.leave().await;
}
