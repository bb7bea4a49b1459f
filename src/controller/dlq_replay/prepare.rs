//! What comes before a worker: checks, plan, consent, and the replay's turn.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;

use super::approval::{self, Consent};
use super::conditions::{Phase, Verdict};
use super::{RECHECK, Trouble, active, consent, history, refusal, uid, update_status};
use crate::api::conditions::{ReplayCondition, ReplayReason};
use crate::api::{Admission, AdmittedBy, DlqReplay, ReplayPlan, ReplayTo, RetryPipeline};
use crate::controller::Context;
use crate::controller::retry_pipeline::conditions::now;
use crate::runner::plan::{self, Failure, Request};

/// Why an approval of a plan does not count for what the spec says by now.
const OUTDATED: (ReplayReason, &str) = (
    ReplayReason::ApprovalMismatch,
    "spec.pace or spec.guard changed after the plan was made: have a new replay approved",
);

/// What to do with a replay that has not started.
enum Step {
    /// Say this, and look again: soon, or once something changes.
    Wait(Verdict, Option<Duration>),
    /// It is over.
    End(Verdict),
}

/// Either the next part of the way, or what ends it here.
type Way<T> = Result<T, Box<Stop>>;

enum Stop {
    At(Step),
    Trouble(Trouble),
}

impl<E: Into<Trouble>> From<E> for Box<Stop> {
    fn from(error: E) -> Self {
        Self::new(Stop::Trouble(error.into()))
    }
}

fn wait<T>(verdict: Verdict, again: Duration) -> Way<T> {
    Err(Box::new(Stop::At(Step::Wait(verdict, Some(again)))))
}

fn end<T>((reason, text): (ReplayReason, impl Into<String>)) -> Way<T> {
    Err(Box::new(Stop::At(Step::End(Verdict::ended(reason, text)))))
}

/// Takes a replay that has not started one step further.
pub(super) async fn step(object: &DlqReplay, context: &Context) -> Result<Action, Trouble> {
    match try_step(object, context).await {
        Ok(action) => Ok(action),
        Err(stop) => match *stop {
            Stop::Trouble(trouble) => Err(trouble),
            Stop::At(Step::Wait(verdict, again)) => {
                let next = object.status.clone().unwrap_or_default();
                update_status::save(object, next, &verdict, context).await?;
                Ok(again.map_or_else(Action::await_change, Action::requeue))
            }
            Stop::At(Step::End(verdict)) => {
                update_status::conclude(object, &verdict, context).await?;
                context.replays.active.release(object);
                Ok(Action::requeue(Duration::ZERO))
            }
        },
    }
}

async fn try_step(object: &DlqReplay, context: &Context) -> Way<Action> {
    if object.spec.cancel {
        return end((ReplayReason::Cancelled, "spec.cancel is true; nothing has moved"));
    }
    let pipeline = checked(object, context).await?;
    let plan = match object.status.as_ref().and_then(|status| status.plan.clone()) {
        Some(plan) if approved_since(object).is_some() || is_current(&plan, object, &pipeline) => plan,
        Some(_) if object.spec.approval.is_some() => return end(OUTDATED),
        _ => return planned(object, pipeline, context).await,
    };
    conclude_early(object, &plan)?;
    let not_yet = wait_until(object);
    if plan.matching == 0 && not_yet.is_none() {
        return end((ReplayReason::Completed, "no message is selected, so nothing had to move"));
    }
    let given = consented(object, &plan, &pipeline, context).await?;
    if let Some(left) = not_yet {
        let text = "it waits for spec.notBefore";
        return wait(given.on(Verdict::waiting(ReplayReason::Scheduled, text)), left);
    }
    if object.spec.suspend {
        let verdict =
            Verdict::new(Phase::Held, ReplayReason::Paused, "spec.suspend is true; nothing has moved");
        return Err(Box::new(Stop::At(Step::Wait(given.on(verdict), None))));
    }
    if let Err(other) = claim(object, context) {
        return wait(given.on(scheduled(&other)), RECHECK);
    }
    admit(object, &plan, context).await
}

/// Ends what its plan alone decides, whatever the pipeline says by now.
fn conclude_early(object: &DlqReplay, plan: &ReplayPlan) -> Way<()> {
    if let Some(danger) = refusal::dangers(plan) {
        return end(danger);
    }
    if object.spec.dry_run {
        return end((ReplayReason::Completed, "this is what it would do; nothing has moved"));
    }
    Ok(())
}

/// Whether the plan was made with the pace and guard as they are now: consent is asked, and
/// given, to nothing else. Once it is given the API server lets them only be tightened.
fn is_current(plan: &ReplayPlan, object: &DlqReplay, pipeline: &RetryPipeline) -> bool {
    // What can't be read any more is for the next plan to say.
    let now = plan::run(object, pipeline).ok().map(|run| plan::settings_hash(&run));
    plan.settings_hash == now
}

/// The pipeline, if a replay of it may begin.
async fn checked(object: &DlqReplay, context: &Context) -> Way<RetryPipeline> {
    let pipeline = consent::pipeline(object, context).await?;
    if let Some((reason, text)) = refusal::pipeline(object, pipeline.as_ref()) {
        let plan = object.status.as_ref().and_then(|status| status.plan.as_ref());
        // Once there is a plan, a pipeline that is not Ready for a while is no reason to give up what
        // people may have consented to.
        if let (Some(plan), Some(pipeline)) = (plan, &pipeline) {
            if is_current(plan, object, pipeline) {
                conclude_early(object, plan)?;
            }
            return wait(Verdict::waiting(ReplayReason::Scheduled, text), RECHECK);
        }
        let age = object.creation_timestamp().map(|time| Timestamp::now().duration_since(time.0));
        let age = age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default();
        // Both may have been created together.
        if refusal::is_out_of_patience(age, context.replays.settings.patience) {
            return end((reason, text));
        }
        return wait(Verdict::waiting(ReplayReason::Planning, text), RECHECK);
    }
    let Some(pipeline) = pipeline else {
        return wait(Verdict::waiting(ReplayReason::Planning, "-"), RECHECK);
    };
    let status = pipeline.status.clone().unwrap_or_default();
    if let Some(text) = history::has_run(&status, &object.name_any(), &history::spec_hash(&object.spec)) {
        return end((ReplayReason::AlreadyRun, text));
    }
    let has_trail = context.replays.settings.audit.is_some();
    if let Some(refused) = refusal::policy(object, &pipeline, has_trail) {
        return end(refused);
    }
    match consent::beyond_grants(object, &pipeline, context).await.map_err(Trouble::from)? {
        Some(text) => end((ReplayReason::PreflightFailed, text)),
        None => Ok(pipeline),
    }
}

/// Has a plan made, and keeps it once it is there.
async fn planned(object: &DlqReplay, pipeline: RetryPipeline, context: &Context) -> Way<Action> {
    let replays = &context.replays;
    if let Err(other) = claim(object, context) {
        return wait(scheduled(&other), RECHECK);
    }
    let planning = |text: &str| Verdict::waiting(ReplayReason::Planning, text);
    let endpoint = match consent::endpoint_of(&pipeline, context).await {
        Ok(endpoint) => endpoint,
        // Nobody else has to wait until that is put right.
        Err(trouble) => {
            replays.active.release(object);
            return wait(planning(&trouble.to_string()), RECHECK);
        }
    };
    let request = || Request {
        client: context.client.clone(),
        replay: Arc::new(object.clone()),
        pipeline: Arc::new(pipeline),
        endpoint,
        guard: replays.guard.clone(),
        lease_namespace: replays.namespace.clone(),
    };
    match replays.plans.fetch(&uid(object), request, replays.wake(object)) {
        None => wait(planning("the queue is being read; nothing moves"), Duration::from_secs(30)),
        Some(Ok(plan)) => {
            replays.active.release(object);
            let mut next = object.status.clone().unwrap_or_default();
            next.plan = Some(plan);
            update_status::save(object, next, &planning("the plan is made"), context).await?;
            Ok(Action::requeue(Duration::ZERO))
        }
        Some(Err(Failure { reason, message, again: false })) => end((reason, message)),
        Some(Err(Failure { message, .. })) => {
            replays.active.release(object);
            wait(planning(&message), context.backoff.next(&uid(object)).max(RECHECK))
        }
    }
}

/// How long `notBefore` still lasts.
fn wait_until(object: &DlqReplay) -> Option<Duration> {
    let left = object.spec.not_before.as_ref()?.0.duration_since(Timestamp::now());
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

fn scheduled(other: &str) -> Verdict {
    Verdict::waiting(ReplayReason::Scheduled, format!("the replay {other} of the same pipeline comes first"))
}

fn claim(object: &DlqReplay, context: &Context) -> Result<(), String> {
    let others = context.replays.all();
    context.replays.active.claim(object, others.iter().filter_map(|other| other.0.as_ref().ok()))
}

/// What was given, and by whom.
struct Given {
    by: AdmittedBy,
    max_messages: Option<i64>,
}

impl Given {
    /// Adds it to what is said of a replay that waits for something else.
    fn on(&self, verdict: Verdict) -> Verdict {
        match self.by {
            AdmittedBy::Approval => {
                verdict.with_consent("True", ReplayReason::Approved, "a second person has approved the plan")
            }
            AdmittedBy::Budget | AdmittedBy::NotRequired => verdict,
        }
    }

    /// The same of a replay that starts.
    fn on_start(&self, verdict: Verdict) -> Verdict {
        let (reason, text) = match self.by {
            AdmittedBy::Approval => return self.on(verdict),
            AdmittedBy::Budget => {
                (ReplayReason::WithinBudget, "it fits into what may move without approval within 24 hours")
            }
            AdmittedBy::NotRequired => {
                (ReplayReason::ApprovalNotRequired, "the pipeline asks for no approval")
            }
        };
        verdict.with_consent("True", reason, text)
    }
}

/// The consent that a replay has, if it has enough.
async fn consented(
    object: &DlqReplay,
    plan: &ReplayPlan,
    pipeline: &RetryPipeline,
    context: &Context,
) -> Way<Given> {
    let others = context.replays.all();
    let others = others.iter().filter_map(|other| other.0.as_ref().ok());
    let status = pipeline.status.clone().unwrap_or_default();
    let running = active::unapproved(object, others);
    let budget = approval::budget(pipeline.spec.replay_policy.as_ref());
    let left = budget.map(|budget| approval::left(budget, &status, running, Timestamp::now()));
    let lasts = context.replays.settings.approval_lasts;
    let consent = approval::judge(&object.spec, plan, left, approval_age(object), lasts);
    let by_person = matches!(consent, Consent::Given { by: AdmittedBy::Approval, .. } | Consent::Missing);
    if by_person && let Some(why) = consent::unverifiable(object, context).await? {
        return end((ReplayReason::ApprovalUnverifiable, why));
    }
    match consent {
        Consent::Given { by, max_messages } => Ok(Given { by, max_messages }),
        Consent::Missing => {
            let text = ask_for_approval(object, plan);
            let verdict = Verdict::waiting(ReplayReason::AwaitingApproval, text.clone());
            // The budget may have grown by then.
            let again = Duration::from_secs(60);
            wait(verdict.with_consent("False", ReplayReason::AwaitingApproval, text), again)
        }
        Consent::Expired => end((
            ReplayReason::ApprovalExpired,
            "the approval is older than it may be (24 hours by default): have a new replay approved",
        )),
        Consent::Mismatch => end((
            ReplayReason::ApprovalMismatch,
            format!(
                "spec.approval.planHash is not that of the plan, {}: have a new replay approved",
                plan.hash
            ),
        )),
    }
}

/// Why a second person is needed, and what that person does.
fn ask_for_approval(object: &DlqReplay, plan: &ReplayPlan) -> String {
    let why = match (object.spec.to(), approval::needed(&object.spec, plan)) {
        (ReplayTo::Discard {}, _) => "deleting messages always takes an approval".to_owned(),
        (_, 1) => "1 message is more than may move without approval".to_owned(),
        (_, needed) => format!("{needed} messages are more than may move without approval"),
    };
    format!(
        "{why}: a second person looks at status.plan and runs `redrive approve {} -n {}`, which consents to the \
         plan {}",
        object.name_any(),
        object.namespace().unwrap_or_default(),
        plan.hash
    )
}

/// For how long the approval has been there: since it was first seen.
fn approval_age(object: &DlqReplay) -> Duration {
    let age = approved_since(object).map(|since| Timestamp::now().duration_since(since));
    age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default()
}

/// Since when the approval is known to count.
fn approved_since(object: &DlqReplay) -> Option<Timestamp> {
    let mut conditions = object.status.iter().flat_map(|status| &status.conditions);
    let seen = conditions.find(|one| {
        one.type_ == ReplayCondition::Approved.as_str()
            && one.status == "True"
            && one.reason == ReplayReason::Approved.as_str()
    });
    seen.map(|seen| seen.last_transition_time.0)
}

/// Lets it through: from here on it is at work, whatever restarts.
async fn admit(object: &DlqReplay, plan: &ReplayPlan, context: &Context) -> Way<Action> {
    // Whoever was at work before has been recorded by now, and nobody else begins meanwhile.
    let given = match consent::pipeline(object, context).await? {
        Some(pipeline) => consented(object, plan, &pipeline, context).await,
        None => wait(Verdict::waiting(ReplayReason::Planning, "the pipeline is gone"), RECHECK),
    };
    let given = match given {
        Ok(given) => given,
        Err(stop) => {
            context.replays.active.release(object);
            return Err(stop);
        }
    };
    let mut next = object.status.clone().unwrap_or_default();
    next.admission = Some(Admission { by: given.by, max_messages: given.max_messages, time: now() });
    let verdict = Verdict::new(Phase::Moving, ReplayReason::Running, "the worker starts");
    update_status::save(object, next, &given.on_start(verdict), context).await?;
    Ok(Action::requeue(Duration::ZERO))
}
