//! The traces of an operator, as a collector receives them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use k8s_openapi::ByteString;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;
use rstest::rstest;
use serde_json::json;
use tokio::net::TcpListener;

use crate::kill::Process;
use crate::support::world::{PASSWORD, World};
use crate::support::{eventually, variable};

/// What was received, each body as it came.
type Bodies = Arc<Mutex<Vec<Bytes>>>;

struct Collector {
    url: String,
    bodies: Bodies,
}

impl Collector {
    async fn start() -> Self {
        let bodies = Bodies::default();
        let keep = async |State(bodies): State<Bodies>, body: Bytes| bodies.lock().unwrap().push(body);
        let routes = Router::new().route("/v1/traces", post(keep)).with_state(bodies.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { url, bodies }
    }

    fn spans(&self) -> Vec<Span> {
        let mut found = Vec::new();
        for body in self.bodies.lock().unwrap().iter() {
            let request = ExportTraceServiceRequest::decode(body.clone()).unwrap();
            for of_resource in request.resource_spans {
                let attributes = of_resource.resource.unwrap().attributes;
                assert_eq!(text(&attributes, "service.name"), "of the environment");
                assert_eq!(text(&attributes, "service.version"), env!("CARGO_PKG_VERSION"));
                found.extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        found
    }
}

/// Whether this is the writing of the status of `orders`.
fn writes_status(span: &Span) -> bool {
    span.name == "patch_status"
        && text(&span.attributes, "http.url").contains("/retrypipelines/orders/status")
}

fn names(spans: &[Span]) -> BTreeSet<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

/// An attribute as text; empty where there is none.
fn text(attributes: &[KeyValue], key: &str) -> String {
    let value = attributes.iter().find(|attribute| attribute.key == key);
    match value.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// Through the whole of its life.
#[tokio::test]
async fn a_reconciliation_can_be_followed_to_the_calls_that_it_made() {
    let world = World::new("traces").await;
    let collector = Collector::start().await;
    let arguments = ["--otlp-endpoint", &collector.url];
    let variables = [("OTEL_RESOURCE_ATTRIBUTES", "service.name=of the environment,a=b")];
    let mut process = Process::start_with(&world, &variable("KUBECONFIG"), &arguments, &variables);
    world.create(world.manifest("orders", json!({}))).await;
    world.ready("orders").await;
    // Only what is left then is sent at the end, for which there is not much time.
    eventually("the status that says so is in a trace", async || {
        let spans = collector.spans();
        if spans.iter().any(writes_status) { Ok(()) } else { Err(format!("{:?}", names(&spans))) }
    })
    .await;
    assert!(process.stop().await.success());

    let spans = collector.spans();
    let first = |name: &str, holds: &dyn Fn(&Span) -> bool| {
        let found = spans.iter().find(|span| span.name == name && holds(span));
        found.unwrap_or_else(|| panic!("no span {name:?} of {:?}", names(&spans)))
    };
    let call = first("PUT /api/queues", &|_| true);
    assert_eq!(call.kind(), SpanKind::Client);
    assert_eq!(text(&call.attributes, "http.response.status_code"), "201");
    assert_eq!(text(&call.attributes, "server.address"), "127.0.0.1");
    assert!(text(&call.attributes, "url.path").contains(&world.vhost), "{call:?}");
    let look = first("look", &|span| span.span_id == call.parent_span_id);
    assert_eq!(text(&look.attributes, "vhost"), world.vhost);
    let asked = |span: &Span| look.links.iter().any(|link| link.span_id == span.span_id);
    let reconciliation = first("reconciling object", &asked);
    assert!(text(&reconciliation.attributes, "object.ref").contains("orders"), "{reconciliation:?}");
    first("patch_status", &writes_status);

    let is_lone = |span: &&Span| span.parent_span_id.is_empty() && span.kind() == SpanKind::Client;
    let lone: Vec<_> = spans.iter().filter(is_lone).collect();
    assert!(
        lone.iter().all(|span| text(&span.attributes, "http.url").is_empty()),
        "watches are traced: {lone:?}"
    );
    assert!(spans.iter().all(|span| span.events.is_empty()), "a log line is in a trace");
    let bodies = collector.bodies.lock().unwrap().concat();
    let as_sent = ByteString(format!("{}:{PASSWORD}", world.namespace).into_bytes());
    let as_sent = serde_json::to_value(as_sent).unwrap().as_str().unwrap().to_owned();
    for secret in [PASSWORD.to_owned(), as_sent] {
        let is_secret = |part: &[u8]| part == secret.as_bytes();
        assert!(!bodies.windows(secret.len()).any(is_secret), "a password is in a trace");
    }
    world.leave().await;
}

/// One that is not there, and one that takes all and never answers.
#[rstest]
#[case::dead(false)]
#[case::silent(true)]
#[tokio::test]
async fn a_collector_that_fails_costs_nothing_but_its_spans(#[case] listens: bool) {
    let world = World::new("traces-fail").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let silent = listens.then_some(listener);
    let arguments = ["--otlp-endpoint", url.as_str()];
    let mut process = Process::start_with(&world, &variable("KUBECONFIG"), &arguments, &[]);
    world.create(world.manifest("orders", json!({}))).await;
    world.ready("orders").await;
    let told = Instant::now();
    assert!(process.stop().await.success());
    // A pod has 30 seconds, of which the operator itself may take 20.
    assert!(told.elapsed() < Duration::from_secs(18), "it took {:?}", told.elapsed());
    if let Some(silent) = silent {
        let called = tokio::time::timeout(Duration::from_secs(1), silent.accept()).await;
        assert!(called.is_ok(), "nobody has tried to send a span");
    }
    world.leave().await;
}
