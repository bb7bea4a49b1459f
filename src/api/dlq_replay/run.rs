//! A specification in the replay's own terms: checked against its pipeline, every documented
//! default filled in.

mod numbers;
mod places;

use crate::replay::plan::preflight::Asked;
use crate::replay::rewrite;
use crate::replay::run as replay;
use crate::replay::selection::{Criteria, Selection as Ready};
use crate::topology::pipeline::{Pipeline, REPLAY_LIMIT_CATEGORY};
use crate::topology::validate::Problem;

use super::{DlqReplaySpec, Expiration, OnFailure};
use crate::api::{Duration, ReplayPolicy};

/// Messages that a replay reads at most where the user names no number.
const DEFAULT_SCAN: i64 = 1_000_000;

/// How often one message may be replayed where the user names no number.
const DEFAULT_REPLAYS: i32 = 3;

/// The longest time from the first message on where the user names none.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(3_600);

/// The beginning of the headers that are Redrive's own.
const OWN_HEADERS: &str = "x-redrive-";

/// Which resource a run belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunName<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// A run as its resource describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayRun {
    /// The queue it reads.
    pub origin: String,
    /// Where it publishes to.
    pub target: replay::Target,
    /// Which messages it moves; [`Ready::new`] takes them, as it took them when they were
    /// checked.
    pub criteria: Criteria,
    /// Whether the expression may read bodies.
    pub allow_body: bool,
    /// Headers that a plan and the audit trail may show.
    pub audit_headers: Vec<String>,
    /// How it rewrites messages.
    pub rewriting: replay::Rewriting,
    /// How fast it goes.
    pub pace: replay::Pace,
    /// When it pauses or stops by itself.
    pub guard: replay::Guard,
    /// How far it may go.
    pub limits: replay::Limits,
    /// What bears on the findings of its plan.
    pub asked: Asked,
    /// What never changes of its specification, in one fixed form.
    pub immutable: String,
}

impl DlqReplaySpec {
    /// The specification in the replay's terms, for a pipeline and what it asks of replays.
    ///
    /// # Errors
    /// Everything that can't be used, at once, each with what to write instead.
    pub fn to_run(
        &self,
        name: RunName<'_>,
        pipeline: &Pipeline,
        policy: &ReplayPolicy,
    ) -> Result<ReplayRun, Vec<Problem>> {
        let mut problems = Vec::new();
        let origin = places::origin(&self.from(), pipeline, &mut problems);
        let target = places::target(&self.to(), origin.as_deref(), pipeline, policy, &mut problems);
        let criteria = self.criteria(policy, &mut problems);
        let rewriting = self.rewriting(name, origin.as_deref(), pipeline, &mut problems);
        let limits = self.limits(&mut problems);
        let pace = collected(self.to_pace(policy), &mut problems);
        let guard = collected(self.to_guard(), &mut problems);
        let (Some(origin), Some(target), Some(pace), Some(guard)) = (origin, target, pace, guard) else {
            return Err(problems);
        };
        if !problems.is_empty() {
            return Err(problems);
        }
        let asked = Asked {
            allow_fanout: self.allow_fanout,
            keep_expiration: rewriting.keep_expiration,
            deadline: limits.deadline,
        };
        Ok(ReplayRun {
            origin,
            target,
            criteria,
            allow_body: policy.allow_body,
            audit_headers: policy.audit_headers.clone(),
            rewriting,
            pace,
            guard,
            limits,
            asked,
            immutable: self.immutable(),
        })
    }

    /// What never changes of this specification, in one fixed form: everything but suspend,
    /// cancel, pace, guard and approval.
    pub fn immutable(&self) -> String {
        let immutable =
            Self { suspend: false, cancel: false, pace: None, guard: None, approval: None, ..self.clone() };
        // A struct of texts and numbers always has a JSON form.
        serde_json::to_string(&immutable).unwrap_or_default()
    }

    fn criteria(&self, policy: &ReplayPolicy, problems: &mut Vec<Problem>) -> Criteria {
        let Some(select) = &self.select else { return Criteria::default() };
        let criteria = Criteria {
            headers: select.headers.clone(),
            reasons: select.reasons.iter().map(|reason| reason.as_str().to_owned()).collect(),
            first_death_queues: select.first_death_queues.iter().cloned().collect(),
            routing_keys: select.routing_keys.clone(),
            message_ids: select.message_ids.iter().cloned().collect(),
            older_than: select.older_than.map(Duration::to_std),
            newer_than: select.newer_than.map(Duration::to_std),
            expression: select.expression.clone(),
        };
        if let Err(error) = Ready::new(criteria.clone(), policy.allow_body) {
            add(problems, "select.expression", error.to_string());
        }
        if let (Some(older), Some(newer)) = (select.older_than, select.newer_than)
            && older >= newer
        {
            let message = format!(
                "nothing is older than {older} and newer than {newer}: write a newerThan above {older}"
            );
            add(problems, "select.newerThan", message);
        }
        criteria
    }

    fn rewriting(
        &self,
        name: RunName<'_>,
        origin: Option<&str>,
        pipeline: &Pipeline,
        problems: &mut Vec<Problem>,
    ) -> replay::Rewriting {
        // From that queue itself they would go round in circles: there they stay.
        let limit_queue = pipeline
            .quarantine_categories()
            .find(|category| *category == REPLAY_LIMIT_CATEGORY)
            .map(|category| pipeline.names().quarantine(category))
            .filter(|queue| origin != Some(queue));
        let replays = self.max_replays_per_message.unwrap_or(DEFAULT_REPLAYS);
        let max_replays = numbers::within(problems, "maxReplaysPerMessage", replays, 1, 100);
        replay::Rewriting {
            request: format!("{}/{}", name.namespace, name.name),
            run: name.uid.to_owned(),
            on_failure: match self.on_failure.unwrap_or_default() {
                OnFailure::DeadLetter => replay::OnFailure::DeadLetter,
                OnFailure::Retry => replay::OnFailure::Retry,
            },
            keep_expiration: self.expiration.unwrap_or_default() == Expiration::Keep,
            idempotency: self.idempotency(problems),
            max_replays,
            replay_limit_queue: limit_queue,
        }
    }

    fn idempotency(&self, problems: &mut Vec<Problem>) -> Option<replay::Idempotency> {
        let idempotency = self.idempotency.as_ref()?;
        let header = &idempotency.header;
        let is_taken = header.starts_with(OWN_HEADERS)
            || header.starts_with("x-death")
            || rewrite::RETRY_COUNTERS.contains(&header.as_str())
            || rewrite::STRIPPED.contains(&header.as_str()) && header != "x-deduplication-header";
        if is_taken {
            let message = format!(
                "{header:?} is a header that a replay writes or removes itself: choose another one, such as x-idempotency-key"
            );
            add(problems, "idempotency.header", message);
        }
        Some(replay::Idempotency { header: header.clone(), generate: idempotency.generate })
    }

    fn limits(&self, problems: &mut Vec<Problem>) -> replay::Limits {
        let select = self.select.clone().unwrap_or_default();
        let limit = select.limit.map(|limit| numbers::positive(problems, "select.limit", limit));
        let approved = self
            .approval
            .as_ref()
            .map(|approval| numbers::positive(problems, "approval.maxMessages", approval.max_messages));
        let scan = select.scan_limit.unwrap_or(DEFAULT_SCAN);
        let deadline = self.deadline.unwrap_or(DEFAULT_DEADLINE);
        if deadline.as_millis() == 0 {
            add(problems, "deadline", "0s leaves no time for anything: write a longer one, such as 1h");
        }
        replay::Limits {
            messages: limit.into_iter().chain(approved).min(),
            scan: numbers::positive(problems, "select.scanLimit", scan),
            deadline: deadline.to_std(),
            // The broker's, which a look at it tells.
            hold: None,
        }
    }
}

fn add(problems: &mut Vec<Problem>, field: &str, message: impl Into<String>) {
    problems.push(Problem { field: field.to_owned(), message: message.into() });
}

/// The value, or nothing and its problems among the others.
fn collected<T>(result: Result<T, Vec<Problem>>, problems: &mut Vec<Problem>) -> Option<T> {
    result.map_err(|found| problems.extend(found)).ok()
}

#[cfg(test)]
mod tests;
