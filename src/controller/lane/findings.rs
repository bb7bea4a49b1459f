//! What there is to tell of drift, and what becomes of it.

use super::super::broker_events::Ear;
use super::job::{Action, Finding, Maintain};
use crate::topology::diff::Diff;
use crate::topology::drift::Found;
use crate::topology::plan::{Blocked, BlockedBy};
use crate::topology::watch::Trouble;

/// What can be put right.
pub(super) fn findings(found: Vec<Found>, action: Action, ear: &Ear) -> Vec<Finding> {
    let finding = |Found { object, what }| {
        let by = ear.author(&object);
        Finding { object, what, by, action }
    };
    found.into_iter().map(finding).collect()
}

/// What can't be put right from here. Before the specification was carried out an obstacle is
/// no drift, but the reason why it is not; what its queues suffer from is told at any time.
pub(super) fn blocked_findings(
    comparison: &Diff,
    task: &Maintain,
    troubles: &[Trouble],
    ear: &Ear,
) -> Vec<Finding> {
    let is_drift = |blocked: &&Blocked| task.settled && !blocked.by.refuses_edit();
    let blocked = comparison.plan.blocked.iter().filter(is_drift);
    let blocked = blocked.map(|blocked| finding(blocked, author(blocked, ear)));
    let troubles = troubles.iter().map(|trouble| finding(&trouble.blocked, trouble.by.clone()));
    blocked.chain(troubles).collect()
}

/// Who made an obstacle: of a policy, whoever wrote it, and not who changed the queue that it meets.
fn author(blocked: &Blocked, ear: &Ear) -> Option<String> {
    match blocked.by {
        BlockedBy::PolicyShadowed | BlockedBy::PolicyConflict => ear.author_of_policy(&blocked.why),
        _ => ear.author(&blocked.object),
    }
}

fn finding(blocked: &Blocked, by: Option<String>) -> Finding {
    Finding { object: blocked.object.clone(), what: blocked.why.clone(), by, action: Action::Blocked }
}
