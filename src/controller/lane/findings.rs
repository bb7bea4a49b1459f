//! What counts as drift: somebody else's changes, one finding for each cause.

use std::collections::BTreeSet;

use super::job::{Finding, Maintain};
use crate::topology::diff::Diff;
use crate::topology::model::{Destination, ObjectKey};
use crate::topology::ownership::Inventory;
use crate::topology::plan::{Stage, Step};

/// What differs from what was carried out before.
///
/// An object that is gone is a finding whatever else is to be done. Every other
/// step is one only once the specification has been carried out: before that it is
/// the change itself. What merely follows, such as the bindings of a queue that is
/// declared again, is none of its own.
pub(super) fn findings(comparison: &Diff, task: &Maintain) -> Vec<Finding> {
    let mut found: Vec<Finding> = comparison.missing.iter().filter_map(missing).collect();
    if !task.settled {
        return found;
    }
    let steps = || comparison.plan.steps.iter();
    let removes = |step: &Step| matches!(step, Step::DeleteQueue(_) | Step::DeleteExchange(_));
    // An old generation's rules go when its messages have gone.
    let migrating = !comparison.plan.draining.is_empty() || steps().any(|planned| removes(&planned.step));
    let declared: BTreeSet<Destination> = steps().filter_map(|planned| declared(&planned.step)).collect();
    let switches = steps().any(|planned| rebuilds_chain(planned.stage, &planned.step));
    let causes = steps().filter(|planned| match &planned.step {
        Step::Bind(binding) => {
            let follows = declared.contains(&binding.destination)
                || declared.contains(&Destination::Exchange(binding.source.clone()));
            !(follows || (switches && planned.stage == Stage::Activate))
        }
        Step::Unbind(_) => !(migrating || (switches && planned.stage < Stage::Source)),
        _ => true,
    });
    found.extend(causes.filter_map(|planned| finding(&planned.step, &task.inventory)));
    if found.is_empty() {
        // Nothing is gone, but something was changed so that another must replace it.
        found.extend(steps().find_map(|planned| replacement(&planned.step)));
    }
    found
}

/// Whether a step is part of building a chain beside the damaged one.
fn rebuilds_chain(stage: Stage, step: &Step) -> bool {
    stage < Stage::Slot && stage > Stage::Tier && matches!(step, Step::CreateExchange { .. })
}

fn declared(step: &Step) -> Option<Destination> {
    match step {
        Step::CreateQueue { queue, .. } => Some(Destination::Queue(queue.name.clone())),
        Step::CreateExchange { exchange, .. } => Some(Destination::Exchange(exchange.name.clone())),
        _ => None,
    }
}

fn replacement(step: &Step) -> Option<Finding> {
    let object = declared(step)?.to_string();
    let what = "takes the place of one that was changed".to_owned();
    Some(Finding { object, what, repaired: false })
}

fn missing(key: &ObjectKey) -> Option<Finding> {
    let what = match key {
        ObjectKey::Queue(_) => "is missing; the messages that it held are gone",
        ObjectKey::Exchange(_) => "is missing",
        // The steps tell.
        ObjectKey::Policy(_) | ObjectKey::Binding { .. } => return None,
    };
    Some(Finding { object: key.to_string(), what: what.to_owned(), repaired: false })
}

/// A step that undoes somebody else's change; declarations are among what is missing.
fn finding(step: &Step, inventory: &Inventory) -> Option<Finding> {
    let (object, what) = match step {
        // The owner exchange is nobody's, and in no inventory.
        Step::CreateExchange { exchange, marker: None } => {
            (format!("exchange {}", exchange.name), "is missing")
        }
        Step::Bind(binding) => (format!("binding {binding}"), "is missing"),
        Step::Unbind(binding) => (format!("binding {binding}"), "is there and changes the way of messages"),
        Step::Mark(binding) => (binding.destination.to_string(), "has lost its owner marker"),
        Step::SetPolicy(policy) => {
            let known = inventory.contains_key(&ObjectKey::Policy(policy.name.clone()));
            let what = if known { "is missing or was changed" } else { "is missing" };
            (format!("policy {}", policy.name), what)
        }
        Step::CreateQueue { .. }
        | Step::CreateExchange { .. }
        | Step::Unmark(_)
        | Step::ClearPolicy(_)
        | Step::DeleteQueue(_)
        | Step::DeleteExchange(_) => return None,
    };
    Some(Finding { object, what: what.to_owned(), repaired: false })
}
