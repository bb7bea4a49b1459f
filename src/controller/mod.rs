//! The operator: watches resources, brings them to their broker's lane, and
//! reports what came of it.
//!
//! Each pipeline is reconciled in named steps: dereference (Kubernetes), validate
//! (pure), observe, diff (pure) and apply (all three in the lane of its broker and
//! vhost), update status. A lane takes all waiting pipelines together, reads the
//! vhost once and writes policies first, because a policy write costs the broker
//! more the more queues there are.
//!
//! Guarantees: no write on the broker, no status update and no event without a
//! change; a broker that is down delays its own lanes only; a pipeline is never
//! worked on twice at the same time.

mod api_server;
mod backoff;
mod claims;
pub mod dlq_replay;
mod events;
mod lane;
mod patch_status;
pub(crate) mod rabbitmq_cluster;
pub(crate) mod retry_pipeline;
mod secrets;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Controller;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{PredicateConfig, WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::rabbitmq_cluster::watch::Wake;
use crate::api::RetryPipeline;
use crate::broker::AddressGuard;

pub use dlq_replay::{AuditStream, ReplaySettings, RunnerKind};

/// A pipeline as it is watched: one that can't be read does not stop the others.
type Guarded = DeserializeGuard<RetryPipeline>;

/// How many pipelines may be under way at the same time. Most of them only wait
/// for their lane, which costs a few hundred bytes each.
const CONCURRENCY: u16 = 2_048;

/// What the operator is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names this Kubernetes cluster in markers; by default the UID of `kube-system`.
    pub cluster_id: Option<String>,
    /// The only namespace to watch; by default all.
    pub namespace: Option<String>,
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
    /// How replays are run.
    pub replays: ReplaySettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cluster_id: None,
            namespace: None,
            allow_local_brokers: false,
            cluster_wide_rights: false,
            poll_interval: Duration::from_secs(60),
            release_after: Duration::from_secs(600),
            stuck_after: Duration::from_secs(300),
            replays: ReplaySettings::default(),
        }
    }
}

/// What every reconciliation needs.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) cluster: String,
    pub(crate) settings: Settings,
    pub(crate) secrets: Arc<secrets::Secrets>,
    pub(crate) clusters: Arc<rabbitmq_cluster::Clusters>,
    pub(crate) lanes: lane::Lanes,
    pub(crate) backoff: backoff::Backoff,
    pub(crate) events: events::Events,
    pub(crate) reported: retry_pipeline::Reported,
    pub(crate) last_written: retry_pipeline::LastWritten,
    pub(crate) store: Store<Guarded>,
    pub(crate) replays: dlq_replay::Replays,
}

/// Why the operator can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server does not answer as it should.
    #[error("can't read {what} from the API server")]
    Kubernetes {
        /// What was asked for.
        what: &'static str,
        /// What went wrong.
        #[source]
        source: kube::Error,
    },
    /// The definitions are missing or of another version.
    #[error("the resource RetryPipeline is not served: apply the files in crds/ first")]
    NotInstalled(#[source] kube::Error),
    /// The API server did not answer in time.
    #[error("the API server did not answer within {0:?}")]
    Timeout(Duration),
}

/// Runs until `shutdown` is cancelled; what is under way is finished first, for up
/// to 20 seconds. Whatever is dropped then, the next start goes on with.
///
/// # Errors
///
/// Where the API server can't be asked who it is, or does not serve the resources.
pub async fn run(client: Client, settings: Settings, shutdown: CancellationToken) -> Result<(), Error> {
    let cluster = match &settings.cluster_id {
        Some(id) => id.clone(),
        None => cluster_id(&client).await?,
    };
    let api: Api<Guarded> = match &settings.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    within(API_TIMEOUT, api.list_metadata(&kube::api::ListParams::default().limit(1)))
        .await?
        .map_err(Error::NotInstalled)?;

    let (triggers, due) = mpsc::channel(1_024);
    let writer = Writer::default();
    let guard = AddressGuard::new(settings.allow_local_brokers, api_server_addresses(&client).await);
    let (replays, parts) = dlq_replay::parts(&client, &settings, guard.clone());
    let watched = Watched { store: writer.as_reader(), triggers: triggers.clone(), replays, guard };
    let context = context(client.clone(), cluster, settings, watched, &shutdown);
    let wake = Wake { clusters: context.clusters.clone(), store: context.store.clone(), triggers };
    let (gone, deleted) = mpsc::channel(1_024);
    let mut farewell = tokio::spawn(say_farewell(deleted, context.clone()));
    tracing::info!(cluster = context.cluster, "the operator is running");
    let finished = async {
        let pipelines = work(changes(api, writer, gone), due, &shutdown, context.clone());
        let replays = dlq_replay::work(parts, &shutdown, context.clone());
        let clusters = rabbitmq_cluster::watch::run(client, wake, shutdown.clone());
        futures::join!(pipelines, replays, clusters, settle(&shutdown, &context));
        context.lanes.finish().await;
        let _ = (&mut farewell).await;
    };
    tokio::select! {
        () = finished => {}
        () = overdue(&shutdown) => {
            tracing::warn!("stopping in the middle of something; the next start goes on with it");
        }
    }
    farewell.abort();
    Ok(())
}

/// What is watched, and what a look at it needs.
struct Watched {
    store: Store<Guarded>,
    triggers: mpsc::Sender<ObjectRef<Guarded>>,
    replays: dlq_replay::Replays,
    guard: AddressGuard,
}

/// At the shutdown, has the workers of this process leave nothing unacknowledged.
async fn settle(shutdown: &CancellationToken, context: &Context) {
    shutdown.cancelled().await;
    context.replays.finish().await;
}

fn context(
    client: Client,
    cluster: String,
    settings: Settings,
    watched: Watched,
    shutdown: &CancellationToken,
) -> Arc<Context> {
    let Watched { store, triggers, replays, guard } = watched;
    let tuning = lane::Tuning {
        poll_interval: settings.poll_interval,
        cluster_wide_rights: settings.cluster_wide_rights,
        stuck_after: settings.stuck_after,
        shutdown: shutdown.clone(),
    };
    let secrets = Arc::new(secrets::Secrets::new(client.clone(), settings.poll_interval));
    let clusters = Arc::new(rabbitmq_cluster::Clusters::new(client.clone(), settings.poll_interval / 2));
    let surroundings = lane::Surroundings {
        client: client.clone(),
        cluster: cluster.clone(),
        guard,
        secrets: secrets.clone(),
        clusters: clusters.clone(),
    };
    Arc::new(Context {
        client: client.clone(),
        cluster,
        secrets,
        clusters,
        lanes: lane::Lanes::new(surroundings, store.clone(), triggers, tuning),
        store,
        backoff: backoff::Backoff::default(),
        events: events::Events::new(client),
        reported: retry_pipeline::Reported::default(),
        last_written: retry_pipeline::LastWritten::default(),
        settings,
        replays,
    })
}

/// The pipelines that have changed in what matters; `gone` gets those that were deleted.
fn changes(
    api: Api<Guarded>,
    writer: Writer<Guarded>,
    gone: mpsc::Sender<Guarded>,
) -> impl Stream<Item = Result<Guarded, watcher::Error>> + Send {
    watcher(api, watcher::Config::default().any_semantic())
        .default_backoff()
        .modify(forget_managed_fields)
        .reflect(writer)
        // Once the store has forgotten it, so that nobody remembers it again.
        .inspect_ok(move |event| {
            if let watcher::Event::Delete(object) = event {
                // News only: with the queue full, the next look forgets the pipeline.
                let _ = gone.try_send(object.clone());
            }
        })
        .applied_objects()
        .predicate_filter(what_matters, PredicateConfig::default())
}

/// Reconciles until the shutdown.
async fn work(
    changes: impl Stream<Item = Result<Guarded, watcher::Error>> + Send + 'static,
    due: mpsc::Receiver<ObjectRef<Guarded>>,
    shutdown: &CancellationToken,
    context: Arc<Context>,
) {
    let due = futures::stream::unfold(due, async |mut due| due.recv().await.map(|object| (object, due)));
    Controller::for_stream(changes, context.store.clone())
        .with_config(kube::runtime::controller::Config::default().concurrency(CONCURRENCY))
        .reconcile_on(due)
        .graceful_shutdown_on(shutdown.clone().cancelled_owned())
        .run(retry_pipeline::reconcile, retry_pipeline::on_error, context)
        .for_each(async |result| {
            if let Err(error) = result {
                tracing::debug!(%error, "the watch reports an error");
            }
        })
        .await;
}

/// What is due once a pipeline is gone; side by side, since some wait for their broker.
async fn say_farewell(mut deleted: mpsc::Receiver<Guarded>, context: Arc<Context>) {
    let mut farewells = JoinSet::new();
    while let Some(object) = deleted.recv().await {
        while farewells.try_join_next().is_some() {}
        if let Ok(pipeline) = object.0 {
            let context = context.clone();
            farewells.spawn(async move {
                let cluster = rabbitmq_cluster::resource_of(&pipeline);
                retry_pipeline::deleted(pipeline, &context).await;
                if let Some(key) = cluster {
                    context.clusters.forget_unless(&key, || is_referred_to(&key, &context.store));
                }
            });
        }
    }
    while farewells.join_next().await.is_some() {}
}

/// Whether a pipeline refers to this cluster.
fn is_referred_to(key: &rabbitmq_cluster::Key, store: &Store<Guarded>) -> bool {
    let refers = |object: &RetryPipeline| rabbitmq_cluster::resource_of(object).as_ref() == Some(key);
    store.state().iter().any(|object| object.0.as_ref().is_ok_and(refers))
}

/// How long the operator goes on with what is under way once it is to stop. Less
/// than the 30 seconds after which Kubernetes kills a pod.
const STOP_WITHIN: Duration = Duration::from_secs(20);

async fn overdue(shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    tokio::time::sleep(STOP_WITHIN).await;
}

/// How long the API server may take for one answer. The client itself would wait
/// for minutes and repeat.
pub(crate) const API_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout(limit, work).await.map_err(|_| Error::Timeout(limit))
}

async fn cluster_id(client: &Client) -> Result<String, Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let system = within(API_TIMEOUT, namespaces.get("kube-system")).await?.map_err(|source| {
        Error::Kubernetes { what: "the namespace kube-system (or give --cluster-id)", source }
    })?;
    Ok(system.uid().unwrap_or_default())
}

/// Where the API server is, so that no Secret can point us at it.
pub(crate) async fn api_server_addresses(client: &Client) -> Vec<IpAddr> {
    let services: Api<k8s_openapi::api::core::v1::Service> = Api::namespaced(client.clone(), "default");
    let service = tokio::time::timeout(API_TIMEOUT, services.get_opt("kubernetes")).await;
    let Ok(Ok(Some(service))) = service else { return Vec::new() };
    let addresses = service.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
    addresses.iter().filter_map(|address| address.parse().ok()).collect()
}

fn forget_managed_fields(object: &mut Guarded) {
    object.meta_mut().managed_fields = None;
}

/// What a reconciliation depends on: not the status, which it writes itself.
fn what_matters(object: &Guarded) -> Option<u64> {
    let meta = object.meta();
    let mut hasher = DefaultHasher::new();
    meta.generation.hash(&mut hasher);
    meta.deletion_timestamp.is_some().hash(&mut hasher);
    meta.finalizers.hash(&mut hasher);
    let ours = meta.annotations.iter().flatten().filter(|(key, _)| key.starts_with("redrive.dev/"));
    ours.for_each(|annotation| annotation.hash(&mut hasher));
    Some(hasher.finish())
}

pub(crate) fn reference(object: &RetryPipeline) -> ObjectRef<Guarded> {
    ObjectRef::new(&object.name_any()).within(&object.namespace().unwrap_or_default())
}
