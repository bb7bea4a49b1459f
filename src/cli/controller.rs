//! `redrive controller`: what the operator is told, and its signals.

mod process;

use std::error::Error;
use std::str::FromStr;
use std::time::Duration as StdDuration;

use clap::ValueEnum;
use clap::builder::FalseyValueParser;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use self::process::ProcessArguments;
use super::log::{self, LogFormat};
use super::{Outcome, fail};
use crate::api::Duration;
use crate::controller::{AuditStream, EventSettings, ReplaySettings, RunnerKind, Settings};
use crate::ops::traces::Traces;

/// More than once a second a vhost need not be looked at.
const SHORTEST_POLL: Duration = Duration::from_secs(1);

/// What `redrive controller` was asked.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Watch these namespaces only. Repeat it, or separate them by commas. Default: all.
    #[arg(long, value_name = "NAMESPACE", env = "REDRIVE_WATCH_NAMESPACES", value_delimiter = ',')]
    watch_namespace: Vec<String>,

    /// The id that marks what this cluster's operator declares on a broker. Default:
    /// the UID of the namespace kube-system.
    #[arg(long, value_name = "ID", env = "REDRIVE_CLUSTER_ID")]
    cluster_id: Option<String>,

    /// Allow brokers at loopback, link-local and the API server's addresses. For
    /// development: whoever may write a Secret could reach them through the operator.
    #[arg(long, env = "REDRIVE_ALLOW_LOCAL_BROKERS", value_parser = FalseyValueParser::new())]
    allow_local_brokers: bool,

    /// Let every namespace that a RabbitmqCluster's annotation
    /// rabbitmq.com/topology-allowed-namespaces lists use all of that cluster, as the
    /// topology operator does, whatever redrive.dev/grants says.
    #[arg(long, env = "REDRIVE_CLUSTER_WIDE_RIGHTS", value_parser = FalseyValueParser::new())]
    cluster_wide_rights: bool,

    /// How often each vhost is compared with what its pipelines want.
    #[arg(long, value_name = "DURATION", env = "REDRIVE_POLL_INTERVAL", default_value = "60s", value_parser = poll_interval)]
    poll_interval: Duration,

    /// How long a deletion waits for a broker or a Secret that can't be reached,
    /// before it lets the resource go and lists what is left.
    #[arg(long, value_name = "DURATION", env = "REDRIVE_RELEASE_AFTER", default_value = "10m", value_parser = Duration::from_str)]
    release_after: Duration,

    /// Read the events of a broker with this connection Secret of the operator's own, besides those
    /// of every RabbitmqCluster that pipelines refer to: changes there are then noticed at once, also
    /// by pipelines that have a Secret of their own. Repeat it for several brokers. Never a tenant's:
    /// events show all vhosts.
    #[arg(long, value_name = "NAMESPACE/NAME", env = "REDRIVE_EVENTS_SECRET", value_delimiter = ',', value_parser = secret)]
    events_secret: Vec<Secret>,

    /// The vhost in which those brokers have the exchange amq.rabbitmq.event.
    #[arg(long, value_name = "VHOST", env = "REDRIVE_EVENTS_VHOST", default_value = "/")]
    events_vhost: String,

    #[command(flatten)]
    replays: ReplayArguments,

    #[command(flatten)]
    process: ProcessArguments,

    /// How log lines look.
    #[arg(long, value_enum, env = "REDRIVE_LOG_FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    /// What is logged, such as info or redrive=debug,kube=warn.
    #[arg(long, value_name = "FILTER", env = "REDRIVE_LOG", default_value = "info", value_parser = EnvFilter::from_str)]
    log: EnvFilter,

    /// Send traces to the OTLP over HTTP of a collector, such as http://collector:4318. Headers,
    /// sampling and attributes are taken from OpenTelemetry's own variables.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_parser = collector)]
    otlp_endpoint: Option<Collector>,
}

/// How replays are run.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Replays")]
struct ReplayArguments {
    /// Where the workers of replays run: each in the pod of a Job, or inside the operator
    /// (for development and small installations).
    #[arg(long, value_enum, env = "REDRIVE_REPLAY_RUNNER", default_value_t = ReplayRunner::Job)]
    replay_runner: ReplayRunner,

    /// The namespace of the Jobs, of the Leases and of the audit Secret. Default: the
    /// operator's own.
    #[arg(long, value_name = "NAMESPACE", env = "REDRIVE_REPLAY_NAMESPACE")]
    replay_namespace: Option<String>,

    /// The image of the workers. Default: that of this version.
    #[arg(long, value_name = "IMAGE", env = "REDRIVE_REPLAY_IMAGE")]
    replay_image: Option<String>,

    /// The service account of the workers, in the namespace of the Jobs.
    #[arg(long, value_name = "NAME", env = "REDRIVE_REPLAY_SERVICE_ACCOUNT")]
    replay_service_account: Option<String>,

    /// Let workers use the node's network, where pods have none of their own.
    #[arg(long, env = "REDRIVE_REPLAY_HOST_NETWORK", value_parser = FalseyValueParser::new())]
    replay_host_network: bool,

    /// The vhost of the stream redrive.audit, which keeps a record of each moved message.
    /// Without it, records stand on standard output only.
    #[arg(long, value_name = "VHOST", env = "REDRIVE_AUDIT_VHOST", requires = "audit_secret")]
    audit_vhost: Option<String>,

    /// The connection Secret of the audit stream.
    #[arg(long, value_name = "NAME", env = "REDRIVE_AUDIT_SECRET", requires = "audit_vhost")]
    audit_secret: Option<String>,

    /// Let an approval count although the admission policies that make sure who gave it
    /// are not in force. For development.
    #[arg(long, env = "REDRIVE_ALLOW_UNVERIFIED_APPROVAL", value_parser = FalseyValueParser::new())]
    allow_unverified_approval: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReplayRunner {
    /// Each in the pod of a Job.
    Job,
    /// As tasks of the operator.
    InProcess,
}

impl ReplayArguments {
    fn settings(&self) -> ReplaySettings {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let defaults = ReplaySettings::default();
        let audit = given(&self.audit_vhost).zip(given(&self.audit_secret));
        ReplaySettings {
            runner: match self.replay_runner {
                ReplayRunner::Job => RunnerKind::Job,
                ReplayRunner::InProcess => RunnerKind::InProcess,
            },
            namespace: given(&self.replay_namespace),
            image: given(&self.replay_image).unwrap_or(defaults.image),
            service_account: given(&self.replay_service_account).unwrap_or(defaults.service_account),
            host_network: self.replay_host_network,
            audit: audit.map(|(vhost, secret)| AuditStream { vhost, secret }),
            print_records: defaults.print_records,
            allow_unverified_approval: self.allow_unverified_approval,
            approval_lasts: defaults.approval_lasts,
            patience: defaults.patience,
        }
    }
}

/// Namespace and name of a Secret; none where the text is empty, as a chart leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Secret(Option<(String, String)>);

fn secret(text: &str) -> Result<Secret, String> {
    if text.is_empty() {
        return Ok(Secret(None));
    }
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(Secret(Some((namespace.to_owned(), name.to_owned()))))
        }
        _ => Err(format!("{text:?} is no Secret: write its namespace and its name, such as redrive/events")),
    }
}

/// Where traces go; nowhere where the text is empty, as a chart leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Collector(Option<String>);

fn collector(text: &str) -> Result<Collector, String> {
    match text.parse::<http::Uri>() {
        _ if text.is_empty() => Ok(Collector(None)),
        Ok(uri) if matches!(uri.scheme_str(), Some("http" | "https")) => Ok(Collector(Some(text.to_owned()))),
        _ => Err(format!("{text:?} is no URL of a collector: write http://HOST:4318")),
    }
}

fn poll_interval(text: &str) -> Result<Duration, String> {
    let interval = text.parse::<Duration>().map_err(|error| error.to_string())?;
    if interval < SHORTEST_POLL {
        return Err(format!("{text} is too often for a broker: write 1s or more"));
    }
    Ok(interval)
}

impl Arguments {
    fn settings(&self) -> Settings {
        // A chart sets a variable to nothing where the value is not given.
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Settings {
            cluster_id: given(&self.cluster_id),
            namespaces: self.watch_namespace.iter().filter(|name| !name.is_empty()).cloned().collect(),
            allow_local_brokers: self.allow_local_brokers,
            cluster_wide_rights: self.cluster_wide_rights,
            poll_interval: self.poll_interval.to_std(),
            release_after: self.release_after.to_std(),
            events: EventSettings {
                secrets: self.events_secret.iter().filter_map(|secret| secret.0.clone()).collect(),
                vhost: self.events_vhost.clone(),
            },
            replays: self.replays.settings(),
            ..Settings::default()
        }
    }
}

/// Runs the operator until SIGTERM or SIGINT.
pub(super) fn run(arguments: Arguments) -> Outcome {
    let settings = arguments.settings();
    let collector = arguments.otlp_endpoint.and_then(|collector| collector.0);
    let traces = log::before(arguments.log_format, || collector.map(|url| Traces::to(&url)).transpose());
    let traces = match traces {
        Ok(traces) => traces,
        Err(error) => return fail(format!("traces can't be sent: {}", chain(&error))),
    };
    log::begin(arguments.log, arguments.log_format, traces.as_ref());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(format!("no runtime can be started: {error}")),
    };
    let outcome = match runtime.block_on(process::serve(settings, arguments.process)) {
        Ok(()) => Outcome::Nothing,
        Err(why) => fail(why),
    };
    // What hangs in a resolver must not keep the process.
    runtime.shutdown_timeout(StdDuration::from_secs(1));
    if let Some(traces) = traces {
        traces.finish();
    }
    outcome
}

/// Cancels the token on SIGTERM or SIGINT.
pub(super) fn stop_on_signals(shutdown: CancellationToken) -> Result<(), String> {
    let listen = |kind| signal(kind).map_err(|error| format!("signals can't be received: {error}"));
    let (terminate, interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    tokio::spawn(stop_on(terminate, interrupt, shutdown));
    Ok(())
}

/// The first signal lets what is under way finish, the second one does not.
async fn stop_on(mut terminate: Signal, mut interrupt: Signal, shutdown: CancellationToken) {
    for last in [false, true] {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if last {
            tracing::warn!("told to stop twice, and ends at once");
            std::process::exit(1);
        }
        tracing::info!("told to stop");
        shutdown.cancel();
    }
}

/// An error with those of its causes that it does not name itself.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let error_text = error.to_string();
        if !text.contains(&error_text) {
            text.push_str(": ");
            text.push_str(&error_text);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_not_polled_all_the_time() {
        assert_eq!(poll_interval("60s"), Ok(Duration::from_secs(60)));
        assert!(poll_interval("999ms").is_err());
        assert!(poll_interval("often").is_err());
    }

    #[test]
    fn a_collector_is_a_url() {
        assert_eq!(collector(""), Ok(Collector(None)));
        let url = "https://collector:4318";
        assert_eq!(collector(url), Ok(Collector(Some(url.to_owned()))));
        for malformed in ["collector:4318", "grpc://collector:4317", "/v1/traces"] {
            assert!(collector(malformed).unwrap_err().contains("write http://HOST:4318"), "{malformed}");
        }
    }

    #[test]
    fn a_secret_is_named_with_its_namespace() {
        let named = Secret(Some(("redrive".to_owned(), "events".to_owned())));
        assert_eq!(secret("redrive/events"), Ok(named));
        assert_eq!(secret(""), Ok(Secret(None)));
        for malformed in ["events", "/events", "redrive/", "a/b/c"] {
            assert!(secret(malformed).unwrap_err().contains("write its namespace"), "{malformed}");
        }
    }
}
