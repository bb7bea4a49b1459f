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

use super::support::Version::{self, V40, V43};
use super::support::*;

fn rewriting() -> Rewriting {
    Rewriting {
        request: "shop/run".into(),
        run: "uid".into(),
        on_failure: OnFailure::DeadLetter,
        keep_expiration: false,
        idempotency: None,
        max_replays: 3,
        replay_limit_queue: None,
    }
}

fn rewritten(message: Message, to: &str) -> Outgoing {
    let to = Address { exchange: "", routing_key: to };
    let wire = Wire { frame_max: 131_072, max_body: None };
    rewrite(message, to, Purpose::Replay, &rewriting(), wire, 1_764_460_800_000).unwrap()
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

/// T10 and T11: after a second death the broker knows nothing of the first, but we do.
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

        send(&v, &rewritten(dead, "second")).await;
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
        let outgoing = rewritten(again, "second");
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
            send(&v, &rewritten(Message { properties, ..Message::default() }, "to")).await;
        }
        v.wait_ready("to", 2).await;
        let first = receive(&v, "to").await;
        assert_eq!((first.properties.priority, first.properties.delivery_mode), (Some(4), Some(2)));
    })
    .await;
}
