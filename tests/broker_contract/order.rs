//! In which order messages come back whose channel closed.

use futures::StreamExt;
use lapin::BasicProperties;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions,
};
use lapin::types::FieldTable;
use redrive::topology::model::QueueType;
use rstest::rstest;

use super::support::Version::{self, V40, V43};
use super::support::*;

const COUNT: u16 = 200;

/// A queue with numbered messages.
async fn fill(v: &Vhost, kind: QueueType) {
    match kind {
        QueueType::Quorum => v.queue("q", kind, [("x-delivery-limit", (-1).into())]).await,
        _ => v.queue("q", kind, []).await,
    }
    for number in 0..COUNT {
        let properties = BasicProperties::default().with_delivery_mode(2);
        let (options, body) = (BasicPublishOptions::default(), number.to_be_bytes());
        let publish = v.channel.basic_publish("".into(), "q".into(), options, &body, properties);
        publish.await.unwrap().await.unwrap();
    }
    v.wait_ready("q", COUNT.into()).await;
}

fn number(body: &[u8]) -> u16 {
    u16::from_be_bytes(body.try_into().unwrap())
}

/// Holds everything under one consumer, and closes its channel.
async fn look_by_consuming(v: &Vhost) -> Vec<u16> {
    let channel = v.connection.create_channel().await.unwrap();
    channel.basic_qos(COUNT, BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions::default();
    let mut consumer =
        channel.basic_consume("q".into(), "looks".into(), options, FieldTable::default()).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < COUNT.into() {
        seen.push(number(&consumer.next().await.unwrap().unwrap().data));
    }
    channel.basic_cancel("looks".into(), BasicCancelOptions::default()).await.unwrap();
    channel.close(200, "OK".into()).await.unwrap();
    v.wait_ready("q", COUNT.into()).await;
    seen
}

/// Holds everything by `basic.get`, and closes the channel.
async fn look_by_getting(v: &Vhost) -> Vec<u16> {
    let channel = v.connection.create_channel().await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < COUNT.into() {
        let got = channel.basic_get("q".into(), BasicGetOptions { no_ack: false }).await.unwrap();
        seen.push(number(&got.unwrap().delivery.data));
    }
    channel.close(200, "OK".into()).await.unwrap();
    v.wait_ready("q", COUNT.into()).await;
    seen
}

#[rstest]
#[tokio::test]
async fn what_one_consumer_held_comes_back_in_its_order(
    #[values(V43, V40)] version: Version,
    #[values(QueueType::Quorum, QueueType::Classic)] kind: QueueType,
) {
    in_vhost(version, "held", async |v| {
        fill(&v, kind).await;
        for _ in 0..3 {
            assert_eq!(look_by_consuming(&v).await, (0..COUNT).collect::<Vec<_>>());
        }
    })
    .await;
}

/// Which is why nothing that looks at a queue uses `basic.get`.
#[rstest]
#[tokio::test]
async fn what_single_gets_held_comes_back_to_a_quorum_queue_in_any_order(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "got", async |v| {
        fill(&v, QueueType::Quorum).await;
        assert!(look_by_getting(&v).await.is_sorted());
        let mut after = look_by_getting(&v).await;
        assert!(!after.is_sorted(), "{after:?}");
        after.sort_unstable();
        assert_eq!(after, (0..COUNT).collect::<Vec<_>>(), "none is lost");
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn what_single_gets_held_comes_back_to_a_classic_queue_in_its_order(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "got-classic", async |v| {
        fill(&v, QueueType::Classic).await;
        for _ in 0..3 {
            assert_eq!(look_by_getting(&v).await, (0..COUNT).collect::<Vec<_>>());
        }
    })
    .await;
}
