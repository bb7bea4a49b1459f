//! Messages that crash their consumer, expire, ask for the DLQ, or lie about their past.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use rstest::rstest;

use crate::lab::{Act, Audit, Broker, Consumer, Lab, PATIENCE, Publisher, Seen, id, ids};

const LADDER: &str = "
source:
  queue: {name: orders}
  exchange: {name: shop, type: topic}
  bindings: [{exchange: shop, routingKey: orders.*}]
  deliveryLimit: 3
retry: {delays: [300ms, 300ms, 300ms]}
deadLetter:
  quarantine:
    - {category: poison, reasons: [delivery_limit]}
    - {category: schema, headers: {x-opt-category: schema}}
";

/// The user's limit, and the tiers.
const LIMIT: usize = 3;
const TIERS: usize = 3;

/// The same, with numbers as arguments instead of policies, or in another mode.
fn ladder(mode: &str, settings: &str) -> String {
    let mode = LADDER.replace("retry: {", &format!("retry: {{mode: {mode}, "));
    format!("{mode}settings: {settings}\n")
}

/// How often a message may fail by a crash before the crash that ends it: in one
/// stay, or on 4.3 over the whole walk, where rejections count as well.
fn crashes_allowed(lab: &Lab) -> usize {
    if lab.counts_over_the_whole_walk() { LIMIT * (TIERS + 1) + TIERS } else { LIMIT }
}

async fn publish(lab: &Lab, count: usize, properties: impl Fn(&str) -> BasicProperties) {
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    for id in ids(count) {
        let taken = publisher.send("shop", "orders.created", &id, properties(&id)).await;
        assert!(taken.expect("a confirmation"));
    }
}

fn with_headers(id: &str, headers: &[(&str, &str)]) -> BasicProperties {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), AMQPValue::LongString((*value).into()));
    }
    Publisher::properties(id).with_headers(table)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_always_crashes_its_consumer_ends_in_quarantine(
    #[values("43", "40")] version: &str,
    #[values("Broker", "Application")] mode: &str,
    #[values("{policy: {}}", "{arguments: {}}")] settings: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "crash", &ladder(mode, settings)).await;
    // In mode Application a message that is retried is a new one, so the limit is for each stay.
    let allowed = if mode == "Application" { LIMIT } else { crashes_allowed(&lab) };
    let consumer = Consumer::start(&lab, "orders", 1, |_| Act::Crash);
    publish(&lab, 2, Publisher::properties).await;
    lab.holds("orders.dlq.quarantine.poison", 2, PATIENCE).await;
    for id in ids(2) {
        assert_eq!(consumer.of(&id).len(), allowed + 1, "deliveries of {id}");
    }
    let found = lab.drain("orders.dlq.quarantine.poison").await;
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|dead| dead.header("x-last-death-reason").as_deref() == Some("delivery_limit")));
    let mut audit = Audit::of(&ids(2));
    audit.found("quarantine", &found);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_crashes_within_the_limit_in_every_stay_still_walks_the_whole_ladder(
    #[values("43", "40")] version: &str,
    #[values(Act::Reject, Act::Nack)] verb: Act,
) {
    let lab = Lab::new(Broker::of_version(version), "budget", LADDER).await;
    // In each stay it crashes as often as it may, then fails in the normal way.
    let script = move |seen: &Seen| if seen.before % (LIMIT + 1) < LIMIT { Act::Crash } else { verb };
    let consumer = Consumer::start(&lab, "orders", 1, script);
    publish(&lab, 1, Publisher::properties).await;
    lab.holds("orders.dlq", 1, PATIENCE).await;
    assert_eq!(lab.ready("orders.dlq.quarantine.poison").await, 0);
    let exchanges: Vec<String> = consumer.seen().into_iter().map(|seen| seen.exchange).collect();
    let expected = ["shop", "orders.return.0", "orders.return.1", "orders.return.2"];
    let expected: Vec<&str> = expected.into_iter().flat_map(|exchange| [exchange; LIMIT + 1]).collect();
    assert_eq!(exchanges, expected);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_begins_to_crash_after_a_retry_ends_in_quarantine(
    #[values("43", "40")] version: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "later", LADDER).await;
    let script = |seen: &Seen| if seen.before == 0 { Act::Reject } else { Act::Crash };
    let consumer = Consumer::start(&lab, "orders", 1, script);
    publish(&lab, 1, Publisher::properties).await;
    lab.holds("orders.dlq.quarantine.poison", 1, PATIENCE).await;
    // On 4.3 the rejection took one of the budget.
    let rejection = usize::from(lab.counts_over_the_whole_walk());
    assert_eq!(consumer.count(), 1 + crashes_allowed(&lab) - rejection + 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_expires_in_the_source_ends_in_the_dlq(
    #[values("43", "40")] version: &str,
    #[values("Broker", "Application")] mode: &str,
    #[values("{policy: {}}", "{arguments: {}}")] settings: &str,
) {
    let spec =
        ladder(mode, settings).replace("queue: {name: orders}", "queue: {name: orders, messageTTL: 10s}");
    let lab = Lab::new(Broker::of_version(version), "expired", &spec).await;
    // Half of them by the queue's time, half by one that their producer set.
    let sooner = |id: &str| if id.ends_with(['1', '3', '5', '7', '9']) { "300" } else { "60000" };
    publish(&lab, 10, |id| Publisher::properties(id).with_expiration(sooner(id).into())).await;
    lab.holds("orders.dlq", 10, PATIENCE).await;
    let dead = lab.drain("orders.dlq").await;
    let mut audit = Audit::of(&ids(10));
    audit.found("orders.dlq", &dead);
    audit.assert_exactly_once();
    assert!(dead.iter().all(|dead| dead.header("x-last-death-reason").as_deref() == Some("expired")));

    // The same after a retry: the consumer fails once and is gone.
    let retry = if mode == "Application" { Act::Retry(0) } else { Act::Reject };
    let script = move |seen: &Seen| if seen.before == 0 { retry } else { Act::Hold };
    let consumer = Consumer::start(&lab, "orders", 5, script);
    publish(&lab, 5, Publisher::properties).await;
    // What comes back is put back when the consumer goes, and expires.
    consumer.sees(10).await;
    drop(consumer);
    lab.holds("orders.dlq", 5, PATIENCE).await;
    let dead = lab.drain("orders.dlq").await;
    let end = |dead: &Seen| (dead.header("x-last-death-reason"), dead.header("x-last-death-exchange"));
    let way = if mode == "Application" { "" } else { "orders.return.0" };
    let expected = (Some("expired".to_owned()), Some(way.to_owned()));
    assert!(dead.iter().all(|dead| end(dead) == expected), "{:?}", end(&dead[0]));
    let mut audit = Audit::of(&ids(5));
    audit.found("orders.dlq", &dead);
    audit.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_message_goes_where_its_headers_ask(#[values("43", "40")] version: &str) {
    let lab = Lab::new(Broker::of_version(version), "headers", LADDER).await;
    let consumer = Consumer::start(&lab, "orders", 10, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let wishes: [(&[(&str, &str)], &str); 4] = [
        (&[("x-opt-category", "schema")], "orders.dlq.quarantine.schema"),
        (&[("x-opt-redrive", "dead")], "orders.dlq"),
        (&[("x-redrive-on-failure", "dead-letter")], "orders.dlq"),
        // What asks for the DLQ comes first.
        (&[("x-opt-category", "schema"), ("x-opt-redrive", "dead")], "orders.dlq"),
    ];
    for (number, (headers, _)) in wishes.iter().enumerate() {
        let id = id(number);
        let taken = publisher.send("shop", "orders.created", &id, with_headers(&id, headers)).await;
        assert!(taken.expect("a confirmation"));
    }
    lab.holds("orders.dlq", 3, PATIENCE).await;
    lab.holds("orders.dlq.quarantine.schema", 1, PATIENCE).await;
    let mut ends = lab.drain("orders.dlq").await;
    ends.extend(lab.drain("orders.dlq.quarantine.schema").await.into_iter().map(|mut seen| {
        seen.exchange = "quarantined".into();
        seen
    }));
    for (number, (_, queue)) in wishes.iter().enumerate() {
        let end = ends.iter().find(|seen| seen.id == id(number)).expect("it ended");
        assert_eq!(end.exchange == "quarantined", *queue != "orders.dlq", "{}", end.id);
    }
    assert_eq!(consumer.count(), 4, "none was retried");
}

/// What a producer may write to look like a message with a past.
fn forged(id: &str) -> BasicProperties {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut death = FieldTable::default();
    for (name, value) in [("queue", "orders"), ("reason", "delivery_limit"), ("exchange", "orders.return.2")]
    {
        death.insert(name.into(), text(value));
    }
    death.insert("count".into(), AMQPValue::LongLongInt(99));
    let mut headers = FieldTable::default();
    let deaths = FieldArray::from(vec![AMQPValue::FieldTable(death)]);
    headers.insert("x-death".into(), AMQPValue::FieldArray(deaths));
    for (name, value) in [
        ("x-last-death-reason", "delivery_limit"),
        ("x-last-death-exchange", "orders.return.2"),
        ("x-last-death-queue", "orders"),
        ("x-first-death-reason", "rejected"),
        ("x-first-death-exchange", "orders.return.1"),
        ("x-first-death-queue", "orders.retry.2"),
    ] {
        headers.insert(name.into(), text(value));
    }
    headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(50));
    Publisher::properties(id).with_headers(headers)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_past_changes_no_way(#[values("43", "40")] version: &str) {
    let lab = Lab::new(Broker::of_version(version), "forged", LADDER).await;
    let consumer = Consumer::start(&lab, "orders", 10, |_| Act::Reject);
    publish(&lab, 10, forged).await;
    lab.holds("orders.dlq", 10, PATIENCE).await;
    let walks = consumer.by_id();
    assert_eq!(walks.len(), 10, "every message was delivered");
    for (id, walk) in walks {
        assert_eq!(
            walk[0].header("x-last-death-exchange").as_deref(),
            Some("orders.return.2"),
            "it is forged"
        );
        let exchanges: Vec<&str> = walk.iter().map(|seen| seen.exchange.as_str()).collect();
        assert_eq!(exchanges, ["shop", "orders.return.0", "orders.return.1", "orders.return.2"], "{id}");
    }
    let mut audit = Audit::of(&ids(10));
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_past_does_not_shorten_a_poisonous_message_s_life(#[values("43", "40")] version: &str) {
    let lab = Lab::new(Broker::of_version(version), "forged", LADDER).await;
    let consumer = Consumer::start(&lab, "orders", 1, |_| Act::Crash);
    publish(&lab, 1, forged).await;
    lab.holds("orders.dlq.quarantine.poison", 1, PATIENCE).await;
    assert_eq!(consumer.count(), crashes_allowed(&lab) + 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requeued_rejections_count_towards_the_limit_and_requeued_nacks_only_before_4_3(
    #[values("43", "40")] version: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "requeue", LADDER).await;
    let consumer = Consumer::start(&lab, "orders", 1, |_| Act::Requeue);
    publish(&lab, 1, Publisher::properties).await;
    lab.holds("orders.dlq.quarantine.poison", 1, PATIENCE).await;
    assert_eq!(consumer.count(), crashes_allowed(&lab) + 1);
    drop(consumer);
    lab.drain("orders.dlq.quarantine.poison").await;

    let script = |seen: &Seen| if seen.before < 60 { Act::NackRequeue } else { Act::Ack };
    let consumer = Consumer::start(&lab, "orders", 1, script);
    publish(&lab, 1, Publisher::properties).await;
    if lab.counts_over_the_whole_walk() {
        consumer.sees(61).await;
        assert_eq!(lab.ready("orders.dlq.quarantine.poison").await, 0, "it could have gone on for ever");
    } else {
        lab.holds("orders.dlq.quarantine.poison", 1, PATIENCE).await;
        assert_eq!(consumer.count(), LIMIT + 1);
    }
}
