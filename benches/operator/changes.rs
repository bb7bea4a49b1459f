//! What others change by hand: how soon it is repaired, and what a storm of it costs.
//!
//! Here the operator polls once an hour, so that whatever is repaired, the broker has told of.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use lapin::options::QueueBindOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use redrive::api::DetectionMode;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::Result;
use crate::broker::{Broker, encoded};
use crate::cluster::Cluster;
use crate::figures::{Bench, rest, settle};
use crate::process::Operator;
use crate::proxy;
use crate::shapes::Shape;
use crate::table::Figure;

/// How much is done; a small run only shows that it works.
struct Size {
    pipelines: usize,
    vhosts: usize,
    changes: usize,
    storm: usize,
}

impl Size {
    fn wanted() -> Self {
        match std::env::var("REDRIVE_BENCH_SMALL").is_ok_and(|value| value == "1") {
            true => Self { pipelines: 40, vhosts: 4, changes: 24, storm: 2_000 },
            false => Self { pipelines: 1_000, vhosts: 20, changes: 200, storm: 10_000 },
        }
    }
}

/// How many people change things at the same time.
const PEOPLE: usize = 4;

/// How long they wait between two changes, at the most, in milliseconds.
const THINKING: usize = 1_000;

/// A repair that takes longer never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A change by hand: what is deleted, or written, and where to see that it was put right.
struct Change {
    pipeline: String,
    what: &'static str,
    path: String,
    /// Nothing: it is deleted.
    written: Option<Value>,
    seen_at: String,
}

impl Bench {
    /// A thousand pipelines over twenty vhosts, of which the broker tells.
    pub(crate) async fn told(&mut self, wants: &impl Fn(&str) -> bool) -> Result<()> {
        let size = Size::wanted();
        let vhosts: Vec<String> = (0..size.vhosts).map(|number| format!("redrive-told-{number}")).collect();
        let cluster = self.fresh("told", &vhosts).await?;
        let secret = format!("{}/rabbit", cluster.namespace);
        let operator =
            Operator::start_with(&cluster.namespace, &["--poll-interval", "1h", "--events-secret", &secret])?;
        settle().await;
        self.apply(&cluster, &operator, (Shape::BrokerPolicies, size.pipelines), &vhosts, "Retain").await?;
        rest().await;
        check_told(&cluster).await?;
        let told = Told::follow(&cluster);
        if wants("events") {
            self.events(&operator, &told, &vhosts, &size).await?;
        }
        if wants("storm") {
            self.storm(&operator, &told, &vhosts[0], &size).await?;
        }
        self.clean(operator, cluster, &vhosts).await
    }

    /// Changes at random, each timed until it is repaired.
    async fn events(
        &mut self,
        operator: &Operator,
        told: &Told,
        vhosts: &[String],
        size: &Size,
    ) -> Result<()> {
        self.broker.proxy.take();
        let began = Instant::now();
        let broker = &self.broker;
        let mut times = futures::stream::iter(0..size.changes)
            .map(async |number| {
                tokio::time::sleep(Duration::from_millis(below(THINKING) as u64)).await;
                // Each meets a pipeline of its own, so that each is a finding of its own.
                let pipeline = number * size.pipelines / size.changes;
                let change = change(broker, pipeline, &vhosts[pipeline % vhosts.len()]).await?;
                repaired(broker, told, &change).await
            })
            .buffer_unordered(PEOPLE)
            .try_collect::<Vec<Duration>>()
            .await?;
        times.sort();
        let at = |percent: usize| times[(times.len() * percent).div_ceil(100) - 1];
        let counts = self.broker.proxy.take();
        eprintln!("  events: {} changes in {:.1?}: {counts:?}", times.len(), began.elapsed());
        let what = format!("{} pipelines, {} vhosts: a change by hand", size.pipelines, size.vhosts);
        self.add(Figure::time(format!("{what}, repaired, median"), at(50), None));
        self.add(Figure::time("… 95th percentile", at(95), Some(2.0)));
        self.add(Figure::time("… slowest", at(100), None));
        let looks = proxy::rounds(&counts);
        self.add(Figure::count("… looks at a vhost", looks, "≤ 3 a change", looks <= 3 * times.len() as u64));
        self.add(Figure::quantity("… resident then", operator.resident()? / 1024.0, "MiB", Some(64.0)));
        Ok(())
    }

    /// Changes in one vhost, as fast as the broker takes them; half of them concern its pipelines.
    async fn storm(&mut self, operator: &Operator, told: &Told, vhost: &str, size: &Size) -> Result<()> {
        rest().await;
        let before = operator.resident()? / 1024.0;
        self.broker.proxy.take();
        let began = Instant::now();
        let (took, highest) = {
            let storm = storm(&self.broker, vhost, size);
            let mut storm = std::pin::pin!(storm);
            let mut highest = before;
            loop {
                tokio::select! {
                    done = &mut storm => { done?; break (began.elapsed(), highest); }
                    () = tokio::time::sleep(Duration::from_millis(100)) => {
                        highest = f64::max(highest, operator.resident()? / 1024.0);
                    }
                }
            }
        };
        let last = change(&self.broker, 0, vhost).await?;
        let repaired = repaired(&self.broker, told, &last).await?;
        let looks = proxy::rounds(&self.broker.proxy.take());
        let most = began.elapsed().as_secs() + 3;
        rest().await;
        self.add(Figure::time(format!("storm of {} changes in one vhost", size.storm), took, None));
        self.add(Figure::count("… looks", looks, &format!("≤ {most}, one a second"), looks <= most));
        self.add(Figure::time("… a change right after it, repaired", repaired, Some(5.0)));
        self.add(Figure::quantity("… resident before", before, "MiB", Some(64.0)));
        self.add(Figure::quantity("… highest meanwhile", highest, "MiB", Some(96.0)));
        self.add(Figure::quantity("… resident after", operator.resident()? / 1024.0, "MiB", Some(64.0)));
        Ok(())
    }
}

/// Whoever is not told of changes would measure nothing.
async fn check_told(cluster: &Cluster) -> Result<()> {
    let pipelines = cluster.pipelines.list(&ListParams::default()).await?;
    let is_told = |mode: DetectionMode| mode == DetectionMode::Events;
    let untold = pipelines.items.iter().filter(|pipeline| {
        let detection = pipeline.status.as_ref().and_then(|status| status.drift_detection.as_ref());
        !detection.is_some_and(|detection| is_told(detection.mode))
    });
    match untold.count() {
        0 => Ok(()),
        count => Err(format!("{count} pipelines are not told of changes").into()),
    }
}

/// Something to change in a pipeline, chosen by chance.
async fn change(broker: &Broker, number: usize, vhost: &str) -> Result<Change> {
    let pipeline = format!("work-{number:04}");
    let (place, queue) = (encoded(vhost), format!("{pipeline}.queue"));
    let object = |kind: &str, name: &str| format!("{kind}/{place}/{}", encoded(name));
    let binding = |source: &str| format!("bindings/{place}/e/{}/q/{}", encoded(source), encoded(&queue));
    let kind = below(5);
    if kind < 2 {
        let name = match kind {
            0 => format!("{queue}.dlq"),
            _ => format!("{queue}.retry.{}", below(4)),
        };
        let path = object("queues", &name);
        // With its bindings it is whole again.
        let seen_at = format!("{path}/bindings");
        return Ok(Change { pipeline, what: "a queue is deleted", path, written: None, seen_at });
    }
    if kind == 2 {
        let seen_at = binding(&format!("{queue}.return.{}", below(4)));
        let found = broker.get(&seen_at).await?;
        let key = found[0]["properties_key"].as_str().ok_or("a binding has no key")?.to_owned();
        let path = format!("{seen_at}/{}", encoded(&key));
        return Ok(Change { pipeline, what: "a binding is removed", path, written: None, seen_at });
    }
    let policies = broker.get(&format!("policies/{place}")).await?;
    let role = format!(":{pipeline}:dlq");
    let mut policies = policies.as_array().into_iter().flatten();
    let name = policies.find_map(|policy| policy["name"].as_str().filter(|name| name.ends_with(&role)));
    let path = object("policies", name.ok_or("a pipeline has no policy")?);
    let seen_at = path.clone();
    if kind == 3 {
        return Ok(Change { pipeline, what: "a policy is removed", path, written: None, seen_at });
    }
    let mut edited = broker.get(&path).await?;
    edited["definition"]["message-ttl"] = json!(86_400_000);
    Ok(Change { pipeline, what: "a policy is edited", path, written: Some(edited), seen_at })
}

/// How many findings each pipeline has told of so far. Whoever asks the broker all the time whether
/// something is repaired keeps it from that: one question after bindings scans them all.
struct Told {
    counts: watch::Receiver<BTreeMap<String, i64>>,
    watching: AbortHandle,
}

impl Drop for Told {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Told {
    fn follow(cluster: &Cluster) -> Self {
        let changes = watcher(cluster.pipelines.clone(), watcher::Config::default()).applied_objects();
        let (sender, counts) = watch::channel(BTreeMap::new());
        let watching = tokio::spawn(changes.for_each(move |object| {
            if let Ok(object) = object {
                let drift = object.status.as_ref().and_then(|status| status.drift.as_ref());
                let count = drift.map_or(0, |drift| drift.count);
                sender.send_modify(|counts| *counts.entry(object.name_any()).or_default() = count);
            }
            std::future::ready(())
        }));
        Self { counts, watching: watching.abort_handle() }
    }

    fn count(&self, pipeline: &str) -> i64 {
        self.counts.borrow().get(pipeline).copied().unwrap_or_default()
    }

    /// Waits until a pipeline has told of more.
    async fn more(&self, pipeline: &str, than: i64) -> Result<()> {
        let mut counts = self.counts.clone();
        let more = counts.wait_for(|counts| counts.get(pipeline).is_some_and(|count| *count > than));
        let told = tokio::time::timeout(PATIENCE, more).await;
        told.map_err(|_| format!("a change of {pipeline} is never repaired"))??;
        Ok(())
    }
}

/// Makes a change, and says how long it takes until that was found, put right and told.
async fn repaired(broker: &Broker, told: &Told, change: &Change) -> Result<Duration> {
    let before = sorted(broker.get(&change.seen_at).await?);
    let count = told.count(&change.pipeline);
    match &change.written {
        Some(body) => broker.put(&change.path, body.clone()).await?,
        None => broker.delete(&change.path).await?,
    }
    let began = Instant::now();
    told.more(&change.pipeline, count).await?;
    let took = began.elapsed();
    eprintln!("    {took:.2?}: {}", change.what);
    let after = sorted(broker.get(&change.seen_at).await?);
    match after == before {
        true => Ok(took),
        false => Err(format!("{} and not repaired: {after}, before {before}", change.what).into()),
    }
}

/// Lists have no order.
fn sorted(mut answer: Value) -> Value {
    if let Value::Array(rows) = &mut answer {
        rows.sort_by_key(ToString::to_string);
    }
    answer
}

/// Binds what is bound already, which the broker tells each time: half of it to pipelines' queues.
async fn storm(broker: &Broker, vhost: &str, size: &Size) -> Result<()> {
    let connection = Connection::connect(&broker.amqp_uri(vhost), ConnectionProperties::default()).await?;
    let others = "somebody.elses";
    broker.put(&format!("queues/{}/{others}", encoded(vhost)), json!({"durable": true})).await?;
    let channels: Vec<Channel> =
        futures::future::try_join_all((0..PEOPLE).map(|_| connection.create_channel())).await?;
    let each = size.storm / PEOPLE;
    let storms = channels.iter().enumerate().map(async |(person, channel)| {
        for number in 0..each {
            // The pipelines of the first vhost have every twentieth number.
            let pipeline = (person * each + number) % (size.pipelines / size.vhosts) * size.vhosts;
            let ours = format!("work-{pipeline:04}");
            let (exchange, queue) = match number % 2 {
                0 => (format!("{ours}.exchange"), format!("{ours}.queue")),
                _ => ("amq.topic".to_owned(), others.to_owned()),
            };
            let options = QueueBindOptions::default();
            let (queue, exchange) = (queue.as_str().into(), exchange.as_str().into());
            channel.queue_bind(queue, exchange, "work.#".into(), options, FieldTable::default()).await?;
        }
        Ok::<(), lapin::Error>(())
    });
    futures::future::try_join_all(storms).await?;
    connection.close(200, "done".into()).await?;
    Ok(())
}

/// A number below this one that nobody foresees.
fn below(end: usize) -> usize {
    // Each RandomState has keys of its own, which is all the chance that this needs.
    usize::try_from(RandomState::new().hash_one(0) % end as u64).unwrap_or_default()
}
