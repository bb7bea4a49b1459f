//! What moves, what stays, and what is counted.

use redrive::replay::outcome::{Ended, Outcome};
use redrive::topology::model::QueueType;

use crate::lab::{DLQ, Pick, Start, WORK, empty, fill, nothing_held, on_both, queues};
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn every_selected_message_moves_once_with_a_record_before_it_leaves() {
    on_both("replay-all", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 3_000).await;
        let worker = Start::all(500).go(&vhost);
        let memory = worker.memory.clone();
        let (outcome, counts) = worker.finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.examined, counts.matched, counts.replayed), (3_000, 3_000, 3_000));
        assert_eq!(counts.duplicates_possible, 0);
        assert_eq!(vhost.ready(DLQ).await, 0);
        assert_eq!(empty(&vhost, WORK).await, (0..3_000).collect::<Vec<_>>());
        assert_eq!(memory.recorded(), 3_000);
        let entries = memory.entries.lock().unwrap();
        assert!(entries.iter().all(|entry| entry.message.body.is_empty() && entry.replay_id.is_some()));
    })
    .await;
}

/// T3
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_find_no_queue_stay_where_they_are() {
    on_both("replay-unroutable", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        vhost.exchange("nowhere", "direct", []).await;
        fill(&vhost, DLQ, 1_000).await;
        let mut start = Start::all(500);
        start.to = ("nowhere".to_owned(), "key".to_owned());
        let (outcome, counts) = start.go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::Unroutable);
        assert_eq!(counts.replayed, 0);
        assert!(counts.unroutable >= 1);
        nothing_held(&vhost, DLQ, 1_000).await;
        assert_eq!(empty(&vhost, DLQ).await, (0..1_000).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_unroutable_message_is_counted_where_that_is_allowed() {
    on_both("replay-all-unroutable", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        vhost.exchange("nowhere", "direct", []).await;
        fill(&vhost, DLQ, 1_000).await;
        let mut start = Start::all(100);
        start.to = ("nowhere".to_owned(), "key".to_owned());
        start.orders.guard.max_unroutable = 100_000;
        let (outcome, counts) = start.go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::CompletedWithFailures);
        assert_eq!((counts.unroutable, counts.replayed), (1_000, 0));
        nothing_held(&vhost, DLQ, 1_000).await;
    })
    .await;
}

/// T15
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_matches_nothing_ends_and_leaves_all_in_order() {
    on_both("replay-none", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 10_000).await;
        let (outcome, counts) = Start::all(500).picking(Pick::None).go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.examined, counts.matched, counts.replayed), (10_000, 0, 0));
        nothing_held(&vhost, DLQ, 10_000).await;
        assert_eq!(empty(&vhost, DLQ).await, (0..10_000).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_and_moving_end_at_their_limits() {
    on_both("replay-limits", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 1_000).await;
        let mut start = Start::all(50);
        start.limits.messages = Some(120);
        let (outcome, counts) = start.go(&vhost).finishes().await;
        assert_eq!((outcome, counts.replayed), (Outcome::Completed, 120));
        nothing_held(&vhost, DLQ, 880).await;
        let mut start = Start::all(50);
        start.limits.scan = 200;
        let (outcome, counts) = start.go(&vhost).finishes().await;
        assert_eq!((outcome, counts.examined), (Outcome::ScanLimitReached, 200));
        nothing_held(&vhost, DLQ, 680).await;
        assert_eq!(empty(&vhost, DLQ).await, (320..1_000).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_origin_queue_is_said_so() {
    on_both("replay-missing", async |vhost| {
        let (outcome, _) = Start::all(50).go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::Failed("the queue \"orders.dlq\" does not exist".to_owned()));
    })
    .await;
}

/// T26
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_at_full_speed_loses_and_doubles_nothing() {
    on_both("replay-cancel", async |vhost| {
        const COUNT: usize = 60_000;
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, COUNT).await;
        let mut worker = Start::all(500).go(&vhost);
        worker.shows("messages moved", |report| report.counts.replayed > 2_000).await;
        worker.orders.send_modify(|orders| orders.cancel = true);
        let (outcome, counts) = worker.finishes().await;
        assert_eq!(outcome, Outcome::Cancelled);
        let moved = usize::try_from(counts.replayed).unwrap();
        assert!(moved < COUNT, "it was cut off in the midst of it");
        nothing_held(&vhost, DLQ, u32::try_from(COUNT - moved).unwrap()).await;
        let there = vhost.ready(WORK).await as usize;
        let doubled = u64::try_from(there - moved).unwrap();
        assert!(doubled <= counts.duplicates_possible.min(500), "{doubled} doubled, {counts:?}");
        assert_eq!(empty(&vhost, DLQ).await, (moved..COUNT).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_told_to_stop_settles_and_another_goes_on() {
    on_both("replay-stop", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 600).await;
        let mut worker = Start::all(50).picking(Pick::Odd).paced(5, 20).go(&vhost);
        worker.shows("messages moved", |report| report.counts.replayed >= 20).await;
        let memory = worker.memory.clone();
        worker.stop.cancel();
        let (ended, first) = worker.ends().await;
        assert_eq!(ended, Ended::Interrupted);
        nothing_held(&vhost, DLQ, 600 - u32::try_from(first.replayed).unwrap()).await;
        let mut start = Start::all(50).picking(Pick::Odd);
        start.memory = memory;
        let (outcome, counts) = start.go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.replayed, counts.duplicates_possible, counts.beyond_fence), (300, 0, 0));
        eventually("300 moved", async || vhost.ready(WORK).await == 300).await;
    })
    .await;
}
