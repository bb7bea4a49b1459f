//! What a consumer that only rejects gets: growing delays, in order, then the DLQ.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use rstest::rstest;

use crate::lab::{Act, Audit, Broker, Consumer, Lab, Publisher, Seen, assert_delay, id, ids};

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

/// Checks the waits between the deliveries of one message, and where it came from.
fn assert_walk(deliveries: &[Seen], delays: &[u64]) {
    let first = &deliveries[0];
    assert_eq!(first.exchange, "shop");
    for (tier, pair) in deliveries.windows(2).enumerate() {
        assert_delay(pair[1].at - pair[0].at, delays[tier], &format!("{} in tier {tier}", first.id));
        assert_eq!(pair[1].exchange, format!("orders.return.{tier}"), "the way of {}", first.id);
    }
}

fn longest_excess(walks: &BTreeMap<String, Vec<Seen>>, delays: &[u64]) -> Duration {
    let excess =
        |pair: &[Seen], delay: &u64| (pair[1].at - pair[0].at).saturating_sub(Duration::from_millis(*delay));
    let walks = walks.values().flat_map(|walk| walk.windows(2).zip(delays));
    walks.map(|(pair, delay)| excess(pair, delay)).max().unwrap_or_default()
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
    lab.other_queue("audit", "shop", "orders.*").await;
    let consumer = Consumer::start(&lab, "orders", 50, move |_| verb);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(100);
    publisher.send_all("shop", "orders.created", &all).await;
    consumer.sees(400).await;
    lab.holds("orders.dlq", 100, Duration::from_secs(10)).await;

    let walks = consumer.by_id();
    for walk in walks.values() {
        assert_eq!(walk.len(), 4, "{} was tried four times", walk[0].id);
        assert_walk(walk, &delays);
    }
    println!("{version} {settings} {verb:?}: at most {:?} later", longest_excess(&walks, &delays));
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
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
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(40);
    for (tier, delay) in [400, 800, 1600].into_iter().enumerate() {
        let start = std::time::Instant::now();
        publisher.send_all("", &format!("orders.retry.{tier}"), &all).await;
        let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Ack);
        consumer.sees(40).await;
        for seen in consumer.seen() {
            assert_delay(seen.at - start, delay, &format!("{} in tier {tier}", seen.id));
            assert_eq!((seen.exchange.as_str(), seen.routing_key.as_str()), ("", "orders"));
        }
        let mut audit = Audit::of(&all);
        audit.ended("acknowledged", consumer.acknowledged());
        audit.assert_exactly_once();
    }
    // The client gives up by rejecting.
    publisher.send_all("shop", "orders.created", &all).await;
    let _consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    lab.holds("orders.dlq", 40, Duration::from_secs(10)).await;
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_succeeds_at_the_third_attempt_is_done(#[values("43", "40")] version: &str) {
    let lab = Lab::new(Broker::of_version(version), "third", &ladder(POLICY)).await;
    let script = |seen: &Seen| if seen.before == 2 { Act::Ack } else { Act::Reject };
    let consumer = Consumer::start(&lab, "orders", 50, script);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(50);
    publisher.send_all("shop", "orders.created", &all).await;
    consumer.sees(150).await;
    for walk in consumer.by_id().values() {
        assert_walk(walk, &[400, 800]);
    }
    let mut audit = Audit::of(&all);
    audit.ended("acknowledged", consumer.acknowledged());
    audit.assert_exactly_once();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(consumer.count(), 150, "nobody hears of them again");
    assert!(lab.counts().await.values().all(|count| *count == 0), "nothing is left");
}

fn all_properties() -> BasicProperties {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut headers = FieldTable::default();
    headers.insert("tenant".into(), text("acme"));
    headers.insert("attempts-of-our-own".into(), AMQPValue::LongInt(3));
    let nested = FieldArray::from(vec![AMQPValue::Boolean(true), AMQPValue::Double(0.5)]);
    headers.insert("nested".into(), AMQPValue::FieldArray(nested));
    headers.insert("x-of-our-own".into(), text("kept"));
    headers.insert("CC".into(), AMQPValue::FieldArray(FieldArray::from(vec![text("big.vip")])));
    headers.insert("BCC".into(), AMQPValue::FieldArray(FieldArray::from(vec![text("secret.vip")])));
    BasicProperties::default()
        .with_message_id(id(0).as_str().into())
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

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retried_message_differs_by_nothing_but_its_exchange(#[values("43", "40")] version: &str) {
    let lab = Lab::new(Broker::of_version(version), "whole", &ladder(POLICY)).await;
    lab.other_queue("vip", "shop", "*.vip").await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let user = lab.broker.endpoint.credentials.username.as_str();
    let properties = || all_properties().with_user_id(user.into());
    let sent = properties().with_expiration("60000".into());
    assert!(publisher.send("shop", "orders.created", &id(0), sent.clone()).await.expect("a confirmation"));
    lab.holds("orders.dlq", 1, Duration::from_secs(15)).await;

    let deliveries = consumer.seen();
    assert_eq!(deliveries.len(), 4, "CC and BCC bring no further copies");
    assert_walk(&deliveries, &[400, 800, 1600]);
    let dead = lab.drain("orders.dlq").await;
    let own = deliveries[0].own_headers();
    assert!(own.contains_key("CC") && !own.contains_key("BCC"), "the broker hides BCC: {own:?}");
    for (attempt, seen) in deliveries.iter().chain(&dead).enumerate() {
        // The broker takes the expiration off, so that the message can't die early in a tier.
        let expected = if attempt == 0 { sent.clone() } else { properties() };
        let but_headers =
            |properties: &BasicProperties| properties.clone().with_headers(FieldTable::default());
        assert_eq!(but_headers(&seen.properties), but_headers(&expected), "at {attempt}");
        assert_eq!(seen.own_headers(), own, "at {attempt}");
        assert_eq!(seen.routing_key, "orders.created");
        assert_eq!(seen.body, crate::lab::body_of(&id(0)));
    }
    assert_eq!(lab.drain("vip").await.len(), 1, "the other subscriber got it once");
}
