//! The longest ladder, full queues, numbers that change under way, and a source
//! that its application declares.

use std::time::Duration;

use redrive::topology::model::{Arg, Args, Queue, QueueType};
use redrive::topology::plan::Step;
use rstest::rstest;

use crate::lab::{
    Act, Audit, Broker, Consumer, Control, DEAD_LETTER_PATIENCE, Lab, PATIENCE, Publisher, Seen, full, id,
    ids,
};

fn spec(queue: &str, rest: &str) -> String {
    format!(
        "
source:
  queue: {{name: orders{queue}}}
  exchange: {{name: shop, type: topic}}
  bindings: [{{exchange: shop, routingKey: orders.*}}]
{rest}
"
    )
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_ladder_of_thirty_two_tiers_is_walked_to_its_end(#[values("43", "40")] version: &str) {
    let longest = spec("", "retry: {backoff: {initial: 100ms, factor: 1, steps: 32}}");
    let lab = Lab::new(Broker::of_version(version), "longest", &longest).await;
    let control = Control::start(&lab).await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(20);
    publisher.send_all("shop", "orders.created", &all).await;
    lab.holds("orders.dlq", 20, PATIENCE).await;
    let (walks, control) = (consumer.by_id(), control.read());
    assert_eq!(walks.len(), 20, "every message was delivered");
    for (id, walk) in &walks {
        let ways: Vec<&str> = walk.iter().map(|seen| seen.exchange.as_str()).collect();
        let returns: Vec<String> = (0..32).map(|tier| format!("orders.return.{tier}")).collect();
        assert_eq!(ways[0], "shop");
        assert_eq!(ways[1..], returns);
        for (tier, pair) in walk.windows(2).enumerate() {
            control.assert_delay(pair[0].at, pair[1].at, 100, &format!("{id} in tier {tier}"));
        }
    }
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_sent_to_the_queue_directly_is_retried_as_well(#[values("43", "40")] version: &str) {
    let ladder = spec("", "retry: {delays: [200ms, 200ms]}");
    let lab = Lab::new(Broker::of_version(version), "direct", &ladder).await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    publisher.send_all("", "orders", &ids(10)).await;
    lab.holds("orders.dlq", 10, PATIENCE).await;
    let walks = consumer.by_id();
    assert_eq!(walks.len(), 10, "every message was delivered");
    for walk in walks.values() {
        let ways: Vec<&str> = walk.iter().map(|seen| seen.exchange.as_str()).collect();
        assert_eq!(ways, ["", "orders.return.0", "orders.return.1"]);
        assert!(walk.iter().all(|seen| seen.routing_key == "orders"));
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_in_policies_change_under_load_and_nothing_is_lost_or_doubled(
    #[values("43", "40")] version: &str,
) {
    let numbers = |limit: usize, length: usize| {
        spec(&format!(", maxLength: {length}, messageTTL: {limit}m"), "retry: {delays: [100ms, 200ms]}")
            .replace("  exchange:", &format!("  deliveryLimit: {limit}\n  exchange:"))
    };
    let lab = Lab::new(Broker::of_version(version), "numbers", &numbers(5, 100_000)).await;
    let repair = lab.repair(Duration::from_millis(20), usize::MAX);
    let consumer = Consumer::start(&lab, "orders", 100, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(1000);
    for (round, batch) in all.chunks(50).enumerate() {
        lab.want(&numbers(5 + round, 100_000 + round)).await;
        publisher.send_all("shop", "orders.created", batch).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    lab.holds("orders.dlq", 1000, PATIENCE).await;
    lab.rest(repair).await;
    let walks = consumer.by_id();
    assert_eq!(walks.len(), 1000, "every message was delivered");
    assert!(walks.values().all(|walk| walk.len() == 3));
    assert_eq!(lab.troubles(), Vec::<String>::new());
    let observed = lab.management.snapshot(&lab.vhost).await.expect("a snapshot");
    let longest = observed.policies.iter().map(|policy| policy.definition.get("max-length").cloned());
    assert!(longest.flatten().any(|length| length == Arg::from(100_019)), "{:?}", observed.policies);
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_dlq_holds_dead_letters_back_until_it_has_room(#[values("43", "40")] version: &str) {
    let small = spec("", "retry: {delays: [200ms]}\ndeadLetter: {maxLength: 10}");
    let lab = Lab::new(Broker::of_version(version), "full", &small).await;
    let _consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(60);
    publisher.send_all("shop", "orders.created", &all).await;
    // A quorum queue refuses some messages later than it should.
    let kept = crate::lab::eventually(PATIENCE, "some wait in the source", async || {
        let counts = lab.counts().await;
        let (dead, kept) = (counts["orders.dlq"], counts["orders"]);
        if dead >= 10 && kept > 0 && dead + kept == 60 { Ok(kept) } else { Err(format!("{counts:?}")) }
    })
    .await;
    let mut audit = Audit::of(&all);
    let mut dead = lab.drain("orders.dlq").await;
    println!("{version}: {} in the DLQ of 10, {kept} held back", dead.len());
    assert!(dead.len() < 60);
    if full("waiting up to 400 s for what a full DLQ refused") {
        // Emptying it lets in a few at a time only, as many try again at once: so more room for it.
        lab.want(&small.replace("maxLength: 10", "maxLength: 1000")).await;
        lab.converge().await;
        let lifted = std::time::Instant::now();
        lab.holds("orders.dlq", 60 - dead.len(), DEAD_LETTER_PATIENCE).await;
        println!("{version}: in the DLQ {:.0} s later", lifted.elapsed().as_secs_f32());
        dead.extend(lab.drain("orders.dlq").await);
        audit.found("orders.dlq", &dead);
        audit.assert_exactly_once();
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_source_refuses_publishers_and_holds_what_returns_in_its_tier(
    #[values("43", "40")] version: &str,
) {
    let small = spec(", maxLength: 10", "retry: {delays: [10s]}");
    let lab = Lab::new(Broker::of_version(version), "source", &small).await;
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    publisher.send_all("shop", "orders.created", &ids(8)).await;
    let script = |seen: &Seen| if seen.before == 0 { Act::Reject } else { Act::Hold };
    let consumer = Consumer::start(&lab, "orders", 8, script);
    lab.holds("orders.retry.0", 8, PATIENCE).await;
    drop(consumer);
    // While they wait in the tier, others fill the source.
    let mut taken = Vec::new();
    for number in 100..130 {
        let id = id(number);
        if publisher.send("shop", "orders.created", &id, Publisher::properties(&id)).await.expect("an answer")
        {
            taken.push(id);
        }
    }
    assert!((9..=14).contains(&taken.len()), "{} were taken", taken.len());
    taken.extend(ids(8));
    crate::lab::eventually(PATIENCE, "the tier keeps what the source has no room for", async || {
        let counts = lab.counts().await;
        let (tier, source) = (counts["orders.retry.0"], counts["orders"]);
        let all = usize::try_from(tier + source) == Ok(taken.len());
        if tier > 0 && all { Ok(()) } else { Err(format!("{} in {counts:?}", taken.len())) }
    })
    .await;
    let mut audit = Audit::of(&taken);
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Ack);
    if full("waiting up to 400 s for what a full source held back") {
        consumer.sees_within(taken.len(), DEAD_LETTER_PATIENCE).await;
        audit.ended("acknowledged", consumer.acknowledged());
        audit.assert_exactly_once();
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_its_application_declares_has_the_same_ladder(
    #[values("43", "40")] version: &str,
    #[values("quorum", "classic")] kind: &str,
) {
    let none = spec("-not-yet", "retry: {mode: None}").replace("orders.*", "other");
    let lab = Lab::new(Broker::of_version(version), "external", &none).await;
    let arguments: Args = [("x-queue-type".to_owned(), Arg::from(kind))].into();
    let queue_type = if kind == "quorum" { QueueType::Quorum } else { QueueType::Classic };
    let queue = Queue { name: "orders".into(), kind: queue_type, arguments };
    lab.management.put_queue(&lab.vhost, &queue).await.expect("declared");
    let external = spec(&format!(", type: {kind}"), "retry: {delays: [200ms, 300ms]}")
        .replace("  queue:", "  ownership: External\n  queue:");
    {
        let mut operator = lab.operator.lock().await;
        operator.pipeline = crate::lab::pipeline(&external);
        operator.inventory.clear();
        // The first pipeline's exchange stays; this one is another owner of it.
        operator.pipeline.identity.name = "external".into();
    }
    lab.converge().await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(50);
    publisher.send_all("shop", "orders.created", &all).await;
    lab.holds("orders.dlq", 50, PATIENCE).await;
    let walks = consumer.by_id();
    assert_eq!(walks.len(), 50, "every message was delivered");
    for walk in walks.values() {
        let ways: Vec<&str> = walk.iter().map(|seen| seen.exchange.as_str()).collect();
        assert_eq!(ways, ["shop", "orders.return.0", "orders.return.1"]);
    }
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
}

/// The operator dies between a declaration and its marker, at every declaration.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_dies_between_a_declaration_and_its_marker_goes_on(
    #[values("43", "40")] version: &str,
) {
    let first = spec("", "retry: {delays: [200ms]}");
    let lab = Lab::new(Broker::of_version(version), "marker", &first).await;
    let wanted = spec(
        "",
        "retry: {delays: [300ms, 200ms]}\ndeadLetter: {quarantine: [{category: poison, reasons: [delivery_limit]}], parkingLot: true}",
    );
    lab.want(&wanted).await;
    for _ in 0..100 {
        let mut operator = lab.operator.lock().await;
        let steps = operator.plan().await.expect("a look");
        match steps.first() {
            Some(Step::CreateQueue { queue, .. }) => {
                operator.management.put_queue(&lab.vhost, queue).await.expect("declared");
            }
            Some(Step::CreateExchange { exchange, .. }) => {
                operator.management.put_exchange(&lab.vhost, exchange).await.expect("declared");
            }
            Some(_) => {}
            None => break,
        }
        let round = operator.round(1).await.expect("a look");
        assert_eq!(round.blocked, Vec::<String>::new());
    }
    lab.converge().await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    publisher.send_all("shop", "orders.created", &ids(10)).await;
    lab.holds("orders.dlq", 10, PATIENCE).await;
    assert_eq!(consumer.count(), 30);
}
