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
mod broker_events;
mod claims;
mod definitions;
pub mod dlq_replay;
mod events;
mod kubernetes_cluster;
mod lane;
mod metrics;
mod patch_status;
pub(crate) mod rabbitmq_cluster;
pub(crate) mod retry_pipeline;
mod secrets;
mod settings;
mod watching;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Controller;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{PredicateConfig, WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::broker_events::{Board, Listeners};
use self::rabbitmq_cluster::watch::Wake;
use crate::api::RetryPipeline;
use crate::broker::{AddressGuard, Meter, Supervision};
use crate::ops::metrics::{Metrics, Reconciles};
use crate::ops::term::Term;

pub use broker_events::EventSettings;
pub use definitions::check as check_definitions;
pub use dlq_replay::{AuditStream, ReplaySettings, RunnerKind};
pub(crate) use kubernetes_cluster::api_server_addresses;
pub use settings::Settings;

/// A pipeline as it is watched: one that can't be read does not stop the others.
type Guarded = DeserializeGuard<RetryPipeline>;

/// How many pipelines may be under way at the same time. Most of them only wait
/// for their lane, which costs a few hundred bytes each.
const CONCURRENCY: u16 = 2_048;

/// What metrics call this controller.
const KIND: &str = "retrypipeline";

/// Who works here.
#[derive(Clone)]
pub struct Process {
    /// To the API server.
    pub client: Client,
    /// For how long this process may write.
    pub term: Term,
    /// Its numbers.
    pub metrics: Metrics,
}

impl Process {
    /// The only one there is.
    #[must_use]
    pub fn alone(client: Client) -> Self {
        Self { client, term: Term::unlimited(), metrics: Metrics::default() }
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
    pub(crate) reconciles: Reconciles,
    pub(crate) convergence: metrics::Convergence,
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
    /// The definitions are those of an earlier version.
    #[error(
        "the API server's definitions are older than this operator, and would drop what they don't know: they lack \
         {lacking}. Apply those of this version first: the files in crds/, or the chart with crds.enabled=true"
    )]
    Outdated {
        /// Some of the fields that they lack.
        lacking: String,
    },
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
pub async fn run(process: Process, settings: Settings, shutdown: CancellationToken) -> Result<(), Error> {
    let client = process.client.clone();
    let cluster = match &settings.cluster_id {
        Some(id) => id.clone(),
        None => kubernetes_cluster::id(&client).await?,
    };
    let apis = watching::apis(&client, &settings.namespaces);
    definitions::is_served(&apis).await?;

    let (triggers, due) = mpsc::channel(1_024);
    let writer = Writer::default();
    let guard = AddressGuard::new(settings.allow_local_brokers, api_server_addresses(&client).await);
    let (replays, parts) = dlq_replay::parts(&client, &settings, guard.clone());
    let board = Arc::new(Board::default());
    let watched = Watched {
        store: writer.as_reader(),
        triggers: triggers.clone(),
        replays,
        guard: guard.clone(),
        board: board.clone(),
    };
    let context = context(process, cluster, settings, watched, &shutdown);
    let wake = Wake { clusters: context.clusters.clone(), store: context.store.clone(), triggers };
    let (gone, deleted) = mpsc::channel(1_024);
    let mut farewell = tokio::spawn(say_farewell(deleted, context.clone()));
    tracing::info!(cluster = context.cluster, "the operator is running");
    let finished = async {
        let pipelines = work(changes(apis, writer, gone), due, &shutdown, context.clone());
        let replays = dlq_replay::work(parts, &shutdown, context.clone());
        let clusters =
            rabbitmq_cluster::watch::run(client, &context.settings.namespaces, wake, shutdown.clone());
        let listeners = listeners(board, guard, &context);
        let events = broker_events::run(listeners, &context.lanes, shutdown.clone());
        futures::join!(pipelines, replays, clusters, events, settle(&shutdown, &context));
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
    board: Arc<Board>,
}

fn listeners(board: Arc<Board>, guard: AddressGuard, context: &Context) -> Listeners {
    Listeners {
        board,
        guard,
        secrets: context.secrets.clone(),
        settings: context.settings.events.clone(),
        poll_interval: context.settings.poll_interval,
    }
}

/// At the shutdown, has the workers of this process leave nothing unacknowledged.
async fn settle(shutdown: &CancellationToken, context: &Context) {
    shutdown.cancelled().await;
    context.replays.finish().await;
}

fn context(
    process: Process,
    cluster: String,
    settings: Settings,
    watched: Watched,
    shutdown: &CancellationToken,
) -> Arc<Context> {
    let Process { client, term, metrics } = process;
    let Watched { store, triggers, replays, guard, board } = watched;
    let (meter, convergence) = (Meter::default(), metrics::Convergence::default());
    metrics.register(|registry| {
        meter.register(registry);
        convergence.register(registry);
    });
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
        board,
        supervision: Supervision { term, meter },
    };
    let context = Arc::new(Context {
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
        reconciles: metrics.reconciles.clone(),
        convergence,
    });
    let resources = metrics::Resources(Arc::downgrade(&context));
    metrics.register(|registry| registry.register_collector(Box::new(resources)));
    context
}

/// The pipelines that have changed in what matters; `gone` gets those that were deleted.
fn changes(
    apis: Vec<Api<Guarded>>,
    writer: Writer<Guarded>,
    gone: mpsc::Sender<Guarded>,
) -> impl Stream<Item = Result<Guarded, watcher::Error>> + Send {
    watching::watch(apis, writer.as_reader())
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
    context.reconciles.limit(KIND, CONCURRENCY);
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
