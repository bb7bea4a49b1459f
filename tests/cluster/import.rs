//! What `redrive import` writes is applied: the operator takes over what is there, and writes
//! nothing but markers.

use std::process::Command;

use redrive::api::RetryPipeline;
use serde_json::{Value, json};

use crate::support::clusters::CLUSTER;
use crate::support::scene::storm;
use crate::support::world::{World, describe, inventory};

/// The manifests that describe this world's vhost.
async fn import(world: &World, arguments: &[&str]) -> Vec<Value> {
    let (address, user) = (&world.broker.address, &world.broker.user);
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.args(["import", "--vhost", &world.vhost, "--namespace", &world.namespace]);
    command.args(["--broker", &format!("http://{user}@{address}")]).args(arguments);
    command.env("REDRIVE_BROKER_PASSWORD", &world.broker.password);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    // Documents begin with their separator and comments.
    let documents = text.split("---\n").filter(|document| !document.is_empty());
    documents.map(|document| serde_yaml::from_str(document).unwrap()).collect()
}

/// A work queue with rabbitkit's queues around it, as its application would declare them.
async fn declare_rabbitkits(world: &World, queue: &str) {
    let classic = |arguments: Value| json!({"durable": true, "auto_delete": false, "arguments": arguments});
    let way = |to: &str| json!({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to});
    let dlq = format!("{queue}.dlq");
    world.broker.put(&["queues", &world.vhost, &dlq], classic(json!({}))).await;
    world.broker.put(&["queues", &world.vhost, queue], classic(way(&dlq))).await;
    for (number, delay) in [(1, 5_000), (2, 30_000), (3, 120_000), (4, 600_000)] {
        let mut arguments = way(queue);
        arguments["x-message-ttl"] = delay.into();
        let name = format!("{queue}.retry.{number}");
        world.broker.put(&["queues", &world.vhost, &name], classic(arguments)).await;
    }
    let exchange = format!("{queue}.exchange");
    let direct = json!({"type": "direct", "durable": true, "auto_delete": false, "arguments": {}});
    world.broker.put(&["exchanges", &world.vhost, &exchange], direct).await;
    world.broker.bind(&world.vhost, &exchange, "q", queue, queue).await;
}

/// Creates what was imported and waits until it is ready.
async fn apply(world: &World, manifest: &Value) -> RetryPipeline {
    let name = manifest["metadata"]["name"].as_str().unwrap().to_owned();
    world.create(manifest.clone()).await;
    world.ready(&name).await
}

fn assert_only_markers(world: &World) {
    let writes = world.proxy.writes();
    assert!(!writes.is_empty(), "whose it is, is marked");
    let others: Vec<_> = writes.iter().filter(|write| !write.path.contains("redrive.owner")).collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// Everything in the vhost but markers.
async fn contents(world: &World) -> Vec<String> {
    let mut lines = world.broker.contents(&world.vhost).await;
    lines.retain(|line| !line.contains("redrive.owner"));
    lines
}

async fn check_adopted(version: &str) {
    let mut world = World::on(version, "import").await;
    for queue in ["payments.queue", "refunds"] {
        declare_rabbitkits(&world, queue).await;
        world.broker.fill(&world.vhost, &format!("{queue}.dlq"), 3).await;
    }
    let before = contents(&world).await;
    let manifests = import(&world, &[]).await;
    assert_eq!(manifests.len(), 2, "{manifests:#?}");
    world.start();
    world.proxy.forget();
    for manifest in &manifests {
        let pipeline = apply(&world, manifest).await;
        assert_eq!(inventory(&pipeline, "Created"), [""; 0], "{}", describe(&pipeline));
        // Six queues, an exchange and its binding.
        assert_eq!(inventory(&pipeline, "Adopted").len(), 8, "{:?}", inventory(&pipeline, "Adopted"));
    }
    world.looked_at(2).await;
    assert_only_markers(&world);
    assert_eq!(contents(&world).await, before);
    // And nothing of it goes with its resource, even where that deletes.
    world.edit("refunds", json!({"deletionPolicy": "Delete"})).await;
    world.ready("refunds").await;
    world.delete("refunds").await;
    world.until_gone("refunds").await;
    assert_eq!(contents(&world).await, before);
    world.leave().await;
}

#[tokio::test]
async fn what_an_application_declared_is_adopted_without_a_write() {
    check_adopted("43").await;
}

#[tokio::test]
async fn what_an_application_declared_is_adopted_without_a_write_on_4_0() {
    check_adopted("40").await;
}

/// The resources of a cluster are lost, and the broker is not.
#[tokio::test]
async fn lost_resources_are_described_again_and_nothing_is_written_but_markers() {
    let mut world = World::new("rebuild").await;
    world.start();
    let everything = json!({
        "retry": {"delays": ["1s", "2s", "1m"], "jitter": {"percent": 10, "shards": 3}},
        "deadLetter": {
            "retention": "14d", "parkingLot": true,
            "quarantine": [
                {"category": "poison", "reasons": ["delivery_limit"]},
                {"category": "schema", "headers": {"x-opt-category": "schema"}},
            ],
        },
        "source": {"deliveryLimit": 7, "queue": {"consumerTimeout": "2h", "singleActiveConsumer": true}},
    });
    world.create_ready("orders", everything).await;
    world.create_ready("plain", json!({"retry": {"mode": "None", "delays": null}})).await;
    world
        .create_ready("client", json!({"retry": {"mode": "Application", "naming": {"numberFrom": 1}}}))
        .await;
    let native =
        json!({"mode": "Native", "delays": null, "native": {"min": "1s", "max": "1m", "attempts": 9}});
    world.create_ready("native", json!({"retry": native})).await;
    // A second generation of a tier and of the chain.
    world.create_ready("edited", json!({})).await;
    world.edit("edited", json!({"retry": {"delays": ["1s", "3s"]}})).await;
    world.ready("edited").await;
    world
        .until("edited", "has drained what was before", |pipeline| {
            let created = inventory(pipeline, "Created");
            !created.iter().any(|entry| entry.ends_with("edited.queue.retry.1"))
        })
        .await;
    let before = contents(&world).await;
    let names = ["orders", "plain", "client", "native", "edited"];
    for name in names {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    assert_eq!(contents(&world).await, before, "Retain leaves all");
    let manifests = import(&world, &[]).await;
    let found: Vec<&str> = manifests.iter().map(|one| one["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(found, ["client", "edited", "native", "orders", "plain"]);
    world.proxy.forget();
    for manifest in &manifests {
        let pipeline = apply(&world, manifest).await;
        assert_eq!(inventory(&pipeline, "Intended"), [""; 0], "{}", describe(&pipeline));
    }
    world.looked_at(2).await;
    assert_only_markers(&world);
    assert_eq!(contents(&world).await, before);
    // They were Redrive's own before, and are again.
    let orders = world.get("orders").await;
    let created = inventory(&orders, "Created");
    assert!(created.contains(&"Queue orders.queue".to_owned()), "{created:?}");
    assert!(created.contains(&"Queue orders.queue.retry.0.s2".to_owned()), "{created:?}");
    world.leave().await;
}

/// A vhost with thousands of queues of others is read, described and taken over all the same.
#[tokio::test]
async fn three_thousand_queues_of_others_do_not_stand_in_the_way() {
    let _turn = storm().await;
    let mut world = World::new("many").await;
    declare_rabbitkits(&world, "payments").await;
    let body = json!({"durable": true, "auto_delete": false, "arguments": {"x-queue-type": "classic"}});
    let declared = (0..3_000).map(|number| {
        let (world, body) = (&world, body.clone());
        async move { world.broker.put(&["queues", &world.vhost, &format!("feed.{number}")], body).await }
    });
    futures::StreamExt::collect::<Vec<()>>(futures::StreamExt::buffer_unordered(
        futures::stream::iter(declared),
        16,
    ))
    .await;
    let manifests = import(&world, &[]).await;
    assert_eq!(manifests.len(), 1);
    world.start();
    world.proxy.forget();
    let pipeline = apply(&world, &manifests[0]).await;
    assert_eq!(inventory(&pipeline, "Adopted").len(), 8);
    assert_only_markers(&world);
    world.leave().await;
}

#[tokio::test]
async fn a_rabbitmq_cluster_may_stand_for_the_secret() {
    let world = World::new("importref").await;
    declare_rabbitkits(&world, "payments").await;
    let manifests = import(&world, &["--cluster-ref", &format!("messaging/{CLUSTER}")]).await;
    let broker = json!({"clusterRef": {"name": CLUSTER, "namespace": "messaging"}});
    assert_eq!(manifests[0]["spec"]["broker"], broker);
    // The API server takes it as it is; nothing runs that would look for the cluster.
    world.create(manifests[0].clone()).await;
    world.leave().await;
}
