//! What the conditions of a pipeline say, from what was found.
//!
//! Texts are made of what users can act on and never of times or counts that
//! change by themselves, so that a condition is written only when it changes.

use k8s_openapi::jiff::Timestamp;

use super::Obstacle;
use crate::api::conditions::{PipelineCondition, PipelineReason};
use crate::api::{Condition, Time};
use crate::controller::lane::{Cause, Maintained};
use crate::topology::plan::{Blocked, BlockedBy, Move};
use crate::topology::validate::Unsupported;

/// The longest message of a condition that we write, in bytes.
pub(super) const MAX_MESSAGE: usize = 1_024;

/// How many obstacles one message names.
const NAMED: usize = 4;

/// A condition without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) condition: PipelineCondition,
    pub(super) status: &'static str,
    pub(super) reason: PipelineReason,
    pub(super) message: String,
}

fn verdict(
    condition: PipelineCondition,
    status: &'static str,
    reason: PipelineReason,
    message: impl Into<String>,
) -> Verdict {
    Verdict { condition, status, reason, message: shortened(message.into()) }
}

/// The verdicts on a pipeline whose broker was looked at.
pub(super) fn of_maintained(maintained: &Maintained) -> Vec<Verdict> {
    use PipelineCondition::{Ready, Reconciling, Stalled, Suspended};
    let (ready, reason, message) = ready(maintained);
    let stalled = !maintained.unsupported.is_empty() || !maintained.blocked.is_empty();
    let migrating = maintained.migrates();
    vec![
        verdict(Ready, ready, reason, message.clone()),
        at_least_once(maintained),
        drifted(maintained),
        verdict(Suspended, "False", PipelineReason::Reconciled, "the pipeline is kept as it is wanted"),
        match stalled {
            true => verdict(Stalled, "True", reason, message),
            false => verdict(Stalled, "False", PipelineReason::Reconciled, "nothing waits for a change"),
        },
        match migrating {
            true => verdict(Reconciling, "True", PipelineReason::Migrating, draining_text(maintained)),
            false => verdict(Reconciling, "False", PipelineReason::Reconciled, "nothing is under way"),
        },
    ]
}

fn ready(maintained: &Maintained) -> (&'static str, PipelineReason, String) {
    if let Some(first) = maintained.unsupported.first() {
        let reason = match first {
            Unsupported::Version(_) => PipelineReason::UnsupportedBroker,
            Unsupported::Plugin(_) => PipelineReason::PluginMissing,
        };
        let texts = maintained
            .unsupported
            .iter()
            .map(|(Unsupported::Version(text) | Unsupported::Plugin(text))| text.clone());
        return ("False", reason, listed(texts.collect()));
    }
    if let Some(worst) = maintained.blocked.first() {
        let texts = maintained.blocked.iter().map(Blocked::to_string).collect();
        return ("False", reason_of(worst.by), listed(texts));
    }
    let reported = open(maintained);
    if !reported.is_empty() {
        return ("False", PipelineReason::DriftFound, listed(reported));
    }
    if maintained.migrates() {
        return ("True", PipelineReason::Migrating, draining_text(maintained));
    }
    ("True", PipelineReason::Reconciled, "everything on the broker is as wanted".to_owned())
}

fn draining_text(maintained: &Maintained) -> String {
    let line = |queue: &String| match maintained.moves.iter().find(|moved| moved.from == *queue) {
        Some(Move { to, .. }) => format!("{queue} (its messages are moved to {to})"),
        None => queue.clone(),
    };
    if maintained.draining.is_empty() {
        return "queues are made anew under their names".to_owned();
    }
    let queues = maintained.draining.iter().map(line).collect();
    format!("queues of before go when they are empty: {}", listed(queues))
}

fn at_least_once(maintained: &Maintained) -> Verdict {
    let classic = &maintained.at_most_once;
    if classic.is_empty() {
        let text = "every queue is a quorum queue and hands dead letters on at least once";
        return verdict(PipelineCondition::AtLeastOnce, "True", PipelineReason::Reconciled, text);
    }
    let text = format!("classic queues lose messages when a node fails: {}", listed(classic.clone()));
    verdict(PipelineCondition::AtLeastOnce, "False", PipelineReason::ClassicQueue, text)
}

fn drifted(maintained: &Maintained) -> Verdict {
    let open = open(maintained);
    let differs = |blocked: &&Blocked| {
        use BlockedBy::{ArgumentMismatch, PolicyConflict, PolicyShadowed};
        // At first there is no drift yet, but these are differences all the same.
        matches!(blocked.by, ArgumentMismatch | PolicyShadowed | PolicyConflict)
            || open.contains(&blocked.to_string())
    };
    let blocked: Vec<&Blocked> = maintained.blocked.iter().filter(differs).collect();
    let reason = blocked.first().map_or(PipelineReason::DriftFound, |first| reason_of(first.by));
    let mut texts: Vec<String> = blocked.iter().map(ToString::to_string).collect();
    let others: Vec<String> = open.iter().filter(|text| !texts.contains(text)).cloned().collect();
    texts.extend(others);
    if !texts.is_empty() {
        return verdict(PipelineCondition::Drifted, "True", reason, listed(texts));
    }
    if maintained.blocked.iter().any(|blocked| blocked.by.refuses_edit()) {
        let text = "while an edit is refused, nothing but what is missing is found";
        return verdict(PipelineCondition::Drifted, "Unknown", PipelineReason::NotSupportedYet, text);
    }
    verdict(PipelineCondition::Drifted, "False", PipelineReason::InSync, "no difference was found")
}

/// What was found and is there still.
fn open(maintained: &Maintained) -> Vec<String> {
    maintained.findings.iter().filter(|finding| finding.is_open()).map(ToString::to_string).collect()
}

fn reason_of(by: BlockedBy) -> PipelineReason {
    match by {
        BlockedBy::Conflict => PipelineReason::Conflict,
        BlockedBy::ArgumentMismatch => PipelineReason::ArgumentMismatch,
        BlockedBy::PolicyShadowed => PipelineReason::PolicyShadowed,
        BlockedBy::PolicyConflict => PipelineReason::PolicyConflict,
        BlockedBy::Missing | BlockedBy::Consumer | BlockedBy::AwaitsConsent => PipelineReason::Blocked,
        BlockedBy::Stuck => PipelineReason::DeadLettersStuck,
        BlockedBy::NotSupportedYet => PipelineReason::NotSupportedYet,
    }
}

/// The verdicts on a pipeline that can't be worked on.
pub(super) fn of_obstacle(obstacle: &Obstacle, permanent: bool) -> Vec<Verdict> {
    use PipelineCondition::{AtLeastOnce, Drifted, Ready, Reconciling, Stalled, Suspended};
    let (reason, message) = explain(obstacle);
    let unknown = "not looked at yet";
    vec![
        verdict(Ready, "False", reason, message.clone()),
        verdict(AtLeastOnce, "Unknown", PipelineReason::Progressing, unknown),
        verdict(Drifted, "Unknown", PipelineReason::Progressing, unknown),
        verdict(Suspended, "False", PipelineReason::Progressing, "the pipeline is worked on"),
        match permanent {
            true => verdict(Stalled, "True", reason, message.clone()),
            false => verdict(Stalled, "False", PipelineReason::Progressing, "it is tried again"),
        },
        match permanent {
            true => verdict(Reconciling, "False", reason, "waits for a change"),
            false => verdict(Reconciling, "True", reason, message),
        },
    ]
}

/// The verdicts on a pipeline that is to be left alone, as far as there are none.
pub(super) fn of_suspended() -> Vec<Verdict> {
    use PipelineCondition::{AtLeastOnce, Drifted, Ready, Reconciling, Stalled, Suspended};
    let reason = PipelineReason::Suspended;
    let unknown = "spec.suspend was true from the beginning";
    vec![
        verdict(Ready, "Unknown", reason, unknown),
        verdict(AtLeastOnce, "Unknown", reason, unknown),
        verdict(Drifted, "Unknown", reason, unknown),
        verdict(Suspended, "True", reason, "spec.suspend is true: nothing is touched on the broker"),
        verdict(Stalled, "False", reason, "nothing is under way"),
        verdict(Reconciling, "False", reason, "nothing is under way"),
    ]
}

/// The verdicts on a pipeline whose broker is another one than before: no longer Ready until it is
/// built there.
pub(super) fn of_rebuilding(reason: PipelineReason, message: &str) -> Vec<Verdict> {
    use PipelineCondition::{AtLeastOnce, Drifted, Ready, Reconciling, Stalled};
    let unknown = "not looked at yet";
    vec![
        verdict(Ready, "False", reason, message),
        verdict(AtLeastOnce, "Unknown", reason, unknown),
        verdict(Drifted, "Unknown", reason, unknown),
        verdict(Stalled, "False", reason, "it is built"),
        verdict(Reconciling, "True", reason, message),
    ]
}

/// The verdicts on a pipeline that is being deleted: no longer Ready, whatever
/// still works, and under way until it is gone.
pub(super) fn of_deletion(reason: PipelineReason, message: &str) -> Vec<Verdict> {
    use PipelineCondition::{Ready, Reconciling, Stalled};
    vec![
        verdict(Ready, "False", reason, message),
        verdict(Stalled, "False", reason, "it is tried again"),
        verdict(Reconciling, "True", reason, message),
    ]
}

fn explain(obstacle: &Obstacle) -> (PipelineReason, String) {
    match obstacle {
        Obstacle::Invalid(problems) => {
            (PipelineReason::InvalidSpec, listed(problems.iter().map(ToString::to_string).collect()))
        }
        Obstacle::Dereference(error) => (error.reason(), error.to_string()),
        Obstacle::Lane(failure) => explain_lane(&failure.cause),
    }
}

pub(super) fn explain_lane(cause: &Cause) -> (PipelineReason, String) {
    match cause {
        Cause::Broker(error) => (
            PipelineReason::from_word(error.reason()).unwrap_or(PipelineReason::Progressing),
            error.to_string(),
        ),
        Cause::Record(error) => (PipelineReason::Progressing, error.clone()),
        Cause::BrokerChanged { recorded, found } => (
            PipelineReason::BrokerChanged,
            format!(
                "the reference leads to the broker {found} and not to {recorded} as before: correct it, or delete and create the pipeline to move"
            ),
        ),
        Cause::Raced(what) => (PipelineReason::Progressing, format!("{what} was changed meanwhile")),
        Cause::Stopped => (PipelineReason::Progressing, "the operator is stopping".to_owned()),
    }
}

/// Replaces a condition; its transition time moves only with its status.
pub(super) fn set(conditions: &mut Vec<Condition>, verdict: Verdict, generation: Option<i64>) {
    let Verdict { condition, status, reason, message } = verdict;
    put(conditions, condition.as_str(), status, reason.as_str(), message, generation);
}

/// As [`set`], with the words of any kind of resource.
pub(crate) fn put(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: &str,
    reason: &str,
    message: String,
    generation: Option<i64>,
) {
    let before = conditions.iter().position(|condition| condition.type_ == type_);
    let since = before.map(|index| &conditions[index]).filter(|condition| condition.status == status);
    let condition = Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: since.map_or_else(now, |condition| condition.last_transition_time.clone()),
    };
    match before {
        Some(index) => conditions[index] = condition,
        None => conditions.push(condition),
    }
}

/// The time in whole seconds, as Kubernetes keeps it.
pub(crate) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

fn listed(texts: Vec<String>) -> String {
    let more = texts.len().saturating_sub(NAMED);
    let mut text = texts.into_iter().take(NAMED).collect::<Vec<_>>().join("; ");
    if more > 0 {
        text.push_str(&format!("; and {more} more"));
    }
    shortened(text)
}

/// Cut at a character's end, with a sign that it was cut.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > MAX_MESSAGE {
        let mut end = MAX_MESSAGE - '…'.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_at_a_characters_end() {
        let text = shortened("é".repeat(MAX_MESSAGE));
        assert!(text.len() <= MAX_MESSAGE && text.ends_with('…'), "{}", text.len());
        assert_eq!(shortened("short".to_owned()), "short");
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut conditions = Vec::new();
        let ready = |status, reason| verdict(PipelineCondition::Ready, status, reason, "text");
        set(&mut conditions, ready("True", PipelineReason::Reconciled), Some(1));
        let before = Time(Timestamp::from_second(1).unwrap());
        conditions[0].last_transition_time = before.clone();
        set(&mut conditions, ready("True", PipelineReason::Migrating), Some(2));
        assert_eq!(conditions[0].last_transition_time, before);
        set(&mut conditions, ready("False", PipelineReason::DriftFound), Some(2));
        assert_ne!(conditions[0].last_transition_time, before);
        assert_eq!(conditions.len(), 1);
    }
}
