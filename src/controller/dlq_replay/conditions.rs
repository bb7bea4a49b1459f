//! What the conditions of a replay say, from the phase that it is in.

use super::super::retry_pipeline::conditions::{put, shortened};
use crate::api::conditions::{ReplayCondition, ReplayReason};
use crate::api::{DlqReplay, DlqReplayStatus};

/// How far a replay is, in a word and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing moves yet: planning, waiting for a person, a time or another replay.
    Waiting,
    /// A worker is at work.
    Moving,
    /// Nothing moves for now.
    Held,
    /// It is over.
    Ended,
}

/// What there is to say about a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) phase: Phase,
    pub(super) reason: ReplayReason,
    pub(super) message: String,
    /// What there is by way of consent; nothing where it was not asked yet.
    pub(super) approved: Option<(&'static str, ReplayReason, String)>,
}

impl Verdict {
    pub(super) fn new(phase: Phase, reason: ReplayReason, message: impl Into<String>) -> Self {
        Self { phase, reason, message: shortened(message.into()), approved: None }
    }

    pub(super) fn waiting(reason: ReplayReason, message: impl Into<String>) -> Self {
        Self::new(Phase::Waiting, reason, message)
    }

    pub(super) fn ended(reason: ReplayReason, message: impl Into<String>) -> Self {
        Self::new(Phase::Ended, reason, message)
    }

    /// The same, and what there is by way of consent.
    pub(super) fn with_consent(
        mut self,
        status: &'static str,
        reason: ReplayReason,
        message: impl Into<String>,
    ) -> Self {
        self.approved = Some((status, reason, shortened(message.into())));
        self
    }
}

/// Sets all conditions.
pub(super) fn judge(status: &mut DlqReplayStatus, object: &DlqReplay, verdict: &Verdict) {
    let generation = object.metadata.generation;
    status.observed_generation = generation;
    let Verdict { phase, reason, message, approved } = verdict;
    let mut set = |condition: ReplayCondition, state: &str, reason: ReplayReason, message: &str| {
        let (kind, reason) = (condition.as_str(), reason.as_str());
        put(&mut status.conditions, kind, state, reason, message.to_owned(), generation);
    };
    let is_good = *reason == ReplayReason::Completed;
    let (ended, moving) = (*phase == Phase::Ended, *phase == Phase::Moving);
    let truth = |holds: bool| if holds { "True" } else { "False" };
    let succeeded = if ended { truth(is_good) } else { "Unknown" };
    set(ReplayCondition::Succeeded, succeeded, *reason, message);
    set(ReplayCondition::Running, truth(moving), *reason, message);
    let suspended = object.spec.suspend && !ended;
    let text = if suspended { "spec.suspend is true: nothing moves" } else { "spec.suspend is false" };
    set(ReplayCondition::Suspended, truth(suspended), *reason, text);
    let text = if ended && !is_good { message } else { "nothing waits for a change" };
    set(ReplayCondition::Stalled, truth(ended && !is_good), *reason, text);
    let text = if ended { "nothing is under way" } else { message };
    set(ReplayCondition::Reconciling, truth(!ended), *reason, text);
    let known = status.conditions.iter().any(|one| one.type_ == ReplayCondition::Approved.as_str());
    let unknown = ("Unknown", *reason, "it was not asked for yet".to_owned());
    // What was said about consent stays until there is something else to say.
    let approved = approved.clone().or_else(|| (!known).then_some(unknown));
    if let Some((state, reason, message)) = approved {
        let (kind, reason) = (ReplayCondition::Approved.as_str(), reason.as_str());
        put(&mut status.conditions, kind, state, reason, message, generation);
    }
}

/// The reason of the condition Succeeded.
pub(super) fn reason(object: &DlqReplay) -> Option<ReplayReason> {
    let conditions = &object.status.as_ref()?.conditions;
    let succeeded = conditions.iter().find(|one| one.type_ == ReplayCondition::Succeeded.as_str())?;
    ReplayReason::from_word(&succeeded.reason)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn replay(suspend: bool) -> DlqReplay {
        serde_json::from_value(json!({
            "apiVersion": "redrive.dev/v1alpha1", "kind": "DlqReplay",
            "metadata": {"name": "r", "generation": 3},
            "spec": {"pipelineRef": {"name": "orders"}, "justification": "the fix is deployed", "suspend": suspend},
        }))
        .unwrap()
    }

    fn texts(object: &DlqReplay, verdict: &Verdict) -> Vec<String> {
        let mut status = DlqReplayStatus::default();
        judge(&mut status, object, verdict);
        let text = |one: &crate::api::Condition| format!("{} {} {}", one.type_, one.status, one.reason);
        status.conditions.iter().map(text).collect()
    }

    #[test]
    fn every_condition_is_there_in_every_phase() {
        for phase in [Phase::Waiting, Phase::Moving, Phase::Held, Phase::Ended] {
            let verdict = Verdict::new(phase, ReplayReason::Planning, "text");
            assert_eq!(texts(&replay(false), &verdict).len(), ReplayCondition::ALL.len());
        }
    }

    #[test]
    fn a_bad_end_is_stalled_and_a_good_one_is_not() {
        let good = texts(&replay(false), &Verdict::ended(ReplayReason::Completed, "done"));
        assert!(good.contains(&"Succeeded True Completed".to_owned()), "{good:?}");
        assert!(good.contains(&"Stalled False Completed".to_owned()), "{good:?}");
        let bad = texts(&replay(true), &Verdict::ended(ReplayReason::Stopped, "no"));
        assert!(bad.contains(&"Succeeded False Stopped".to_owned()), "{bad:?}");
        assert!(bad.contains(&"Stalled True Stopped".to_owned()), "{bad:?}");
        assert!(bad.contains(&"Suspended False Stopped".to_owned()), "{bad:?}");
    }

    #[test]
    fn what_was_said_about_consent_stays() {
        let mut status = DlqReplayStatus::default();
        let given = Verdict::waiting(ReplayReason::Scheduled, "later").with_consent(
            "True",
            ReplayReason::Approved,
            "approved",
        );
        judge(&mut status, &replay(false), &given);
        judge(&mut status, &replay(false), &Verdict::new(Phase::Moving, ReplayReason::Running, "goes"));
        let approved = status.conditions.iter().find(|one| one.type_ == "Approved").unwrap();
        assert_eq!((approved.status.as_str(), approved.reason.as_str()), ("True", "Approved"));
    }
}
