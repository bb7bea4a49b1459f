//! Reading a queue and returning everything.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, BasicQosOptions};
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use redrive::broker::amqp;
use redrive::broker::replay::convert;
use redrive::broker::replay::examine::{Examination, ExamineError};
use redrive::replay::id::replay_id;
use redrive::replay::message::Message;
use redrive::replay::run::Target;
use redrive::topology::model::QueueType;
use rstest::rstest;

use super::facts::observe;
use super::support::Version::{self, V40, V43};
use super::support::*;

/// More than the first portion.
const MANY: usize = 350;

/// Declares a queue that may be read: a quorum queue without a delivery limit, or a classic one.
pub(crate) async fn readable(v: &Vhost, name: &str, kind: QueueType) {
    match kind {
        QueueType::Quorum => v.queue(name, kind, [("x-delivery-limit", (-1).into())]).await,
        _ => v.queue(name, kind, []).await,
    }
}

pub(crate) fn properties(number: usize) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("number".into(), AMQPValue::LongLongInt(i64::try_from(number).unwrap()));
    headers.insert("unsigned".into(), AMQPValue::LongUInt(4_000_000_000));
    headers.insert("small".into(), AMQPValue::ShortShortInt(-8));
    headers.insert("float".into(), AMQPValue::Double(-1.5));
    headers.insert("decimal".into(), AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 1_234 }));
    headers.insert("void".into(), AMQPValue::Void);
    headers.insert("bytes".into(), AMQPValue::ByteArray(vec![0_u8, 255].into()));
    headers.insert("when".into(), AMQPValue::Timestamp(1_700_000_000));
    let list = vec![AMQPValue::Boolean(true), AMQPValue::LongString("two".into())];
    headers.insert("list".into(), AMQPValue::FieldArray(FieldArray::from(list)));
    BasicProperties::default()
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_message_id(format!("m-{number}").into())
        .with_correlation_id("c".into())
}

fn body(number: usize) -> Vec<u8> {
    let mut body = number.to_string().into_bytes();
    body.extend([0xFF, 0x00]);
    body
}

pub(crate) async fn fill(v: &Vhost, queue: &str, count: usize) {
    for number in 0..count {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let body = body(number);
        let publish = v.channel.basic_publish("".into(), queue.into(), options, &body, properties(number));
        publish.await.unwrap().await.unwrap();
    }
    v.wait_ready(queue, u32::try_from(count).unwrap()).await;
}

pub(crate) async fn examine(
    v: &Vhost,
    queue: &str,
    most: u64,
    each: impl FnMut(Message),
) -> Result<u64, ExamineError> {
    let endpoint = v.version.endpoint();
    let facts = observe(v, queue, &Target::Discard).await;
    let hold = facts.takes_timeout().then_some(Duration::from_secs(3_600));
    let connection = amqp::connect(&endpoint, &guard(), &v.name, "plan").await.unwrap();
    let examination =
        Examination { connection: &connection, endpoint: &endpoint, vhost: &v.name, queue, most, hold };
    let result = examination.run(each).await;
    connection.close(200, "OK".into()).await.unwrap();
    result
}

/// Takes everything away, and says what it was, in order.
async fn drain(v: &Vhost, queue: &str) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(delivery) = v.take(queue).await {
        let tag = delivery.acker;
        messages.push(convert::message(lapin::message::Delivery { acker: tag.clone(), ..delivery }));
        tag.ack(lapin::options::BasicAckOptions::default()).await.unwrap();
    }
    messages
}

/// Without the counters of deliveries, which may rise.
fn lasting(mut message: Message) -> Message {
    message.redelivered = false;
    if let Some(headers) = &mut message.properties.headers {
        headers.remove("x-delivery-count");
        headers.remove("x-acquired-count");
    }
    message
}

#[rstest]
#[tokio::test]
async fn order_bodies_properties_and_depth_are_the_same_afterwards(
    #[values(V43, V40)] version: Version,
    #[values(QueueType::Quorum, QueueType::Classic)] kind: QueueType,
) {
    in_vhost(version, "examine", async |v| {
        readable(&v, "q", kind).await;
        fill(&v, "q", MANY).await;
        let mut reads = Vec::new();
        for _ in 0..2 {
            let mut seen = Vec::new();
            let count = examine(&v, "q", u64::MAX, |message| seen.push(message)).await.unwrap();
            assert_eq!(count, MANY as u64);
            assert_eq!(v.ready("q").await, u32::try_from(MANY).unwrap());
            reads.push(seen);
        }
        let ids = |read: &[Message]| -> Vec<String> {
            read.iter().map(|message| replay_id("run", message)).collect()
        };
        assert_eq!(ids(&reads[0]), ids(&reads[1]), "a message keeps its id although it was read before");
        let left: Vec<Message> = drain(&v, "q").await.into_iter().map(lasting).collect();
        assert_eq!(left.len(), MANY);
        for (number, message) in left.iter().enumerate() {
            assert_eq!(message.body, body(number), "in order");
            assert_eq!(message.properties, convert::properties(&properties(number)));
        }
        let first: Vec<Message> = reads.swap_remove(0).into_iter().map(lasting).collect();
        assert_eq!(first, left);
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_scan_that_ends_early_leaves_the_order_as_it_was(
    #[values(V43, V40)] version: Version,
    #[values(QueueType::Quorum, QueueType::Classic)] kind: QueueType,
) {
    in_vhost(version, "scan", async |v| {
        readable(&v, "q", kind).await;
        fill(&v, "q", 250).await;
        let mut seen = 0;
        let count = examine(&v, "q", 130, |message| {
            assert_eq!(message.body, body(seen));
            seen += 1;
        });
        assert_eq!(count.await.unwrap(), 130);
        assert_eq!(seen, 130);
        v.wait_ready("q", 250).await;
        let left = drain(&v, "q").await;
        assert_eq!(left.len(), 250);
        for (number, message) in left.into_iter().enumerate() {
            assert_eq!(message.body, body(number), "in order");
        }
    })
    .await;
}

/// T1 and T2: without a limit no number of reads destroys anything, also not one that breaks off.
#[rstest]
#[tokio::test]
async fn a_message_survives_any_number_of_reads_and_a_broken_one(#[values(V43, V40)] version: Version) {
    in_vhost(version, "again", async |v| {
        readable(&v, "q", QueueType::Quorum).await;
        fill(&v, "q", 3).await;
        for _ in 0..25 {
            assert_eq!(examine(&v, "q", u64::MAX, |_| {}).await.unwrap(), 3);
        }
        let endpoint = version.endpoint();
        let connection = amqp::connect(&endpoint, &guard(), &v.name, "broken").await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let consumer = channel
            .basic_consume("q".into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await
            .unwrap();
        eventually("all are held", async || v.ready("q").await == 0).await;
        drop((consumer, channel, connection));
        v.wait_ready("q", 3).await;
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn an_empty_queue_and_one_that_is_gone_end_at_once(#[values(V43, V40)] version: Version) {
    in_vhost(version, "empty", async |v| {
        readable(&v, "q", QueueType::Quorum).await;
        assert_eq!(examine(&v, "q", u64::MAX, |_| panic!("nothing is there")).await.unwrap(), 0);
        let gone = examine(&v, "gone", u64::MAX, |_| {}).await;
        assert!(matches!(gone, Err(ExamineError::Ended { .. })), "{gone:?}");
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn somebody_elses_exclusive_consumer_is_named(#[values(V43, V40)] version: Version) {
    in_vhost(version, "exclusive", async |v| {
        readable(&v, "q", QueueType::Classic).await;
        fill(&v, "q", 2).await;
        // Its prefetch of one keeps the second message ready.
        v.channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
        let options = BasicConsumeOptions { exclusive: true, ..BasicConsumeOptions::default() };
        let _consumer =
            v.channel.basic_consume("q".into(), "mine".into(), options, FieldTable::default()).await.unwrap();
        v.wait_ready("q", 1).await;
        let refused = examine(&v, "q", u64::MAX, |_| {}).await;
        assert!(matches!(refused, Err(ExamineError::Exclusive { .. })), "{refused:?}");
    })
    .await;
}

/// With thousands of messages the broker's own batches begin to show.
#[rstest]
#[tokio::test]
async fn the_order_of_thousands_stays_through_two_reads(#[values(V43, V40)] version: Version) {
    const THOUSANDS: usize = 12_000;
    in_vhost(version, "thousands", async |v| {
        readable(&v, "q", QueueType::Quorum).await;
        let mut confirms = Vec::new();
        for number in 0..THOUSANDS {
            let persistent = BasicProperties::default().with_delivery_mode(2);
            let (options, body) = (BasicPublishOptions::default(), body(number));
            let publish = v.channel.basic_publish("".into(), "q".into(), options, &body, persistent);
            confirms.push(publish.await.unwrap());
        }
        for confirm in confirms {
            confirm.await.unwrap();
        }
        v.wait_ready("q", u32::try_from(THOUSANDS).unwrap()).await;
        for _ in 0..2 {
            let mut seen = 0;
            let count = examine(&v, "q", u64::MAX, |message| {
                assert_eq!(message.body, body(seen), "in order");
                seen += 1;
            });
            assert_eq!(count.await.unwrap(), THOUSANDS as u64);
        }
    })
    .await;
}
