//! How much of a resource the largest pipelines take.

use serde_json::{Value, json};

use crate::support::world::{World, message, verdict};

/// The most that a status may take, in bytes of JSON. Here nothing drains and nothing is wrong;
/// `update_status/size.rs` shows the same for the middle of a change with the longest messages.
const MOST: usize = 64 << 10;

/// A name of this many bytes that begins like this.
fn long(start: &str, bytes: usize) -> String {
    format!("{start}{}", "n".repeat(bytes - start.len()))
}

fn delays() -> Vec<String> {
    (1..=32).map(|seconds| format!("{seconds}s")).collect()
}

/// As much of everything as the API server takes, with names of this length.
fn most_of_all(length: usize, retry: &Value) -> Value {
    let exchange = long("e", length);
    let binding =
        |number: usize| json!({"exchange": exchange, "routingKey": long(&format!("{number:02}"), length)});
    let category = |number: usize| json!({"category": long(&format!("c{number:02}"), 40.min(length)), "reasons": ["delivery_limit"]});
    let mut retry = retry.clone();
    retry["delays"] = delays().into();
    retry["jitter"] = json!({"percent": 10, "shards": 2});
    retry["naming"] = json!({"template": long("r{attempt}", length)});
    json!({
        "source": {"queue": {"name": long("q", length), "maxLength": 1000}, "exchange": {"name": exchange, "type": "topic"},
                   "bindings": (0..64).map(binding).collect::<Vec<_>>()},
        "retry": retry,
        "deadLetter": {"name": long("d", length), "parkingLot": true, "retention": "14d",
                       "quarantine": (0..16).map(category).collect::<Vec<_>>()},
    })
}

/// The size of each part of a pipeline's status once it is Ready; with longer names it is refused.
async fn check_size(purpose: &str, length: usize, retry: Value) {
    let mut world = World::new(purpose).await;
    world.start();
    world.create(world.manifest("largest", most_of_all(length, &retry))).await;
    let pipeline = world.ready("largest").await;
    let status = serde_json::to_value(pipeline.status.unwrap()).unwrap();
    let bytes = |value: &Value| serde_json::to_vec(value).unwrap().len();
    let part = |(key, value)| format!("{key} {} bytes", bytes(value));
    let parts: Vec<String> = status.as_object().unwrap().iter().map(part).collect();
    println!("{purpose}: {} bytes: {parts:#?}", bytes(&status));
    assert!(bytes(&status) < MOST, "{} bytes: {parts:#?}", bytes(&status));
    assert!(bytes(&status) > MOST / 3, "{} bytes: {parts:#?}", bytes(&status));

    world.proxy.forget();
    world.create(world.manifest("longer", most_of_all(2 * length, &retry))).await;
    let pipeline = world.until_reason("longer", "InvalidSpec").await;
    let text = message(&pipeline, "Stalled");
    assert!(text.contains("spec.retry.naming.template: ") && text.contains("64 retry queues"), "{text}");
    assert!(text.contains("bytes in its status") && text.contains("shorten"), "{text}");
    assert_eq!(verdict(&pipeline, "Stalled"), "True InvalidSpec");
    assert!(world.proxy.writes().is_empty(), "{:#?}", world.proxy.writes());
    world.leave().await;
}

#[tokio::test]
async fn the_largest_ladder_of_a_broker_keeps_its_status_small() {
    check_size("sizebroker", 55, json!({})).await;
}

#[tokio::test]
async fn the_largest_ladder_of_an_application_keeps_its_status_small() {
    check_size("sizeapp", 30, json!({"mode": "Application"})).await;
}
