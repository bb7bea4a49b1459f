//! What a new pipeline becomes, and that nothing is written twice.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::world::{POLL, World, condition, describe, inventory, is_ready, message, verdict};

/// The first RetryPipeline of an example, on this world's vhost.
pub(crate) fn example(world: &World, name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.yaml"));
    let text = std::fs::read_to_string(path).unwrap();
    let mut object: Value = serde_yaml::from_str(&text).unwrap();
    object["metadata"]["namespace"] = json!(world.namespace);
    object["spec"]["vhost"] = json!(world.vhost);
    object
}

/// What `kubectl get` shows of a pipeline, without its age and what stands in the wide form only.
async fn printed(world: &World, name: &str) -> String {
    let path = format!("/apis/redrive.dev/v1alpha1/namespaces/{}/retrypipelines", world.namespace);
    let mut request = kube::api::Request::new(path).get(name, &Default::default()).unwrap();
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io".parse().unwrap();
    request.headers_mut().insert("accept", table);
    let table: Value = world.client.request(request).await.unwrap();
    let cells = table["rows"][0]["cells"].as_array().unwrap().iter().take(7);
    let text = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
    cells.map(text).collect::<Vec<_>>().join(" ")
}

/// Creates an example on one of the brokers and checks what its status says of it.
async fn check_example(version: &str, file: &str, at_least_once: &str, queues: &[&str], columns: &str) {
    let mut world = World::on(version, file).await;
    world.start();
    let manifest = example(&world, file);
    let name = manifest["metadata"]["name"].as_str().unwrap().to_owned();
    world.create(manifest).await;
    let pipeline = world.ready(&name).await;
    assert_eq!(verdict(&pipeline, "AtLeastOnce"), at_least_once, "{}", describe(&pipeline));
    for (kind, expected) in [
        ("Drifted", "False InSync"),
        ("Suspended", "False Reconciled"),
        ("Stalled", "False Reconciled"),
        ("Reconciling", "False Reconciled"),
    ] {
        assert_eq!(verdict(&pipeline, kind), expected, "{kind} of {file}: {}", describe(&pipeline));
        assert_eq!(condition(&pipeline, kind)["observedGeneration"], 1);
    }
    assert_eq!(world.broker.names("queues", &world.vhost).await, queues);
    let mut recorded = inventory(&pipeline, "Created");
    recorded.retain(|entry| entry.starts_with("Queue "));
    let expected: Vec<String> = queues.iter().map(|queue| format!("Queue {queue}")).collect();
    assert_eq!(recorded, expected);
    assert!(inventory(&pipeline, "Intended").is_empty() && inventory(&pipeline, "Adopted").is_empty());
    let status = pipeline.status.as_ref().unwrap();
    for contract in &status.client_contract {
        let declared = world.broker.queue(&world.vhost, &contract.name).await;
        let arguments = serde_json::to_value(&contract.arguments).unwrap();
        assert_eq!(declared["arguments"], arguments, "{}", contract.name);
    }
    assert_eq!(status.effective.as_ref().unwrap().vhost, world.vhost);
    assert_eq!(status.queues.len(), queues.len());
    let printed = printed(&world, &name).await;
    assert_eq!(printed, format!("{name} {columns}"));
    world.leave().await;
}

const ORDERS: [&str; 9] = [
    "orders.queue",
    "orders.queue.dlq",
    "orders.queue.dlq.quarantine.poison",
    "orders.queue.dlq.quarantine.replay-limit",
    "orders.queue.dlq.quarantine.schema",
    "orders.queue.retry.0",
    "orders.queue.retry.1",
    "orders.queue.retry.2",
    "orders.queue.retry.3",
];

#[tokio::test]
async fn the_example_with_a_brokers_ladder_becomes_ready() {
    check_example("43", "orders", "True Reconciled", &ORDERS, "True Reconciled Broker 4 0 False").await;
}

#[tokio::test]
async fn the_example_with_a_brokers_ladder_becomes_ready_on_4_0_too() {
    check_example("40", "orders", "True Reconciled", &ORDERS, "True Reconciled Broker 4 0 False").await;
}

#[tokio::test]
async fn the_example_for_a_client_library_becomes_ready_with_classic_queues() {
    let queues = [
        "payments.queue",
        "payments.queue.dlq",
        "payments.queue.retry.1",
        "payments.queue.retry.2",
        "payments.queue.retry.3",
        "payments.queue.retry.4",
    ];
    check_example("43", "rabbitkit", "False ClassicQueue", &queues, "True Reconciled Application 4 0 False")
        .await;
}

#[tokio::test]
async fn the_example_with_delayed_retry_becomes_ready() {
    let queues = ["invoices.queue", "invoices.queue.dlq"];
    check_example("43", "native", "True Reconciled", &queues, "True Reconciled Native 0 0 False").await;
}

#[tokio::test]
async fn the_example_without_retries_becomes_ready() {
    let queues = ["audit.queue", "audit.queue.dlq"];
    check_example("43", "none", "True Reconciled", &queues, "True Reconciled None 0 0 False").await;
}

#[tokio::test]
async fn the_example_with_jitter_becomes_ready() {
    let mut queues = vec!["emails.queue".to_owned(), "emails.queue.dlq".to_owned()];
    for tier in 0..4 {
        queues.extend((0..3).map(|shard| format!("emails.queue.retry.{tier}.s{shard}")));
    }
    let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
    check_example("43", "jitter", "True Reconciled", &queues, "True Reconciled Broker 4 0 False").await;
}

#[tokio::test]
async fn the_example_with_numbers_in_arguments_becomes_ready() {
    let queues = [
        "stock.queue",
        "stock.queue.dlq",
        "stock.queue.dlq.parking",
        "stock.queue.retry.0",
        "stock.queue.retry.1",
        "stock.queue.retry.2",
        "stock.queue.retry.3",
    ];
    check_example("43", "arguments", "True Reconciled", &queues, "True Reconciled Broker 4 0 False").await;
}

#[tokio::test]
async fn everything_is_recorded_as_intended_before_the_first_write() {
    let mut world = World::new("intended").await;
    world.proxy.hold_writes();
    world.start();
    world.create(world.manifest("orders", json!({"deletionPolicy": "Delete"}))).await;
    world.proxy.write_arrived().await;
    let pipeline = world.get("orders").await;
    assert!(inventory(&pipeline, "Created").is_empty(), "{}", describe(&pipeline));
    let intended = inventory(&pipeline, "Intended");
    assert_eq!(pipeline.metadata.finalizers.as_deref(), Some(&["redrive.dev/cleanup".to_owned()][..]));
    assert!(world.broker.names("queues", &world.vhost).await.is_empty());
    world.proxy.release();
    let pipeline = world.ready("orders").await;
    assert_eq!(inventory(&pipeline, "Created"), intended);
    world.leave().await;
}

#[tokio::test]
async fn what_messages_need_exists_before_they_can_come() {
    let mut world = World::new("order").await;
    world.start();
    world.create_ready("orders", json!({"source": {"deliveryLimit": 5}})).await;
    let writes: Vec<String> = world.proxy.writes().into_iter().map(|write| write.path).collect();
    let first = |part: &str| writes.iter().position(|path| path.contains(part)).expect(part);
    let in_order = [
        "/policies/",
        "/queues/{vhost}/orders.queue.dlq",
        "/queues/{vhost}/orders.queue.retry.0",
        "/exchanges/{vhost}/orders.queue.dlx.ladder",
        "/queues/{vhost}/orders.queue",
        "/bindings/{vhost}/e/orders.queue.return.0/q/orders.queue",
        "/bindings/{vhost}/e/orders.exchange/q/orders.queue",
    ];
    let vhost = &world.vhost;
    let positions = in_order.map(|part| {
        let path = part.replace("{vhost}", vhost);
        // The source's own path begins those of its derived queues.
        if path.ends_with("/queues/orders.queue") || part.ends_with("}/orders.queue") {
            writes.iter().position(|write| write.ends_with(&path)).unwrap()
        } else {
            first(&path)
        }
    });
    assert!(positions.is_sorted(), "{positions:?} of {writes:#?}");
    world.leave().await;
}

#[tokio::test]
async fn nothing_is_written_where_nothing_differs() {
    let mut world = World::new("quiet").await;
    world.start();
    world.create_ready("orders", json!({"deadLetter": {"retention": "14d", "parkingLot": true}})).await;
    world.create_ready("plain", json!({"retry": {"mode": "None", "delays": null}})).await;
    for (name, queues) in [("orders", 5), ("plain", 2)] {
        world.until_counted(name, queues).await;
    }
    world.looked_at(2).await;
    let before = (world.get("orders").await, world.get("plain").await);
    let events = (world.events("orders").await, world.events("plain").await);
    world.proxy.forget();
    for restart in [false, true] {
        if restart {
            world.stop().await;
            world.start();
        }
        world.writes_nothing("nothing is written", POLL * 6).await;
    }
    let after = (world.get("orders").await, world.get("plain").await);
    assert_eq!(
        before.0.metadata.resource_version, after.0.metadata.resource_version,
        "{:#?}",
        after.0.status
    );
    assert_eq!(
        before.1.metadata.resource_version, after.1.metadata.resource_version,
        "{:#?}",
        after.1.status
    );
    assert_eq!(events, (world.events("orders").await, world.events("plain").await));
    let rounds = world.proxy.seen().iter().filter(|request| request.path.contains("/queues/")).count();
    assert!((6..40).contains(&rounds), "one read of the queues a round serves both: {rounds}");
    world.leave().await;
}

#[tokio::test]
async fn two_operators_tell_each_others_objects_apart() {
    let mut world = World::new("twins").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    world.stop().await;
    let contents = world.broker.contents(&world.vhost).await;
    // The same resource in another Kubernetes cluster that uses the same vhost.
    world.settings.cluster_id = Some("another-cluster".to_owned());
    world.delete("orders").await;
    world.proxy.forget();
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "Conflict").await;
    assert!(message(&pipeline, "Ready").contains("belongs to"), "{}", describe(&pipeline));
    assert!(world.proxy.writes().is_empty());
    assert_eq!(world.broker.contents(&world.vhost).await, contents);
    world.leave().await;
}

#[tokio::test]
async fn a_recreated_resource_takes_over_what_its_predecessor_left() {
    let mut world = World::new("again").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    world.broker.fill(&world.vhost, "orders.queue.dlq", 3).await;
    let before = world.broker.names("queues", &world.vhost).await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    let pipeline = world.create_ready("orders", json!({"deletionPolicy": "Delete"})).await;
    let adopted = inventory(&pipeline, "Adopted");
    assert!(adopted.iter().all(|entry| entry.starts_with("Binding ")), "{adopted:?}");
    assert!(is_ready(&pipeline));
    assert_eq!(world.broker.names("queues", &world.vhost).await, before);
    assert_eq!(world.broker.queue(&world.vhost, "orders.queue.dlq").await["durable"], true);
    world.delete("orders").await;
    world.until_gone("orders").await;
    assert!(world.broker.names("queues", &world.vhost).await.is_empty());
    world.leave().await;
}
