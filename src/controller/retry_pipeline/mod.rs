//! Reconciles a `RetryPipeline`, in named steps: dereference, validate, the lane's
//! observe, diff and apply, and update status.

mod cleanup;
pub(crate) mod conditions;
mod dereference;
mod finalizer;
mod freshness;
mod inventory;
mod recreated;
mod report;
pub(crate) mod update_status;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};

use super::api_server::WriteError;
use super::lane::{self, Cause, Done, Failure, Maintain, Maintained, Task};
use super::{Context, Guarded, backoff};
use crate::api::RetryPipeline;
use crate::broker::{BrokerError, Endpoint};
use crate::ops::metrics::Ended;
use crate::topology::spec::Identity;
use crate::topology::validate::{Problem, validate};

pub(crate) use cleanup::{deleted, is_about_to_delete};
pub(crate) use dereference::{
    Error as DereferenceError, Source, check_also, find, is_welcome, polled, source,
};
pub(crate) use freshness::LastWritten;
pub(crate) use report::{DriftNumbers, Reported};

/// Brings one pipeline up to date. Every failure ends in a condition and a later
/// try, so there is no error to return.
pub(crate) async fn reconcile(object: Arc<Guarded>, context: Arc<Context>) -> Result<Action, Infallible> {
    match &object.0 {
        Ok(pipeline) => {
            let _busy = context.lanes.busy(&uid(pipeline));
            let pass = pass(Arc::new(pipeline.clone()), &context);
            let passed = context.reconciles.count(super::KIND, pass, ended).await;
            if is_gone(pipeline, &context) {
                // Deleted meanwhile: what this pass has remembered, nobody else would forget.
                report::forget(pipeline, &context);
            }
            let (Ok(action) | Err(action)) = passed;
            Ok(action)
        }
        Err(invalid) => {
            tracing::error!(
                namespace = invalid.metadata.namespace,
                name = invalid.metadata.name,
                error = invalid.error,
                "a RetryPipeline can't be read: apply the definitions of this version, or correct it"
            );
            Ok(Action::await_change())
        }
    }
}

fn is_gone(object: &RetryPipeline, context: &Context) -> bool {
    let known = context.store.get(&super::reference(object));
    known.is_none_or(|known| known.meta().uid != object.metadata.uid)
}

/// Never called: [`reconcile`] has no error.
pub(crate) fn on_error(_: Arc<Guarded>, error: &Infallible, _: Arc<Context>) -> Action {
    match *error {}
}

/// What a pass comes to: when to look again, as an error where something is in the way.
type Passed = Result<Action, Action>;

/// How metrics call it.
fn ended(passed: &Passed) -> Ended {
    match passed {
        Err(_) => Ended::Error,
        Ok(action) if *action == Action::await_change() => Ended::Success,
        Ok(_) => Ended::RequeueAfter,
    }
}

async fn pass(object: Arc<RetryPipeline>, context: &Context) -> Passed {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(cleanup::run(object, context).await);
    }
    let object = match freshness::current(object.clone(), context).await {
        Ok(object) => object,
        Err(WriteError::Gone) => return Ok(Action::await_change()),
        Err(error) => return Err(later(&object, context, &error)),
    };
    // A suspended pipeline as well: its deletion still proceeds.
    let object = match finalizer::ensure(object.clone(), context).await {
        Ok(object) => object,
        Err(error) => return Err(later(&object, context, &error)),
    };
    if object.spec.suspend {
        return match report::suspended(&object, context).await {
            Ok(()) => Ok(Action::await_change()),
            Err(error) => Err(later(&object, context, &error)),
        };
    }
    let object = match recreated::noticed(object.clone(), context).await {
        Ok(object) => object,
        Err(WriteError::Gone) => return Ok(Action::await_change()),
        Err(error) => return Err(later(&object, context, &error)),
    };
    let generation = object.metadata.generation.unwrap_or_default();
    context.convergence.begin(&uid(&object), generation, update_status::is_settled(&object));
    let (saved, next) = match maintain(&object, context).await {
        Ok((task, maintained)) => {
            context.backoff.reset(&uid(&object));
            let next = if maintained.migrates() {
                Action::requeue(lane::APART + Duration::from_secs(1))
            } else {
                Action::await_change()
            };
            let saved = report::maintained(&object, &task, &maintained, context).await;
            if saved.is_ok() && maintained.is_applied() {
                context.convergence.end(&uid(&object));
            }
            (saved, Ok(next))
        }
        Err(obstacle) => {
            if obstacle.parks() {
                context.lanes.forget(&uid(&object));
            }
            let wait = if obstacle.is_permanent() {
                backoff::jittered(backoff::SLOW_RECHECK)
            } else {
                context.backoff.next(&uid(&object))
            };
            (report::obstacle(&object, &obstacle, context).await, Err(Action::requeue(wait)))
        }
    };
    match saved {
        Ok(()) => next,
        Err(error) => Err(later(&object, context, &error)),
    }
}

/// What keeps a pipeline from being worked on, as its conditions will say it.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// The specification does not hold.
    Invalid(Vec<Problem>),
    /// A reference can't be resolved.
    Dereference(dereference::Error),
    /// The lane failed.
    Lane(Failure),
}

impl Obstacle {
    /// Whether nobody may look at the broker for this pipeline until that changes.
    fn parks(&self) -> bool {
        matches!(self, Self::Dereference(error) if error.parks())
    }

    /// Whether only a change can help.
    fn is_permanent(&self) -> bool {
        match self {
            Self::Invalid(_) => true,
            Self::Dereference(error) => error.is_permanent(),
            Self::Lane(failure) => match &failure.cause {
                Cause::Broker(error) => !error.is_transient(),
                Cause::BrokerChanged { .. } => true,
                Cause::Record(_) | Cause::Raced(_) | Cause::Stopped => false,
            },
        }
    }
}

async fn maintain(
    object: &Arc<RetryPipeline>,
    context: &Context,
) -> Result<(Arc<Maintain>, Maintained), Obstacle> {
    let found = dereference::find(object, context).await.map_err(Obstacle::Dereference)?;
    let task = prepare(object.clone(), &context.cluster).map_err(Obstacle::Invalid)?;
    found.check_rights(object, &task.pipeline, context).map_err(Obstacle::Dereference)?;
    let task =
        Arc::new(Maintain { cluster_uid: found.cluster_uid(), events_vhost: found.events_vhost(), ..task });
    let endpoint = found.endpoint;
    let mut result = submit(&endpoint, context, &task).await;
    if let Err(Failure { cause: Cause::Broker(error), .. }) = &result
        && matches!(error, BrokerError::Unauthorized { .. } | BrokerError::Tls { .. })
    {
        // The password or the authority may have been replaced: read them once more.
        let fresh = dereference::fresh_endpoint(object, context).await.map_err(Obstacle::Dereference)?;
        if fresh.fingerprint() != endpoint.fingerprint() {
            result = submit(&fresh, context, &task).await;
        }
    }
    result.map(|maintained| (task, maintained)).map_err(Obstacle::Lane)
}

async fn submit(
    endpoint: &Arc<Endpoint>,
    context: &Context,
    task: &Arc<Maintain>,
) -> Result<Maintained, Failure> {
    let vhost = task.object.spec.vhost();
    match context.lanes.submit(endpoint, vhost, Task::Maintain(task.clone())).await? {
        Done::Maintained(maintained) => {
            Ok(Maintained { detection: context.lanes.detection(&task.object, endpoint), ..*maintained })
        }
        Done::Removed(_) => Err(Failure::stopped()),
    }
}

/// The checked pipeline with what its status records.
pub(crate) fn prepare(object: Arc<RetryPipeline>, cluster: &str) -> Result<Maintain, Vec<Problem>> {
    let pipeline = validate(identity(&object, cluster), object.spec.to_topology())?;
    let inventory = inventory::read(&object);
    let settled = update_status::is_settled(&object);
    Ok(Maintain { object, pipeline, inventory, settled, cluster_uid: None, events_vhost: None })
}

pub(crate) fn identity(object: &RetryPipeline, cluster: &str) -> Identity {
    Identity {
        cluster: cluster.to_owned(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        uid: uid(object),
    }
}

pub(crate) fn uid(object: &RetryPipeline) -> String {
    object.uid().unwrap_or_default()
}

/// What a deletion's waits are counted under: failures before it say nothing about how
/// often it may be tried.
fn deletion_pace(object: &RetryPipeline) -> String {
    format!("{} deletion", uid(object))
}

/// A write that the API server did not take is tried again with everything else.
fn later(object: &RetryPipeline, context: &Context, error: &WriteError) -> Action {
    tracing::warn!(namespace = object.namespace(), name = object.name_any(), %error, "trying again later");
    Action::requeue(context.backoff.next(&uid(object)))
}
