//! Counts and traces calls to brokers, and how long they take.

use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use reqwest::{Method, StatusCode};
use tracing::Span;
use tracing::field::Empty;

use super::error::BrokerError;

type Labels<const N: usize> = [(&'static str, String); N];

/// The numbers of all brokers; clones share them.
#[derive(Clone, Debug)]
pub struct Meter {
    requests: Family<Labels<3>, Counter>,
    time: Family<Labels<2>, Histogram>,
    policies: Family<Labels<1>, Histogram>,
}

/// From an answer beside us to the limit of a call.
const SECONDS: [f64; 11] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 30.0];

impl Default for Meter {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            time: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            policies: Family::new_with_constructor(|| Histogram::new(SECONDS)),
        }
    }
}

/// The path of a policy; a write of one costs the broker the more, the more queues there are.
const POLICIES: &str = "/api/policies/";

impl Meter {
    /// Adds these numbers to those that are written out.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "redrive_broker_requests",
            "Requests to management APIs, by their answer",
            self.requests.clone(),
        );
        registry.register(
            "redrive_broker_request_duration_seconds",
            "How long a broker takes for the head of its answer",
            self.time.clone(),
        );
        registry.register(
            "redrive_broker_policy_write_duration_seconds",
            "How long a broker takes to write or clear a policy",
            self.policies.clone(),
        );
    }

    /// A call that begins now.
    pub(super) fn begin<'a>(&'a self, broker: &'a str, method: &'a Method, path: &'a str) -> Measured<'a> {
        Measured {
            meter: self,
            broker,
            method,
            path,
            began: Instant::now(),
            span: span(broker, method, path),
        }
    }

    fn count(&self, broker: &str, method: &Method, path: &str, took: Duration, code: String) {
        let (place, verb) = (("broker", broker.to_owned()), ("method", method.to_string()));
        let seconds = took.as_secs_f64();
        if *method != Method::GET && path.starts_with(POLICIES) {
            self.policies.get_or_create(&[("broker", broker.to_owned())]).observe(seconds);
        }
        self.time.get_or_create(&[place.clone(), verb.clone()]).observe(seconds);
        self.requests.get_or_create(&[place, verb, ("code", code)]).inc();
    }
}

/// A call that is under way.
pub(super) struct Measured<'a> {
    meter: &'a Meter,
    broker: &'a str,
    method: &'a Method,
    path: &'a str,
    began: Instant,
    span: Span,
}

impl Measured<'_> {
    /// What the call is to be made in.
    pub(super) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Takes note of the head of its answer, and whether it is one that was asked for. The span goes on
    /// as long as it is kept.
    pub(super) fn end(self, answer: Result<StatusCode, &BrokerError>, is_good: bool) -> Span {
        let code = match answer {
            Ok(status) => status.as_str().to_owned(),
            Err(BrokerError::Timeout { .. }) => "timeout".to_owned(),
            Err(BrokerError::Tls { .. }) => "tls".to_owned(),
            Err(BrokerError::Unreachable { .. }) => "connect".to_owned(),
            Err(_) => "other".to_owned(),
        };
        if let Ok(status) = answer {
            self.span.record("http.response.status_code", status.as_u16());
        }
        if !is_good {
            self.span.record("error.type", &code).record("otel.status_code", "ERROR");
        }
        self.meter.count(self.broker, self.method, self.path, self.began.elapsed(), code);
        self.span
    }
}

/// In OpenTelemetry's words for clients of HTTP.
fn span(broker: &str, method: &Method, path: &str) -> Span {
    let (host, port) = broker.rsplit_once(':').unwrap_or((broker, ""));
    tracing::debug_span!(
        "broker call",
        otel.name = format_args!("{method} {}", route(path)),
        otel.kind = "client",
        otel.status_code = Empty,
        http.request.method = %method,
        http.response.status_code = Empty,
        error.type = Empty,
        server.address = host,
        server.port = port.parse::<u16>().ok(),
        url.path = path,
    )
}

/// What kind of thing a path is about, such as `/api/queues`.
fn route(path: &str) -> &str {
    path.match_indices('/').nth(2).map_or(path, |(end, _)| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_names_no_object() {
        for (path, expected) in [
            ("/api/queues/%2F/orders", "/api/queues"),
            ("/api/overview", "/api/overview"),
            ("/api", "/api"),
            ("", ""),
        ] {
            assert_eq!(route(path), expected);
        }
    }
}
