//! The life of a replay, from the plan to its end and after.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::support::replays::{DLQ, SOURCE, moved, phase_of, text_of, verdict_of};
use crate::support::world::{World, is_ready};
use crate::support::{eventually, steadily};

#[tokio::test]
async fn a_dry_run_ends_with_its_plan_and_moves_nothing() {
    let world = World::with_dead_letters("rp-dry", json!({}), 5).await;
    world.replay("r", json!({"dryRun": true})).await;
    let replay = world.until_phase("r", "Completed").await;
    let status = replay.status.clone().unwrap();
    let plan = status.plan.expect("a plan");
    assert_eq!((plan.in_source, plan.matching, plan.route_count), (5, 5, 1));
    assert_eq!(plan.routes, [SOURCE]);
    assert!(status.admission.is_none() && status.progress.is_none());
    assert_eq!(verdict_of(&replay, "Succeeded"), "True Completed");
    assert_eq!(verdict_of(&replay, "Stalled"), "False Completed");
    world.until_messages(&[(DLQ, 5), (SOURCE, 0)]).await;
    // It changed nothing, so it may be asked again.
    assert_eq!(world.get("orders").await.status.unwrap().replays, []);
    world.leave().await;
}

/// T1: on 4.3 the count of deliveries comes along, so that a dead-letter queue with a limit would
/// lose this message at the first look.
#[tokio::test]
async fn a_dry_run_leaves_what_died_of_its_deliveries() {
    let world = World::with_dead_letters("rp-killed", json!({}), 0).await;
    world.broker.fill(&world.vhost, SOURCE, 1).await;
    let get = ["queues", &world.vhost, SOURCE, "get"];
    let reject = json!({"count": 1, "ackmode": "reject_requeue_true", "encoding": "auto"});
    let rejects = AtomicUsize::new(0);
    eventually("it dies of its deliveries", async || {
        if world.broker.totals(&world.vhost, DLQ).await["messages"] == 1 {
            return Ok(());
        }
        let got = world.broker.post(&get, reject.clone()).await;
        let before = rejects.fetch_add(got.as_array().unwrap().len(), Ordering::Relaxed);
        Err(format!("{before} rejects"))
    })
    .await;
    // The limit of the work queue covers the whole walk.
    assert!(rejects.into_inner() > 20);
    for name in ["first", "second", "third"] {
        world.replay(name, json!({"dryRun": true})).await;
        let plan = world.until_phase(name, "Completed").await.status.unwrap().plan.unwrap();
        let reasons = plan.histogram.unwrap().reasons;
        assert_eq!((plan.matching, reasons[0].value.as_str()), (1, "delivery_limit"));
        world.until_messages(&[(DLQ, 1), (SOURCE, 0)]).await;
    }
    world.leave().await;
}

#[tokio::test]
async fn a_replay_moves_what_it_selects_and_is_remembered() {
    let world = World::with_dead_letters("rp-life", json!({}), 12).await;
    world.replay("r", json!({"pace": {"messagesPerSecond": 100}})).await;
    let replay = world.until_phase("r", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 12)]).await;
    let status = replay.status.clone().unwrap();
    let summary = status.summary.unwrap();
    assert_eq!((summary.matched, summary.replayed, summary.failed), (12, 12, 0));
    assert!(summary.started.is_some_and(|started| started <= summary.finished));
    assert_eq!(status.progress.unwrap().fence.unwrap().count, 12);
    assert_eq!(verdict_of(&replay, "Approved"), "True ApprovalNotRequired");
    for phase in ["Planning", "Running", "Completed"] {
        world.until_event("r", &format!("Normal {phase}")).await;
    }
    let remembered = world
        .until("orders", "remembers it", |pipeline| !pipeline.status.as_ref().unwrap().replays.is_empty())
        .await;
    let record = &remembered.status.unwrap().replays[0];
    assert_eq!((record.name.as_str(), record.result.as_str(), record.moved), ("r", "Completed", 12));
    assert!(!record.approved && record.spec_hash.len() == 64);
    // Nothing holds it any more, and nothing writes to it.
    let done = world.until_replay("r", "is let go", |replay| replay.metadata.finalizers.is_none()).await;
    steadily("nothing is written after the end", Duration::from_secs(4), async || {
        let now = world.replays().get("r").await.unwrap().metadata.resource_version;
        if now == done.metadata.resource_version { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    world.leave().await;
}

/// From 4.3 on a consumer of a quorum queue brings its own timeout, which a classic queue refuses.
#[tokio::test]
async fn a_classic_dead_letter_queue_is_read_as_well() {
    let mut world = World::for_replays("rp-classic").await;
    world.start();
    world.create(world.manifest("orders", json!({"deadLetter": {"queueType": "classic"}}))).await;
    world.until("orders", "has its queues", is_ready).await;
    world.broker.fill(&world.vhost, DLQ, 6).await;
    world.replay("r", json!({"pace": {"messagesPerSecond": 100}})).await;
    world.until_phase("r", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 6)]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_replay_that_selects_nothing_is_over_at_once() {
    let world = World::with_dead_letters("rp-empty", json!({}), 0).await;
    world.replay("r", json!({})).await;
    let replay = world.until_phase("r", "Completed").await;
    assert!(text_of(&replay, "Succeeded").contains("no message is selected"), "{replay:?}");
    assert!(replay.status.unwrap().admission.is_none());
    world.leave().await;
}

#[tokio::test]
async fn a_finished_replay_that_is_created_again_does_not_run_again() {
    let world = World::with_dead_letters("rp-again", json!({}), 2).await;
    world.replay("r", json!({"ttlAfterFinished": "1s"})).await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 2)]).await;
    // Its time is over, and somebody brings it back.
    world.until_replay_is_gone("r").await;
    world.broker.fill(&world.vhost, DLQ, 3).await;
    world.replay("r", json!({"ttlAfterFinished": "1s"})).await;
    world
        .until_event("r", "Warning AlreadyRun: a replay of this name and spec ended as Completed and moved 2")
        .await;
    world.until_replay_is_gone("r").await;
    // Another spec, or another name, is another replay.
    world.replay("r", json!({"select": {"limit": 1}})).await;
    world.until_phase("r", "Completed").await;
    world.replay("r2", json!({"ttlAfterFinished": "1h"})).await;
    world.until_phase("r2", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 5)]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_second_replay_waits_for_the_first_and_names_it() {
    let world = World::with_dead_letters("rp-two", json!({}), 40).await;
    world.replay("first", json!({"pace": {"messagesPerSecond": 1}})).await;
    world.until_replay("first", "has moved something", |replay| moved(replay) > 0).await;
    world.replay("second", json!({"pace": {"messagesPerSecond": 100}})).await;
    let second = world.until_phase("second", "Scheduled").await;
    assert!(text_of(&second, "Succeeded").contains("the replay first of the same pipeline"), "{second:?}");
    world.edit_replay("first", json!({"cancel": true})).await;
    world.until_phase("first", "Cancelled").await;
    world.until_phase("second", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 40)]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_replay_waits_for_its_time() {
    let world = World::with_dead_letters("rp-time", json!({}), 3).await;
    world.replay("later", json!({"notBefore": "2100-01-01T00:00:00Z"})).await;
    let waiting = world.until_phase("later", "Scheduled").await;
    assert!(text_of(&waiting, "Succeeded").contains("notBefore"), "{waiting:?}");
    world.edit_replay("later", json!({"cancel": true})).await;
    world.until_phase("later", "Cancelled").await;
    let time = Timestamp::now() + Duration::from_secs(12);
    let time = Timestamp::from_second(time.as_second()).unwrap();
    world.replay("r", json!({"notBefore": time.to_string()})).await;
    let replay = world.until_phase("r", "Completed").await;
    assert!(replay.status.unwrap().progress.unwrap().started.unwrap().0 >= time);
    world.leave().await;
}

#[tokio::test]
async fn a_replay_goes_on_where_a_stopped_operator_left_it() {
    let mut world = World::with_dead_letters("rp-restart", json!({}), 60).await;
    world.replay("r", json!({"pace": {"messagesPerSecond": 10, "batch": 5}})).await;
    let before = world.until_replay("r", "has moved something", |replay| moved(replay) >= 10).await;
    world.stop().await;
    let fence = |replay: &redrive::api::DlqReplay| replay.status.clone().unwrap().progress.unwrap().fence;
    // What comes meanwhile stands behind the fence.
    world.broker.fill(&world.vhost, DLQ, 4).await;
    world.start();
    world.edit_replay("r", json!({"pace": {"messagesPerSecond": 100}})).await;
    let after = world.until_phase("r", "Completed").await;
    assert_eq!(fence(&after), fence(&before));
    let summary = after.status.unwrap().summary.unwrap();
    assert_eq!((summary.replayed, summary.duplicates_possible), (60, 0), "{summary:?}");
    world.until_messages(&[(DLQ, 4), (SOURCE, 60)]).await;
    // Ended is ended, however often the operator starts.
    world.stop().await;
    world.start();
    world.looked_at(3).await;
    world.until_messages(&[(DLQ, 4), (SOURCE, 60)]).await;
    assert_eq!(phase_of(&world.replays().get("r").await.unwrap()), "Completed");
    world.leave().await;
}
