//! What a message looks like where it arrives, after a whole run.

use std::collections::BTreeSet;

use lapin::BasicProperties;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, BasicRejectOptions, ConfirmSelectOptions};
use lapin::types::FieldTable;
use redrive::broker::amqp;
use redrive::broker::replay::{Judge, convert};
use redrive::replay::death::deaths;
use redrive::replay::judge::RunJudge;
use redrive::replay::message::{Message, Properties, Value};
use redrive::replay::origin;
use redrive::replay::outcome::Outcome;
use redrive::replay::rewrite::header;
use redrive::replay::run::{Fate, Fence};
use redrive::topology::model::QueueType;
use serde_json::json;

use crate::asked::{Asked, every_type, numbered, put, take_all};
use crate::lab::{DLQ, Start, WORK, nothing_held, on_both, queues};
use crate::support::{Vhost, encode, guard, throughout};

/// What a replay adds, whatever the message is.
const ADDED: [&str; 5] = [header::ID, header::COUNT, header::AT, header::REQUEST, header::ON_FAILURE];

fn ids(messages: &[Message]) -> Vec<&str> {
    messages.iter().filter_map(|message| message.properties.message_id.as_deref()).collect()
}

/// A work queue whose rejected messages come into the dead-letter queue.
async fn dying(vhost: &Vhost) {
    vhost.queue(DLQ, QueueType::Quorum, [("x-delivery-limit", (-1i64).into())]).await;
    let to_dlq = [("x-dead-letter-exchange", "".into()), ("x-dead-letter-routing-key", DLQ.into())];
    vhost.queue(WORK, QueueType::Quorum, to_dlq).await;
}

/// All 14 properties, as an application may set them.
fn every_property(user: &str) -> BasicProperties {
    BasicProperties::default()
        .with_content_type("application/json".into())
        .with_content_encoding("identity".into())
        .with_headers(every_type())
        .with_delivery_mode(1)
        .with_priority(7)
        .with_correlation_id("correlation".into())
        .with_reply_to("answers".into())
        .with_expiration("600000".into())
        .with_message_id("0".into())
        .with_timestamp(1_700_000_000)
        .with_type("order".into())
        .with_user_id(user.into())
        .with_app_id("shop".into())
        .with_cluster_id("reserved".into())
}

/// Compares what arrived with what was published, but for these headers.
fn same_but(arrived: &Message, published: &BasicProperties, added: &[&str]) {
    let before = convert::properties(published);
    let mut headers = arrived.properties.headers.clone().unwrap();
    for name in ADDED.iter().chain(added) {
        assert!(headers.remove(*name).is_some(), "{name} is missing");
    }
    assert_eq!(Some(&headers), before.headers.as_ref());
    let changed = Properties {
        headers: arrived.properties.headers.clone(),
        delivery_mode: Some(2),
        user_id: None,
        expiration: None,
        ..before
    };
    assert_eq!(arrived.properties, changed);
}

/// T30
#[tokio::test(flavor = "multi_thread")]
async fn every_property_and_type_of_header_arrives_as_it_was() {
    on_both("replay-types", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        let user = vhost.version.endpoint().credentials.username.clone();
        let published = every_property(&user);
        put(&vhost.channel, DLQ, published.clone(), &[0xFF, 0x00, b'{']).await;
        vhost.wait_ready(DLQ, 1).await;
        let (outcome, counts) = Asked::all().go(&vhost).finishes().await;
        assert_eq!((outcome, counts.replayed), (Outcome::Completed, 1));
        let arrived = take_all(&vhost, WORK).await.remove(0);
        same_but(&arrived, &published, &[origin::header::USER_ID]);
        assert_eq!(arrived.properties.header(origin::header::USER_ID), Some(&Value::from(user.as_str())));
        assert_eq!(arrived.body, [0xFF, 0x00, b'{']);
    })
    .await;
}

/// T30, of a message that the broker has moved before.
#[tokio::test(flavor = "multi_thread")]
async fn what_died_is_the_same_again_but_for_its_origin() {
    use redrive::replay::origin::header::{EXCHANGE, KEYS, QUEUE, REASON, TIME};
    on_both("replay-died", async |vhost| {
        dying(&vhost).await;
        vhost.queue("fresh", QueueType::Quorum, []).await;
        let published = numbered(0).with_headers(every_type()).with_priority(3);
        put(&vhost.channel, WORK, published.clone(), b"body").await;
        vhost.reject(WORK).await;
        vhost.wait_ready(DLQ, 1).await;
        let mut asked = Asked::all();
        asked.target = redrive::replay::run::Target::Queue("fresh".to_owned());
        assert_eq!(asked.go(&vhost).finishes().await.0, Outcome::Completed);
        let arrived = take_all(&vhost, "fresh").await.remove(0);
        same_but(&arrived, &published, &[QUEUE, EXCHANGE, KEYS, REASON, TIME]);
        for (name, value) in [(QUEUE, WORK), (EXCHANGE, ""), (REASON, "rejected")] {
            assert_eq!(arrived.properties.header(name), Some(&Value::from(value)), "{name}");
        }
        assert_eq!(arrived.properties.header(KEYS), Some(&Value::Array(vec![Value::from(WORK)])));
    })
    .await;
}

/// Publishes as somebody else, who writes their own name into the message.
async fn put_as(vhost: &Vhost, user: &str, properties: BasicProperties) {
    let body = json!({"password": "secret", "tags": ""});
    assert_eq!(vhost.raw("PUT", &format!("/users/{user}"), Some(body)).await.0, 201);
    let rights = json!({"configure": "", "write": ".*", "read": ""});
    let path = format!("/permissions/{}/{user}", encode(&vhost.name));
    assert_eq!(vhost.raw("PUT", &path, Some(rights)).await.0, 201);
    let endpoint = vhost.version.endpoint_as(user, "secret");
    let connection = amqp::connect(&endpoint, &guard(), &vhost.name, "somebody else").await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    put(&channel, DLQ, properties.with_user_id(user.into()), b"body").await;
    connection.close(200, "OK".into()).await.unwrap();
    assert_eq!(vhost.raw("DELETE", &format!("/users/{user}"), None).await.0, 204);
}

/// The code with which the broker closes a channel on this publish.
async fn refused_with(vhost: &Vhost, properties: BasicProperties) -> String {
    let channel = vhost.connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let options = BasicPublishOptions::default();
    let confirm = channel.basic_publish("".into(), WORK.into(), options, b"body", properties).await.unwrap();
    confirm.await.unwrap_err().to_string()
}

/// T5
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_another_user_stops_none() {
    on_both("replay-user", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        let user = format!("app-{}-{:?}", std::process::id(), vhost.version);
        for number in 1..=10 {
            match number {
                6 => put_as(&vhost, &user, numbered(number)).await,
                _ => put(&vhost.channel, DLQ, numbered(number), b"body").await,
            }
        }
        vhost.wait_ready(DLQ, 10).await;
        // Published as it is, it would close the channel.
        let refusal = refused_with(&vhost, numbered(6).with_user_id(user.as_str().into())).await;
        assert!(refusal.contains("user_id"), "{refusal}");
        let (outcome, counts) = Asked::all().go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.replayed, counts.duplicates_possible), (10, 0));
        nothing_held(&vhost, DLQ, 0).await;
        let moved = take_all(&vhost, WORK).await;
        let expected: Vec<String> = (1..=10).map(|number| number.to_string()).collect();
        assert_eq!(ids(&moved), expected);
        let kept: Vec<_> =
            moved.iter().map(|message| message.properties.header(origin::header::USER_ID)).collect();
        let sixth = Value::from(user.as_str());
        assert_eq!(kept, (1..=10).map(|number| (number == 6).then_some(&sixth)).collect::<Vec<_>>());
        assert!(moved.iter().all(|message| message.properties.user_id.is_none()));
    })
    .await;
}

/// Moves one message that expires in 300 ms. It may be gone before it is read, and is
/// published again then.
async fn move_what_expires(vhost: &Vhost, keep: bool) {
    for _ in 0..50 {
        put(&vhost.channel, DLQ, numbered(0).with_expiration("300".into()), b"body").await;
        let mut asked = Asked::all();
        asked.rewriting.keep_expiration = keep;
        let (outcome, counts) = asked.go(vhost).finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        if counts.replayed == 1 {
            return;
        }
    }
    panic!("it was gone every time before it was read");
}

/// T6
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_expires_soon_waits_for_its_consumer_unless_it_keeps_its_time() {
    on_both("replay-expires", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        move_what_expires(&vhost, false).await;
        throughout(5.0, "it waits", async || vhost.ready(WORK).await == 1).await;
        assert_eq!(take_all(&vhost, WORK).await[0].properties.expiration, None);
        move_what_expires(&vhost, true).await;
        vhost.wait_ready(WORK, 0).await;
    })
    .await;
}

/// T9
#[tokio::test(flavor = "multi_thread")]
async fn the_third_replay_of_a_message_leads_aside_although_it_died_once_by_the_brokers_count() {
    on_both("replay-thrice", async |vhost| {
        dying(&vhost).await;
        vhost.queue("aside", QueueType::Quorum, []).await;
        put(&vhost.channel, WORK, numbered(0), b"body").await;
        for round in 1..=3_u64 {
            let failed = vhost.wait(WORK).await;
            failed.acker.reject(BasicRejectOptions { requeue: false }).await.unwrap();
            vhost.wait_ready(DLQ, 1).await;
            let mut asked = Asked::all();
            asked.rewriting.max_replays = 2;
            asked.rewriting.replay_limit_queue = Some("aside".to_owned());
            asked.rewriting.request = format!("shop/run-{round}");
            let (judge, target) = (Watched::new(asked.judge()), asked.target.clone());
            let seen = judge.deaths.clone();
            let (outcome, counts) = Start::all(50).go_by(&vhost, judge, target).finishes().await;
            assert_eq!(outcome, Outcome::Completed);
            assert_eq!(*seen.lock().unwrap(), [1], "the broker's count in round {round}");
            let expected = if round < 3 { (1, 0) } else { (0, 1) };
            assert_eq!((counts.replayed, counts.quarantined), expected, "round {round}");
        }
        let aside = take_all(&vhost, "aside").await.remove(0);
        assert_eq!(aside.properties.header(header::COUNT), Some(&Value::I64(2)));
        assert_eq!((vhost.ready(WORK).await, vhost.ready(DLQ).await), (0, 0));
    })
    .await;
}

/// A judge who notes what the broker's `x-death` counts in all.
struct Watched {
    judge: RunJudge,
    deaths: std::sync::Arc<std::sync::Mutex<Vec<u64>>>,
}

impl Watched {
    fn new(judge: RunJudge) -> Self {
        Self { judge, deaths: std::sync::Arc::default() }
    }
}

impl Judge for Watched {
    fn judge(&mut self, message: Message, fence: Fence) -> Fate {
        assert_eq!(deaths(&message).first.and_then(|first| first.queue).as_deref(), Some(WORK));
        let Some(Value::Array(entries)) = message.properties.header("x-death") else { panic!("{message:?}") };
        let count = |entry: &Value| match entry {
            Value::Table(entry) => entry["count"].as_count().unwrap(),
            other => panic!("{other:?}"),
        };
        self.deaths.lock().unwrap().push(entries.iter().map(count).sum());
        self.judge.judge(message, fence)
    }
}

/// A judge before whom somebody edits one message.
struct Edited(RunJudge);

impl Judge for Edited {
    fn judge(&mut self, mut message: Message, fence: Fence) -> Fate {
        if message.properties.message_id.as_deref() == Some("1") {
            message.properties.reply_to = Some("amq.rabbitmq.reply-to".to_owned());
        }
        self.0.judge(message, fence)
    }
}

/// T32: the broker stores no message with this address, so that it comes in on the way.
#[tokio::test(flavor = "multi_thread")]
async fn who_wants_an_answer_on_the_publishing_channel_stays() {
    on_both("replay-reply", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        for number in 0..4 {
            put(&vhost.channel, DLQ, numbered(number), b"body").await;
        }
        vhost.wait_ready(DLQ, 4).await;
        let refusal = refused_with(&vhost, numbered(1).with_reply_to("amq.rabbitmq.reply-to".into())).await;
        assert!(refusal.contains("fast reply consumer does not exist"), "{refusal}");
        let asked = Asked::all();
        let worker = Start::all(50).go_by(&vhost, Edited(asked.judge()), asked.target);
        let (outcome, counts) = worker.finishes().await;
        assert_eq!(outcome, Outcome::CompletedWithFailures);
        // A publish that closed the channel would leave others in doubt.
        assert_eq!((counts.replayed, counts.unmovable, counts.duplicates_possible), (3, 1, 0));
        assert_eq!(counts.unmovable_messages, ["1"]);
        nothing_held(&vhost, DLQ, 1).await;
        assert_eq!(ids(&take_all(&vhost, DLQ).await), ["1"]);
        assert_eq!(ids(&take_all(&vhost, WORK).await), ["0", "2", "3"]);
    })
    .await;
}

/// T32: what an application really stores when it waits for an answer on its channel.
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_address_of_an_answer_stays_as_it_is() {
    on_both("replay-stored-reply", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let channel = vhost.connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let answers = "amq.rabbitmq.reply-to";
        let consumer = channel.basic_consume(answers.into(), "".into(), options, FieldTable::default()).await;
        put(&channel, DLQ, numbered(0).with_reply_to(answers.into()), b"body").await;
        put(&channel, DLQ, numbered(1).with_reply_to("answers".into()), b"body").await;
        drop(consumer);
        channel.close(200, "OK".into()).await.unwrap();
        vhost.wait_ready(DLQ, 2).await;
        let before = examined(&vhost).await;
        assert!(before.iter().any(|address| address.starts_with("amq.rabbitmq.reply-to.")), "{before:?}");
        let (outcome, counts) = Asked::all().go(&vhost).finishes().await;
        assert_eq!((outcome, counts.replayed), (Outcome::Completed, 2));
        let after = take_all(&vhost, WORK).await;
        let after: BTreeSet<String> = after.into_iter().filter_map(|one| one.properties.reply_to).collect();
        assert_eq!(after, before);
    })
    .await;
}

/// The addresses of answers of what is in the dead-letter queue, which stays.
async fn examined(vhost: &Vhost) -> BTreeSet<String> {
    let channel = vhost.connection.create_channel().await.unwrap();
    let mut addresses = BTreeSet::new();
    for _ in 0..vhost.ready(DLQ).await {
        let options = lapin::options::BasicGetOptions { no_ack: false };
        let got = channel.basic_get(DLQ.into(), options).await.unwrap().unwrap();
        addresses.insert(convert::properties(&got.delivery.properties).reply_to.unwrap());
    }
    channel.close(200, "OK".into()).await.unwrap();
    vhost.wait_ready(DLQ, u32::try_from(addresses.len()).unwrap()).await;
    addresses
}
