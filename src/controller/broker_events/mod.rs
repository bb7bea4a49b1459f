//! Drift that brokers tell of: who listens where, and which lanes hear of it.
//!
//! ```text
//!   broker ──events──► listener ──► Board ──► Ear of each lane of that broker and vhost
//!                     (one a broker)  │          concerns a pipeline, and is not our own write?
//!                                     │          then the lane looks, at most once a second
//!   wanted: clusters in use, and the operator's own Secrets
//! ```
//!
//! Guarantees: nobody listens with a tenant's credentials, since the exchange of events shows all
//! vhosts: only with those of a RabbitmqCluster, while a pipeline is at work there, or of a Secret
//! that the operator's settings name. Of what is heard, a lane learns when to look, and the names of
//! users who changed its own pipelines' objects. A lane hears of a broker only if its own
//! credentials lead to the same management API.
//!
//! After each gap all lanes of the broker look at everything, so that events are the fast way to
//! what polls find as well, and never the only one.

mod board;
mod ear;
mod listener;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

pub(crate) use board::{Board, Detection};
pub(crate) use ear::Ear;

use super::backoff::jittered;
use super::lane::Lanes;
use super::secrets::{self, SecretKey, Secrets};
use crate::broker::{AddressGuard, Endpoint};

/// How brokers are listened to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSettings {
    /// Secrets of the operator's own, by namespace and name, each with the credentials for the
    /// events of one broker. None of a tenant belongs here.
    pub secrets: Vec<(String, String)>,
    /// The vhost with the exchange of events of those brokers.
    pub vhost: String,
}

impl Default for EventSettings {
    fn default() -> Self {
        Self { secrets: Vec::new(), vhost: DEFAULT_VHOST.to_owned() }
    }
}

/// Where the plugin has its exchange unless it is told otherwise.
pub(crate) const DEFAULT_VHOST: &str = "/";

/// What all listeners work with.
pub(crate) struct Listeners {
    pub(crate) board: Arc<Board>,
    pub(crate) guard: AddressGuard,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) settings: EventSettings,
    pub(crate) poll_interval: Duration,
}

/// Where to listen, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) endpoint: Arc<Endpoint>,
    /// The vhost with the exchange of events.
    pub(crate) vhost: String,
}

/// A listener that runs, and what it was started for.
struct Running {
    wanted: Wanted,
    task: AbortHandle,
}

/// Listens wherever that is wanted, until the shutdown.
pub(crate) async fn run(listeners: Listeners, lanes: &Lanes, shutdown: CancellationToken) {
    let mut running = BTreeMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let wanted = listeners.wanted(lanes).await;
        listeners.adjust(wanted, &mut running, &mut tasks);
        while tasks.try_join_next().is_some() {}
        tokio::select! {
            () = lanes.clusters_changed() => {}
            // Secrets are not watched.
            () = tokio::time::sleep(jittered(listeners.poll_interval)) => {}
            () = shutdown.cancelled() => break,
        }
    }
}

impl Listeners {
    /// Where to listen now, by the address of the management API: once a broker, however many
    /// lead there. What the operator's settings name comes first.
    async fn wanted(&self, lanes: &Lanes) -> BTreeMap<String, Wanted> {
        let mut wanted = BTreeMap::new();
        for secret in &self.settings.secrets {
            if let Some(endpoint) = self.endpoint_of(secret).await {
                let vhost = self.settings.vhost.clone();
                wanted.entry(endpoint.base_url()).or_insert(Wanted { endpoint, vhost });
            }
        }
        for cluster in lanes.clusters() {
            wanted.entry(cluster.endpoint.base_url()).or_insert(cluster);
        }
        wanted
    }

    /// Where a Secret leads to. That the API server does not answer ends no listener.
    async fn endpoint_of(&self, secret: &SecretKey) -> Option<Arc<Endpoint>> {
        let error = match self.secrets.read(secret).await {
            Ok(endpoint) => return Some(endpoint),
            Err(error) => error,
        };
        tracing::warn!(namespace = secret.0, name = secret.1, %error, "no events can be read with this Secret");
        match error {
            secrets::Error::NotFound(_) | secrets::Error::Invalid { .. } => None,
            secrets::Error::Forbidden(_) | secrets::Error::Unreadable { .. } | secrets::Error::Timeout(_) => {
                self.secrets.last_known(secret)
            }
        }
    }

    /// Ends the listeners that are not wanted as they are, and starts those that are missing.
    fn adjust(
        &self,
        mut wanted: BTreeMap<String, Wanted>,
        running: &mut BTreeMap<String, Running>,
        tasks: &mut JoinSet<()>,
    ) {
        running.retain(|place, listener| {
            let stays = wanted.get(place) == Some(&listener.wanted);
            if stays {
                wanted.remove(place);
            } else {
                tracing::info!(place, "its events are not read any more");
                listener.task.abort();
                self.board.left(place);
            }
            stays
        });
        for (place, wanted) in wanted {
            let listener = listener::run(wanted.clone(), self.board.expect(&place), self.guard.clone());
            running.insert(place, Running { wanted, task: tasks.spawn(listener) });
        }
        self.board.settle();
    }
}
