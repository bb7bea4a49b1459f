//! A source that its application declares, and that has a policy of its own.
//!
//! Only one policy applies to a queue. Ours has the higher priority, so it must hold the
//! application's keys as well, and the application's policy itself is never touched.

use serde_json::{Value, json};

use crate::create::example;
use crate::support::world::{World, condition, describe, message, verdict};
use crate::support::{eventually, steadily};

const QUEUE: &str = "orders.queue";
const EXCHANGE: &str = "orders.exchange";

/// What the application has made before us: queue, exchange, binding, and a policy.
async fn application(world: &World, definition: Value) {
    let (broker, vhost) = (&world.broker, world.vhost.as_str());
    let queue = json!({"durable": true, "arguments": {"x-queue-type": "quorum"}});
    broker.put(&["queues", vhost, QUEUE], queue).await;
    broker.put(&["exchanges", vhost, EXCHANGE], json!({"type": "topic", "durable": true})).await;
    broker.bind(vhost, EXCHANGE, "q", QUEUE, "created").await;
    team_policy(world, definition).await;
    world.broker.effective_policy(vhost, QUEUE, "team").await;
}

async fn team_policy(world: &World, definition: Value) {
    let policy =
        json!({"pattern": "^orders\\.queue$", "definition": definition, "priority": 3, "apply-to": "queues"});
    world.broker.put(&["policies", &world.vhost, "team"], policy).await;
}

/// An External source; its delays are short enough to be walked.
fn external(rest: Value) -> Value {
    let mut spec = json!({
        "source": {"ownership": "External", "exchange": null, "deliveryLimit": 4},
        "retry": {"delays": ["500ms", "700ms"]},
    });
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    spec
}

async fn team(world: &World) -> Value {
    world.broker.get(&["policies", &world.vhost, "team"]).await
}

async fn publish(world: &World, message: &str) {
    let body = json!({
        "properties": {"delivery_mode": 2, "message_id": message}, "routing_key": "created",
        "payload": message, "payload_encoding": "string",
    });
    let answer = world.broker.post(&["exchanges", &world.vhost, EXCHANGE, "publish"], body).await;
    assert_eq!(answer["routed"], true);
}

/// Waits for the only message of a queue, takes it as told, and says by which exchange it came.
async fn take(world: &World, queue: &str, acknowledge: &str) -> String {
    let get = json!({"count": 10, "ackmode": acknowledge, "encoding": "auto"});
    let found = eventually(&format!("a message in {queue}"), async || {
        let found = world.broker.post(&["queues", &world.vhost, queue, "get"], get.clone()).await;
        if found.as_array().unwrap().is_empty() { Err(found.to_string()) } else { Ok(found) }
    })
    .await;
    assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
    assert_eq!(found[0]["routing_key"], "created");
    found[0]["exchange"].as_str().unwrap().to_owned()
}

/// A message that fails three times walks the ladder into the DLQ.
async fn assert_ladder(world: &World) {
    publish(world, "fails").await;
    for exchange in [EXCHANGE, "orders.queue.return.0", "orders.queue.return.1"] {
        assert_eq!(take(world, QUEUE, "reject_requeue_false").await, exchange);
    }
    take(world, "orders.queue.dlq", "ack_requeue_false").await;
}

/// The definition of our policy for the source.
async fn ours(world: &World) -> Value {
    let policies = world.broker.names("policies", &world.vhost).await;
    let ours = policies.iter().find(|name| name.ends_with(":source")).expect("our policy");
    world.broker.get(&["policies", &world.vhost, ours]).await["definition"].clone()
}

/// What our policy holds beside the application's keys: the limit is for a whole walk since 4.3.
fn keys(version: &str, of_the_team: &Value) -> Value {
    let mut keys = json!({
        "dead-letter-exchange": "orders.queue.dlx", "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish", "delivery-limit": if version == "43" { 4 * 3 + 2 } else { 4 },
    });
    keys.as_object_mut().unwrap().extend(of_the_team.as_object().unwrap().clone());
    keys
}

#[tokio::test]
async fn the_example_with_an_external_source_takes_its_policy_over() {
    let mut world = World::new("external").await;
    let (broker, vhost) = (world.broker.clone(), world.vhost.clone());
    world.start();
    let manifest = example(&world, "external");
    world.create(manifest).await;
    // The queue is its application's to declare.
    let blocked = world.until_reason("shipping", "Blocked").await;
    assert!(message(&blocked, "Ready").contains("queue shipping.queue"), "{}", describe(&blocked));
    let queue = json!({"durable": true, "arguments": {"x-queue-type": "quorum"}});
    broker.put(&["queues", &vhost, "shipping.queue"], queue).await;
    let policy =
        json!({"pattern": "^shipping\\.queue$", "definition": {"max-length": 9}, "apply-to": "queues"});
    broker.put(&["policies", &vhost, "team"], policy).await;
    world.ready("shipping").await;
    let effective = broker.effective_policy(&vhost, "shipping.queue", ":source").await;
    assert_eq!(effective["max-length"], 9);
    assert_eq!(effective["dead-letter-exchange"], "shipping.queue.dlx");
    assert_eq!(broker.names("queues", &vhost).await.len(), 1 + 5 + 1, "the source, five tiers, the DLQ");
    world.leave().await;
}

async fn a_policy_is_refused_and_merged(version: &str) {
    let mut world = World::on(version, &format!("merge{version}")).await;
    let limits = json!({"max-length": 5_000, "message-ttl": 3_600_000});
    application(&world, limits.clone()).await;
    let before = team(&world).await;
    world.start();

    // Without mergePolicy it is refused: the condition names the policy, its keys and the way out.
    world.create(world.manifest("orders", external(json!({"deletionPolicy": "Delete"})))).await;
    let refused = world.until_reason("orders", "PolicyConflict").await;
    assert_eq!(verdict(&refused, "Ready"), "False PolicyConflict");
    assert_eq!(verdict(&refused, "Stalled"), "True PolicyConflict");
    let text = message(&refused, "Ready");
    for part in ["queue orders.queue", "\"team\"", "max-length, message-ttl", "mergePolicy: true"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    steadily("nothing is written to the queue's policies", super::support::world::POLL * 3, async || {
        let policies = world.broker.names("policies", &world.vhost).await;
        if policies == ["team"] { Ok(()) } else { Err(format!("{policies:?}")) }
    })
    .await;
    assert_eq!(team(&world).await, before);
    world.broker.effective_policy(&world.vhost, QUEUE, "team").await;

    // With it, ours holds the keys of both, and applies.
    world.edit("orders", json!({"mergePolicy": true})).await;
    world.ready("orders").await;
    assert_eq!(ours(&world).await, keys(version, &limits));
    assert_eq!(team(&world).await, before, "the application's policy is as it was");
    let effective = world.broker.effective_policy(&world.vhost, QUEUE, ":source").await;
    assert_eq!(effective, keys(version, &limits));
    assert_ladder(&world).await;

    // The application changes its own policy: ours follows.
    let limits = json!({"max-length": 6_000});
    team_policy(&world, limits.clone()).await;
    eventually("our policy holds what the application wants now", async || {
        let ours = ours(&world).await;
        if ours == keys(version, &limits) { Ok(()) } else { Err(ours.to_string()) }
    })
    .await;
    world.ready("orders").await;
    assert_ladder(&world).await;

    // Without us, the application's policy applies again.
    let before = team(&world).await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    assert_eq!(world.broker.names("policies", &world.vhost).await, ["team"]);
    assert_eq!(team(&world).await, before);
    assert_eq!(world.broker.effective_policy(&world.vhost, QUEUE, "team").await, limits);
    assert_eq!(world.broker.names("queues", &world.vhost).await, [QUEUE], "its queue stays");
    world.leave().await;
}

#[tokio::test]
async fn a_policy_of_an_external_source_is_refused_or_merged_and_never_touched() {
    a_policy_is_refused_and_merged("43").await;
}

#[tokio::test]
async fn a_policy_of_an_external_source_on_4_0_is_refused_or_merged_and_never_touched() {
    a_policy_is_refused_and_merged("40").await;
}

#[tokio::test]
async fn a_policy_that_can_not_be_merged_is_refused_with_the_key_that_must_go() {
    let mut world = World::new("unmergeable").await;
    application(&world, json!({"delivery-limit": 3})).await;
    world.start();
    world.create(world.manifest("orders", external(json!({"mergePolicy": true})))).await;
    for (definition, part) in [
        (json!({"delivery-limit": 3}), "sets delivery-limit to 3, and ours must differ"),
        (json!({"expires": 3_600_000}), "sets expires: 3600000, which deletes the queue with its messages"),
        (json!({"dead-letter-exchange": "elsewhere"}), "sets dead-letter-exchange"),
        (json!({"overflow": "drop-head"}), "sets overflow"),
    ] {
        team_policy(&world, definition.clone()).await;
        let refused = world
            .until("orders", part, |pipeline| {
                let ready = condition(pipeline, "Ready");
                ["PolicyConflict", "PolicyShadowed"].contains(&ready["reason"].as_str().unwrap_or_default())
                    && message(pipeline, "Ready").contains(part)
            })
            .await;
        assert!(message(&refused, "Ready").contains("\"team\""), "{}", describe(&refused));
        assert_eq!(world.broker.names("policies", &world.vhost).await, ["team"]);
        assert_eq!(team(&world).await["definition"], definition);
    }
    // Once what was in the way is gone, nothing else is needed.
    team_policy(&world, json!({"max-length": 100})).await;
    world.ready("orders").await;
    assert_ladder(&world).await;
    world.leave().await;
}
