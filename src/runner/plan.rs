//! Plans a replay: what it would do, found out without moving anything.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::{Client, ResourceExt};
use lapin::Connection;

use super::lease::Claim;
use super::progress::{cut, now};
use crate::api::conditions::ReplayReason;
use crate::api::{
    self, Bucket, DlqReplay, Duration, Finding, HeaderBuckets, Histogram, ReplayPlan, ReplayRun,
    RetryPipeline, RunName, Severity,
};
use crate::broker::replay::examine::{Examination, ExamineError};
use crate::broker::replay::preflight::{Look, Touched};
use crate::broker::replay::{Site, exclusive};
use crate::broker::{AddressGuard, BrokerError, Endpoint, Management, amqp};
use crate::replay::judge::RunJudge;
use crate::replay::plan::facts::Facts;
use crate::replay::plan::preflight::{self, findings};
use crate::replay::plan::sketch::Top;
use crate::replay::plan::survey::{Summary, Survey};
use crate::replay::plan::{self, Plan};
use crate::replay::rewrite::Wire;
use crate::replay::run::Fence;
use crate::replay::selection::Selection;
use crate::topology::spec::Identity;
use crate::topology::validate::{Pipeline, Problem, validate};

/// The most findings and routes that a status holds.
const MOST: usize = 64;

/// The longest value in a histogram and name of a route, in bytes.
const MAX_VALUE: usize = 255;

/// The longest text of a finding, in bytes.
const MAX_FINDING: usize = 1_024;

/// How long the broker lets the consumer hold messages while a queue is read.
const HOLD: std::time::Duration = std::time::Duration::from_secs(2 * 3_600);

/// What a plan is made from.
pub(crate) struct Request {
    pub(crate) client: Client,
    pub(crate) replay: Arc<DlqReplay>,
    pub(crate) pipeline: Arc<RetryPipeline>,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) guard: AddressGuard,
    pub(crate) lease_namespace: String,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The reason that the condition gets.
    pub(crate) reason: ReplayReason,
    /// What is wrong, in sentences.
    pub(crate) message: String,
    /// Whether another attempt may succeed.
    pub(crate) again: bool,
}

impl Failure {
    fn for_good(reason: ReplayReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), again: false }
    }
}

impl From<BrokerError> for Failure {
    fn from(error: BrokerError) -> Self {
        Self {
            reason: ReplayReason::PreflightFailed,
            message: error.to_string(),
            again: error.is_transient(),
        }
    }
}

impl From<ExamineError> for Failure {
    fn from(error: ExamineError) -> Self {
        match error {
            ExamineError::Broker(error) => error.into(),
            error => Self::for_good(ReplayReason::PreflightFailed, error.to_string()),
        }
    }
}

/// Makes a plan; the queue's Lease is ours meanwhile.
pub(crate) async fn make(request: Request) -> Result<ReplayPlan, Failure> {
    let Request { client, replay, pipeline, endpoint, guard, lease_namespace } = &request;
    let run = run(replay, pipeline)
        .map_err(|problems| Failure::for_good(ReplayReason::InvalidSpec, problems.join("; ")))?;
    let management = Management::new(endpoint, guard.clone())?;
    let id = management.internal_cluster_id().await?.unwrap_or_else(|| endpoint.amqp.to_string());
    let about = format!("{}/{}", replay.namespace().unwrap_or_default(), replay.name_any());
    let uid = replay.uid().unwrap_or_default();
    let vhost = pipeline.spec.vhost();
    let claim = Claim::new(client, lease_namespace, [&id, vhost, &run.origin], &uid, &about);
    let held = claim.acquire(|by| tracing::debug!(by, "the plan waits: the queue is being read")).await;
    let planned = read(&run, &management, endpoint, guard, vhost).await;
    held.release().await;
    planned
}

/// Looks at what the run touches and, if nothing speaks against it, reads the queue and returns
/// everything.
async fn read(
    run: &ReplayRun,
    management: &Management,
    endpoint: &Endpoint,
    guard: &AddressGuard,
    vhost: &str,
) -> Result<ReplayPlan, Failure> {
    let connection = amqp::connect(endpoint, guard, vhost, "redrive plan of a replay").await?;
    // As long as this connection lives, nobody else reads the queue.
    exclusive::lock(&connection, endpoint, vhost, &run.origin).await?;
    let facts = facts(run, management, &connection, endpoint, vhost).await?;
    let summary = if dangers(run, &facts).is_some() {
        None
    } else {
        let hold = facts.takes_timeout().then_some(HOLD);
        let (queue, most) = (&run.origin, run.limits.scan);
        let examination = Examination { connection: &connection, endpoint, vhost, queue, most, hold };
        let mut survey = survey(run, &facts)?;
        examination.run(|message| survey.observe(message)).await?;
        Some(survey.summary())
    };
    exclusive::unlock(&connection, &run.origin).await;
    let request = plan::Request {
        spec: &run.immutable,
        pace: &run.pace,
        guard: &run.guard,
        asked: run.asked,
        limit: run.limits.messages,
        scan: run.limits.scan,
    };
    Ok(status(Plan::new(&request, &facts, summary), run))
}

/// What tells whether a plan was made with the pace and guard of this run.
pub(crate) fn settings_hash(run: &ReplayRun) -> String {
    plan::hash::hash("", &run.pace, &run.guard, &[], &[])
}

async fn facts(
    run: &ReplayRun,
    management: &Management,
    connection: &Connection,
    endpoint: &Endpoint,
    vhost: &str,
) -> Result<Facts, BrokerError> {
    let broker = management.overview().await?.facts;
    let look = Look { management, connection, endpoint, vhost };
    let limit_queue = run.rewriting.replay_limit_queue.as_deref();
    look.facts(&broker, Touched { origin: &run.origin, target: &run.target, limit_queue }).await
}

/// What forbids a run, whatever the messages are.
fn dangers(run: &ReplayRun, facts: &Facts) -> Option<String> {
    let found = findings(facts, &run.asked, &run.guard, None);
    let grave = found.iter().filter(|finding| finding.severity == preflight::Severity::Error);
    let texts: Vec<&str> = grave.map(|finding| finding.message.as_str()).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Looks once more, right before anything moves: hours may have passed since the plan.
///
/// # Errors
/// Every error of a connection.
pub(super) async fn check_again(
    run: &ReplayRun,
    planned: &[String],
    management: &Management,
    site: &Site,
) -> Result<Checked, BrokerError> {
    let Site { endpoint, guard, vhost, .. } = site;
    let connection = amqp::connect(endpoint, guard, vhost, "redrive start of a replay").await?;
    let facts = facts(run, management, &connection, endpoint, vhost).await?;
    let routes: Vec<String> =
        facts.target.routes().iter().take(MOST).map(|route| cut(route, MAX_VALUE)).collect();
    let danger = dangers(run, &facts).or_else(|| {
        (routes != planned).then(|| {
            format!(
                "the target reaches other queues than when the plan was made ({} and not {}): make a new replay",
                routes.join(", "),
                planned.join(", ")
            )
        })
    });
    Ok(Checked { danger, frame_max: facts.frame_max, hold: facts.hold() })
}

/// What a second look found.
pub(super) struct Checked {
    /// What forbids the run by now.
    pub(super) danger: Option<String>,
    /// The largest frame that the broker takes, which bounds a message's headers.
    pub(super) frame_max: u32,
    /// For how long the broker lets messages be held, where the consumer can't say so itself.
    pub(super) hold: Option<std::time::Duration>,
}

fn survey(run: &ReplayRun, facts: &Facts) -> Result<Survey, Failure> {
    let ready = facts.origin_queue.as_ref().and_then(|queue| queue.ready).unwrap_or_default();
    let fence = Fence { count: ready, time: clock() };
    let judge =
        judge(run, facts.frame_max).map_err(|why| Failure::for_good(ReplayReason::InvalidSpec, why))?;
    Ok(Survey::new(judge, &run.rewriting.run, fence, &run.audit_headers))
}

/// Who judges the messages of a run.
pub(super) fn judge(run: &ReplayRun, frame_max: u32) -> Result<RunJudge, String> {
    let selection =
        Selection::new(run.criteria.clone(), run.allow_body).map_err(|error| error.to_string())?;
    let wire = Wire { frame_max, max_body: None };
    let (target, rewriting) = (run.target.clone(), run.rewriting.clone());
    Ok(RunJudge::new(selection, target, rewriting, wire, Box::new(clock)))
}

/// Milliseconds since 1970.
fn clock() -> u64 {
    Timestamp::now().as_millisecond().max(0).unsigned_abs()
}

/// The run that a replay and its pipeline describe, or all that is wrong with them.
pub(crate) fn run(replay: &DlqReplay, pipeline: &RetryPipeline) -> Result<ReplayRun, Vec<String>> {
    let texts = |whose: &str, problems: Vec<Problem>| -> Vec<String> {
        problems.iter().map(|problem| format!("{whose}{problem}")).collect()
    };
    let checked = checked(pipeline).map_err(|problems| texts("in the pipeline, ", problems))?;
    let policy = pipeline.spec.replay_policy.clone().unwrap_or_default();
    let (namespace, name, uid) =
        (replay.namespace().unwrap_or_default(), replay.name_any(), replay.uid().unwrap_or_default());
    let name = RunName { namespace: &namespace, name: &name, uid: &uid };
    replay.spec.to_run(name, &checked, &policy).map_err(|problems| texts("", problems))
}

/// The pipeline in the topology's terms.
fn checked(pipeline: &RetryPipeline) -> Result<Pipeline, Vec<Problem>> {
    let identity = Identity {
        // Only marks what is declared, and a replay declares nothing.
        cluster: String::new(),
        namespace: pipeline.namespace().unwrap_or_default(),
        name: pipeline.name_any(),
        uid: pipeline.uid().unwrap_or_default(),
    };
    validate(identity, pipeline.spec.to_topology())
}

/// The plan as the status shows it.
fn status(plan: Plan, run: &ReplayRun) -> ReplayPlan {
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let summary = plan.summary.unwrap_or_default();
    ReplayPlan {
        hash: plan.hash,
        settings_hash: Some(settings_hash(run)),
        made: now(),
        in_source: count(plan.in_source),
        matching: count(summary.matching),
        route_count: i64::try_from(plan.routes.len()).unwrap_or(i64::MAX),
        routes: plan.routes.iter().take(MOST).map(|route| cut(route, MAX_VALUE)).collect(),
        colliding_ids: count(summary.colliding),
        histogram: (summary.matching > 0).then(|| histogram(&summary)),
        findings: plan.findings.iter().take(MOST).map(finding).collect(),
        expected_duration: plan.expected.map(|time| {
            // In whole seconds, and never nothing.
            Duration::from_secs(i64::try_from(time.as_secs().max(1)).unwrap_or(i64::MAX))
        }),
    }
}

fn finding(found: &preflight::Finding) -> Finding {
    Finding {
        severity: match found.severity {
            preflight::Severity::Info => Severity::Info,
            preflight::Severity::Warning => Severity::Warning,
            preflight::Severity::Error => Severity::Error,
        },
        check: found.check.to_owned(),
        message: cut(&found.message, MAX_FINDING),
    }
}

fn histogram(summary: &Summary) -> Histogram {
    let found = &summary.histogram;
    let header = |(name, top): &(String, Top)| HeaderBuckets { name: name.clone(), values: buckets(top) };
    Histogram {
        reasons: buckets(&found.reasons),
        error_types: buckets(&found.error_types),
        origins: buckets(&found.origins),
        ages: buckets(&found.ages),
        headers: found.headers.iter().map(header).collect(),
    }
}

fn buckets(top: &Top) -> Vec<api::Bucket> {
    let bucket = |value: &str, count: u64| Bucket {
        value: cut(value, MAX_VALUE),
        count: i64::try_from(count).unwrap_or(i64::MAX),
    };
    let mut buckets: Vec<Bucket> = top.values.iter().map(|one| bucket(&one.value, one.count)).collect();
    if top.other > 0 {
        buckets.push(bucket("other", top.other));
    }
    buckets
}
