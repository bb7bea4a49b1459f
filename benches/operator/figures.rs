//! The figures, each with what it needs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Result;
use crate::broker::Broker;
use crate::cluster::{Audit, Calls, Cluster};
use crate::meter::{self, Meter};
use crate::process::Operator;
use crate::proxy::{self, Counts};
use crate::shapes::{self, Shape};
use crate::table::{Figure, Verdict};

/// The vhost of the figures that need one.
pub(crate) const VHOST: &str = "redrive-bench";

/// How many vhosts the figure `vhosts` spreads over.
const VHOSTS: usize = 20;

/// How often 100 pipelines are applied.
const APPLIED: usize = 3;

/// How long the idle operator is watched.
const IDLE: Duration = Duration::from_secs(60);

/// What all figures share.
pub(crate) struct Bench {
    pub(crate) broker: Broker,
    pub(crate) overview: Value,
    pub(crate) figures: Vec<Figure>,
    /// Resident memory in KiB with 100 pipelines.
    resident_100: Option<f64>,
    /// How long our 100 pipelines took.
    applied_100: Option<Duration>,
}

impl Bench {
    pub(crate) async fn start() -> Result<Self> {
        let broker = Broker::from_env().await?;
        let overview = broker.overview().await?;
        let version = overview["rabbitmq_version"].as_str().unwrap_or("?");
        let load = std::fs::read_to_string("/proc/loadavg")?;
        let cores = std::thread::available_parallelism()?;
        println!("RabbitMQ {version}, {cores} cores, load before {}", load.trim());
        Ok(Self { broker, overview, figures: Vec::new(), resident_100: None, applied_100: None })
    }

    /// Measures all figures that are wanted.
    pub(crate) async fn run(&mut self, wants: impl Fn(&str) -> bool) -> Result<()> {
        if wants("apply100") {
            self.apply_100().await?;
        }
        if wants("anchor") {
            self.anchor().await?;
        }
        if wants("apply1000") || wants("restart") || wants("idle") || wants("edit") {
            self.thousand(&wants).await?;
        }
        if wants("vhosts") {
            self.many_vhosts().await?;
        }
        if wants("events") || wants("storm") {
            self.told(&wants).await?;
        }
        if wants("delete") {
            for (shape, mode) in [(Shape::ShortApplication, "Application"), (Shape::ShortBroker, "Broker")] {
                self.delete(shape, mode, "Delete").await?;
                self.delete(shape, mode, "DeleteIfEmpty").await?;
            }
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, figure: Figure) {
        eprintln!("  {}: {} {} {}", figure.what, figure.ours, figure.reference, figure.limit);
        self.figures.push(figure);
    }

    /// The script's time for pipelines of this shape, in vhosts that it leaves empty.
    async fn script(&self, shape: Shape, count: usize, vhosts: &[String]) -> Result<(Duration, usize)> {
        let plans = shapes::plans(&shapes::pipelines(shape, count, vhosts, "Retain")?, &self.overview)?;
        for vhost in vhosts {
            self.broker.fresh_vhost(vhost).await?;
        }
        let meter = Meter::start(None);
        let result = self.broker.script(&plans).await;
        eprintln!("  script: {}", meter::text(&meter.used()));
        self.broker.clear(vhosts).await?;
        self.broker.proxy.take();
        result
    }

    pub(crate) async fn fresh(&self, figure: &str, vhosts: &[String]) -> Result<Cluster> {
        for vhost in vhosts {
            self.broker.fresh_vhost(vhost).await?;
        }
        let cluster = Cluster::fresh(figure, self.broker.secret()).await?;
        self.broker.proxy.take();
        Ok(cluster)
    }

    /// Applies pipelines and says how long it takes until all are Ready.
    pub(crate) async fn apply(
        &self,
        cluster: &Cluster,
        operator: &Operator,
        (shape, count): (Shape, usize),
        vhosts: &[String],
        deletion: &str,
    ) -> Result<Duration> {
        let objects = shapes::pipelines(shape, count, vhosts, deletion)?;
        let meter = Meter::start(Some(operator.pid()));
        let audit = Audit::now()?;
        let (took, created) = cluster.apply(&objects).await?;
        eprintln!("  ours: created after {:.2} s; {}", created.as_secs_f64(), meter::text(&meter.used()));
        eprintln!("  API server: {:?}", audit.since(&cluster.namespace)?);
        Ok(took)
    }

    pub(crate) async fn clean(&self, operator: Operator, cluster: Cluster, vhosts: &[String]) -> Result<()> {
        operator.stop().await?;
        cluster.drop().await?;
        self.broker.clear(vhosts).await?;
        Ok(())
    }

    /// Several times, since each takes only seconds: the round with the middle ratio counts.
    async fn apply_100(&mut self) -> Result<()> {
        let mut rounds = Vec::new();
        for round in 1..=APPLIED {
            rounds.push(self.apply_100_once(round).await?);
        }
        rounds.sort_by(|(a, b), (c, d)| a.div_duration_f64(*b).total_cmp(&c.div_duration_f64(*d)));
        let (took, script) = rounds[APPLIED / 2];
        self.applied_100 = Some(took);
        let what = format!("100 pipelines, mode Application, middle of {APPLIED}");
        self.add(Figure::against_script(what, took, script));
        Ok(())
    }

    /// How long it takes, and how long the script.
    async fn apply_100_once(&mut self, round: usize) -> Result<(Duration, Duration)> {
        let vhosts = [VHOST.to_owned()];
        let (script, requests) = self.script(Shape::Application, 100, &vhosts).await?;
        let cluster = self.fresh(&format!("apply100-{round}"), &vhosts).await?;
        let operator = Operator::start(&cluster.namespace)?;
        settle().await;
        let empty = operator.resident()?;
        let took = self.apply(&cluster, &operator, (Shape::Application, 100), &vhosts, "Retain").await?;
        let counts = self.broker.proxy.take();
        eprintln!("  round {round}: {took:.2?}, script {script:.2?}");
        if round == APPLIED {
            self.add_requests(requests, &counts);
            rest().await;
            let resident = operator.resident()?;
            self.resident_100 = Some(resident);
            self.add(Figure::quantity("resident without pipelines", empty / 1024.0, "MiB", None));
            self.add(Figure::quantity("resident at 100 pipelines", resident / 1024.0, "MiB", None));
        }
        self.clean(operator, cluster, &vhosts).await?;
        Ok((took, script))
    }

    /// The messaging-topology-operator with as many chains of the same queues.
    async fn anchor(&mut self) -> Result<()> {
        if self.applied_100.is_none() {
            self.apply_100().await?;
        }
        let vhosts = [VHOST.to_owned()];
        let cluster = self.fresh("anchor", &vhosts).await?;
        let measured = crate::anchor::measure(100, VHOST, &self.broker, &cluster).await;
        let anchor = match measured {
            Ok(anchor) => anchor,
            // Its module, or one that it needs, can't be had everywhere.
            Err(error) => {
                eprintln!("  anchor: {error}");
                let figure = Figure::time("100 chains of the topology operator", Duration::ZERO, None);
                self.add(Figure { ours: "not measured".to_owned(), limit: "≥ 10×".to_owned(), ..figure });
                cluster.drop().await?;
                return self.broker.clear(&vhosts).await;
            }
        };
        let ours = self.applied_100.unwrap_or_default();
        let faster = anchor.ready.as_secs_f64() / ours.as_secs_f64();
        let figure = Figure::time("100 chains, topology operator against ours", ours, None);
        self.add(Figure {
            reference: format!("anchor {:.2} s", anchor.ready.as_secs_f64()),
            ratio: Some(faster),
            limit: "≥ 10×".to_owned(),
            verdict: Verdict::below(10.0 / faster, 1.0),
            ..figure
        });
        self.add(Figure::time("… topology operator deletes 100 chains", anchor.deleted, None));
        self.add(Figure::quantity("… topology operator, resident", anchor.resident / 1024.0, "MiB", None));
        cluster.drop().await?;
        self.broker.clear(&vhosts).await
    }

    fn add_requests(&mut self, script: usize, counts: &Counts) {
        let (writes, reads) = (proxy::writes(counts), proxy::reads(counts));
        let script = u64::try_from(script).unwrap_or(u64::MAX);
        let ours = format!("{writes} writes, {reads} reads");
        let figure = Figure::count("… in requests to the broker", ours, "as the script", writes == script);
        self.add(Figure { reference: format!("script {script}"), ..figure });
    }

    /// A thousand pipelines in one vhost, and what is measured on them.
    async fn thousand(&mut self, wants: &impl Fn(&str) -> bool) -> Result<()> {
        let vhosts = [VHOST.to_owned()];
        let script = match wants("apply1000") {
            true => Some(self.script(Shape::BrokerArguments, 1_000, &vhosts).await?),
            false => None,
        };
        let cluster = self.fresh("thousand", &vhosts).await?;
        let mut operator = Operator::start(&cluster.namespace)?;
        settle().await;
        let took =
            self.apply(&cluster, &operator, (Shape::BrokerArguments, 1_000), &vhosts, "Retain").await?;
        let counts = self.broker.proxy.take();
        match script {
            Some((script, requests)) => {
                self.add(Figure::against_script("1,000 pipelines, mode Broker, arguments", took, script));
                self.add_requests(requests, &counts);
            }
            None => self.add(Figure::time("1,000 pipelines, mode Broker, arguments", took, None)),
        }
        rest().await;
        self.memory("after applying 1,000", &operator)?;
        if wants("restart") {
            operator.stop().await?;
            operator = self.restart(&cluster).await?;
        }
        if wants("idle") {
            self.idle(&cluster, &operator).await?;
        }
        if wants("edit") {
            self.edit(&cluster).await?;
        }
        self.clean(operator, cluster, &vhosts).await
    }

    fn memory(&mut self, when: &str, operator: &Operator) -> Result<()> {
        let (resident, peak) = (operator.resident()?, operator.peak()?);
        self.add(Figure::quantity(format!("resident {when}"), resident / 1024.0, "MiB", Some(64.0)));
        self.add(Figure::quantity(format!("peak {when}"), peak / 1024.0, "MiB", None));
        if let Some(before) = self.resident_100 {
            let slope = (resident - before) / 900.0;
            self.add(Figure::quantity(
                format!("slope from 100, {when}"),
                slope,
                "KiB a pipeline",
                Some(32.0),
            ));
        }
        Ok(())
    }

    /// Starts the operator over pipelines that are settled.
    async fn restart(&mut self, cluster: &Cluster) -> Result<Operator> {
        self.broker.proxy.take();
        let audit = Audit::now()?;
        let began = Instant::now();
        let operator = Operator::start(&cluster.namespace)?;
        // Done when nothing is asked and no processor time is used any more.
        let mut last = (Instant::now(), operator.cpu()?);
        let mut counts = Counts::new();
        while last.0.elapsed() < Duration::from_secs(4) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let more = self.broker.proxy.take();
            let cpu = operator.cpu()?;
            if !more.is_empty() || cpu - last.1 > 0.02 {
                last = (Instant::now(), cpu);
            }
            for (what, count) in more {
                *counts.entry(what).or_default() += count;
            }
        }
        let took = last.0.duration_since(began);
        let calls = audit.since(&cluster.namespace)?;
        eprintln!("  restart: broker {counts:?}, API server {calls:?}");
        self.add(Figure::time("restart with 1,000 settled pipelines", took, Some(10.0)));
        self.quiet("restart", &counts, &calls);
        rest().await;
        self.memory("after a restart with 1,000", &operator)?;
        Ok(operator)
    }

    /// Nothing may be written.
    fn quiet(&mut self, when: &str, counts: &Counts, calls: &Calls) {
        let writes = proxy::writes(counts);
        self.add(Figure::count(format!("{when}: broker writes"), writes, "0", writes == 0));
        let reads = proxy::reads(counts);
        self.add(Figure::count(format!("{when}: broker reads"), reads, "≤ 8 + 3", reads <= 11));
        let written = calls.iter().filter(|(what, _)| {
            !["get ", "list "].iter().any(|verb| what.starts_with(verb)) && !what.ends_with("leases")
        });
        let written: u64 = written.map(|(_, count)| count).sum();
        self.add(Figure::count(format!("{when}: status writes and events"), written, "0", written == 0));
    }

    async fn idle(&mut self, cluster: &Cluster, operator: &Operator) -> Result<()> {
        self.broker.proxy.take();
        let audit = Audit::now()?;
        let (began, cpu) = (Instant::now(), operator.cpu()?);
        tokio::time::sleep(IDLE).await;
        let share = (operator.cpu()? - cpu) / began.elapsed().as_secs_f64() * 100.0;
        let mut counts = self.broker.proxy.take();
        let calls = audit.since(&cluster.namespace)?;
        eprintln!("  idle: broker {counts:?}, API server {calls:?}");
        self.add(Figure::quantity("idle for 60 s with 1,000: processor", share, "% of a core", Some(2.0)));
        self.quiet("idle", &counts, &calls);
        // With its jitter a poll may come a little later.
        while proxy::rounds(&counts) == 0 && began.elapsed() < 2 * IDLE {
            tokio::time::sleep(Duration::from_secs(3)).await;
            for (what, count) in self.broker.proxy.take() {
                *counts.entry(what).or_default() += count;
            }
        }
        let (lists, rounds) = (proxy::lists(&counts), proxy::rounds(&counts).max(1));
        let what = "one polling round with 1,000 in one vhost: lists";
        self.add(Figure::count(what, lists.div_ceil(rounds), "≤ 8", lists > 0 && lists <= 8 * rounds));
        self.memory("after idling with 1,000", operator)
    }

    async fn edit(&mut self, cluster: &Cluster) -> Result<()> {
        let mut times = Vec::new();
        for round in 0..5 {
            let name = format!("work-{:04}", 100 * round + 7);
            let exchange = format!("{name}.exchange");
            let binding = |key: &str| json!({"exchange": exchange, "routingKey": key});
            let bindings = json!([binding("work.#"), binding(&format!("extra.{round}"))]);
            self.broker.proxy.take();
            times.push(cluster.edit(&name, json!({"source": {"bindings": bindings}})).await?);
            eprintln!("  edit: {:?}, {:?}", times.last(), self.broker.proxy.take());
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        times.sort();
        self.add(Figure::time("one edit among 1,000, median of 5", times[2], Some(1.0)));
        Ok(())
    }

    async fn many_vhosts(&mut self) -> Result<()> {
        let vhosts: Vec<String> = (0..VHOSTS).map(|number| format!("{VHOST}-{number}")).collect();
        let (script, requests) = self.script(Shape::BrokerPolicies, 1_000, &vhosts).await?;
        let cluster = self.fresh("vhosts", &vhosts).await?;
        let operator = Operator::start(&cluster.namespace)?;
        settle().await;
        let took = self.apply(&cluster, &operator, (Shape::BrokerPolicies, 1_000), &vhosts, "Retain").await?;
        let counts = self.broker.proxy.take();
        self.add(Figure::against_script("1,000 pipelines, 20 vhosts, policies", took, script));
        self.add_requests(requests, &counts);
        self.clean(operator, cluster, &vhosts).await
    }
}

/// Time for the operator to start, or to come to rest.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

/// Time for the allocator to give back what was needed for a moment.
pub(crate) async fn rest() {
    tokio::time::sleep(Duration::from_secs(25)).await;
}
