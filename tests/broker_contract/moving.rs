//! Messages that go from a queue to another, one by one.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use lapin::BasicProperties;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use redrive::broker::moving::{MoveError, WINDOW, move_all};
use redrive::topology::model::QueueType;
use redrive::topology::plan::Move;
use rstest::rstest;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::support::Version::{self, V40, V43};
use super::support::*;

const MANY: u32 = 3_000;

fn moved() -> Move {
    Move { from: "from".to_owned(), to: "to".to_owned() }
}

async fn go(v: &Vhost, stop: &CancellationToken) -> Result<u64, MoveError> {
    move_all(&v.version.endpoint(), &guard(), &v.name, &moved(), stop).await
}

async fn fill(v: &Vhost, count: u32) {
    let mut confirms = Vec::new();
    for number in 0..count {
        let properties = BasicProperties::default().with_delivery_mode(2);
        let (options, body) = (BasicPublishOptions::default(), number.to_be_bytes());
        confirms.push(
            v.channel.basic_publish("".into(), "from".into(), options, &body, properties).await.unwrap(),
        );
    }
    for confirm in confirms {
        confirm.await.unwrap();
    }
}

/// How often each number is in a queue, and the numbers in their order; takes them all.
async fn numbers(v: &Vhost, queue: &str) -> Vec<u32> {
    let count = v.ready(queue).await as usize;
    let channel = v.connection.create_channel().await.unwrap();
    channel.basic_qos(1_000, BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let mut consumer =
        channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await.unwrap();
    let mut found = Vec::new();
    while found.len() < count {
        let delivery = consumer.next().await.unwrap().unwrap();
        found.push(u32::from_be_bytes(delivery.data.as_slice().try_into().unwrap()));
    }
    channel.close(200, "OK".into()).await.unwrap();
    found
}

/// Nothing is lost, and no more doubled than may be.
async fn assert_whole(v: &Vhost, count: u32, most_doubled: usize) {
    let mut found: BTreeMap<u32, usize> = BTreeMap::new();
    for queue in ["from", "to"] {
        for number in numbers(v, queue).await {
            *found.entry(number).or_default() += 1;
        }
    }
    assert_eq!(found.len(), count as usize, "some are lost");
    let doubled: usize = found.values().map(|times| times - 1).sum();
    assert!(doubled <= most_doubled, "{doubled} are doubled");
}

#[rstest]
#[tokio::test]
async fn everything_moves_in_its_order(
    #[values(V43, V40)] version: Version,
    #[values(QueueType::Quorum, QueueType::Classic)] kind: QueueType,
) {
    in_vhost(version, "moves", async |v| {
        v.queue("from", kind, []).await;
        v.queue("to", QueueType::Quorum, []).await;
        fill(&v, MANY).await;
        assert_eq!(go(&v, &CancellationToken::new()).await.unwrap(), u64::from(MANY));
        assert_eq!(v.ready("from").await, 0);
        assert_eq!(numbers(&v, "to").await, (0..MANY).collect::<Vec<_>>());
        assert_eq!(go(&v, &CancellationToken::new()).await.unwrap(), 0, "nothing is left");
    })
    .await;
}

/// Its room comes and goes while messages are on their way, so that some behind a refused one are
/// taken.
#[rstest]
#[tokio::test]
async fn a_target_that_is_full_now_and_then_doubles_nothing(#[values(V43, V40)] version: Version) {
    in_vhost(version, "full", async |v| {
        v.queue("from", QueueType::Quorum, [("x-delivery-limit", (-1).into())]).await;
        let limits = [("x-max-length", 200i64.into()), ("x-overflow", "reject-publish".into())];
        v.queue("to", QueueType::Quorum, limits).await;
        fill(&v, MANY).await;
        let channel = v.connection.create_channel().await.unwrap();
        channel.basic_qos(100, BasicQosOptions::default()).await.unwrap();
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let arguments = FieldTable::default();
        let (mut seen, is_done) = (Vec::new(), CancellationToken::new());
        let moves = async {
            let mut refused = 0;
            loop {
                match go(&v, &CancellationToken::new()).await {
                    Ok(_) => break,
                    Err(MoveError::NotTaken { .. }) => refused += 1,
                    Err(other) => panic!("{other:?}"),
                }
            }
            is_done.cancel();
            refused
        };
        let drain = async {
            while !is_done.is_cancelled() {
                // Between two bursts it runs full.
                tokio::time::sleep(Duration::from_millis(200)).await;
                let (tag, arguments) = (ShortString::default(), arguments.clone());
                let mut consumer = channel.basic_consume("to".into(), tag, options, arguments).await.unwrap();
                while let Ok(Some(delivery)) =
                    tokio::time::timeout(Duration::from_millis(50), consumer.next()).await
                {
                    seen.push(u32::from_be_bytes(delivery.unwrap().data.as_slice().try_into().unwrap()));
                }
                channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await.unwrap();
                // What came before the cancellation.
                while let Some(delivery) = consumer.next().await {
                    seen.push(u32::from_be_bytes(delivery.unwrap().data.as_slice().try_into().unwrap()));
                }
            }
        };
        let (refused, ()) = tokio::join!(moves, drain);
        seen.extend(numbers(&v, "to").await);
        assert!(refused > 0, "it was never full");
        seen.sort_unstable();
        assert_eq!(seen, (0..MANY).collect::<Vec<_>>(), "{refused} times it was full");
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_dead_letter_keeps_what_it_has_and_leads_nowhere_else(#[values(V43, V40)] version: Version) {
    in_vhost(version, "same", async |v| {
        v.queue("from", QueueType::Quorum, []).await;
        v.queue("to", QueueType::Quorum, []).await;
        v.queue("copy", QueueType::Quorum, []).await;
        let way = [("x-dead-letter-exchange", "".into()), ("x-dead-letter-routing-key", "from".into())];
        v.queue("work", QueueType::Quorum, way).await;
        let user = v.version.endpoint().credentials.username;
        let mut headers = FieldTable::default();
        headers.insert("tenant".into(), AMQPValue::LongInt(42));
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_delivery_mode(2)
            .with_priority(4)
            .with_message_id("m-1".into())
            .with_user_id(user.as_str().into());
        let publish = v.channel.basic_publish(
            "".into(),
            "work".into(),
            BasicPublishOptions::default(),
            b"body",
            properties,
        );
        publish.await.unwrap().await.unwrap();
        v.reject("work").await;
        let dead = v.wait("from").await;
        let mut wanted = dead.properties.headers().clone().unwrap();
        wanted.insert("x-redrive-origin-user-id".into(), AMQPValue::LongString(user.as_str().into()));
        requeue_by_reject(dead).await;

        assert_eq!(go(&v, &CancellationToken::new()).await.unwrap(), 1);
        let moved = v.wait("to").await;
        let found = moved.properties.headers().clone().unwrap();
        // What the broker counts itself may differ.
        let kept = |headers: FieldTable| {
            let counted = ["x-delivery-count", "x-acquired-count"];
            let headers = headers.inner().clone().into_iter();
            headers.filter(|(name, _)| !counted.contains(&name.as_str())).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(kept(found), kept(wanted));
        assert_eq!(header(&moved, "x-last-death-reason").as_deref(), Some("rejected"));
        assert_eq!(moved.properties.message_id().as_ref().unwrap().as_str(), "m-1");
        assert_eq!((*moved.properties.priority(), moved.data.as_slice()), (Some(4), b"body".as_slice()));

        let mut copies = FieldTable::default();
        let keys: FieldArray = vec![AMQPValue::LongString("copy".into())].into();
        copies.insert("CC".into(), AMQPValue::FieldArray(keys));
        v.publish_with("", "from", copies).await;
        v.wait_ready("copy", 1).await;
        assert_eq!(go(&v, &CancellationToken::new()).await.unwrap(), 1);
        v.wait_ready("to", 1).await;
        assert_eq!(v.ready("copy").await, 1, "the copy of before, and no other");
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_full_queue_takes_no_more_and_nothing_is_lost(#[values(V43, V40)] version: Version) {
    in_vhost(version, "full", async |v| {
        v.queue("from", QueueType::Quorum, [("x-delivery-limit", (-1).into())]).await;
        let limit = [("x-max-length", 500.into()), ("x-overflow", "reject-publish".into())];
        v.queue("to", QueueType::Quorum, limit).await;
        fill(&v, MANY).await;
        let error = go(&v, &CancellationToken::new()).await.unwrap_err();
        assert_eq!(error.to_string(), "the queue \"to\" does not take them");
        eventually("what was held is back", async || v.ready("from").await + v.ready("to").await >= MANY)
            .await;
        assert_whole(&v, MANY, WINDOW.into()).await;
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_stop_doubles_nothing(#[values(V43, V40)] version: Version) {
    in_vhost(version, "stop", async |v| {
        v.queue("from", QueueType::Quorum, [("x-delivery-limit", (-1).into())]).await;
        v.queue("to", QueueType::Quorum, []).await;
        fill(&v, 4 * MANY).await;
        for _ in 0..2 {
            let (before, stop) = (v.ready("to").await, CancellationToken::new());
            let cancel = async {
                while v.ready("to").await == before {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                stop.cancel();
            };
            let (moved, ()) = tokio::join!(go(&v, &stop), cancel);
            moved.unwrap();
            let all = async || v.ready("from").await + v.ready("to").await == 4 * MANY;
            eventually("what was held is back", all).await;
        }
        assert!(v.ready("from").await > 0, "it was stopped on its way");
        assert_whole(&v, 4 * MANY, 0).await;
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_cut_connection_doubles_a_window_at_the_most(#[values(V43, V40)] version: Version) {
    in_vhost(version, "cut", async |v| {
        v.queue("from", QueueType::Quorum, [("x-delivery-limit", (-1).into())]).await;
        v.queue("to", QueueType::Quorum, []).await;
        // So many that they are still moving when the connection is closed at last.
        fill(&v, 5 * MANY).await;
        // A user of its own, whose connections can be closed all at once.
        let user = format!("mover-{}", v.name);
        let path = format!("/users/{}", encode(&user));
        v.raw("PUT", &path, Some(json!({"password": "secret", "tags": ""}))).await;
        let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
        v.raw("PUT", &format!("/permissions/{}/{}", encode(&v.name), encode(&user)), Some(all)).await;
        let cut = async {
            eventually("some are moved", async || v.ready("to").await >= 300).await;
            let path = format!("/connections/username/{}", encode(&user));
            assert_eq!(v.raw("DELETE", &path, None).await.0, 204);
        };
        let endpoint = v.version.endpoint_as(&user, "secret");
        let (guard, stop, way) = (guard(), CancellationToken::new(), moved());
        let (moved, ()) = tokio::join!(move_all(&endpoint, &guard, &v.name, &way, &stop), cut);
        v.raw("DELETE", &path, None).await;
        moved.unwrap_err();
        go(&v, &stop).await.unwrap();
        assert_whole(&v, 5 * MANY, WINDOW.into()).await;
    })
    .await;
}
