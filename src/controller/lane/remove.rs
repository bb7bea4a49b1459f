//! The steps of a removal.

use crate::topology::model::{Arg, ObjectKey};
use crate::topology::plan::Plan;
use crate::topology::removal::Removal;

use super::job::{Done, RemovalStep, Remove, Removed};
use super::proof::Verdict;
use crate::topology::observed::Observed;

/// What a step comes to.
pub(super) enum Progress {
    /// There is nothing to write.
    Done(Done),
    /// This is to be written.
    Write(Plan),
}

/// The removal that a task stands for.
pub(super) fn removal<'a>(task: &'a Remove, observed: &'a Observed) -> Removal<'a> {
    Removal {
        identity: &task.identity,
        source: &task.object.spec.source.queue.name,
        inventory: &task.inventory,
        observed,
        delete_adopted: task.object.spec.delete_adopted,
    }
}

/// What a look at its queues says about a removal that waits for a proof.
pub(super) fn proven(removal: &Removal<'_>, verdict: &Verdict) -> Removed {
    let queues = removal.queues_to_prove();
    let holding = queues.iter().filter_map(|name| verdict.holding.get_key_value(*name));
    let holding: Vec<_> = holding.map(|(name, count)| (name.clone(), *count)).collect();
    if !holding.is_empty() {
        // A count says more than that nobody could be asked.
        return match &verdict.unasked {
            Some(error) if holding.iter().all(|(_, count)| count.is_none()) => {
                Removed::Unprovable(error.clone())
            }
            _ => Removed::NotEmpty(holding),
        };
    }
    let all = queues.iter().all(|name| verdict.empty.contains(*name));
    if all { Removed::Empty } else { Removed::NotYetProven }
}

/// One step of a removal but that of the proof.
pub(super) fn step(step: RemovalStep, removal: &Removal<'_>) -> Progress {
    let (plan, finished) = match step {
        RemovalStep::Prove => (Plan::default(), Removed::NotYetProven),
        RemovalStep::Unbind => (removal.unbind(), Removed::Unbound { longest_delay: longest_delay(removal) }),
        RemovalStep::Rebind => (removal.rebind(), Removed::Rebound),
        RemovalStep::Delete => (removal.delete(), Removed::Deleted { left: left_over(removal) }),
    };
    if plan.steps.is_empty() { Progress::Done(Done::Removed(finished)) } else { Progress::Write(plan) }
}

/// The longest time that a message may still spend in a retry queue of ours.
fn longest_delay(removal: &Removal<'_>) -> i64 {
    let ttl = |queue: &&str| match removal.observed.queues.get(*queue)?.arguments.get("x-message-ttl") {
        Some(Arg::Int(ttl))
            if removal.observed.queues.get(*queue)?.arguments.contains_key("x-dead-letter-exchange") =>
        {
            Some(*ttl)
        }
        _ => None,
    };
    removal.queues().iter().filter_map(ttl).max().unwrap_or(0)
}

/// Queues and exchanges in the inventory that were not ours to delete.
fn left_over(removal: &Removal<'_>) -> Vec<String> {
    let exists = |key: &&ObjectKey| match key {
        ObjectKey::Queue(name) => removal.observed.queues.contains_key(name),
        ObjectKey::Exchange(name) => removal.observed.exchanges.contains_key(name),
        ObjectKey::Policy(_) | ObjectKey::Binding { .. } => false,
    };
    removal.inventory.keys().filter(exists).map(ToString::to_string).collect()
}
