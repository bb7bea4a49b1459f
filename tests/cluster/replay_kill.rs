//! The worker's process is killed while messages move: once in a quiet moment, and again and
//! again as fast as they can.

use std::time::{Duration, Instant};

use redrive::api::DlqReplay;
use serde_json::{Value, json};

use crate::support::amqp::{Copies, Wire, numbered};
use crate::support::replays::{DLQ, SOURCE};
use crate::support::worker::Run;
use crate::support::world::World;
use crate::support::{PATIENCE, below, eventually, full};

/// Messages in flight, and so the most that one kill may double.
const WINDOW: usize = 500;

/// A replay of so many messages with this pace, whose worker the test starts.
async fn replay(version: &str, purpose: &str, messages: usize, pace: Value) -> (World, Wire, Run) {
    let mut world = World::for_replays_on(version, purpose).await;
    Run::without_pods(&mut world);
    world.start();
    world.create_ready("orders", json!({"replayPolicy": {"maxRate": 100_000}})).await;
    let wire = Wire::open(&world).await;
    wire.publish("", DLQ, numbered(0..messages)).await;
    let replay = world.replay("r", json!({"pace": pace})).await;
    let run = Run::of(&world, &replay).await;
    (world, wire, run)
}

/// The last life goes to the end, and finds everything settled.
async fn finish(world: &World, wire: &Wire, run: &mut Run) -> DlqReplay {
    run.start().succeeds().await;
    let replay = world.until_phase("r", "Completed").await;
    eventually("nothing is left in the dead-letter queue", async || match wire.ready(DLQ).await {
        0 => Ok(()),
        left => Err(format!("{left} are")),
    })
    .await;
    replay
}

/// Nothing is lost, no more is doubled than is said, nothing moved without a record, and the
/// numbers are as exact as they say.
fn check(copies: &Copies, run: &Run, replay: &DlqReplay, messages: usize, most: usize) {
    let progress = replay.status.as_ref().unwrap().progress.as_ref().unwrap();
    let possible = usize::try_from(progress.duplicates_possible).unwrap();
    println!(
        "{messages} messages: {} lost, {} doubled, {possible} said to be possible, {} and up to {} counted",
        copies.lost(messages).len(),
        copies.doubled(),
        progress.replayed,
        progress.replayed + progress.under_way,
    );
    assert!(copies.lost(messages).is_empty(), "{:?}", copies.lost(messages));
    assert!(copies.doubled() <= possible, "{progress:?}");
    assert!(possible <= most, "{progress:?}");
    copies.assert_alike();
    assert_eq!(run.recorded(), copies.ids(), "what has moved is recorded");
    let (moved, counted) = (i64::try_from(messages).unwrap(), progress.replayed);
    assert!(counted <= moved && moved <= counted + progress.under_way, "{progress:?}");
}

/// Starts a worker and kills it: every fourth at any moment of its first second, the others once
/// some more messages have moved. Says whether it lived long enough for that.
async fn kill_one(run: &mut Run, wire: &Wire, number: usize, share: usize) -> bool {
    let before = wire.ready(SOURCE).await;
    let mut worker = run.start();
    if number % 4 == 3 {
        let moment = u64::try_from(below(1_000)).unwrap();
        tokio::time::sleep(Duration::from_millis(moment)).await;
    } else {
        let enough = before + 1 + below(share);
        let started = Instant::now();
        loop {
            let moved = wire.ready(SOURCE).await;
            if moved >= enough {
                break;
            }
            if let Some(status) = worker.ended() {
                assert!(status.success(), "it ended, {status}, with {moved} moved: {}", worker.said());
                return false;
            }
            assert!(started.elapsed() < PATIENCE, "{moved} of {enough} have moved: {}", worker.said());
        }
    }
    if worker.ended().is_some_and(|status| status.success()) {
        return false;
    }
    worker.kill();
    println!("killed with {} moved", wire.ready(SOURCE).await);
    true
}

/// Kills so often while so many messages move, and looks where all of them are.
async fn kills_lose_nothing(version: &str, purpose: &str, messages: usize, kills: usize) {
    let pace = json!({"messagesPerSecond": 100_000, "batch": 1_000, "window": WINDOW});
    let (world, wire, mut run) = replay(version, purpose, messages, pace).await;
    let mut killed = 0;
    // A worker that nobody looked at for seconds may have moved all.
    while killed < kills && kill_one(&mut run, &wire, killed, messages / (kills + 1)).await {
        killed += 1;
    }
    assert!(killed > 0, "none was killed");
    let replay = finish(&world, &wire, &mut run).await;
    check(&wire.copies(SOURCE).await, &run, &replay, messages, WINDOW * killed);
    world.leave().await;
}

/// T2
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_while_it_holds_messages_loses_none() {
    for version in ["43", "40"] {
        let pace = json!({"messagesPerSecond": 1, "batch": 10, "window": 100});
        let (world, wire, mut run) = replay(version, "rk-holds", 100, pace).await;
        let worker = run.start();
        eventually("some have moved, and it holds the others", async || {
            let (left, moved) = (wire.ready(DLQ).await, wire.ready(SOURCE).await);
            if left == 0 && moved >= 10 { Ok(()) } else { Err(format!("{left} left, {moved} moved")) }
        })
        .await;
        worker.kill();
        eventually("what it held is back", async || {
            let (left, moved) = (wire.ready(DLQ).await, wire.ready(SOURCE).await);
            if left > 0 && left + moved >= 100 { Ok(()) } else { Err(format!("{left} left, {moved} moved")) }
        })
        .await;
        world.edit_replay("r", json!({"pace": {"messagesPerSecond": 1_000}})).await;
        let replay = finish(&world, &wire, &mut run).await;
        check(&wire.copies(SOURCE).await, &run, &replay, 100, 100);
        world.leave().await;
    }
}

/// T27
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_at_full_speed_loses_nothing() {
    kills_lose_nothing("43", "rk-few", 12_000, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_at_full_speed_loses_nothing_on_4_0() {
    kills_lose_nothing("40", "rk-few40", 12_000, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_fifty_times_loses_nothing() {
    if full("a worker killed fifty times among 100,000 messages") {
        kills_lose_nothing("43", "rk-many", 100_000, 50).await;
    }
}
