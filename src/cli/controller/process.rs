//! The process among others: who works, and what it answers to probes and scrapes.

use std::hash::BuildHasher as _;
use std::net::SocketAddr;

use clap::builder::FalseyValueParser;
use kube::Client;
use tokio_util::sync::CancellationToken;

use super::{chain, stop_on_signals};
use crate::controller::{self, Process, Settings};
use crate::ops::admin::{self, Health, Stage};
use crate::ops::kubernetes;
use crate::ops::lease::Candidate;
use crate::ops::metrics::Metrics;
use crate::ops::term::Term;

/// How the process lives among others.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Process")]
pub(super) struct ProcessArguments {
    /// Work only while this process holds a Lease in its own namespace, so that several can run:
    /// one works, and another takes over within 15 seconds.
    #[arg(long, env = "REDRIVE_LEADER_ELECT", value_parser = FalseyValueParser::new())]
    leader_elect: bool,

    /// The name of that Lease.
    #[arg(long, value_name = "NAME", env = "REDRIVE_LEASE_NAME", default_value = "redrive")]
    lease_name: String,

    /// Answer GET /metrics here, such as 0.0.0.0:8080.
    #[arg(long, value_name = "ADDRESS", env = "REDRIVE_METRICS_ADDRESS", value_parser = address)]
    metrics_address: Option<Address>,

    /// Answer the probes GET /livez and GET /readyz here, such as 0.0.0.0:8081.
    #[arg(long, value_name = "ADDRESS", env = "REDRIVE_HEALTH_ADDRESS", value_parser = address)]
    health_address: Option<Address>,
}

/// Where to listen; nowhere where the text is empty, as a chart leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address(Option<SocketAddr>);

fn address(text: &str) -> Result<Address, String> {
    if text.is_empty() {
        return Ok(Address(None));
    }
    let address = text.parse().map_err(|_| {
        format!("{text:?} is no address to listen at: write IP:PORT, such as 0.0.0.0:8080 or [::]:8080")
    });
    address.map(|address| Address(Some(address)))
}

/// Works until it is told to stop, or another process has taken over.
pub(super) async fn serve(settings: Settings, arguments: ProcessArguments) -> Result<(), String> {
    let shutdown = CancellationToken::new();
    stop_on_signals(shutdown.clone())?;
    // Without a read timeout: a quiet watch is no error, and the controller bounds its own calls.
    let config = kube::Config::infer().await.map_err(|error| chain(&error))?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), ?settings, "the operator starts");
    let (metrics, health) = (Metrics::default(), Health::default());
    arguments.answer(&metrics, &health, &shutdown).await?;
    let client = kubernetes::client(config.clone(), Term::unlimited(), metrics.calls.clone());
    let client = client.map_err(|error| chain(&error))?;
    // Before anybody leads: in an upgrade the process before goes on as long as this one can't.
    tokio::select! {
        checked = controller::check_definitions(&client) => checked.map_err(|error| chain(&error))?,
        () = shutdown.cancelled() => return Ok(()),
    }
    match arguments.leader_elect {
        true => lead(&arguments.lease_name, client, config, settings, metrics, &health, &shutdown).await,
        false => {
            health.reach(Stage::Leads);
            let process = Process { client, term: Term::unlimited(), metrics };
            controller::run(process, settings, shutdown).await.map_err(|error| chain(&error))
        }
    }
}

impl ProcessArguments {
    /// Answers probes and scrapes where that was asked for.
    async fn answer(
        &self,
        metrics: &Metrics,
        health: &Health,
        shutdown: &CancellationToken,
    ) -> Result<(), String> {
        let told = |address, error| format!("nobody can listen at {address}: {error}");
        if let Some(Address(Some(address))) = self.metrics_address {
            let served = admin::serve_metrics(address, metrics.clone(), shutdown.clone());
            served.await.map_err(|error| told(address, error))?;
        }
        if let Some(Address(Some(address))) = self.health_address {
            let served = admin::serve_health(address, health.clone(), shutdown.clone());
            served.await.map_err(|error| told(address, error))?;
        }
        let (health, shutdown) = (health.clone(), shutdown.clone());
        tokio::spawn(async move {
            shutdown.cancelled().await;
            health.reach(Stage::Stopping);
        });
        Ok(())
    }
}

/// Waits until this process leads, and works as long as it does.
async fn lead(
    lease: &str,
    unlimited: Client,
    config: kube::Config,
    settings: Settings,
    metrics: Metrics,
    health: &Health,
    shutdown: &CancellationToken,
) -> Result<(), String> {
    let candidate = Candidate::new(unlimited, &config.default_namespace, lease, identity());
    metrics.leads(lease, false);
    let mut leader = tokio::select! {
        leader = candidate.elected(|| health.reach(Stage::Follows)) => leader,
        () = shutdown.cancelled() => return Ok(()),
    };
    tracing::info!(lease, "leads from now on");
    metrics.leads(lease, true);
    health.reach(Stage::Leads);
    let term = leader.term();
    let client = kubernetes::client(config, term.clone(), metrics.calls.clone());
    let client = client.map_err(|error| chain(&error))?;
    let process = Process { client, term, metrics };
    let outcome = tokio::select! {
        outcome = controller::run(process, settings, shutdown.clone()) => outcome.map_err(|error| chain(&error)),
        // Whatever is under way is dropped; the next leader goes on with it.
        () = leader.lead() => return Err("the Lease is lost: another process works now".to_owned()),
    };
    leader.release().await;
    outcome
}

/// Names this process among those that would lead: for people the pod, and what no other has.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").ok().filter(|host| !host.is_empty());
    let nonce = std::collections::hash_map::RandomState::new().hash_one(std::process::id());
    format!("{}_{nonce:016x}", host.as_deref().unwrap_or("redrive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_in_full() {
        assert_eq!(address(""), Ok(Address(None)));
        assert_eq!(address("0.0.0.0:8080"), Ok(Address(Some(([0, 0, 0, 0], 8080).into()))));
        for malformed in ["8080", ":8080", "localhost:8080"] {
            assert!(address(malformed).unwrap_err().contains("write IP:PORT"), "{malformed}");
        }
    }

    #[test]
    fn no_two_processes_have_one_name() {
        assert_ne!(identity(), identity());
    }
}
