//! Delivery limits, delivery counts, and dead-lettering at least once.

use redrive::topology::model::{ApplyTo, QueueType};
use rstest::rstest;

use super::support::Version::{self, V40, V43};
use super::support::*;

/// POL-25: 20 returns, and the next one takes the message away.
#[rstest]
#[tokio::test]
async fn without_a_limit_the_twenty_first_return_is_the_last(#[values(V43, V40)] version: Version) {
    in_vhost(version, "default-limit", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        v.publish("", "q").await;
        for _ in 0..21 {
            requeue_by_reject(v.wait("q").await).await;
        }
        throughout(0.5, "gone", async || v.ready("q").await == 0).await;
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_limit_of_minus_one_is_none(#[values(V43, V40)] version: Version) {
    in_vhost(version, "no-limit", async |v| {
        v.queue("q", QueueType::Quorum, [("x-delivery-limit", (-1).into())]).await;
        v.publish("", "q").await;
        for _ in 0..60 {
            requeue_by_reject(v.wait("q").await).await;
        }
        v.wait_ready("q", 1).await;
    })
    .await;
}

/// A positive limit of a policy beats -1 of an argument.
#[rstest]
#[tokio::test]
async fn a_policy_limit_beats_an_argument_of_minus_one(#[values(V43, V40)] version: Version) {
    in_vhost(version, "beaten", async |v| {
        v.policy("p", "^q\\z", ApplyTo::Queues, [("delivery-limit", 2.into())]).await;
        v.queue("q", QueueType::Quorum, [("x-delivery-limit", (-1).into())]).await;
        v.publish("", "q").await;
        for _ in 0..3 {
            requeue_by_reject(v.wait("q").await).await;
        }
        throughout(0.5, "gone", async || v.ready("q").await == 0).await;
    })
    .await;
}

/// QQ-04: on 4.3 a nack with requeue is free and loops for ever; on 4.0 it
/// counts like a reject.
#[rstest]
#[tokio::test]
async fn a_nack_with_requeue_is_counted_on_4_0_and_not_on_4_3(#[values(V43, V40)] version: Version) {
    in_vhost(version, "nack", async |v| {
        v.queue("dead", QueueType::Quorum, []).await;
        let arguments = [
            ("x-delivery-limit", 2.into()),
            ("x-dead-letter-exchange", "".into()),
            ("x-dead-letter-routing-key", "dead".into()),
        ];
        v.queue("q", QueueType::Quorum, arguments).await;
        v.publish("", "q").await;
        for _ in 0..if version == V43 { 30 } else { 3 } {
            requeue_by_nack(v.wait("q").await).await;
        }
        match version {
            V43 => drop(v.wait("q").await),
            V40 => v.wait_ready("dead", 1).await,
        }
    })
    .await;
}

/// The count of the walk: on 4.3 it comes along through dead-lettering, on 4.0
/// it starts anew in every queue.
#[rstest]
#[tokio::test]
async fn deliveries_are_counted_over_the_whole_walk_on_4_3_and_per_stay_on_4_0(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "walk", async |v| {
        v.exchange("dlx", "fanout", []).await;
        v.queue("dead", QueueType::Quorum, []).await;
        let arguments = [
            ("x-delivery-limit", 3.into()),
            ("x-dead-letter-exchange", "".into()),
            ("x-dead-letter-routing-key", "dead".into()),
        ];
        v.queue("second", QueueType::Quorum, arguments).await;
        v.bind("dlx", "second", "", []).await;
        v.safe_queue("first", "dlx", [("x-delivery-limit", 10.into())]).await;
        v.publish("", "first").await;
        for _ in 0..2 {
            requeue_by_reject(v.wait("first").await).await;
        }
        v.reject("first").await;
        let mut counts = Vec::new();
        while v.ready("dead").await == 0 {
            let delivery = v.wait("second").await;
            counts.push(number(&delivery, "x-delivery-count"));
            requeue_by_reject(delivery).await;
            eventually("it is back or dead", async || v.ready("second").await + v.ready("dead").await == 1)
                .await;
        }
        match version {
            // Two returns and the rejection came along.
            V43 => assert_eq!(counts, [Some(3)]),
            // What the header says of the first is left over and means nothing.
            V40 => assert_eq!(counts[1..], [Some(1), Some(2), Some(3)]),
        }
    })
    .await;
}

/// The count is checked on a return only: a message over the limit of its next
/// queue still gets in and is delivered once.
#[rstest]
#[tokio::test]
async fn a_count_over_the_limit_does_not_keep_a_message_from_its_next_queue(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "over", async |v| {
        v.exchange("dlx", "fanout", []).await;
        v.queue("second", QueueType::Quorum, [("x-delivery-limit", 1.into())]).await;
        v.bind("dlx", "second", "", []).await;
        v.safe_queue("first", "dlx", [("x-delivery-limit", 10.into())]).await;
        v.publish("", "first").await;
        for _ in 0..5 {
            requeue_by_reject(v.wait("first").await).await;
        }
        v.reject("first").await;
        ack(v.wait("second").await).await;
    })
    .await;
}

/// DLX-08 to DLX-10: at least once, a dead letter waits for its way, and the
/// broker looks for it every three minutes.
#[rstest]
#[tokio::test]
async fn a_dead_letter_without_a_way_waits_and_takes_a_new_one_within_three_minutes(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "wait", async |v| {
        v.safe_queue("q", "dlx", []).await;
        v.publish("", "q").await;
        v.reject("q").await;
        eventually("it waits", async || {
            let totals = v.management.queue_totals(&v.name, "q").await.unwrap().unwrap();
            totals.waiting_dead_letters() == Some(1)
        })
        .await;
        v.queue("dlq", QueueType::Quorum, []).await;
        v.exchange("dlx", "fanout", []).await;
        v.bind("dlx", "dlq", "", []).await;
        eventually("it arrives", async || v.ready("dlq").await == 1).await;
    })
    .await;
}

/// A queue that dead-letters at most once loses it.
#[rstest]
#[tokio::test]
async fn at_most_once_loses_a_dead_letter_without_a_way(#[values(V43, V40)] version: Version) {
    in_vhost(version, "lose", async |v| {
        v.queue("q", QueueType::Quorum, [("x-dead-letter-exchange", "dlx".into())]).await;
        v.publish("", "q").await;
        v.reject("q").await;
        v.queue("dlq", QueueType::Quorum, []).await;
        v.exchange("dlx", "fanout", []).await;
        v.bind("dlx", "dlq", "", []).await;
        throughout(8.0, "nothing arrives", async || v.ready("dlq").await == 0).await;
        let totals = v.management.queue_totals(&v.name, "q").await.unwrap().unwrap();
        assert!(totals.says_empty(), "{totals:?}");
    })
    .await;
}

/// `x-last-death-reason` tells a rejection from the delivery limit.
#[rstest]
#[tokio::test]
async fn the_reason_of_a_death_is_told(#[values(V43, V40)] version: Version) {
    in_vhost(version, "reason", async |v| {
        v.exchange("dlx", "fanout", []).await;
        v.queue("dlq", QueueType::Quorum, [("x-delivery-limit", (-1).into())]).await;
        v.bind("dlx", "dlq", "", []).await;
        v.safe_queue("q", "dlx", [("x-delivery-limit", 1.into())]).await;
        v.publish("", "q").await;
        for _ in 0..2 {
            requeue_by_reject(v.wait("q").await).await;
        }
        let poison = v.wait("dlq").await;
        assert_eq!(header(&poison, "x-last-death-reason").as_deref(), Some("delivery_limit"));
        assert_eq!(header(&poison, "x-last-death-queue").as_deref(), Some("q"));
        assert_eq!(header(&poison, "x-last-death-exchange").as_deref(), Some(""));
        ack(poison).await;
        v.publish("", "q").await;
        v.reject("q").await;
        let rejected = v.wait("dlq").await;
        assert_eq!(header(&rejected, "x-last-death-reason").as_deref(), Some("rejected"));
        ack(rejected).await;
    })
    .await;
}
