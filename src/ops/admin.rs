//! Answers to probes and scrapes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::metrics::{Format, Metrics};

/// How far a process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// The API server has not answered yet, or not as it should.
    Starting,
    /// Another process works; this one takes over once that is gone.
    Follows,
    /// It works.
    Leads,
    /// It was told to stop.
    Stopping,
}

/// How far this process has come; clones share it.
#[derive(Clone, Debug)]
pub struct Health(Arc<AtomicU8>);

impl Default for Health {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(Stage::Starting as u8)))
    }
}

impl Health {
    /// Goes on to a stage, never back.
    pub fn reach(&self, stage: Stage) {
        self.0.fetch_max(stage as u8, Ordering::AcqRel);
    }

    fn stage(&self) -> Stage {
        match self.0.load(Ordering::Acquire) {
            0 => Stage::Starting,
            1 => Stage::Follows,
            2 => Stage::Leads,
            _ => Stage::Stopping,
        }
    }
}

/// Answers `/livez` and `/readyz` until the shutdown.
///
/// # Errors
/// Where the address can't be listened at.
pub async fn serve_health(
    address: SocketAddr,
    health: Health,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    // That anything is answered shows that the process is not stuck.
    let routes = Router::new().route("/livez", get(async || "ok\n"));
    serve(address, routes.route("/readyz", get(ready)).with_state(health), shutdown).await
}

/// A process that follows is ready as well: it could take over at any time.
async fn ready(State(health): State<Health>) -> (StatusCode, &'static str) {
    match health.stage() {
        Stage::Starting => (StatusCode::SERVICE_UNAVAILABLE, "can't work yet; the log says why\n"),
        Stage::Follows => (StatusCode::OK, "follows\n"),
        Stage::Leads => (StatusCode::OK, "leads\n"),
        Stage::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
    }
}

/// Answers `/metrics` until the shutdown.
///
/// # Errors
/// Where the address can't be listened at.
pub async fn serve_metrics(
    address: SocketAddr,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    serve(address, Router::new().route("/metrics", get(scrape)).with_state(metrics), shutdown).await
}

async fn scrape(State(metrics): State<Metrics>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::asked(accept);
    match metrics.written(format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn serve(address: SocketAddr, routes: Router, shutdown: CancellationToken) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let server = axum::serve(listener, routes).with_graceful_shutdown(shutdown.cancelled_owned());
    tokio::spawn(async move { server.await });
    Ok(())
}
