//! Messages that stay, stay in order.

use futures::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicGetOptions};
use lapin::types::FieldTable;
use redrive::replay::outcome::{Activity, Outcome};
use redrive::topology::model::QueueType;

use crate::lab::{DLQ, Pick, Start, WORK, empty, fill, nothing_held, on_both, queues};
use crate::support::Vhost;

async fn odd_ones_leave(vhost: &Vhost, count: usize, window: u32) {
    fill(vhost, DLQ, count).await;
    let (outcome, counts) = Start::all(window).picking(Pick::Odd).go(vhost).finishes().await;
    assert_eq!(outcome, Outcome::Completed);
    assert_eq!((counts.examined, counts.replayed), (count as u64, count as u64 / 2));
    nothing_held(vhost, DLQ, u32::try_from(count / 2).unwrap()).await;
    assert_eq!(empty(vhost, DLQ).await, (0..count).step_by(2).collect::<Vec<_>>());
    assert_eq!(empty(vhost, WORK).await, (1..count).step_by(2).collect::<Vec<_>>());
}

/// T12
#[tokio::test(flavor = "multi_thread")]
async fn a_classic_queue_keeps_its_order() {
    on_both("replay-classic", async |vhost| {
        queues(&vhost, QueueType::Classic).await;
        odd_ones_leave(&vhost, 100, 500).await;
    })
    .await;
}

/// T13
#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_queue_keeps_its_order() {
    on_both("replay-quorum", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        odd_ones_leave(&vhost, 100, 500).await;
    })
    .await;
}

/// T14
#[tokio::test(flavor = "multi_thread")]
async fn many_windows_keep_their_order() {
    on_both("replay-windows", async |vhost| {
        for kind in [QueueType::Quorum, QueueType::Classic] {
            queues(&vhost, kind).await;
            odd_ones_leave(&vhost, 100, 20).await;
            odd_ones_leave(&vhost, 2_000, 40).await;
            vhost
                .raw("DELETE", &format!("/queues/{}/{DLQ}", crate::support::encode(&vhost.name)), None)
                .await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holding_again_and_again_changes_no_order() {
    on_both("replay-holds", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 400).await;
        let mut worker = Start::all(20).picking(Pick::Odd).paced(5, 5).go(&vhost);
        for moved in [5, 10, 15] {
            worker.shows("messages moved", |report| report.counts.replayed >= moved).await;
            worker.orders.send_modify(|orders| orders.hold = Some("suspended".to_owned()));
            worker.shows("a pause", |report| matches!(&report.activity, Activity::Paused(_))).await;
            let mut left = 0;
            crate::support::eventually("nothing is held", async || {
                left = 400 - u32::try_from(worker.counts().replayed).unwrap();
                vhost.ready(DLQ).await == left
            })
            .await;
            worker.orders.send_modify(|orders| orders.hold = None);
        }
        worker.orders.send_modify(|orders| orders.pace.per_second = 1_000);
        let (outcome, counts) = worker.finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.examined, counts.replayed, counts.duplicates_possible), (400, 200, 0));
        nothing_held(&vhost, DLQ, 200).await;
        assert_eq!(empty(&vhost, DLQ).await, (0..400).step_by(2).collect::<Vec<_>>());
    })
    .await;
}

/// Why nothing here reads by `basic.get`: to a quorum queue each one is a consumer of its own, and
/// what several held comes back in an order that nobody can tell.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_consumer_held_comes_back_in_order_and_what_was_fetched_does_not() {
    on_both("replay-fetched", async |vhost| {
        const MESSAGES: u16 = 100;
        queues(&vhost, QueueType::Quorum).await;
        let sorted: Vec<usize> = (0..usize::from(MESSAGES)).collect();

        fill(&vhost, DLQ, sorted.len()).await;
        let channel = vhost.connection.create_channel().await.unwrap();
        for _ in &sorted {
            let got = channel.basic_get(DLQ.into(), BasicGetOptions { no_ack: false }).await.unwrap();
            assert!(got.is_some());
        }
        channel.close(200, "OK".into()).await.unwrap();
        vhost.wait_ready(DLQ, MESSAGES.into()).await;
        let mut fetched = empty(&vhost, DLQ).await;
        assert_ne!(fetched, sorted);
        fetched.sort_unstable();
        assert_eq!(fetched, sorted);

        fill(&vhost, DLQ, sorted.len()).await;
        let channel = vhost.connection.create_channel().await.unwrap();
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer = channel.basic_consume(DLQ.into(), "".into(), options, arguments).await.unwrap();
        assert_eq!(consumer.take(sorted.len()).count().await, sorted.len());
        channel.close(200, "OK".into()).await.unwrap();
        vhost.wait_ready(DLQ, MESSAGES.into()).await;
        assert_eq!(empty(&vhost, DLQ).await, sorted);
    })
    .await;
}
