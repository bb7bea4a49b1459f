//! What people do to a replay while it runs, and what happens to its pipeline.

use std::time::Duration;

use redrive::api::DlqReplay;
use serde_json::{Value, json};

use crate::support::replays::{DLQ, SOURCE, moved, phase_of, text_of, verdict_of};
use crate::support::world::World;
use crate::support::{eventually, steadily};

/// A replay under way, at one message a second.
async fn slow(purpose: &str, policy: Value, messages: usize) -> World {
    let world = World::with_dead_letters(purpose, policy, messages).await;
    world.replay("r", json!({"pace": {"messagesPerSecond": 1, "batch": 1}})).await;
    world.until_replay("r", "has moved something", |replay| moved(replay) > 0).await;
    world
}

/// Everything is in one of the two queues, and nothing is held.
async fn all_there(world: &World, replay: &DlqReplay, messages: u64) {
    let moved = u64::try_from(moved(replay)).unwrap();
    world.until_messages(&[(DLQ, messages - moved), (SOURCE, moved)]).await;
}

/// Waits until all is in one of the two queues, as the replay says it: a confirmation may have been
/// on its way when it paused.
async fn settled(world: &World, messages: u64) -> DlqReplay {
    eventually("what is there is what it says", async || {
        let replay = world.replays().get("r").await.map_err(|error| error.to_string())?;
        let ready = async |queue| world.broker.totals(&world.vhost, queue).await["messages_ready"].as_u64();
        let (left, there) = (ready(DLQ).await, ready(SOURCE).await);
        let moved = u64::try_from(moved(&replay)).unwrap();
        let all = left == Some(messages - moved) && there == Some(moved);
        if all { Ok(replay) } else { Err(format!("{left:?} left, {there:?} there, {moved} moved")) }
    })
    .await
}

#[tokio::test]
async fn a_cancelled_replay_settles_and_never_goes_on() {
    let world = slow("ro-cancel", json!({}), 50).await;
    world.edit_replay("r", json!({"cancel": true})).await;
    let replay = world.until_phase("r", "Cancelled").await;
    assert_eq!(text_of(&replay, "Succeeded"), "spec.cancel is true");
    all_there(&world, &replay, 50).await;
    let record =
        world.until("orders", "remembers it", |one| !one.status.as_ref().unwrap().replays.is_empty()).await;
    assert_eq!(record.status.unwrap().replays[0].result, "Cancelled");
    world.leave().await;
}

#[tokio::test]
async fn a_suspended_replay_holds_nothing_and_goes_on_from_the_same_fence() {
    let world = slow("ro-suspend", json!({}), 100).await;
    world.edit_replay("r", json!({"suspend": true})).await;
    let held = world.until_phase("r", "Paused").await;
    assert_eq!(verdict_of(&held, "Suspended"), "True Paused");
    assert_eq!(verdict_of(&held, "Running"), "False Paused");
    world
        .until_replay("r", "shows no rate", |replay| {
            replay.status.as_ref().unwrap().progress.as_ref().unwrap().rate.is_none()
        })
        .await;
    let held = settled(&world, 100).await;
    steadily("nothing moves", Duration::from_secs(3), async || {
        let now = moved(&world.replays().get("r").await.unwrap());
        if now == moved(&held) { Ok(()) } else { Err(format!("{now} messages")) }
    })
    .await;
    world.edit_replay("r", json!({"suspend": false, "pace": {"messagesPerSecond": 50}})).await;
    let done = world.until_phase("r", "Completed").await;
    let fence = |replay: &DlqReplay| replay.status.clone().unwrap().progress.unwrap().fence;
    assert_eq!(fence(&done), fence(&held));
    world.until_messages(&[(DLQ, 0), (SOURCE, 100)]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_new_rate_counts_at_once() {
    let world = slow("ro-rate", json!({}), 300).await;
    // Five minutes at the rate of before.
    world.edit_replay("r", json!({"pace": {"messagesPerSecond": 100, "batch": 50}})).await;
    world.until_phase("r", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 300)]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_replay_that_is_deleted_settles_first_and_is_remembered() {
    let world = slow("ro-delete", json!({}), 50).await;
    world.delete_replay("r").await;
    world.until_replay_is_gone("r").await;
    let pipeline = world.get("orders").await;
    let records = pipeline.status.unwrap().replays;
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!((records[0].name.as_str(), records[0].result.as_str()), ("r", "Cancelled"));
    let moved = u64::try_from(records[0].moved).unwrap();
    assert!(moved > 0 && moved < 50, "{moved}");
    world.until_messages(&[(DLQ, 50 - moved), (SOURCE, moved)]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_replay_that_waits_is_deleted_at_once() {
    let world = World::with_dead_letters("ro-wait", json!({"messagesWithoutApproval": 0}), 2).await;
    world.replay("r", json!({})).await;
    world.until_phase("r", "AwaitingApproval").await;
    world.delete_replay("r").await;
    world.until_replay_is_gone("r").await;
    // It never ran, so it may be asked again.
    world.replay("r", json!({})).await;
    world.until_phase("r", "AwaitingApproval").await;
    world.edit_replay("r", json!({"cancel": true})).await;
    world.until_phase("r", "Cancelled").await;
    world.leave().await;
}

#[tokio::test]
async fn a_pipeline_that_is_suspended_holds_its_replay_and_one_that_is_deleted_ends_it() {
    let world = slow("ro-pipeline", json!({}), 50).await;
    world.edit("orders", json!({"suspend": true})).await;
    let held = world.until_phase("r", "Paused").await;
    assert!(text_of(&held, "Succeeded").contains("the pipeline is suspended"), "{held:?}");
    world.edit("orders", json!({"suspend": false})).await;
    world.until_phase("r", "Running").await;
    world.delete("orders").await;
    let replay = world.until_phase("r", "Stopped").await;
    assert!(text_of(&replay, "Succeeded").contains("the pipeline was deleted"), "{replay:?}");
    all_there(&world, &replay, 50).await;
    world.leave().await;
}

#[tokio::test]
async fn a_pipeline_that_becomes_stricter_ends_what_it_no_longer_allows() {
    let world = slow("ro-stricter", json!({}), 50).await;
    world.edit("orders", json!({"replayPolicy": {"allowedTargets": ["ParkingLot"]}})).await;
    let replay = world.until_phase("r", "Stopped").await;
    assert!(text_of(&replay, "Succeeded").contains("allowedTargets"), "{replay:?}");
    all_there(&world, &replay, 50).await;
    assert_eq!(phase_of(&replay), "Stopped");
    world.leave().await;
}

#[tokio::test]
async fn the_worker_owns_the_progress_and_nothing_else() {
    let world = World::with_dead_letters("ro-progress", json!({}), 8).await;
    world.replay("r", json!({})).await;
    let replay = world.until_phase("r", "Completed").await;
    let managed = replay.metadata.managed_fields.clone().unwrap_or_default();
    let worker = managed.into_iter().find(|one| one.manager.as_deref() == Some("redrive-worker"));
    let worker = worker.expect("fields of the worker");
    assert_eq!((worker.operation.as_deref(), worker.subresource.as_deref()), (Some("Apply"), Some("status")));
    let fields = serde_json::to_value(&worker.fields_v1).unwrap();
    let owned: Vec<&String> = fields["f:status"].as_object().unwrap().keys().collect();
    assert_eq!(owned, ["f:progress"]);
    assert_eq!(moved(&replay), 8);
    world.leave().await;
}

/// And nothing else that is edited is passed over meanwhile.
#[tokio::test]
async fn an_edit_that_nobody_can_carry_out_holds_it_until_it_is_put_right() {
    let world = slow("ro-wrong", json!({}), 100).await;
    world.edit_replay("r", json!({"guard": {"sample": 5, "minReturns": 6}})).await;
    world
        .until_replay("r", "says what is wrong", |replay| {
            phase_of(replay) == "Paused" && text_of(replay, "Succeeded").contains("guard.minReturns")
        })
        .await;
    world.edit_replay("r", json!({"suspend": true})).await;
    world
        .until_replay("r", "is suspended", |replay| {
            text_of(replay, "Succeeded").contains("spec.suspend is true")
        })
        .await;
    settled(&world, 100).await;
    let right = json!({"suspend": false, "guard": {"minReturns": 5}, "pace": {"messagesPerSecond": 50}});
    world.edit_replay("r", right).await;
    world.until_phase("r", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 100)]).await;
    world.leave().await;
}

#[tokio::test]
async fn progress_is_written_at_most_once_a_second() {
    let mut world = World::for_replays("ro-second").await;
    world.proxy_kubernetes().await;
    world.start();
    world.create_ready("orders", json!({})).await;
    world.broker.fill(&world.vhost, DLQ, 100).await;
    world.replay("r", json!({"pace": {"messagesPerSecond": 20, "batch": 2}})).await;
    world.until_phase("r", "Completed").await;
    let writes = world.proxy.writes();
    let applies = writes
        .iter()
        .filter(|write| write.to_kubernetes && write.path.contains("fieldManager=redrive-worker"));
    let times: Vec<_> = applies.map(|write| write.at).collect();
    assert!(times.len() > 3, "{times:?}");
    // They are sent a second apart, and arrive when the machine lets them.
    let seconds = (times[times.len() - 1] - times[0]).as_secs() as usize;
    assert!(times.len() <= seconds + 2, "{times:?}");
    world.leave().await;
}
