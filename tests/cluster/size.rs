//! How much of a resource the largest pipelines take.

use serde_json::{Value, json};

use crate::support::world::World;

/// The most that a status may take without replays and migrations, in bytes of JSON: 64 retry
/// queues, 16 categories and 64 bindings, with the longest names throughout. etcd takes 1.5 MiB.
const MOST: usize = 160 << 10;

/// A name of this many bytes that begins like this.
fn long(start: &str, bytes: usize) -> String {
    format!("{start}{}", "n".repeat(bytes - start.len()))
}

fn delays() -> Vec<String> {
    (1..=32).map(|seconds| format!("{seconds}s")).collect()
}

/// The size of each part of a pipeline's status once it is Ready.
async fn check_size(purpose: &str, queue: &str, retry: Value) {
    let mut world = World::new(purpose).await;
    world.start();
    let exchange = long("e", 255);
    let binding =
        |number: usize| json!({"exchange": exchange, "routingKey": long(&format!("{number:02}"), 255)});
    let category = |number: usize| json!({"category": long(&format!("c{number:02}"), 40), "reasons": ["delivery_limit"]});
    let spec = json!({
        "source": {"queue": {"name": queue, "maxLength": 1000}, "exchange": {"name": exchange, "type": "topic"},
                   "bindings": (0..64).map(binding).collect::<Vec<_>>()},
        "retry": retry,
        "deadLetter": {"name": long("d", 190), "parkingLot": true, "retention": "14d",
                       "quarantine": (0..16).map(category).collect::<Vec<_>>()},
    });
    world.create(world.manifest("largest", spec)).await;
    let pipeline = world.ready("largest").await;
    let status = serde_json::to_value(pipeline.status.unwrap()).unwrap();
    let bytes = |value: &Value| serde_json::to_vec(value).unwrap().len();
    let parts: Vec<String> = status
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| {
            format!("{key} {} bytes, {} entries", bytes(value), value.as_array().map_or(1, Vec::len))
        })
        .collect();
    println!("{purpose}: {} bytes: {parts:#?}", bytes(&status));
    assert!(bytes(&status) < MOST, "{} bytes: {parts:#?}", bytes(&status));
    world.leave().await;
}

#[tokio::test]
async fn the_largest_ladder_of_a_broker_keeps_its_status_small() {
    let retry = json!({
        "delays": delays(), "jitter": {"percent": 10, "shards": 2},
        "naming": {"template": long("r{attempt}", 240)},
    });
    check_size("sizebroker", &long("q", 180), retry).await;
}

#[tokio::test]
async fn the_largest_ladder_of_an_application_keeps_its_status_small() {
    let retry = json!({
        "mode": "Application", "delays": delays(),
        "jitter": {"percent": 10, "shards": 2}, "naming": {"template": long("r{attempt}", 240)},
    });
    check_size("sizeapp", &long("q", 180), retry).await;
}
