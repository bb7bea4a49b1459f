//! Parts of the topology go missing while messages travel: consumers die, and
//! each exchange, queue and binding is deleted in turn.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use redrive::topology::desired::{self, Slots};
use redrive::topology::generations::Generations;
use redrive::topology::model::Binding;
use redrive::topology::names::OWNER_EXCHANGE;
use rstest::rstest;

use crate::lab::{
    Act, Audit, Broker, Consumer, Control, DEAD_LETTER_PATIENCE, Lab, Lateness, PATIENCE, Publisher, Seen,
    eventually, full, ids,
};

const DELAY: Duration = Duration::from_millis(300);

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

/// The broker counts what a quorum queue holds every five seconds.
const COUNTS_ARE_CURRENT: Duration = Duration::from_secs(11);

/// The tiers of `LADDER`.
const TIERS: usize = 2;

/// What is deleted.
#[derive(Clone, Debug)]
enum Part {
    Exchange(String),
    Queue(String),
    Binding(Binding),
}

impl Part {
    async fn delete(&self, lab: &Lab) {
        let vhost = &lab.vhost;
        match self {
            Self::Exchange(name) => lab.management.delete_exchange(vhost, name, false).await.map(|_| ()),
            Self::Queue(name) => lab.management.delete_queue(vhost, name).await.map(|_| ()),
            Self::Binding(binding) => lab.management.unbind(vhost, binding).await.map(|_| ()),
        }
        .unwrap_or_else(|error| panic!("{self} is not deleted: {error}"));
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exchange(name) => write!(f, "exchange {name}"),
            Self::Queue(name) => write!(f, "queue {name}"),
            Self::Binding(binding) => write!(f, "binding {binding}"),
        }
    }
}

/// Everything between the source's rejection and its return.
async fn parts(lab: &Lab) -> Vec<Part> {
    let operator = lab.operator.lock().await;
    let wanted = desired::build(&operator.pipeline, &operator.facts, &Generations::default());
    let slots = wanted.slots.expect("a chain");
    let exchanges = wanted.exchanges.iter().filter(|exchange| exchange.closed);
    let queues = wanted.queues.iter().filter(|queue| queue.queue.name != "orders");
    let bindings = wanted.bindings.iter().filter(|binding| !binding.user);
    exchanges
        .map(|exchange| Part::Exchange(exchange.exchange.name.clone()))
        .chain([Part::Exchange(OWNER_EXCHANGE.to_owned())])
        .chain(queues.map(|queue| Part::Queue(queue.queue.name.clone())))
        .chain(bindings.map(|binding| Part::Binding(binding.binding.clone())))
        .chain([Part::Binding(Slots::binding(&slots.head, &slots.entry))])
        .collect()
}

/// Every sixth message is one that its consumer can't read.
fn properties(id: &str, number: usize) -> BasicProperties {
    let mut headers = FieldTable::default();
    if number % 6 == 5 {
        headers.insert("x-opt-category".into(), AMQPValue::LongString("schema".into()));
    }
    Publisher::properties(id).with_headers(headers)
}

/// What became of the messages after one deletion.
struct Outcome {
    audit: Audit,
    deliveries: std::collections::BTreeMap<String, Vec<Seen>>,
    /// Before the deletion was asked for, and after it was confirmed.
    deletion: (Instant, Instant),
    /// How many wait to be dead-lettered.
    held: usize,
    control: Lateness,
}

/// Publishes steadily, deletes one part in the middle, and waits until all that
/// still exists has come to its end.
async fn travel(lab: &Lab, part: &Part, count: usize) -> Outcome {
    let control = Control::start(lab).await;
    let repair = lab.repair(Duration::from_millis(200), usize::MAX);
    let consumer = Consumer::start(lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(count);
    let mut deletion = (Instant::now(), Instant::now());
    for (number, id) in all.iter().enumerate() {
        if number == count / 2 {
            deletion.0 = Instant::now();
            part.delete(lab).await;
            deletion.1 = Instant::now();
        }
        let taken = publisher.send("shop", "orders.created", id, properties(id, number)).await;
        assert!(taken.expect("a confirmation"), "the source takes {id}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    lab.converge().await;
    lab.rest(repair).await;
    let patience = if full("waiting up to 400 s for what a lost part held back") {
        DEAD_LETTER_PATIENCE
    } else {
        PATIENCE
    };
    let (ended, held) = come_to_rest(lab, count, patience).await;
    let took = deletion.1.elapsed();
    let mut audit = Audit::of(&all);
    for queue in ENDS {
        audit.found(queue, &lab.drain(queue).await);
    }
    println!("{part}: {:.1} s, {ended} ended, {held} held back", took.as_secs_f32());
    assert_eq!(lab.troubles(), Vec::<String>::new(), "after the loss of {part}");
    Outcome { audit, deliveries: consumer.by_id(), deletion, held, control: control.read() }
}

/// Waits until all messages have ended, or until nothing moves any more: those
/// that still exist then wait to be dead-lettered, for up to three minutes.
async fn come_to_rest(lab: &Lab, count: usize, patience: Duration) -> (usize, usize) {
    let mut since = Instant::now();
    let mut last = (0, 0);
    let held_may_move = patience == DEAD_LETTER_PATIENCE;
    eventually(patience, &format!("{count} messages come to rest"), async || {
        let mut ended = 0;
        for queue in ENDS {
            ended += lab.ready(queue).await;
        }
        let mut counts = lab.counts().await;
        counts.retain(|queue, _| !ENDS.contains(&queue.as_str()));
        let held = usize::try_from(counts.values().sum::<i64>()).expect("known counts");
        if (ended, held) != last {
            (since, last) = (Instant::now(), (ended, held));
        }
        let at_rest = since.elapsed() > COUNTS_ARE_CURRENT && !(held > 0 && held_may_move);
        match ended {
            _ if ended == count => Ok((ended, 0)),
            _ if at_rest => Ok(last),
            _ => Err(format!("{ended} ended, {counts:?}")),
        }
    })
    .await
}

/// Whether a lost message can only have been inside the queue that was deleted.
fn was_inside(queue: &str, walk: &[Seen], outcome: &Outcome) -> bool {
    let Some(last) = walk.last() else { return false };
    let (asked, confirmed) = outcome.deletion;
    let slack = Duration::from_millis(200) + outcome.control.between(last.at, confirmed.max(last.at) + DELAY);
    let came_before = last.at <= confirmed + slack;
    let still_there = last.at + DELAY + slack >= asked;
    match queue {
        "orders.dlq" => came_before && walk.len() == TIERS + 1,
        "orders.dlq.quarantine.schema" => came_before && walk.len() == 1,
        "orders.retry.0" => came_before && still_there && walk.len() == 1,
        "orders.retry.1" => came_before && still_there && walk.len() == 2,
        _ => false,
    }
}

async fn lose(version: &str, part: Part) -> String {
    let lab = Lab::new(Broker::of_version(version), "breakage", LADDER).await;
    let outcome = travel(&lab, &part, 60).await;
    let mut findings = Vec::new();
    if outcome.deliveries.len() != 60 {
        findings.push(format!("{} of 60 were delivered", outcome.deliveries.len()));
    }
    for (id, walk) in &outcome.deliveries {
        if walk.len() > TIERS + 1 {
            findings.push(format!("{id} loops: {} deliveries", walk.len()));
        }
    }
    let doubled = outcome.audit.doubled();
    if !doubled.is_empty() {
        findings.push(format!("doubled: {doubled:?}"));
    }
    let lost = outcome.audit.lost();
    let is_inside = |id: &&str| {
        let walk = outcome.deliveries.get(*id).map(Vec::as_slice).unwrap_or_default();
        matches!(&part, Part::Queue(queue) if was_inside(queue, walk, &outcome))
    };
    let (inside, elsewhere): (Vec<&str>, Vec<&str>) = lost.into_iter().partition(is_inside);
    // A dead letter held back from a queue that was deleted looks as if it had been inside.
    let explained = if inside.is_empty() {
        elsewhere.len() == outcome.held
    } else {
        elsewhere.len() <= outcome.held && outcome.held <= elsewhere.len() + inside.len()
    };
    if !explained {
        findings.push(format!("{} are held back, but these are missing: {elsewhere:?}", outcome.held));
    }
    if !inside.is_empty() {
        let gone = (inside.len() + elsewhere.len()).saturating_sub(outcome.held);
        println!("{version}: {part}: {gone} went with it");
    }
    if findings.is_empty() { String::new() } else { format!("{version}: {part}: {}", findings.join("; ")) }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_part_may_be_lost_and_no_message_is_lost_doubled_or_loops_when_it_is_repaired(
    #[values("43", "40")] version: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "parts", LADDER).await;
    let parts = parts(&lab).await;
    drop(lab);
    assert!(parts.len() > 25, "{} parts", parts.len());
    let lost = futures::stream::iter(parts).map(|part| lose(version, part)).buffer_unordered(7);
    let findings: Vec<String> =
        lost.filter(|found| futures::future::ready(!found.is_empty())).collect().await;
    assert_eq!(findings, Vec::<String>::new());
}

/// How many deliveries each of twenty messages gets when nobody repairs.
async fn walks_without_repair(lab: &Lab, part: &Part) -> BTreeSet<usize> {
    part.delete(lab).await;
    let consumer = Consumer::start(lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(20);
    publisher.send_all("shop", "orders.created", &all).await;
    lab.holds("orders.dlq", 20, PATIENCE).await;
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
    consumer.by_id().values().map(Vec::len).collect()
}

fn ladder_binding(parts: Vec<Part>, tier: usize) -> Part {
    let exchange = format!("orders.return.{tier}").as_str().into();
    let is_it = |part: &Part| match part {
        Part::Binding(binding) => {
            binding.source == "orders.dlx.ladder"
                && binding.arguments.get("x-last-death-exchange") == Some(&exchange)
        }
        _ => false,
    };
    parts.into_iter().find(is_it).expect("a rule of the ladder")
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_rule_of_the_ladder_ends_in_the_dlq_when_nobody_repairs_it(
    #[values("43", "40")] version: &str,
    #[values(0, 1)] tier: usize,
) {
    let lab = Lab::new(Broker::of_version(version), "rule", LADDER).await;
    let rule = ladder_binding(parts(&lab).await, tier);
    assert_eq!(walks_without_repair(&lab, &rule).await, BTreeSet::from([tier + 1 + 1]));
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_retry_queue_ends_in_the_dlq_when_nobody_repairs_it(
    #[values("43", "40")] version: &str,
    #[values(0, 1)] tier: usize,
) {
    let lab = Lab::new(Broker::of_version(version), "tier", LADDER).await;
    let queue = Part::Queue(format!("orders.retry.{tier}"));
    assert_eq!(walks_without_repair(&lab, &queue).await, BTreeSet::from([tier + 1]));
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_dlq_keeps_dead_letters_in_the_source_until_it_is_back(#[values("43", "40")] version: &str) {
    let lab = Lab::new(Broker::of_version(version), "dlq", LADDER).await;
    Part::Queue("orders.dlq".into()).delete(&lab).await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(20);
    publisher.send_all("shop", "orders.created", &all).await;
    consumer.sees(60).await;
    lab.keeps("orders", 20).await;
    let observed = lab.management.snapshot(&lab.vhost).await.expect("a snapshot");
    let totals = observed.queues["orders"].totals;
    assert_eq!((totals.ready, totals.unacknowledged), (Some(0), Some(0)), "they wait as dead letters");
    lab.converge().await;
    if full("waiting up to 400 s for dead letters whose queue is back") {
        let repaired = Instant::now();
        lab.holds("orders.dlq", 20, DEAD_LETTER_PATIENCE).await;
        println!("{version}: in the DLQ {:.0} s after the repair", repaired.elapsed().as_secs_f32());
        let mut audit = Audit::of(&all);
        audit.found("orders.dlq", &lab.drain("orders.dlq").await);
        audit.assert_exactly_once();
    }
    assert_eq!(consumer.count(), 60, "none was delivered again");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_killed_between_tiers_changes_no_message_s_way(
    #[values("43", "40")] version: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "killed", LADDER).await;
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(40);
    publisher.send_all("shop", "orders.created", &all).await;
    for stay in 0..=TIERS {
        let expected = if stay == 0 { "shop".to_owned() } else { format!("orders.return.{}", stay - 1) };
        // It fails what it gets in this stay, and dies with what comes back in its hands.
        let script = move |seen: &Seen| if seen.exchange == expected { Act::Reject } else { Act::Hold };
        let consumer = Consumer::start(&lab, "orders", 10, script);
        let failed = || consumer.seen().iter().filter(|seen| seen.act == Act::Reject).count();
        eventually(PATIENCE, &format!("all fail in stay {stay}"), async || {
            if failed() == 40 { Ok(()) } else { Err(format!("{} did", failed())) }
        })
        .await;
        if stay < TIERS {
            consumer.sees(50).await;
        }
    }
    lab.holds("orders.dlq", 40, PATIENCE).await;
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
}
