//! Workers that die, connections that go, consumers that time out.

use std::collections::BTreeSet;
use std::time::Duration;

use redrive::broker::BrokerError;
use redrive::replay::outcome::Outcome;
use redrive::topology::model::QueueType;
use serde_json::Value;

use crate::lab::{
    DLQ, Pick, Setting, Start, WORK, consumer_timeouts, empty, fill, nothing_held, on_both, queues,
};
use crate::support::{Version, Vhost, encode, eventually, in_vhost};

/// T2
#[tokio::test(flavor = "multi_thread")]
async fn messages_survive_a_worker_that_dies_while_it_holds_them() {
    on_both("replay-dies", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 100).await;
        let mut worker = Start::all(100).picking(Pick::Odd).paced(1, 10).go(&vhost);
        worker.shows("messages moved", |report| report.counts.replayed >= 10).await;
        let memory = worker.dies().await;
        let there = async || vhost.ready(DLQ).await + vhost.ready(WORK).await;
        eventually("all come back", async || there().await >= 100).await;

        let mut start = Start::all(100).picking(Pick::Odd);
        start.memory = memory;
        let (outcome, counts) = start.go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        nothing_held(&vhost, DLQ, 50).await;
        let moved = empty(&vhost, WORK).await;
        let distinct: BTreeSet<_> = moved.iter().copied().collect();
        assert_eq!(distinct, (1..100).step_by(2).collect());
        let doubled = (moved.len() - distinct.len()) as u64;
        assert!(doubled <= counts.duplicates_possible && doubled <= 100, "{doubled} doubled, {counts:?}");
        assert_eq!(empty(&vhost, DLQ).await, (0..100).step_by(2).collect::<Vec<_>>());
    })
    .await;
}

async fn close_connections(vhost: &Vhost, name: &str) -> usize {
    let (_, body) = vhost.raw("GET", &format!("/vhosts/{}/connections", encode(&vhost.name)), None).await;
    let connections: Vec<Value> = serde_json::from_str(&body).unwrap_or_default();
    let mut closed = 0;
    for connection in connections {
        if connection["client_properties"]["connection_name"] == name {
            let id = encode(connection["name"].as_str().unwrap());
            closed += usize::from(vhost.raw("DELETE", &format!("/connections/{id}"), None).await.0 == 204);
        }
    }
    closed
}

async fn survives_the_loss_of(connection: &str) {
    on_both("replay-lost", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 2_000).await;
        // Long enough for the broker to list the connection, which takes it seconds.
        let mut worker = Start::all(100).paced(10, 50).go(&vhost);
        worker.shows("messages moved", |report| report.counts.replayed >= 50).await;
        eventually("the connection is listed and closed", async || {
            close_connections(&vhost, connection).await > 0
        })
        .await;
        worker.orders.send_modify(|orders| orders.pace.per_second = 100_000);
        let (outcome, counts) = worker.finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        nothing_held(&vhost, DLQ, 0).await;
        let moved = empty(&vhost, WORK).await;
        let distinct: BTreeSet<_> = moved.iter().copied().collect();
        assert_eq!(distinct.len(), 2_000, "none is lost");
        let doubled = (moved.len() - distinct.len()) as u64;
        assert!(doubled <= counts.duplicates_possible, "{doubled} doubled, {counts:?}");
        assert!(counts.duplicates_possible <= 100, "one window: {counts:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reading_connection_may_go_at_any_time() {
    survives_the_loss_of("redrive replay: reads").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publishing_connection_may_go_at_any_time() {
    survives_the_loss_of("redrive replay: publishes").await;
}

/// A dead-letter queue whose consumers may hold a message for three seconds; 4.0 looks for
/// such ones once a minute, unless it is told otherwise.
async fn impatient(vhost: &Vhost) -> Option<Setting> {
    let sooner = (vhost.version == Version::V40).then(|| {
        let set = |millis| format!("application:set_env(rabbit, channel_tick_interval, {millis}).");
        Setting::change(vhost.version, &set(500), &set(60_000))
    });
    let arguments = [("x-delivery-limit", (-1i64).into()), ("x-consumer-timeout", 3_000i64.into())];
    vhost.queue(DLQ, QueueType::Quorum, arguments).await;
    vhost.queue(WORK, QueueType::Quorum, []).await;
    sooner
}

/// T28
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_times_out_is_opened_anew_and_nothing_counts_twice() {
    on_both("replay-timeout", async |vhost| {
        let sooner = impatient(&vhost).await;
        fill(&vhost, DLQ, 60).await;
        // At this pace the last one would be held for half a minute, ten times what is allowed.
        let mut worker = Start::all(100).picking(Pick::Odd).paced(1, 1).go(&vhost);
        eventually("the broker takes back what is held", async || consumer_timeouts(&vhost) > 0).await;
        let moved = worker.counts().replayed;
        assert!(moved < 30, "in the midst of it");
        worker.shows("more moved", |report| report.counts.replayed > moved).await;
        worker.orders.send_modify(|orders| orders.pace.per_second = 1_000);
        let (outcome, counts) = worker.finishes().await;
        drop(sooner);
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.examined, counts.matched), (60, 30));
        // An acknowledgement that was on its way when the broker cut it off counts as possible.
        assert!(counts.replayed <= 30 && counts.replayed + counts.duplicates_possible >= 30, "{counts:?}");
        nothing_held(&vhost, DLQ, 30).await;
        let moved = empty(&vhost, WORK).await;
        let distinct: BTreeSet<_> = moved.iter().copied().collect();
        assert_eq!(distinct, (1..60).step_by(2).collect());
        assert!((moved.len() - distinct.len()) as u64 <= counts.duplicates_possible, "{counts:?}");
        assert_eq!(empty(&vhost, DLQ).await, (0..60).step_by(2).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_sets_its_own_timeout_is_not_cut_off() {
    in_vhost(Version::V43, "replay-own-timeout", async |vhost| {
        let _ = impatient(&vhost).await;
        fill(&vhost, DLQ, 40).await;
        let mut start = Start::all(100).paced(5, 10);
        start.sets_consumer_timeout = true;
        let (outcome, counts) = start.go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.replayed, counts.duplicates_possible, counts.beyond_fence), (40, 0, 0));
        assert_eq!(empty(&vhost, WORK).await, (0..40).collect::<Vec<_>>());
        assert_eq!(consumer_timeouts(&vhost), 0);
    })
    .await;
}

/// T28: 4.0 takes no wish from a consumer, and neither does a classic queue.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_timeout_can_not_be_set_everything_is_returned_in_time() {
    on_both("replay-renewal", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 60).await;
        let mut start = Start::all(100).picking(Pick::Odd).paced(5, 10);
        start.limits.hold = Some(Duration::from_secs(4));
        let memory = start.memory.clone();
        let (outcome, counts) = start.go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.examined, counts.matched, counts.replayed), (60, 30, 30));
        assert_eq!((counts.duplicates_possible, counts.beyond_fence), (0, 0));
        // Six seconds, so that twice at least nothing was held in between, and once at the end.
        let settled = memory.checkpoints.lock().unwrap().iter().filter(|kept| kept.under_way == 0).count();
        assert!(settled >= 3, "{settled}");
        nothing_held(&vhost, DLQ, 30).await;
        assert_eq!(empty(&vhost, DLQ).await, (0..60).step_by(2).collect::<Vec<_>>());
        assert_eq!(empty(&vhost, WORK).await, (1..60).step_by(2).collect::<Vec<_>>());
    })
    .await;
}

/// T36
#[tokio::test(flavor = "multi_thread")]
async fn a_second_replay_of_the_same_queue_is_refused() {
    on_both("replay-lock", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 100).await;
        let mut first = Start::all(10).paced(1, 10).go(&vhost);
        first.shows("a fence", |report| report.fence.is_some()).await;
        let refused = Start::all(10).go(&vhost).task.await.unwrap();
        assert!(matches!(refused, Err(BrokerError::InUse { .. })), "{refused:?}");
        first.orders.send_modify(|orders| orders.cancel = true);
        assert_eq!(first.finishes().await.0, Outcome::Cancelled);
        let (outcome, _) = Start::all(10).go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::Completed, "the lock is free again");
    })
    .await;
}
