//! Changes of a specification that are carried out, without a second way for any message.

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::world::{World, describe, verdict};

async fn queue_names(world: &World) -> Vec<String> {
    world.broker.names("queues", &world.vhost).await
}

/// Waits until exactly these queues are there and the pipeline is Ready.
async fn settled_with(world: &World, queues: &[&str]) {
    eventually(&format!("{queues:?} are all there is"), async || {
        let pipeline = world.get("orders").await;
        let names = queue_names(world).await;
        let ready = verdict(&pipeline, "Ready") == "True Reconciled";
        if ready && names == queues { Ok(()) } else { Err(format!("{names:?} {}", describe(&pipeline))) }
    })
    .await;
}

fn policy_value(policies: &Value, suffix: &str, key: &str) -> Value {
    let is_it = |policy: &&Value| policy["name"].as_str().unwrap().ends_with(suffix);
    let policy = policies.as_array().unwrap().iter().find(is_it);
    policy.map_or(Value::Null, |policy| policy["definition"][key].clone())
}

#[tokio::test]
async fn a_changed_delay_is_a_new_generation_and_the_old_one_goes_when_it_is_empty() {
    let mut world = World::new("delay").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["2s", "4s"]}})).await;
    // On its way: it must come back through the generation that goes.
    world.broker.fill(&world.vhost, "orders.queue.retry.0", 1).await;
    world.edit("orders", json!({"retry": {"delays": ["3s", "4s"]}})).await;
    let pipeline = world
        .until("orders", "works on both generations", |pipeline| {
            verdict(pipeline, "Ready") == "True Migrating"
        })
        .await;
    assert_eq!(verdict(&pipeline, "Reconciling"), "True Migrating");
    assert_eq!(verdict(&pipeline, "Stalled"), "False Reconciled");
    let new = world.broker.queue(&world.vhost, "orders.queue.retry.0.g2").await;
    assert_eq!(new["arguments"]["x-message-ttl"], 3_000);
    settled_with(
        &world,
        &["orders.queue", "orders.queue.dlq", "orders.queue.retry.0.g2", "orders.queue.retry.1"],
    )
    .await;
    let drift = world.get("orders").await.status.unwrap().drift;
    assert!(drift.is_none(), "an edit is no drift: {drift:?}");
    eventually("the message came back", async || {
        let get = json!({"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"});
        let path = ["queues", world.vhost.as_str(), "orders.queue", "get"];
        let found = world.broker.post(&path, get).await;
        if found.as_array().unwrap().len() == 1 { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
    world.leave().await;
}

#[tokio::test]
async fn tiers_are_added_and_removed() {
    let mut world = World::new("tiers").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    world.edit("orders", json!({"retry": {"delays": ["1s", "2s", "3s"]}})).await;
    settled_with(
        &world,
        &[
            "orders.queue",
            "orders.queue.dlq",
            "orders.queue.retry.0",
            "orders.queue.retry.1",
            "orders.queue.retry.2",
        ],
    )
    .await;
    world.edit("orders", json!({"retry": {"delays": ["1s"]}})).await;
    settled_with(&world, &["orders.queue", "orders.queue.dlq", "orders.queue.retry.0"]).await;
    let exchanges = world.broker.names("exchanges", &world.vhost).await;
    eventually("the exchanges of removed tiers go", async || {
        let exchanges = world.broker.names("exchanges", &world.vhost).await;
        let left = exchanges.iter().filter(|name| name.contains("return.")).count();
        if left == 1 { Ok(()) } else { Err(format!("{exchanges:?}")) }
    })
    .await;
    assert!(exchanges.contains(&"orders.queue.dlx".to_owned()));
    let drift = world.get("orders").await.status.unwrap().drift;
    assert!(drift.is_none(), "an edit is no drift: {drift:?}");
    world.leave().await;
}

#[tokio::test]
async fn categories_come_and_go() {
    let mut world = World::new("categories").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    let poison = json!({"category": "poison", "reasons": ["delivery_limit"]});
    world.edit("orders", json!({"deadLetter": {"quarantine": [poison]}})).await;
    settled_with(
        &world,
        &[
            "orders.queue",
            "orders.queue.dlq",
            "orders.queue.dlq.quarantine.poison",
            "orders.queue.dlq.quarantine.replay-limit",
            "orders.queue.retry.0",
        ],
    )
    .await;
    world.edit("orders", json!({"deadLetter": {"quarantine": null}})).await;
    settled_with(&world, &["orders.queue", "orders.queue.dlq", "orders.queue.retry.0"]).await;
    world.leave().await;
}

#[tokio::test]
async fn the_ladder_goes_and_comes_back() {
    let mut world = World::new("mode").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    let ladder = world.broker.contents(&world.vhost).await;
    world.edit("orders", json!({"retry": {"mode": "None", "delays": null}})).await;
    settled_with(&world, &["orders.queue", "orders.queue.dlq"]).await;
    world.edit("orders", json!({"retry": {"mode": "Broker", "delays": ["1s"]}})).await;
    settled_with(&world, &["orders.queue", "orders.queue.dlq", "orders.queue.retry.0"]).await;
    let source = |contents: &[String]| {
        contents
            .iter()
            .filter(|line| line.starts_with("queue \"orders.queue\" "))
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(source(&ladder), source(&world.broker.contents(&world.vhost).await), "the source stays");
    world.leave().await;
}

#[tokio::test]
async fn numbers_in_policies_change_without_a_new_queue() {
    let mut world = World::new("numbers").await;
    world.start();
    world
        .create_ready(
            "orders",
            json!({"deadLetter": {"retention": "14d", "maxLength": 1000}, "source": {"queue": {"maxLength": 5}}}),
        )
        .await;
    world.broker.fill(&world.vhost, "orders.queue.dlq", 2).await;
    let queues = world.broker.contents(&world.vhost).await;
    let queues: Vec<&String> = queues.iter().filter(|line| line.starts_with("queue")).collect();
    world.proxy.forget();
    let spec =
        json!({"deadLetter": {"retention": "7d", "maxLength": 2000}, "source": {"queue": {"maxLength": 6}}});
    world.edit("orders", spec).await;
    world.ready("orders").await;
    let policies = world.broker.get(&["policies", &world.vhost]).await;
    assert_eq!(policy_value(&policies, ":dlq", "message-ttl"), 604_800_000);
    assert_eq!(policy_value(&policies, ":dlq", "max-length"), 2_000);
    assert_eq!(policy_value(&policies, ":source", "max-length"), 6);
    assert_eq!(world.proxy.writes().len(), 2, "{:#?}", world.proxy.writes());
    let now = world.broker.contents(&world.vhost).await;
    let now: Vec<&String> = now.iter().filter(|line| line.starts_with("queue")).collect();
    assert_eq!(queues, now);

    world.edit("orders", json!({"settings": {"policy": {"priority": 77}}})).await;
    world.ready("orders").await;
    let policies = world.broker.get(&["policies", &world.vhost]).await;
    assert!(policies.as_array().unwrap().iter().all(|policy| policy["priority"] == 77), "{policies}");

    let spec = json!({"deadLetter": {"retention": null, "maxLength": null}, "source": {"queue": {"maxLength": null}}});
    world.edit("orders", spec).await;
    let pipeline = world.ready("orders").await;
    let policies = world.broker.get(&["policies", &world.vhost]).await;
    assert_eq!(policy_value(&policies, ":dlq", "message-ttl"), Value::Null);
    assert_eq!(policy_value(&policies, ":source", "max-length"), Value::Null);
    let dead_letter = pipeline.status.unwrap().effective.unwrap().dead_letter;
    assert!(dead_letter.retention.is_none() && dead_letter.max_length.is_none(), "{dead_letter:?}");
    world.leave().await;
}

#[tokio::test]
async fn the_users_bindings_follow_the_specification() {
    let mut world = World::new("ubindings").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    let binding = |key: &str| json!({"exchange": "orders.exchange", "routingKey": key});
    let bound = async || {
        let mut bindings = world.broker.bindings(&world.vhost).await;
        bindings.retain(|binding| binding.starts_with("binding orders.exchange -> orders.queue"));
        bindings
    };
    // Dots alone are no part of a path, and a tilde parts key and arguments in the broker's names.
    let odd = ["created", "paid.*", ".", "..", "~", "a~b", "a/..", "%2E%2E"];
    let bindings: Vec<Value> = odd.into_iter().map(binding).collect();
    world.edit("orders", json!({"source": {"bindings": bindings}})).await;
    world.ready("orders").await;
    assert_eq!(bound().await.len(), odd.len());
    world.edit("orders", json!({"source": {"bindings": [binding("paid.*")]}})).await;
    world.ready("orders").await;
    assert_eq!(bound().await, ["binding orders.exchange -> orders.queue [paid.*] {}"]);
    world.leave().await;
}

#[tokio::test]
async fn another_dead_letter_queue_never_doubles_a_message() {
    let mut world = World::new("rename").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    world.broker.fill(&world.vhost, "orders.queue.dlq", 2).await;
    let pipeline = world.edit("orders", json!({"deadLetter": {"name": "{queue}.graveyard"}})).await;
    let generation = pipeline.metadata.generation;
    eventually("the edit is carried out", async || {
        // Whatever the moment, no end of a chain leads to two queues.
        let ends = world.broker.bindings(&world.vhost).await;
        let ends = ends.iter().filter_map(|binding| binding.split_once(" -> "));
        let ends: Vec<&str> =
            ends.map(|(from, _)| from).filter(|from| from.contains("orders.queue.dlx.rest")).collect();
        let mut distinct = ends.clone();
        distinct.dedup();
        assert_eq!(ends, distinct, "a message would be doubled");
        let pipeline = world.get("orders").await;
        let applied = pipeline.status.as_ref().and_then(|status| status.applied_generation);
        if applied == generation { Ok(()) } else { Err(describe(&pipeline)) }
    })
    .await;
    let pipeline = world.get("orders").await;
    let verdict = verdict(&pipeline, "Ready");
    assert!(matches!(verdict.as_str(), "True Migrating" | "True Reconciled"), "{}", describe(&pipeline));
    // The old one holds messages, so it stays; new dead letters go to the new one.
    assert!(queue_names(&world).await.contains(&"orders.queue.dlq".to_owned()));
    assert!(queue_names(&world).await.contains(&"orders.queue.graveyard".to_owned()));
    world.broker.purge(&world.vhost, "orders.queue.dlq").await;
    settled_with(&world, &["orders.queue", "orders.queue.graveyard", "orders.queue.retry.0"]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_dead_letter_queue_of_another_type_comes_under_another_name() {
    let mut world = World::new("retypenew").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    world.edit("orders", json!({"deadLetter": {"name": "{queue}.dead", "queueType": "classic"}})).await;
    settled_with(&world, &["orders.queue", "orders.queue.dead", "orders.queue.retry.0"]).await;
    assert_eq!(world.broker.queue(&world.vhost, "orders.queue.dead").await["type"], "classic");
    world.leave().await;
}
