//! Traces by OTLP over HTTP: what a reconciliation did, what it waited for, and how long each call to
//! a broker or to the API server took.
//!
//! Spans alone are sent, never log lines. A span holds names of objects, methods, addresses, codes and
//! times; neither credentials nor anything of a message.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::registry::LookupSpan;

/// Whose spans are sent.
const TRACED: [&str; 3] = ["redrive", "kube_runtime", KUBE_CLIENT];

/// Whose calls are sent only as part of something: the rest are watches, and looks at a Lease every
/// two seconds.
const KUBE_CLIENT: &str = "kube_client";

/// Finer ones are of no use to anybody else.
const FINEST: LevelFilter = LevelFilter::DEBUG;

/// How long the collector may take for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take for the last spans: what is left of the time that a pod has for its end.
const LAST: Duration = Duration::from_secs(2);

/// Why no traces can be sent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No client can be made.
    #[error("no client can be made")]
    Client(#[from] reqwest::Error),
    /// The address is none.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}

/// Sends spans in the background, some seconds after they have ended.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends to a collector, by the base URL of its OTLP over HTTP, such as `http://collector:4318`.
    /// Headers, sampling and the attributes of the resource are what the environment says in
    /// OpenTelemetry's own variables. Not for an asynchronous context, where its client would block.
    ///
    /// # Errors
    /// Where the address is none, or no client can be made. A collector that can't be reached is no
    /// error: its spans are lost, and the log says so.
    pub fn to(endpoint: &str) -> Result<Self, Error> {
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let mut client = reqwest::blocking::Client::builder().timeout(TIMEOUT).no_proxy();
        if !url.starts_with("https:") {
            // The system's certificates may be missing where nobody needs them.
            client = client.tls_certs_only(std::iter::empty());
        }
        let exporter = SpanExporter::builder().with_http().with_http_client(client.build()?);
        let exporter = exporter.with_protocol(Protocol::HttpBinary).with_endpoint(url).build()?;
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource());
        Ok(Self(provider.build()))
    }

    /// What takes the spans of the process.
    pub fn layer<S: Subscriber + for<'span> LookupSpan<'span>>(&self) -> impl Layer<S> + use<S> {
        let traced = dynamic_filter_fn(|metadata, context| {
            is_traced(metadata) && (module(metadata) != KUBE_CLIENT || context.lookup_current().is_some())
        });
        let traced = traced.with_max_level_hint(FINEST).with_callsite_filter(|metadata| {
            if is_traced(metadata) { Interest::sometimes() } else { Interest::never() }
        });
        let tracer = self.0.tracer("redrive");
        tracing_opentelemetry::layer().with_tracer(tracer).with_threads(false).with_filter(traced)
    }

    /// Sends what is left, for two seconds at most.
    pub fn finish(self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST) {
            tracing::warn!(%error, "the last spans are lost");
        }
    }
}

/// What the environment says of this process goes before what we say.
fn resource() -> Resource {
    let ours = [
        KeyValue::new("service.name", "redrive"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let resource = Resource::builder_empty()
        .with_attributes(ours)
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())]);
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name).build(),
        _ => resource.build(),
    }
}

fn is_traced(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && *metadata.level() <= FINEST && TRACED.contains(&module(metadata))
}

/// The crate that a span is of.
fn module<'a>(metadata: &Metadata<'a>) -> &'a str {
    metadata.target().split("::").next().unwrap_or_default()
}
