//! How replays are run.

use std::time::Duration;

/// Where workers run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunnerKind {
    /// Each in the pod of a Job.
    #[default]
    Job,
    /// As tasks of the operator, for development and small installations.
    InProcess,
}

/// Where the durable audit trail is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditStream {
    /// The vhost of the stream `redrive.audit`; it must exist.
    pub vhost: String,
    /// The connection Secret, in the operator's namespace.
    pub secret: String,
}

/// How replays are run.
#[derive(Clone, Debug)]
pub struct ReplaySettings {
    /// Where workers run.
    pub runner: RunnerKind,
    /// The namespace of Jobs, Leases and the audit trail's Secret; by default the operator's own.
    pub namespace: Option<String>,
    /// The image of workers.
    pub image: String,
    /// The service account of workers, in the same namespace.
    pub service_account: String,
    /// Whether workers use the node's network.
    pub host_network: bool,
    /// The durable audit trail.
    pub audit: Option<AuditStream>,
    /// Whether workers inside the operator print audit records on standard output; those in Jobs
    /// always do.
    pub print_records: bool,
    /// Whether an approval counts although nothing in the cluster makes sure who gave it.
    pub allow_unverified_approval: bool,
    /// How long an approval counts.
    pub approval_lasts: Duration,
    /// How long a new replay waits for a pipeline that is missing, suspended or not Ready.
    pub patience: Duration,
}

impl Default for ReplaySettings {
    fn default() -> Self {
        Self {
            runner: RunnerKind::default(),
            namespace: None,
            image: concat!("ghcr.io/redrive/redrive:", env!("CARGO_PKG_VERSION")).to_owned(),
            service_account: "redrive-replay-worker".to_owned(),
            host_network: false,
            audit: None,
            print_records: true,
            allow_unverified_approval: false,
            approval_lasts: Duration::from_secs(24 * 3_600),
            patience: Duration::from_secs(60),
        }
    }
}
