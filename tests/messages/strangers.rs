//! Somebody binds a queue of their own into the chain, or the chain to the source, while
//! messages travel. Until the next look the broker does as it is told; what is promised is
//! that the look finds it and takes it away, and that no message is lost by either.

use std::time::{Duration, Instant};

use futures::StreamExt;
use redrive::topology::desired;
use redrive::topology::generations::Generations;
use redrive::topology::model::{Args, Binding, Destination};
use redrive::topology::plan::Step;
use rstest::rstest;

use crate::lab::{Act, Audit, Broker, Consumer, Lab, PATIENCE, Publisher, Seen, eventually, id, ids};

const LADDER: &str = "
source:
  queue: {name: orders}
  exchange: {name: shop, type: topic}
  bindings: [{exchange: shop, routingKey: orders.*}]
retry: {delays: [300ms, 300ms]}
deadLetter:
  quarantine: [{category: schema, headers: {x-opt-category: schema}}]
";

/// Where messages end.
const ENDS: [&str; 2] = ["orders.dlq", "orders.dlq.quarantine.schema"];

/// The tiers of `LADDER`.
const TIERS: usize = 2;

/// Ten times as long as a tier holds a message: what still walks shows within it.
const CALM: Duration = Duration::from_secs(3);

/// Exchanges that no message of a whole chain reaches.
const UNREACHED: [&str; 3] = ["orders.dlx.alt", "orders.dlx.fallback", "orders.dlx.rest"];

/// A binding without arguments: a headers exchange sends everything there, too.
fn stranger(exchange: &str, queue: &str) -> Binding {
    let destination = Destination::Queue(queue.to_owned());
    Binding { source: exchange.to_owned(), destination, routing_key: String::new(), arguments: Args::new() }
}

/// Every exchange that is the pipeline's alone.
async fn exchanges(lab: &Lab) -> Vec<String> {
    let operator = lab.operator.lock().await;
    let wanted = desired::build(&operator.pipeline, &operator.facts, &Generations::default());
    let closed = wanted.exchanges.into_iter().filter(|exchange| exchange.closed);
    closed.map(|exchange| exchange.exchange.name).collect()
}

/// Publishes the messages of these numbers, one after the other.
async fn travel(publisher: &Publisher, numbers: std::ops::Range<usize>) {
    for number in numbers {
        publisher.send_all("shop", "orders.created", &[id(number)]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Binds a queue to one exchange after twenty messages, and looks after forty. Returns
/// what is wrong.
async fn bind_a_spy(version: &str, exchange: String) -> Vec<String> {
    let lab = Lab::new(Broker::of_version(version), "spy", LADDER).await;
    lab.other_queue("spy", "shop", "never").await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let binding = stranger(&exchange, "spy");

    travel(&publisher, 0..20).await;
    lab.management.bind(&lab.vhost, &binding).await.expect("bound");
    travel(&publisher, 20..40).await;
    // Long enough for the first of them to pass the whole ladder.
    consumer.sees(60).await;
    let plan = lab.operator.lock().await.plan().await.expect("a look");
    if plan != [Step::Unbind(binding)] {
        return vec![format!("{version} {exchange}: the look wants {plan:?}")];
    }
    lab.converge().await;
    travel(&publisher, 40..60).await;
    let after: Vec<String> = ids(60).split_off(40);
    come_to_rest(&lab, &consumer, &after).await;
    account(&lab, &consumer, &exchange, &after).await
}

/// Waits until the last messages have walked the whole ladder, and nothing is under way.
async fn come_to_rest(lab: &Lab, consumer: &Consumer, last: &[String]) {
    eventually(PATIENCE, "the last messages come to their end", async || {
        let walks = consumer.by_id();
        let walked = |id: &&String| walks.get(*id).is_some_and(|walk| walk.len() == TIERS + 1);
        let walked = last.iter().filter(walked).count();
        if walked == last.len() { Ok(()) } else { Err(format!("{walked} did; {:?}", lab.counts().await)) }
    })
    .await;
    calm(lab, consumer).await;
}

/// Waits until nothing is delivered and nothing dies any more. Totals would not show it: they
/// are older than a walk through the ladder.
async fn calm(lab: &Lab, consumer: &Consumer) {
    let mut last = (0, 0);
    let mut since = Instant::now();
    eventually(PATIENCE, "nothing is under way", async || {
        let now = (consumer.count(), lab.ready("orders.dlq").await);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if since.elapsed() > CALM { Ok(()) } else { Err(format!("{now:?} delivered and dead")) }
    })
    .await;
}

/// Accounts for every message: each is in one queue of ours at most, and in one of ours or
/// the stranger's at least; those that came after the look are in ours alone.
async fn account(lab: &Lab, consumer: &Consumer, exchange: &str, after: &[String]) -> Vec<String> {
    let (mut ours, mut any, mut late) = (Audit::of(&ids(60)), Audit::of(&ids(60)), Audit::of(after));
    let is_late = |seen: &&Seen| after.contains(&seen.id);
    for queue in ENDS {
        let found = lab.drain(queue).await;
        late.found(queue, &found.iter().filter(is_late).cloned().collect::<Vec<_>>());
        ours.found(queue, &found);
        any.found(queue, &found);
    }
    let spied = lab.drain("spy").await;
    late.found("spy", &spied.iter().filter(is_late).cloned().collect::<Vec<_>>());
    any.found("spy", &spied);
    let (lost, stolen) = (any.lost(), ours.lost().len());
    let longest = consumer.by_id().values().map(Vec::len).max().unwrap_or_default();
    println!("{exchange}: {} copies for the stranger, {stolen} messages for it alone", spied.len());
    let wrong = [
        (!lost.is_empty(), format!("lost: {lost:?}")),
        (!ours.doubled().is_empty(), format!("doubled: {:?}", ours.doubled())),
        (!late.lost().is_empty(), format!("lost after the look: {:?}", late.lost())),
        (!late.doubled().is_empty(), format!("doubled after the look: {:?}", late.doubled())),
        (longest > TIERS + 1, format!("{longest} deliveries of one message")),
        (spied.is_empty() != UNREACHED.contains(&exchange), format!("the stranger got {}", spied.len())),
    ];
    wrong.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| format!("{exchange}: {what}")).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strange_binding_is_found_and_taken_away_and_no_message_is_lost_or_doubled_in_our_queues(
    #[values("43", "40")] version: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "strangers", LADDER).await;
    let exchanges = exchanges(&lab).await;
    drop(lab);
    assert_eq!(exchanges.len(), 11, "{exchanges:?}");
    let bound = futures::stream::iter(exchanges).map(|exchange| bind_a_spy(version, exchange));
    let findings: Vec<Vec<String>> = bound.buffer_unordered(6).collect().await;
    assert_eq!(findings.concat(), Vec::<String>::new());
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strange_way_back_to_the_source_leads_in_circles_only_until_the_next_look(
    #[values("43", "40")] version: &str,
    #[values("orders.dlx", "orders.dlx.ladder", "orders.dlx.first")] exchange: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "circle", LADDER).await;
    let consumer = Consumer::start(&lab, "orders", 10, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let binding = stranger(exchange, "orders");
    lab.management.bind(&lab.vhost, &binding).await.expect("bound");
    let all = ids(10);
    publisher.send_all("shop", "orders.created", &all).await;
    consumer.sees(100).await;
    let plan = lab.operator.lock().await.plan().await.expect("a look");
    assert_eq!(plan, [Step::Unbind(binding)]);
    lab.converge().await;
    // What went round ends now, as often as it was copied; nothing that failed is lost.
    calm(&lab, &consumer).await;
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_at_least_once();

    let before = consumer.count();
    let more: Vec<String> = (100..110).map(id).collect();
    publisher.send_all("shop", "orders.created", &more).await;
    lab.holds("orders.dlq", more.len(), PATIENCE).await;
    let mut audit = Audit::of(&more);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
    assert_eq!(consumer.count() - before, more.len() * (TIERS + 1), "only the new ones were delivered");
}
