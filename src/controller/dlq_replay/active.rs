//! One active replay per pipeline.
//!
//! The claims of this process, and what the status of the others says: after a start, the claims
//! are empty, but whoever has been admitted and has not ended is active still.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kube::ResourceExt;

use crate::api::DlqReplay;

/// Namespace and name of a pipeline.
type Pipeline = (String, String);

/// Which replay is at work on which pipeline.
#[derive(Debug, Default)]
pub(super) struct Active(Mutex<HashMap<Pipeline, Claim>>);

#[derive(Debug)]
struct Claim {
    uid: String,
    name: String,
}

impl Active {
    /// Claims the pipeline of a replay, unless another one of `others` is at work there; that
    /// one's name is the error.
    pub(super) fn claim<'a>(
        &self,
        replay: &DlqReplay,
        others: impl IntoIterator<Item = &'a DlqReplay>,
    ) -> Result<(), String> {
        let uid = replay.uid().unwrap_or_default();
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claim) = claims.get(&pipeline(replay)).filter(|claim| claim.uid != uid) {
            return Err(claim.name.clone());
        }
        let at_work = |other: &&DlqReplay| {
            pipeline(other) == pipeline(replay)
                && other.metadata.uid != replay.metadata.uid
                && is_at_work(other)
        };
        if let Some(other) = others.into_iter().find(at_work) {
            return Err(other.name_any());
        }
        claims.insert(pipeline(replay), Claim { uid, name: replay.name_any() });
        Ok(())
    }

    /// Lets the next one have the pipeline.
    pub(super) fn release(&self, replay: &DlqReplay) {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if claims.get(&pipeline(replay)).is_some_and(|claim| Some(&claim.uid) == replay.metadata.uid.as_ref())
        {
            claims.remove(&pipeline(replay));
        }
    }
}

fn pipeline(replay: &DlqReplay) -> Pipeline {
    (replay.namespace().unwrap_or_default(), replay.spec.pipeline_ref.name.clone())
}

/// Whether a replay was let through and has not ended.
pub(super) fn is_at_work(replay: &DlqReplay) -> bool {
    replay.status.as_ref().is_some_and(|status| status.admission.is_some() && status.summary.is_none())
}

/// Messages that the other replays of a pipeline, which have not ended, may still move without
/// approval.
pub(super) fn unapproved<'a>(replay: &DlqReplay, others: impl IntoIterator<Item = &'a DlqReplay>) -> i64 {
    let same = |other: &&DlqReplay| {
        pipeline(other) == pipeline(replay) && other.metadata.uid != replay.metadata.uid && is_at_work(other)
    };
    let admissions =
        others.into_iter().filter(same).filter_map(|other| other.status.as_ref()?.admission.as_ref());
    let unapproved = admissions.filter(|admission| admission.by != crate::api::AdmittedBy::Approval);
    unapproved.map(|admission| admission.max_messages.unwrap_or(i64::MAX)).fold(0, i64::saturating_add)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn replay(name: &str, pipeline: &str, status: Value) -> DlqReplay {
        serde_json::from_value(json!({
            "apiVersion": "redrive.dev/v1alpha1", "kind": "DlqReplay",
            "metadata": {"name": name, "namespace": "shop", "uid": name},
            "spec": {"pipelineRef": {"name": pipeline}, "justification": "the fix is deployed"},
            "status": status,
        }))
        .unwrap()
    }

    fn admitted(by: &str, most: i64) -> Value {
        json!({"admission": {"by": by, "maxMessages": most, "time": "2026-01-01T00:00:00Z"}})
    }

    #[test]
    fn a_second_one_waits_for_the_first_and_names_it() {
        let active = Active::default();
        let (a, b, c) = (
            replay("a", "orders", json!({})),
            replay("b", "orders", json!({})),
            replay("c", "carts", json!({})),
        );
        assert_eq!(active.claim(&a, []), Ok(()));
        assert_eq!(active.claim(&a, []), Ok(()));
        assert_eq!(active.claim(&b, []), Err("a".to_owned()));
        assert_eq!(active.claim(&c, []), Ok(()));
        active.release(&b);
        assert_eq!(active.claim(&b, []), Err("a".to_owned()));
        active.release(&a);
        assert_eq!(active.claim(&b, []), Ok(()));
    }

    #[test]
    fn after_a_start_whoever_was_let_through_is_still_the_first() {
        let running = replay("a", "orders", admitted("Budget", 5));
        let mut ended = admitted("Budget", 5);
        ended["summary"] = json!({
            "result": "Completed", "message": "m", "finished": "2026-01-01T00:00:00Z",
            "matched": 0, "replayed": 0, "failed": 0, "skipped": 0, "duplicatesPossible": 0,
        });
        let ended = replay("z", "orders", ended);
        let b = replay("b", "orders", json!({}));
        assert_eq!(Active::default().claim(&b, [&ended, &running]), Err("a".to_owned()));
        assert_eq!(Active::default().claim(&b, [&ended, &b]), Ok(()));
        assert_eq!(Active::default().claim(&running, [&running]), Ok(()));
    }

    #[test]
    fn what_others_may_still_move_unapproved_counts() {
        let b = replay("b", "orders", json!({}));
        let others = [
            replay("a", "orders", admitted("Budget", 5)),
            replay("c", "orders", admitted("Approval", 500)),
            replay("d", "carts", admitted("Budget", 7)),
            replay("b", "orders", admitted("Budget", 9)),
        ];
        assert_eq!(unapproved(&b, &others), 5);
    }
}
