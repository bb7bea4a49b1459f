//! What a consumer that only rejects gets: growing delays, in order, then the DLQ.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use rstest::rstest;

use crate::lab::{
    Act, Audit, Broker, Consumer, Control, Lab, Lateness, PATIENCE, Publisher, Seen, eventually, id, ids,
    own_headers,
};

/// A ladder of three tiers, with a place for where the numbers go.
fn ladder(settings: &str) -> String {
    format!(
        "
source:
  queue: {{name: orders}}
  exchange: {{name: shop, type: topic}}
  bindings: [{{exchange: shop, routingKey: orders.*}}, {{exchange: shop, routingKey: '*.vip'}}]
  deliveryLimit: 5
retry: {{delays: [400ms, 800ms, 1600ms]}}
deadLetter: {{retention: 1d}}
settings: {settings}
"
    )
}

const POLICY: &str = "{policy: {}}";
const ARGUMENTS: &str = "{arguments: {}}";

/// Numbers stand where the settings say, and nowhere else.
async fn assert_settings(lab: &Lab, settings: &str) {
    let observed = lab.management.snapshot(&lab.vhost).await.expect("a snapshot");
    let argument = observed.queues["orders"].arguments.contains_key("x-delivery-limit");
    let expected = if settings == ARGUMENTS { (true, 0) } else { (false, 2) };
    assert_eq!((argument, observed.policies.len()), expected, "{settings}");
}

/// Checks the waits between the deliveries of one message, and where it came from.
fn assert_walk(deliveries: &[Seen], delays: &[u64], control: &Lateness) {
    let first = &deliveries[0];
    assert_eq!(first.exchange, "shop");
    assert_eq!(deliveries.len(), delays.len() + 1, "deliveries of {}", first.id);
    for (tier, pair) in deliveries.windows(2).enumerate() {
        control.assert_delay(pair[0].at, pair[1].at, delays[tier], &format!("{} in tier {tier}", first.id));
        assert_eq!(pair[1].exchange, format!("orders.return.{tier}"), "the way of {}", first.id);
        let waited_in = format!("orders.retry.{tier}");
        assert_eq!(pair[1].header("x-last-death-queue"), Some(waited_in), "the way of {}", first.id);
    }
}

/// Everything that a producer wrote is as it was.
fn assert_unchanged(seen: &Seen, sent: &BasicProperties, what: &str) {
    let but_headers = |properties: &BasicProperties| properties.clone().with_headers(FieldTable::default());
    assert_eq!(but_headers(&seen.properties), but_headers(sent), "{} {what}", seen.id);
    assert_eq!(seen.own_headers(), own_headers(sent), "{} {what}", seen.id);
    assert_eq!(seen.body, crate::lab::body_of(&seen.id), "{} {what}", seen.id);
}

fn longest_excess(walks: &BTreeMap<String, Vec<Seen>>, delays: &[u64]) -> Duration {
    let excess =
        |pair: &[Seen], delay: &u64| (pair[1].at - pair[0].at).saturating_sub(Duration::from_millis(*delay));
    let walks = walks.values().flat_map(|walk| walk.windows(2).zip(delays));
    walks.map(|(pair, delay)| excess(pair, delay)).max().unwrap_or_default()
}

/// Publishes a few at a time: what waits for others is not what is measured.
async fn publish(lab: &Lab, all: &[String], properties: impl Fn(&str) -> BasicProperties) {
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    for some in all.chunks(4) {
        let sent = some.iter().map(|id| publisher.send("shop", "orders.created", id, properties(id)));
        let confirmed = futures::future::try_join_all(sent).await.expect("confirmations");
        assert!(confirmed.iter().all(|confirmed| *confirmed), "the broker took all messages");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_always_fails_waits_in_each_tier_in_order_and_ends_in_the_dlq(
    #[values("43", "40")] version: &str,
    #[values(POLICY, ARGUMENTS)] settings: &str,
    #[values(Act::Reject, Act::Nack)] verb: Act,
) {
    let delays = [400, 800, 1600];
    let lab = Lab::new(Broker::of_version(version), "walk", &ladder(settings)).await;
    assert_settings(&lab, settings).await;
    lab.other_queue("audit", "shop", "orders.*").await;
    let control = Control::start(&lab).await;
    let consumer = Consumer::start(&lab, "orders", 50, move |_| verb);
    let all = ids(60);
    publish(&lab, &all, properties).await;
    lab.holds("orders.dlq", 60, PATIENCE).await;

    let (walks, control) = (consumer.by_id(), control.read());
    assert_eq!(walks.len(), 60, "every message was delivered");
    for walk in walks.values() {
        assert_walk(walk, &delays, &control);
        for (attempt, seen) in walk.iter().enumerate() {
            assert_unchanged(seen, &properties(&seen.id), &format!("at {attempt}"));
            assert_eq!(seen.routing_key, "orders.created", "{} at {attempt}", seen.id);
        }
    }
    println!("{version} {settings} {verb:?}: at most {:?} later", longest_excess(&walks, &delays));
    let dead = lab.drain("orders.dlq").await;
    for seen in &dead {
        assert_unchanged(seen, &properties(&seen.id), "in the DLQ");
        assert_eq!(seen.routing_key, "orders.created", "{} in the DLQ", seen.id);
    }
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &dead);
    audit.assert_exactly_once();
    let mut subscriber = Audit::of(&all);
    subscriber.found("audit", &lab.drain("audit").await);
    subscriber.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_publishes_to_the_tiers_itself_gets_each_message_back_after_the_delay(
    #[values("43", "40")] version: &str,
    #[values(POLICY, ARGUMENTS)] settings: &str,
) {
    let spec = ladder(settings).replace("retry: {", "retry: {mode: Application, ");
    let lab = Lab::new(Broker::of_version(version), "application", &spec).await;
    assert_settings(&lab, settings).await;
    lab.other_queue("audit", "shop", "orders.*").await;
    let control = Control::start(&lab).await;
    // A client library counts the attempts, and gives up by rejecting.
    let script = |seen: &Seen| if seen.before < 3 { Act::Retry(seen.before) } else { Act::Reject };
    let consumer = Consumer::start(&lab, "orders", 50, script);
    let all = ids(60);
    publish(&lab, &all, properties).await;
    lab.holds("orders.dlq", 60, PATIENCE).await;

    let (walks, control) = (consumer.by_id(), control.read());
    assert_eq!(walks.len(), 60, "every message was delivered");
    for (id, walk) in &walks {
        let ways: Vec<(&str, &str)> =
            walk.iter().map(|seen| (seen.exchange.as_str(), seen.routing_key.as_str())).collect();
        assert_eq!(
            ways,
            [("shop", "orders.created"), ("", "orders"), ("", "orders"), ("", "orders")],
            "{id}"
        );
        for (tier, pair) in walk.windows(2).enumerate() {
            let (delay, waited_in) = ([400, 800, 1600][tier], format!("orders.retry.{tier}"));
            control.assert_delay(pair[0].at, pair[1].at, delay, &format!("{id} in tier {tier}"));
            assert_eq!(pair[1].header("x-last-death-queue"), Some(waited_in), "the way of {id}");
        }
        for (attempt, seen) in walk.iter().enumerate() {
            assert_unchanged(seen, &properties(id), &format!("at {attempt}"));
        }
    }
    let dead = lab.drain("orders.dlq").await;
    dead.iter().for_each(|seen| assert_unchanged(seen, &properties(&seen.id), "in the DLQ"));
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &dead);
    audit.assert_exactly_once();
    let mut subscriber = Audit::of(&all);
    subscriber.found("audit", &lab.drain("audit").await);
    subscriber.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_succeeds_at_the_third_attempt_is_done(#[values("43", "40")] version: &str) {
    let lab = Lab::new(Broker::of_version(version), "third", &ladder(POLICY)).await;
    let control = Control::start(&lab).await;
    let script = |seen: &Seen| if seen.before == 2 { Act::Ack } else { Act::Reject };
    let consumer = Consumer::start(&lab, "orders", 50, script);
    let all = ids(50);
    publish(&lab, &all, properties).await;
    consumer.sees(150).await;
    let control = control.read();
    for walk in consumer.by_id().values() {
        assert_walk(walk, &[400, 800], &control);
    }
    let mut audit = Audit::of(&all);
    audit.ended("acknowledged", consumer.acknowledged());
    audit.assert_exactly_once();
    // The broker's counts are up to five seconds old.
    eventually(PATIENCE, "nothing is left", async || {
        let counts = lab.counts().await;
        if counts.values().all(|count| *count == 0) { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    assert_eq!(consumer.count(), 150, "nobody hears of them again");
}

/// Properties of every kind, but those that change a message's way.
fn properties(id: &str) -> BasicProperties {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut headers = FieldTable::default();
    headers.insert("tenant".into(), text("acme"));
    headers.insert("attempts-of-our-own".into(), AMQPValue::LongInt(3));
    let nested = FieldArray::from(vec![AMQPValue::Boolean(true), AMQPValue::Double(0.5)]);
    headers.insert("nested".into(), AMQPValue::FieldArray(nested));
    headers.insert("x-of-our-own".into(), text("kept"));
    BasicProperties::default()
        .with_message_id(id.into())
        .with_content_type("application/json".into())
        .with_content_encoding("identity".into())
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_priority(7)
        .with_correlation_id("correlation".into())
        .with_reply_to("replies".into())
        .with_timestamp(1_750_000_000)
        .with_type("order.created".into())
        .with_app_id("shop".into())
        .with_cluster_id("unused".into())
}

fn with_header(properties: &BasicProperties, name: &str, value: AMQPValue) -> BasicProperties {
    let mut headers = properties.headers().clone().unwrap_or_default();
    headers.insert(name.into(), value);
    properties.clone().with_headers(headers)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retried_message_differs_by_nothing_but_its_exchange(
    #[values("43", "40")] version: &str,
    #[values(POLICY, ARGUMENTS)] settings: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "whole", &ladder(settings)).await;
    lab.other_queue("vip", "shop", "*.vip").await;
    let control = Control::start(&lab).await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    let user = lab.broker.endpoint.credentials.username.as_str();
    let keys = |key: &str| AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongString(key.into())]));
    let stays = with_header(&properties(&id(0)).with_user_id(user.into()), "CC", keys("big.vip"));
    let expires = stays.clone().with_expiration("60000".into());
    let sent = with_header(&expires, "BCC", keys("secret.vip"));
    publish(&lab, &ids(1), |_| sent.clone()).await;
    lab.holds("orders.dlq", 1, PATIENCE).await;

    let deliveries = consumer.seen();
    assert_eq!(deliveries.len(), 4, "CC and BCC bring no further copies");
    assert_walk(&deliveries, &[400, 800, 1600], &control.read());
    let dead = lab.drain("orders.dlq").await;
    assert_eq!(dead.len(), 1);
    for (attempt, seen) in deliveries.iter().chain(&dead).enumerate() {
        // The broker hides BCC, and takes the expiration off when the message dies first, so that
        // it can't die early in a tier.
        assert_unchanged(seen, if attempt == 0 { &expires } else { &stays }, &format!("at {attempt}"));
        assert_eq!(seen.routing_key, "orders.created");
    }
    assert_eq!(lab.drain("vip").await.len(), 1, "the other subscriber got it once");
}
