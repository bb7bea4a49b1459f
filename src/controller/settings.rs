//! The operator's settings and their defaults.

use std::time::Duration;

use super::{EventSettings, ReplaySettings};

/// What the operator is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names this Kubernetes cluster in markers; by default the UID of `kube-system`.
    pub cluster_id: Option<String>,
    /// The only namespaces to watch; by default all.
    pub namespaces: Vec<String>,
    /// Whether brokers may have loopback and link-local addresses (development).
    pub allow_local_brokers: bool,
    /// Whether a namespace that may refer to a RabbitmqCluster may use all of it, whatever its
    /// owner grants.
    pub cluster_wide_rights: bool,
    /// How often a vhost is compared with what its pipelines want.
    pub poll_interval: Duration,
    /// How long a deletion waits for a broker or Secret that can't be reached.
    pub release_after: Duration,
    /// How long dead letters may be held in a queue, none of them leaving, before that is a
    /// finding.
    pub stuck_after: Duration,
    /// How brokers are listened to.
    pub events: EventSettings,
    /// How replays are run.
    pub replays: ReplaySettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cluster_id: None,
            namespaces: Vec::new(),
            allow_local_brokers: false,
            cluster_wide_rights: false,
            poll_interval: Duration::from_secs(60),
            release_after: Duration::from_secs(600),
            stuck_after: Duration::from_secs(300),
            events: EventSettings::default(),
            replays: ReplaySettings::default(),
        }
    }
}
