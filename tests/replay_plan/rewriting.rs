//! Rewritten messages on real brokers: what is published is what arrives.

use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Confirmation};
use redrive::broker::replay::convert;
use redrive::replay::message::{Message, Outgoing, Properties};
use redrive::replay::rewrite::{Address, Purpose, STRIPPED, Wire, header, rewrite};
use redrive::replay::run::{OnFailure, Rewriting};
use redrive::replay::{death, origin};
use redrive::topology::model::QueueType;
use rstest::rstest;

use super::reading::{fill, properties};
use super::support::Version::{self, V40, V43};
use super::support::*;

fn rewriting(keep_expiration: bool) -> Rewriting {
    Rewriting {
        request: "shop/run".into(),
        run: "uid".into(),
        on_failure: OnFailure::DeadLetter,
        keep_expiration,
        idempotency: None,
        max_replays: 3,
        replay_limit_queue: None,
    }
}

fn rewritten(message: Message, to: &str, keep_expiration: bool) -> Outgoing {
    let to = Address { exchange: "", routing_key: to };
    let wire = Wire { frame_max: 131_072, max_body: None };
    rewrite(message, to, Purpose::Replay, &rewriting(keep_expiration), wire, 1_764_460_800_000).unwrap()
}

async fn publish(v: &Vhost, queue: &str, properties: BasicProperties, body: &[u8]) {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let confirm = v.channel.basic_publish("".into(), queue.into(), options, body, properties).await.unwrap();
    assert!(matches!(confirm.await.unwrap(), Confirmation::Ack(None)), "it was routed");
}

async fn send(v: &Vhost, outgoing: &Outgoing) {
    let properties = convert::to_properties(outgoing.properties.clone()).unwrap();
    publish(v, &outgoing.routing_key, properties, &outgoing.body).await;
}

async fn receive(v: &Vhost, queue: &str) -> Message {
    let delivery = v.wait(queue).await;
    let acker = delivery.acker.clone();
    let message = convert::message(delivery);
    acker.ack(lapin::options::BasicAckOptions::default()).await.unwrap();
    message
}

/// T30: all properties and types of headers that the broker stores.
#[rstest]
#[tokio::test]
async fn what_arrives_is_what_was_rewritten(#[values(V43, V40)] version: Version) {
    in_vhost(version, "types", async |v| {
        v.queue("from", QueueType::Quorum, []).await;
        v.queue("to", QueueType::Quorum, []).await;
        fill(&v, "from", 1).await;
        let read = receive(&v, "from").await;
        let outgoing = rewritten(read.clone(), "to", false);
        send(&v, &outgoing).await;
        let arrived = receive(&v, "to").await;
        assert_eq!(arrived.properties, outgoing.properties);
        assert_eq!(arrived.body, read.body);
        let before = convert::properties(&properties(0)).headers.unwrap();
        for (name, value) in before {
            assert_eq!(arrived.properties.header(&name), Some(&value), "{name}");
        }
    })
    .await;
}

/// T5: another user than the replayer's published it.
#[rstest]
#[tokio::test]
async fn a_foreign_user_id_is_kept_in_a_header_and_the_publish_is_taken(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "user", async |v| {
        v.queue("to", QueueType::Quorum, []).await;
        let properties = Properties { user_id: Some("app".into()), ..Properties::default() };
        send(&v, &rewritten(Message { properties, ..Message::default() }, "to", false)).await;
        let arrived = receive(&v, "to").await;
        assert_eq!(arrived.properties.user_id, None);
        let kept = arrived.properties.header(origin::header::USER_ID).and_then(|value| value.as_text());
        assert_eq!(kept, Some("app"));
    })
    .await;
}

/// T6.
#[rstest]
#[tokio::test]
async fn a_dropped_time_to_live_lets_a_message_wait_and_a_kept_one_does_not(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "ttl", async |v| {
        let message = || {
            let properties = Properties { expiration: Some("300".into()), ..Properties::default() };
            Message { properties, ..Message::default() }
        };
        v.queue("dropped", QueueType::Quorum, []).await;
        v.queue("kept", QueueType::Quorum, []).await;
        send(&v, &rewritten(message(), "dropped", false)).await;
        send(&v, &rewritten(message(), "kept", true)).await;
        v.wait_ready("kept", 0).await;
        throughout(1.0, "it waits", async || v.ready("dropped").await == 1).await;
    })
    .await;
}

/// T9, T10 and T11: after a second death the broker knows nothing of the first, but we do.
#[rstest]
#[tokio::test]
async fn count_and_origin_outlive_a_second_death(#[values(V43, V40)] version: Version) {
    in_vhost(version, "twice", async |v| {
        v.exchange("dlx", "fanout", []).await;
        v.queue("dlq", QueueType::Quorum, [("x-delivery-limit", (-1).into())]).await;
        v.bind("dlx", "dlq", "", []).await;
        v.exchange("shop", "topic", []).await;
        for work in ["first", "second"] {
            v.safe_queue(work, "dlx", []).await;
        }
        v.bind("shop", "first", "orders.*", []).await;
        v.publish("shop", "orders.created").await;
        for _ in 0..3 {
            requeue_by_reject(v.wait("first").await).await;
        }
        v.reject("first").await;
        let dead = receive(&v, "dlq").await;
        assert_eq!(death::deaths(&dead).first.and_then(|first| first.exchange).as_deref(), Some("shop"));

        send(&v, &rewritten(dead, "second", false)).await;
        let delivery = v.wait("second").await;
        let fresh = convert::properties(&delivery.properties);
        for name in STRIPPED.iter().filter(|name| **name != header::ON_FAILURE) {
            assert_eq!(fresh.header(name), None, "{name}");
        }
        delivery.acker.reject(lapin::options::BasicRejectOptions { requeue: false }).await.unwrap();

        let again = receive(&v, "dlq").await;
        let by_broker = death::deaths(&again).first.unwrap();
        assert_eq!((by_broker.queue.as_deref(), by_broker.exchange.as_deref()), (Some("second"), Some("")));
        let found = origin::origin(&again).unwrap();
        assert_eq!((found.exchange.as_str(), found.routing_key.as_str()), ("shop", "orders.created"));
        let outgoing = rewritten(again, "second", false);
        assert_eq!(outgoing.properties.header(header::COUNT).and_then(|value| value.as_count()), Some(2));
    })
    .await;
}

/// T31: the priority, and a delivery mode that outlives a restart.
#[rstest]
#[tokio::test]
async fn the_priority_stays(#[values(V43, V40)] version: Version) {
    in_vhost(version, "priority", async |v| {
        v.queue("to", QueueType::Classic, [("x-max-priority", 5.into())]).await;
        for priority in [None, Some(4)] {
            let properties = Properties { priority, delivery_mode: Some(1), ..Properties::default() };
            send(&v, &rewritten(Message { properties, ..Message::default() }, "to", false)).await;
        }
        v.wait_ready("to", 2).await;
        let first = receive(&v, "to").await;
        assert_eq!((first.properties.priority, first.properties.delivery_mode), (Some(4), Some(2)));
    })
    .await;
}
