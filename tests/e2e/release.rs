//! The chart as a release of helm.

use std::net::TcpListener;
use std::time::Duration;

use crate::node::Image;
use crate::support::helm::{CHART, Helm};
use crate::support::world::World;
use crate::support::{eventually, kubectl};

const NAME: &str = "redrive";

pub(crate) struct Release {
    namespace: String,
    metrics: u16,
    health: u16,
}

impl Release {
    /// Installs the chart as it is, but for these values; its pods use the node's network, and ports
    /// that are free there.
    pub(crate) fn install(world: &World, image: &Image, more: &[String]) -> Self {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let release = Self { namespace: world.namespace.clone(), metrics: free(), health: free() };
        let values = [
            "image.registry=localhost".to_owned(),
            format!("image.repository={}", image.repository),
            format!("image.tag={}", image.tag),
            "image.pullPolicy=Never".to_owned(),
            // Both would want the same ports.
            "replicas=1".to_owned(),
            "hostNetwork=true".to_owned(),
            "replays.hostNetwork=true".to_owned(),
            "bindAddress=127.0.0.1".to_owned(),
            format!("metrics.port={}", release.metrics),
            format!("health.port={}", release.health),
            "allowLocalBrokers=true".to_owned(),
            "pollInterval=5s".to_owned(),
        ];
        // The definitions are there already, from other tests.
        release.helm(&[
            "install",
            NAME,
            CHART,
            "--take-ownership",
            "--force-conflicts",
            "--set",
            &[&values[..], more].concat().join(","),
        ]);
        release
    }

    fn helm(&self, arguments: &[&str]) {
        Helm::Four.say(&[arguments, &["--namespace", &self.namespace]].concat());
    }

    /// Where the operator serves.
    pub(crate) fn ports(&self) -> [u16; 2] {
        [self.metrics, self.health]
    }

    /// What was installed.
    pub(crate) fn manifest(&self) -> String {
        Helm::Four.say(&["get", "manifest", NAME, "--namespace", &self.namespace])
    }

    /// Changes one value while everything runs.
    pub(crate) fn upgrade(&self, value: &str) {
        self.helm(&["upgrade", NAME, CHART, "--reuse-values", "--set", value]);
    }

    pub(crate) fn uninstall(&self) {
        self.helm(&["uninstall", NAME, "--wait"]);
    }

    /// Waits until the pods have passed their probes.
    pub(crate) async fn is_available(&self) {
        eventually("the deployment is available", async || {
            let arguments =
                ["rollout", "status", "deployment/redrive", "-n", &self.namespace, "--timeout=5s"];
            let is_done = kubectl::run(&arguments, "").status.success();
            if is_done { Ok(()) } else { Err(kubectl::say(&["get", "pods", "-A"])) }
        })
        .await;
    }

    /// Reads the metrics as a Prometheus would.
    pub(crate) async fn serves_metrics(&self, names: &[&str]) {
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build().unwrap();
        let address = format!("http://127.0.0.1:{}/metrics", self.metrics);
        eventually("metrics are served", async || {
            let text = client.get(&address).send().await.map_err(|error| error.to_string())?;
            let text = text.text().await.map_err(|error| error.to_string())?;
            let missing: Vec<_> = names.iter().filter(|name| !text.contains(**name)).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} in {text}")) }
        })
        .await;
    }
}
