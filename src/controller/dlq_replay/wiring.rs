//! How replays hang in the operator: watches, triggers, and where workers run.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use kube::runtime::controller::Controller;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::{PredicateConfig, WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Guarded, Replays, Runner, RunnerKind, active, on_error, planning, reconcile};
use crate::broker::AddressGuard;
use crate::controller::{Context, Settings, watching};
use crate::runner::{in_process, job};

/// How many replays may be under way at the same time.
const CONCURRENCY: u16 = 64;

/// What metrics call this controller.
pub(super) const KIND: &str = "dlqreplay";

/// What the watch of replays needs.
pub(crate) struct Parts {
    writer: Writer<Guarded>,
    due: mpsc::Receiver<ObjectRef<Guarded>>,
}

/// What reconciliations of replays need, and what their watch needs.
pub(crate) fn parts(client: &Client, settings: &Settings, guard: AddressGuard) -> (Replays, Parts) {
    let writer = Writer::default();
    let (sender, due) = mpsc::channel(1_024);
    let own = || client.default_namespace().to_owned();
    let namespace = settings.replays.namespace.clone().unwrap_or_else(own);
    let runner = match settings.replays.runner {
        RunnerKind::InProcess => Runner::InProcess(in_process::Tasks::default()),
        RunnerKind::Job => Runner::Jobs(job::Jobs::new(
            client.clone(),
            job::Shape {
                namespace: namespace.clone(),
                image: settings.replays.image.clone(),
                service_account: settings.replays.service_account.clone(),
                host_network: settings.replays.host_network,
                allow_local_brokers: settings.allow_local_brokers,
            },
        )),
    };
    let replays = Replays {
        settings: settings.replays.clone(),
        namespace,
        guard,
        runner,
        plans: planning::Plans::default(),
        active: active::Active::default(),
        store: writer.as_reader(),
        due: sender,
    };
    (replays, Parts { writer, due })
}

/// Reconciles replays until the shutdown.
pub(crate) async fn work(parts: Parts, shutdown: &CancellationToken, context: Arc<Context>) {
    let Parts { writer, due } = parts;
    context.reconciles.limit(KIND, CONCURRENCY);
    let apis = watching::apis(&context.client, &context.settings.namespaces);
    let changes = watching::watch(apis, writer.as_reader())
        .modify(|object| object.meta_mut().managed_fields = None)
        .reflect(writer)
        .applied_objects()
        .predicate_filter(what_matters, PredicateConfig::default());
    let due = futures::stream::unfold(due, async |mut due| due.recv().await.map(|object| (object, due)));
    let mut controller = Controller::for_stream(changes, context.replays.store.clone())
        .with_config(kube::runtime::controller::Config::default().concurrency(CONCURRENCY))
        .reconcile_on(due);
    if matches!(context.replays.runner, Runner::Jobs(_)) {
        let jobs: Api<Job> = Api::namespaced(context.client.clone(), &context.replays.namespace);
        controller = controller.watches(jobs, watcher::Config::default().labels(job::SELECTOR), replay_of);
    }
    controller
        .graceful_shutdown_on(shutdown.clone().cancelled_owned())
        .run(reconcile, on_error, context)
        .for_each(async |result| {
            if let Err(error) = result {
                tracing::debug!(%error, "the watch of replays reports an error");
            }
        })
        .await;
}

/// The replay that a Job works for, by its labels.
fn replay_of(job: Job) -> Option<ObjectRef<Guarded>> {
    let labels = job.labels();
    let (namespace, name) = (labels.get(job::LABEL_NAMESPACE)?, labels.get(job::LABEL_NAME)?);
    Some(ObjectRef::new(name).within(namespace))
}

/// What a reconciliation depends on: of the worker's part of the status what it does, and not how
/// far it is.
fn what_matters(object: &Guarded) -> Option<u64> {
    let meta = object.meta();
    let mut hasher = DefaultHasher::new();
    meta.generation.hash(&mut hasher);
    meta.deletion_timestamp.is_some().hash(&mut hasher);
    meta.finalizers.hash(&mut hasher);
    let status = object.0.as_ref().ok().and_then(|replay| replay.status.as_ref());
    let progress = status.and_then(|status| status.progress.as_ref());
    progress.map(|progress| (progress.state, &progress.message)).hash(&mut hasher);
    progress.is_some_and(|progress| progress.outcome.is_some()).hash(&mut hasher);
    Some(hasher.finish())
}
