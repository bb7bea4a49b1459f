//! Numbers for Prometheus: where the layers register theirs, how they are written out, and those
//! of the process itself. docs/metrics.md lists all.
//!
//! Guarantees: no label holds anything of a message. What belongs to a resource is read from the
//! present state at each scrape, so that it goes with the resource.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use procfs::WithCurrentSystemInfo as _;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// All numbers of this process; clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<RwLock<Registry>>,
    /// Calls of the API server.
    pub calls: Calls,
    /// Reconciliations.
    pub reconciles: Reconciles,
    /// Whether this process leads.
    leads: Family<[(&'static str, String); 1], Gauge>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let (calls, reconciles) = (Calls::default(), Reconciles::default());
        registry.register("rest_client_requests", "Requests to the API server", calls.0.clone());
        reconciles.register(&mut registry);
        let leads = Family::default();
        registry.register("leader_election_master_status", "1 where this process leads", leads.clone());
        let build = Family::<_, Gauge>::default();
        build.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        registry.register("redrive_build_info", "The version that runs", build);
        registry.register_collector(Box::new(Process));
        Self { registry: Arc::new(RwLock::new(registry)), calls, reconciles, leads }
    }
}

/// How numbers are written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' own text, for whoever does not ask for the other.
    Prometheus,
}

impl Format {
    /// What answers a request with this `Accept`.
    #[must_use]
    pub fn asked(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    /// The answer's `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

impl Metrics {
    /// Adds the numbers of a layer.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Says whether this process leads under a Lease of this name.
    pub fn leads(&self, lease: &str, leads: bool) {
        self.leads.get_or_create(&[("name", lease.to_owned())]).set(leads.into());
    }

    /// All numbers as they are now.
    ///
    /// # Errors
    /// Where a collector fails, which none does.
    pub fn written(&self, format: Format) -> Result<String, fmt::Error> {
        let registry = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        match format {
            Format::OpenMetrics => text::encode(&mut out, &registry)?,
            Format::Prometheus => prometheus_text::encode(&mut out, &registry)?,
        }
        Ok(out)
    }
}

type CallLabels = [(&'static str, String); 3];

/// Counts calls of the API server, as client-go does.
#[derive(Clone, Debug, Default)]
pub struct Calls(Family<CallLabels, Counter>);

impl Calls {
    pub(super) fn count(&self, code: String, method: String, host: String) {
        self.0.get_or_create(&[("code", code), ("method", method), ("host", host)]).inc();
    }
}

/// The kind that is reconciled, as controller-runtime labels it.
type Of = [(&'static str, &'static str); 1];

/// Reconciliations under the names of controller-runtime, so that its dashboards fit.
#[derive(Clone, Debug)]
pub struct Reconciles {
    total: Family<[(&'static str, &'static str); 2], Counter>,
    errors: Family<Of, Counter>,
    time: Family<Of, Histogram>,
    active: Family<Of, Gauge>,
    most: Family<Of, Gauge>,
}

impl Default for Reconciles {
    fn default() -> Self {
        Self {
            total: Family::default(),
            errors: Family::default(),
            time: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            active: Family::default(),
            most: Family::default(),
        }
    }
}

/// From a reconciliation that changes nothing to a deletion that waits for empty queues.
const SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// How a reconciliation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing is left to do.
    Success,
    /// It comes back by itself: something is under way.
    RequeueAfter,
    /// It comes back by itself: something is in the way.
    Error,
}

impl Reconciles {
    fn register(&self, registry: &mut Registry) {
        let name = |rest: &str| format!("controller_runtime_{rest}");
        registry.register(name("reconcile"), "Reconciliations, by how they ended", self.total.clone());
        registry.register(
            name("reconcile_errors"),
            "Reconciliations that something was in the way of",
            self.errors.clone(),
        );
        registry.register(name("reconcile_time_seconds"), "How long they took", self.time.clone());
        registry.register(name("active_workers"), "Reconciliations under way", self.active.clone());
        registry.register(name("max_concurrent_reconciles"), "As many at once", self.most.clone());
    }

    /// Says how many may be under way at once.
    pub(crate) fn limit(&self, kind: &'static str, most: u16) {
        self.most.get_or_create(&[("controller", kind)]).set(most.into());
        // A counter that begins with its first error has no increase then.
        drop(self.errors.get_or_create(&[("controller", kind)]));
    }

    /// Counts one; `ended` tells from its result how it went.
    pub(crate) async fn count<T>(
        &self,
        kind: &'static str,
        work: impl Future<Output = T>,
        ended: impl FnOnce(&T) -> Ended,
    ) -> T {
        let of = [("controller", kind)];
        let active = UnderWay::begin(self.active.get_or_create_owned(&of));
        let began = Instant::now();
        let result = work.await;
        drop(active);
        self.time.get_or_create(&of).observe(began.elapsed().as_secs_f64());
        let ended = ended(&result);
        let outcome = match ended {
            Ended::Success => "success",
            Ended::RequeueAfter => "requeue_after",
            Ended::Error => "error",
        };
        self.total.get_or_create(&[("controller", kind), ("result", outcome)]).inc();
        if ended == Ended::Error {
            self.errors.get_or_create(&of).inc();
        }
        result
    }
}

/// Counts down also where what is under way is dropped.
struct UnderWay(Gauge);

impl UnderWay {
    fn begin(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The process as the system sees it, under the names of Prometheus' own clients.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let read = || -> procfs::ProcResult<_> {
            let process = procfs::process::Process::myself()?;
            let stat = process.stat()?;
            let began = stat.starttime as f64 / procfs::ticks_per_second() as f64;
            let booted = procfs::boot_time_secs()? as f64;
            Ok((stat.rss_bytes().get(), stat.utime + stat.stime, booted + began, process.fd_count()?))
        };
        // Not there where /proc is not.
        let Ok((resident, ticks, began, descriptors)) = read() else { return Ok(()) };
        let cpu = ticks as f64 / procfs::ticks_per_second() as f64;
        one(&mut encoder, "process_cpu_seconds", "Time on a processor", &ConstCounter::new(cpu))?;
        let mut gauge = |name, help, value: f64| one(&mut encoder, name, help, &ConstGauge::new(value));
        gauge("process_resident_memory_bytes", "Memory", resident as f64)?;
        gauge("process_start_time_seconds", "Since when it runs", began)?;
        gauge("process_open_fds", "Open files and connections", descriptors as f64)
    }
}

/// Writes one number without labels.
fn one(encoder: &mut DescriptorEncoder, name: &str, help: &str, metric: &impl EncodeMetric) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// Writes a family of numbers that are known at the moment of a scrape only.
pub(crate) fn family<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder,
    kind: MetricType,
    name: &str,
    help: &str,
    values: Vec<(L, f64)>,
) -> fmt::Result {
    let is_counter = matches!(kind, MetricType::Counter);
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        let mut one = family.encode_family(&labels)?;
        if is_counter {
            one.encode_counter::<NoExemplar, _, f64>(&value, None)?;
        } else {
            one.encode_gauge(&value)?;
        }
    }
    Ok(())
}

type NoExemplar = [(&'static str, &'static str); 0];
