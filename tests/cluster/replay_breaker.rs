//! The breaker on a real chain: messages that really died there, and a consumer that rejects
//! whatever it gets.

use std::collections::BTreeSet;

use redrive::api::DlqReplay;
use serde_json::json;

use crate::support::amqp::{Wire, id, numbered};
use crate::support::eventually;
use crate::support::replays::{DLQ, SOURCE, moved, phase_of, text_of};
use crate::support::world::World;

const MESSAGES: usize = 300;

/// How many messages a test of the guard moves.
const CANARY: usize = 5;

async fn all_dead(wire: &Wire) {
    eventually("all messages are ready in the dead-letter queue", async || match wire.ready(DLQ).await {
        MESSAGES => Ok(()),
        ready => Err(format!("{ready} are")),
    })
    .await;
}

fn moved_by(replay: &DlqReplay) -> usize {
    usize::try_from(moved(replay)).unwrap()
}

/// A replay at this pace moves at most a sample and a batch until it pauses, and at most a test
/// more until it stops. Nothing walks the ladder again.
async fn stops(version: &str, purpose: &str, rate: usize, batch: usize, sample: usize) {
    let mut world = World::for_replays_on(version, purpose).await;
    world.start();
    world
        .create_ready("orders", json!({"retry": {"delays": ["1s"]}, "replayPolicy": {"maxRate": 1_000}}))
        .await;
    let wire = Wire::open(&world).await;
    let consumer = wire.fail(SOURCE).await;
    wire.publish("orders.exchange", "created", numbered(0..MESSAGES)).await;
    all_dead(&wire).await;
    let walked = consumer.rejected();
    assert_eq!(walked, 2 * MESSAGES, "each failed, waited, and failed again");

    let guard = json!({
        "sample": sample, "stopOnReturnPercent": 20, "minReturns": 10, "requireConsumers": true,
        "canary": {"messages": CANARY, "after": "30s", "tries": 1},
    });
    world.replay("r", json!({"pace": {"messagesPerSecond": rate, "batch": batch}, "guard": guard})).await;
    world
        .until_replay("r", "pauses because messages come back", |replay| {
            phase_of(replay) == "Paused" && text_of(replay, "Succeeded").contains("came back")
        })
        .await;
    all_dead(&wire).await;
    // Counted where they failed: the status may be a moment behind.
    let paused = consumer.rejected() - walked;
    println!("{version}: {paused} moved at {rate} a second, of a sample of {sample} and a batch of {batch}");
    assert!(paused <= sample + batch, "{paused} moved before it paused");

    let stopped = world.until_phase("r", "Stopped").await;
    assert!(text_of(&stopped, "Succeeded").contains("test messages came back"), "{stopped:?}");
    all_dead(&wire).await;
    let failed = consumer.rejected() - walked;
    assert!(failed <= paused + CANARY, "{failed} moved in all");
    assert_eq!(failed, moved_by(&stopped), "each moved once, and failed once");
    let dead: BTreeSet<String> = wire.drain(DLQ).await.iter().map(id).collect();
    assert_eq!(dead.len(), MESSAGES, "none is lost");
    world.leave().await;
}

/// T18
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_fails_everything_stops_it_within_a_sample_and_a_batch() {
    stops("43", "rb-43", 5, 10, 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_fails_everything_stops_it_within_a_sample_and_a_batch_on_4_0() {
    stops("40", "rb-40", 5, 10, 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_stops_a_replay_of_the_default_pace_as_well() {
    stops("43", "rb-default", 10, 50, 50).await;
}
