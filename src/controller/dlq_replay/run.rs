//! A replay that was let through: its worker, and what that shows.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::controller::Action;

use super::conditions::{Phase, Verdict};
use super::{Runner, Trouble, consent, uid, update_status};
use crate::api::conditions::ReplayReason;
use crate::api::{DlqReplay, ProgressState};
use crate::broker::Endpoint;
use crate::controller::Context;
use crate::controller::api_server::WriteError;
use crate::runner::audit::Stream;
use crate::runner::{State, Work};

/// How often a worker is looked at that says nothing.
const RECHECK: Duration = Duration::from_secs(5);

/// Sees to it that the worker is there, and shows what it does.
pub(super) async fn go_on(object: &DlqReplay, context: &Context) -> Result<Action, Trouble> {
    if let Some(verdict) = outcome(object) {
        update_status::conclude(object, &verdict, context).await?;
        return Ok(Action::requeue(Duration::ZERO));
    }
    if let Some(why) = withdrawn(object, context).await? {
        update_status::conclude(object, &Verdict::ended(ReplayReason::Stopped, why), context).await?;
        return Ok(Action::requeue(Duration::ZERO));
    }
    // After a start of the operator this is what keeps others out.
    let _ = context.replays.active.claim(object, []);
    let state = match ensure(object, context).await {
        Err(trouble @ (Trouble::Dereference(_) | Trouble::Job(_)))
            if !is_at_work(object, context).await? =>
        {
            let why = format!("no worker can be started: {trouble}");
            let next = object.status.clone().unwrap_or_default();
            let held = Verdict::new(Phase::Held, ReplayReason::Paused, why);
            update_status::save(object, next, &held, context).await?;
            return Err(trouble);
        }
        other => other?,
    };
    let verdict = match state {
        State::Working => moving(object),
        State::Overdue => Verdict::ended(
            ReplayReason::DeadlineExceeded,
            "its worker took longer than spec.deadline and ten minutes more: a new replay moves the rest",
        ),
        State::Failed(why) => Verdict::ended(ReplayReason::Failed, why),
    };
    if verdict.phase != Phase::Ended {
        let next = object.status.clone().unwrap_or_default();
        update_status::save(object, next, &verdict, context).await?;
        return Ok(Action::requeue(RECHECK));
    }
    // What it said in its last moment counts more than how it looks from outside.
    let object = super::latest(object, context).await?;
    let verdict = outcome(&object).unwrap_or(verdict);
    update_status::conclude(&object, &verdict, context).await?;
    Ok(Action::requeue(Duration::ZERO))
}

/// Why the owner of the pipeline's cluster no longer lets it publish where it does. Whoever can't
/// be asked has withdrawn nothing.
async fn withdrawn(object: &DlqReplay, context: &Context) -> Result<Option<String>, Trouble> {
    match consent::pipeline(object, context).await? {
        Some(pipeline) => Ok(consent::beyond_grants(object, &pipeline, context).await.unwrap_or_default()),
        None => Ok(None),
    }
}

async fn ensure(object: &DlqReplay, context: &Context) -> Result<State, Trouble> {
    let endpoint = consent::endpoint(object, context).await?;
    let stream = consent::stream(context).await?;
    let Some(endpoint) = endpoint else {
        // The pipeline is gone, and with it the way to the broker; a worker at work sees that too.
        return Ok(match is_at_work(object, context).await? {
            true => State::Working,
            false => State::Failed("the pipeline was deleted".to_owned()),
        });
    };
    match &context.replays.runner {
        Runner::Jobs(jobs) => Ok(jobs.ensure(object, &endpoint, stream.as_ref()).await?),
        Runner::InProcess(tasks) => {
            let work = || work(object, context, endpoint, stream);
            Ok(tasks.ensure(&uid(object), work, context.replays.wake(object)).await)
        }
    }
}

fn work(object: &DlqReplay, context: &Context, endpoint: Arc<Endpoint>, stream: Option<Stream>) -> Work {
    Work {
        client: context.client.clone(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        uid: uid(object),
        endpoint,
        guard: context.replays.guard.clone(),
        lease_namespace: context.replays.namespace.clone(),
        stream,
        print_records: context.replays.settings.print_records,
    }
}

/// Whether a worker is there that may still say how it ends.
pub(super) async fn is_at_work(object: &DlqReplay, context: &Context) -> Result<bool, WriteError> {
    match &context.replays.runner {
        Runner::Jobs(jobs) => Ok(jobs.is_at_work(object).await.unwrap_or(true)),
        Runner::InProcess(tasks) => Ok(tasks.is_at_work(&uid(object))),
    }
}

/// How the worker says that it ended.
pub(super) fn outcome(object: &DlqReplay) -> Option<Verdict> {
    let outcome = object.status.as_ref()?.progress.as_ref()?.outcome.as_ref()?;
    let reason = ReplayReason::from_word(&outcome.result).unwrap_or(ReplayReason::Failed);
    Some(Verdict::ended(reason, outcome.message.clone()))
}

fn moving(object: &DlqReplay) -> Verdict {
    let progress = object.status.as_ref().and_then(|status| status.progress.as_ref());
    match progress.and_then(|progress| progress.state) {
        None => Verdict::new(Phase::Moving, ReplayReason::Running, "the worker starts"),
        Some(ProgressState::Running) => Verdict::new(Phase::Moving, ReplayReason::Running, "messages move"),
        Some(ProgressState::Canary) => {
            let text = "a few messages test whether the failures are over";
            Verdict::new(Phase::Moving, ReplayReason::Canary, text)
        }
        Some(ProgressState::Paused) => {
            let why = progress.and_then(|progress| progress.message.clone()).unwrap_or_default();
            Verdict::new(Phase::Held, ReplayReason::Paused, why)
        }
    }
}
