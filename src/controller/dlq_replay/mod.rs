//! Reconciles a `DlqReplay`: plan, consent, turn, worker, end.
//!
//! Each pass reads the resource anew and takes the next step that it finds due. What was decided
//! stands in the status before it is acted on: `plan` before consent is asked, `admission` before
//! a worker starts, `summary` before the pipeline remembers the run, and that before the worker's
//! Job goes. So an operator that was killed goes on where it stopped, and a run that has ended
//! never starts again.

mod active;
mod approval;
mod conditions;
mod consent;
mod end;
mod finalizer;
mod history;
mod planning;
mod prepare;
mod refusal;
mod run;
mod settings;
mod update_status;
pub mod verifiability;
mod wiring;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, ResourceExt};
use tokio::sync::mpsc;

use super::Context;
use super::api_server::{WriteError, written};
use super::retry_pipeline::DereferenceError;
use crate::api::DlqReplay;
use crate::broker::AddressGuard;
use crate::ops::metrics::Ended;
use crate::runner::{in_process, job};

pub use settings::{AuditStream, ReplaySettings, RunnerKind};
pub(crate) use wiring::{parts, work};

/// How soon a replay that waits for something outside of it is looked at again.
const RECHECK: Duration = Duration::from_secs(3);

/// A replay as it is watched: one that can't be read does not stop the others.
pub(crate) type Guarded = kube::core::DeserializeGuard<DlqReplay>;

/// What every reconciliation of a replay needs.
pub(crate) struct Replays {
    settings: ReplaySettings,
    /// Where Jobs, Leases and the audit trail's Secret are.
    namespace: String,
    guard: AddressGuard,
    runner: Runner,
    plans: planning::Plans,
    active: active::Active,
    store: Store<Guarded>,
    due: mpsc::Sender<ObjectRef<Guarded>>,
}

/// Where workers run.
enum Runner {
    Jobs(job::Jobs),
    InProcess(in_process::Tasks),
}

impl Replays {
    /// All replays that are known, as they were seen last.
    pub(crate) fn all(&self) -> Vec<Arc<Guarded>> {
        self.store.state()
    }

    /// Gives up plans and stops workers of this process, so that nothing stays unacknowledged.
    pub(crate) async fn finish(&self) {
        self.plans.stop();
        if let Runner::InProcess(tasks) = &self.runner {
            tasks.finish().await;
        }
    }

    /// Has a replay looked at soon.
    fn wake(&self, object: &DlqReplay) -> impl FnOnce() + Send + 'static {
        let (due, reference) = (self.due.clone(), reference(object));
        // With the channel full, the next recheck finds it.
        move || drop(due.try_send(reference))
    }
}

fn reference(object: &DlqReplay) -> ObjectRef<Guarded> {
    ObjectRef::new(&object.name_any()).within(&object.namespace().unwrap_or_default())
}

fn uid(object: &DlqReplay) -> String {
    object.uid().unwrap_or_default()
}

/// What a pass could not do; tried again later.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    /// The API server did not take a write, or give an answer.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A Secret can't be read.
    #[error(transparent)]
    Dereference(#[from] DereferenceError),
    /// Nobody could say whether approvals are checked.
    #[error(transparent)]
    Verifiability(#[from] verifiability::Error),
    /// A worker's Job can't be made, read or ended.
    #[error(transparent)]
    Job(#[from] job::Error),
}

/// Brings one replay a step further. Every failure is tried again later, so there is no error
/// to return.
pub(crate) async fn reconcile(object: Arc<Guarded>, context: Arc<Context>) -> Result<Action, Infallible> {
    let object = match &object.0 {
        Ok(object) => object,
        Err(invalid) => {
            tracing::error!(
                namespace = invalid.metadata.namespace,
                name = invalid.metadata.name,
                error = invalid.error,
                "a DlqReplay can't be read: apply the definitions of this version, or correct it"
            );
            return Ok(Action::await_change());
        }
    };
    match context.reconciles.count(wiring::KIND, pass(object, &context), ended).await {
        Ok(action) => {
            context.backoff.reset(&uid(object));
            Ok(action)
        }
        Err(Trouble::Write(WriteError::Gone)) => Ok(forget(object, &context)),
        Err(Trouble::Write(WriteError::Conflict)) => Ok(Action::requeue(Duration::from_millis(200))),
        Err(trouble) => {
            let (namespace, name) = (object.namespace(), object.name_any());
            tracing::warn!(namespace, name, %trouble, "trying again later");
            Ok(Action::requeue(context.backoff.next(&uid(object))))
        }
    }
}

/// How metrics call what a pass came to.
fn ended(passed: &Result<Action, Trouble>) -> Ended {
    match passed {
        Ok(action) if *action == Action::await_change() => Ended::Success,
        Ok(_) | Err(Trouble::Write(WriteError::Conflict)) => Ended::RequeueAfter,
        Err(Trouble::Write(WriteError::Gone)) => Ended::Success,
        Err(_) => Ended::Error,
    }
}

/// Never called: [`reconcile`] has no error.
pub(crate) fn on_error(_: Arc<Guarded>, error: &Infallible, _: Arc<Context>) -> Action {
    match *error {}
}

async fn pass(seen: &DlqReplay, context: &Context) -> Result<Action, Trouble> {
    let object = latest(seen, context).await?;
    let summary = object.status.as_ref().and_then(|status| status.summary.as_ref());
    if summary.is_some() {
        return end::ended(&object, context).await;
    }
    if object.metadata.deletion_timestamp.is_some() {
        return end::deleted(&object, context).await;
    }
    let object = match finalizer::has(&object) {
        true => object,
        false => finalizer::add(&context.client, &object).await?,
    };
    if object.status.as_ref().is_some_and(|status| status.admission.is_some()) {
        return run::go_on(&object, context).await;
    }
    prepare::step(&object, context).await
}

/// The resource as the API server has it now: the store may not have seen our last write yet.
async fn latest(seen: &DlqReplay, context: &Context) -> Result<DlqReplay, WriteError> {
    let api: Api<DlqReplay> = Api::namespaced(context.client.clone(), &seen.namespace().unwrap_or_default());
    let found = written(api.get(&seen.name_any())).await?;
    if found.metadata.uid == seen.metadata.uid { Ok(found) } else { Err(WriteError::Gone) }
}

/// Forgets a replay that is gone.
fn forget(object: &DlqReplay, context: &Context) -> Action {
    context.replays.plans.forget(&uid(object));
    context.replays.active.release(object);
    context.backoff.reset(&uid(object));
    if let Runner::InProcess(tasks) = &context.replays.runner {
        tasks.stop(&uid(object));
    }
    Action::await_change()
}
