//! The pipeline is edited while messages travel, and the operator dies after every step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rstest::rstest;
use tokio::task::JoinHandle;

use crate::lab::{
    Act, Audit, Background, Broker, Consumer, Lab, PATIENCE, Publisher, Seen, eventually, full, id, ids,
};

/// How long an old generation may take to drain, to be proven empty and to go.
pub(crate) const CALM: Duration = Duration::from_secs(300);

pub(crate) fn spec(retry: &str) -> String {
    format!(
        "
source:
  queue: {{name: orders}}
  exchange: {{name: shop, type: topic}}
  bindings: [{{exchange: shop, routingKey: orders.*}}]
retry: {{{retry}}}
"
    )
}

fn with_poison(retry: &str) -> String {
    spec(retry) + "deadLetter: {quarantine: [{category: poison, reasons: [delivery_limit]}]}\n"
}

/// The same with classic queues, but for the DLQ.
fn classic(spec: &str) -> String {
    spec.replace("name: orders}", "name: orders, type: classic}")
        .replace("retry: {", "retry: {queueType: classic, ")
}

/// The n-th number of a fixed random sequence (SplitMix64).
fn random(n: usize) -> usize {
    let mut mixed = (n as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    usize::try_from((mixed ^ (mixed >> 31)) >> 1).expect("63 bits")
}

/// About 30 of 100 deliveries fail, each message by its own pattern.
pub(crate) fn fails(seen: &Seen) -> bool {
    let number: usize = seen.id.trim_start_matches("m-").parse().expect("a number");
    random(number * 64 + seen.before) % 10 < 3
}

/// A producer of 200 messages a second, or of 500 in the full series, and a consumer that fails 30
/// percent.
pub(crate) struct Load {
    pub(crate) consumer: Consumer,
    stop: Arc<AtomicBool>,
    published: Arc<AtomicUsize>,
    producer: JoinHandle<()>,
}

impl Load {
    pub(crate) async fn start(lab: &Lab) -> Self {
        let batch = if full("500 messages a second instead of 200") { 25 } else { 10 };
        Self::of(lab, batch, |seen| if fails(seen) { Act::Reject } else { Act::Ack }).await
    }

    /// With so many messages each 50 ms, and this consumer.
    pub(crate) async fn of(
        lab: &Lab,
        batch: usize,
        script: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let consumer = Consumer::start(lab, "orders", 100, script);
        let stop = Arc::new(AtomicBool::new(false));
        let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
        let published = Arc::default();
        let producer = tokio::spawn(produce(publisher, batch, Arc::clone(&stop), Arc::clone(&published)));
        Self { consumer, stop, published, producer }
    }

    /// Stops producing, waits until every message has ended and nothing drains any
    /// more, and accounts for every message. Returns in which queues messages waited, and
    /// the shortest time of each.
    pub(crate) async fn finish(
        mut self,
        lab: &Lab,
        repair: Background,
        most_deliveries: usize,
        what: &str,
    ) -> BTreeMap<String, Duration> {
        let all = self.ended(lab, &["orders.dlq"]).await;
        lab.settled(CALM).await;
        lab.rest(repair).await;
        let dead = self.audit(lab, &all, &["orders.dlq"]).await;
        let walks = self.consumer.by_id();
        assert_eq!(walks.len(), all.len(), "every message was delivered");
        let longest = walks.values().max_by_key(|walk| walk.len()).expect("there were messages");
        println!("{what}: {} messages, {dead} dead, {} deliveries at most", all.len(), longest.len());
        let way: Vec<_> =
            longest.iter().map(|seen| (seen.before, seen.header("x-last-death-queue"))).collect();
        assert!(longest.len() <= most_deliveries, "no message loops: {way:?}");
        let retried = walks.values().filter(|walk| walk.len() > 1).count();
        assert!(retried * 10 > all.len(), "{retried} of {} were retried", all.len());
        shortest_waits(walks.values())
    }

    /// Stops producing and waits until as many messages have ended, for so long that
    /// what has not is lost. Returns all that were published.
    pub(crate) async fn ended(&mut self, lab: &Lab, graves: &[&str]) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let stopped = tokio::time::timeout(PATIENCE, &mut self.producer).await;
        stopped.expect("the producer stops").expect("the broker took all messages");
        let all = ids(self.published.load(Ordering::Relaxed));
        assert!(all.len() >= 200, "{} messages are no load", all.len());
        let start = Instant::now();
        loop {
            let mut ended = self.consumer.acknowledged().len();
            for queue in graves {
                ended += lab.ready(queue).await;
            }
            if ended >= all.len() || start.elapsed() > PATIENCE {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Accounts for every message; returns how many are dead.
    pub(crate) async fn audit(&self, lab: &Lab, all: &[String], graves: &[&str]) -> usize {
        assert_eq!(lab.troubles(), Vec::<String>::new());
        let mut audit = Audit::of(all);
        audit.ended("acknowledged", self.consumer.acknowledged());
        let counts = lab.counts().await;
        let mut dead = 0;
        for queue in graves.iter().filter(|queue| counts.contains_key(**queue)) {
            let found = lab.drain(queue).await;
            dead += found.len();
            audit.found(queue, &found);
        }
        audit.assert_exactly_once();
        dead
    }
}

fn shortest_waits<'a>(walks: impl Iterator<Item = &'a Vec<Seen>>) -> BTreeMap<String, Duration> {
    let mut shortest = BTreeMap::new();
    for pair in walks.flat_map(|walk| walk.windows(2)) {
        let queue = pair[1].header("x-last-death-queue").expect("it waited somewhere");
        let waited = pair[1].at - pair[0].at;
        let known = shortest.entry(queue).or_insert(waited);
        *known = waited.min(*known);
    }
    shortest
}

async fn produce(publisher: Publisher, size: usize, stop: Arc<AtomicBool>, published: Arc<AtomicUsize>) {
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    while !stop.load(Ordering::Relaxed) {
        tick.tick().await;
        let count = published.load(Ordering::Relaxed);
        let batch: Vec<String> = (count..count + size).map(id).collect();
        publisher.send_all("shop", "orders.created", &batch).await;
        published.store(count + size, Ordering::Relaxed);
    }
}

/// Wants something else, and waits until it is so but for what must go or drain.
pub(crate) async fn edit(lab: &Lab, spec: &str) {
    lab.want(spec).await;
    eventually(CALM, "the edit is applied", async || {
        let round = lab.operator.lock().await.round(0).await.map_err(|error| error.to_string())?;
        if round.left.is_empty() && round.blocked.is_empty() { Ok(()) } else { Err(format!("{round:?}")) }
    })
    .await;
}

/// How many queues and exchanges there are that the broker did not make itself.
pub(crate) async fn objects(lab: &Lab) -> (usize, usize) {
    let observed = lab.management.snapshot(&lab.vhost).await.expect("a snapshot");
    let own = |name: &&String| !name.is_empty() && !name.starts_with("amq.");
    (observed.queues.len(), observed.exchanges.keys().filter(own).count())
}

#[rstest]
#[case::by_a_steady_operator(usize::MAX, 200)]
#[case::by_an_operator_that_dies_after_every_step(1, 20)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_under_load_lose_and_double_nothing(
    #[values("43", "40")] version: &str,
    #[values("quorum", "classic")] kind: &str,
    #[case] steps: usize,
    #[case] pause: u64,
) {
    let variant = |spec: String| if kind == "classic" { classic(&spec) } else { spec };
    let first = variant(spec("delays: [300ms, 400ms, 500ms]"));
    let lab = Lab::new(Broker::of_version(version), "edits", &first).await;
    let before = objects(&lab).await;
    let load = Load::start(&lab).await;
    let repair = lab.repair(Duration::from_millis(pause), steps);
    for wanted in [
        spec("delays: [300ms, 700ms, 500ms]"),
        spec("delays: [300ms, 700ms, 500ms, 200ms]"),
        spec("delays: [300ms, 700ms]"),
        with_poison("delays: [300ms, 700ms]"),
        with_poison("delays: [200ms]"),
        spec("delays: [300ms, 400ms, 500ms]"),
    ] {
        edit(&lab, &variant(wanted)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let waited = load.finish(&lab, repair, 5, &format!("{version} {kind}, {steps} steps a look")).await;
    // A delay before and after its edit, an added tier, and the first one after its edit.
    for (queue, delay) in [
        ("orders.retry.1", 400),
        ("orders.retry.1.g2", 700),
        ("orders.retry.3", 200),
        ("orders.retry.0.g2", 200),
    ] {
        let shortest = waited.get(queue).copied();
        let right = Duration::from_millis(delay * 9 / 10)..Duration::from_millis(delay * 11 / 10 + 500);
        assert!(shortest.is_some_and(|shortest| right.contains(&shortest)), "{queue}: {waited:?}");
    }
    assert_eq!(objects(&lab).await, before, "the old generations are gone");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_mode_and_jitter_under_load_lose_and_double_nothing(#[values("43", "40")] version: &str) {
    let first = spec("delays: [300ms, 400ms]");
    let lab = Lab::new(Broker::of_version(version), "modes", &first).await;
    let before = objects(&lab).await;
    let load = Load::start(&lab).await;
    let repair = lab.repair(Duration::from_millis(20), 1);
    for wanted in [
        "mode: None",
        "delays: [300ms, 400ms]",
        "delays: [300ms, 400ms], jitter: {percent: 30, shards: 3}",
        "delays: [300ms, 400ms], jitter: {percent: 50, shards: 3}",
        "delays: [300ms, 400ms], jitter: {percent: 50, shards: 2}",
        "delays: [400ms, 300ms]",
        "delays: [300ms, 400ms]",
    ] {
        edit(&lab, &spec(wanted)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    load.finish(&lab, repair, 4, version).await;
    assert_eq!(objects(&lab).await, before, "the old generations are gone");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_edits_that_are_never_finished_loses_and_doubles_nothing(
    #[values("43", "40")] version: &str,
    #[values(2, 5)] seed: usize,
) {
    let wishes = [
        spec("delays: [200ms, 300ms]"),
        spec("delays: [300ms, 200ms]"),
        spec("delays: [200ms]"),
        spec("delays: [200ms, 300ms, 400ms]"),
        with_poison("delays: [200ms, 300ms]"),
        with_poison("delays: [250ms, 300ms], jitter: {percent: 40, shards: 2}"),
        spec("mode: None"),
        spec("delays: [200ms, 300ms], naming: {numberFrom: 1}"),
    ];
    let lab = Lab::new(Broker::of_version(version), "storm", &wishes[0]).await;
    let before = objects(&lab).await;
    let load = Load::start(&lab).await;
    let repair = lab.repair(Duration::from_millis(5), seed);
    for turn in 0..40 {
        lab.want(&wishes[random(seed * 1000 + turn) % wishes.len()]).await;
        let millis = random(seed * 1000 + turn + 500) % 1000;
        tokio::time::sleep(Duration::from_millis(u64::try_from(millis).expect("small"))).await;
    }
    edit(&lab, &wishes[0]).await;
    // Where tiers get other numbers, a message may take one of them twice.
    load.finish(&lab, repair, 9, &format!("{version}, storm {seed}")).await;
    assert_eq!(objects(&lab).await, before, "the old generations are gone");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_mode_that_the_source_can_not_follow_changes_no_way(
    #[values("43", "40")] version: &str,
    #[values("quorum", "classic")] kind: &str,
) {
    let variant = |spec: String| if kind == "classic" { classic(&spec) } else { spec };
    let first = variant(spec("delays: [300ms, 400ms]"));
    let lab = Lab::new(Broker::of_version(version), "blocked", &first).await;
    let before = objects(&lab).await;
    let load = Load::start(&lab).await;
    lab.want(&variant(spec("mode: Application, delays: [300ms, 400ms]"))).await;
    for _ in 0..50 {
        let round = lab.operator.lock().await.round(usize::MAX).await.expect("a look");
        assert!(round.blocked.iter().any(|blocked| blocked.starts_with("spec.retry.mode:")), "{round:?}");
        assert!(round.steps.is_empty(), "{round:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(objects(&lab).await, before, "all that the messages need is still there");
    lab.want(&first).await;
    let repair = lab.repair(Duration::from_millis(20), 1);
    load.finish(&lab, repair, 3, &format!("{version} {kind}")).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_dlq_under_load_gets_each_message_once(
    #[values("43", "40")] version: &str,
    #[values("Broker", "None")] mode: &str,
    #[values(usize::MAX, 1)] steps: usize,
) {
    let retry = if mode == "None" { "mode: None" } else { "delays: [100ms]" };
    let named = |name: &str| spec(retry) + &format!("deadLetter: {{name: '{{queue}}.{name}'}}\n");
    let lab = Lab::new(Broker::of_version(version), "dead", &named("dlq")).await;
    let mut load = Load::start(&lab).await;
    let repair = lab.repair(Duration::from_millis(20), steps);
    for name in ["graves", "dlq", "tombs", "dlq"] {
        edit(&lab, &named(name)).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let graves = ["orders.graves", "orders.tombs", "orders.dlq"];
    let all = load.ended(&lab, &graves).await;
    lab.rest(repair).await;
    load.audit(&lab, &all, &graves).await;
}
