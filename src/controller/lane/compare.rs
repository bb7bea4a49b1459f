//! What a comparison says about one pipeline: what to do, what to report.

use std::collections::BTreeSet;

use kube::ResourceExt;

use crate::api::DriftPolicy;
use crate::api::annotations::ALLOW_RECREATE;
use crate::topology::desired::{Desired, QueueRole};
use crate::topology::diff::{self, Context, Diff, diff};
use crate::topology::drift;
use crate::topology::effective::PolicyIndex;
use crate::topology::observed::Observed;
use crate::topology::ownership::Inventory;
use crate::topology::plan::{Blocked, BlockedBy};
use crate::topology::validate::{Unsupported, check_broker};
use crate::topology::watch::{Seen, Trouble, troubles};

use super::super::broker_events::Ear;
use super::super::claims::Claims;
use super::findings::{blocked_findings, findings};
use super::identity::KnownBroker;
use super::job::{Action, Finding, Maintain, Maintained};

/// What a batch or poll looks at.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) broker: &'a KnownBroker,
    pub(super) observed: &'a Observed,
    pub(super) policies: &'a PolicyIndex<'a>,
    pub(super) claims: &'a Claims,
    /// What its queues do.
    pub(super) seen: &'a Seen,
    /// What was heard of who did what.
    pub(super) ear: &'a Ear,
}

/// What a comparison comes to.
pub(super) struct Decision {
    pub(super) comparison: Diff,
    pub(super) maintained: Maintained,
    /// Whether the plan is to be carried out.
    pub(super) act: bool,
    /// What can be put right; what can't is among what there is to report.
    pub(super) findings: Vec<Finding>,
}

impl Decision {
    /// Queues that could go if they were proven empty.
    pub(super) fn unproven(&self) -> &[String] {
        if self.maintained.unsupported.is_empty() { &self.maintained.draining } else { &[] }
    }
}

/// Compares one pipeline, and says what to do about it.
pub(super) fn decide(
    task: &Maintain,
    inventory: &Inventory,
    proven_empty: &BTreeSet<String>,
    view: View<'_>,
) -> Decision {
    let unsupported = check_broker(&task.pipeline, &view.broker.facts);
    let contested = view.claims.contested(&task.pipeline.identity.uid, inventory);
    let context = Context {
        pipeline: &task.pipeline,
        facts: &view.broker.facts,
        observed: view.observed,
        policies: view.policies,
        inventory,
        adopt: task.object.spec.adopt,
        proven_empty,
        contested: &contested,
        edited: !task.settled,
        consent: task.object.annotations().get(ALLOW_RECREATE).map(String::as_str),
    };
    let comparison = diff(&context);
    let found = drift::findings(&context, &comparison);
    // A change of the specification is carried out whatever else differs.
    let report_only =
        task.settled && task.object.spec.drift_policy() == DriftPolicy::Report && !found.is_empty();
    let maintained = maintained(task, &comparison, inventory, view, unsupported);
    let act = maintained.unsupported.is_empty() && !report_only && !comparison.plan.steps.is_empty();
    let action = if act { Action::Repaired } else { Action::Reported };
    Decision { comparison, maintained, act, findings: findings(found, action, view.ear) }
}

fn maintained(
    task: &Maintain,
    comparison: &Diff,
    inventory: &Inventory,
    view: View<'_>,
    unsupported: Vec<Unsupported>,
) -> Maintained {
    let settled = comparison.plan.steps.is_empty() && unsupported.is_empty();
    let troubles = troubles(&comparison.desired, &comparison.plan.draining, view.seen);
    let findings = blocked_findings(comparison, task, &troubles, view.ear);
    let troubles = troubles.into_iter().map(|Trouble { blocked, .. }| blocked);
    let blocked = comparison.plan.blocked.iter().cloned().chain(unavailable(comparison, view));
    Maintained {
        broker_id: view.broker.id.clone(),
        // With nothing to write, what the comparison says is what there is.
        inventory: if settled { comparison.inventory.clone() } else { inventory.clone() },
        complete: settled && !comparison.recreates,
        blocked: blocked.chain(troubles).collect(),
        unsupported,
        draining: comparison.plan.draining.clone(),
        moves: comparison.plan.moves.clone(),
        recreates: comparison.recreates,
        pending: comparison.plan.pending.clone(),
        findings,
        depths: depths(&comparison.desired, view.observed),
        contract: diff::client_contract(&task.pipeline, &comparison.desired),
        detection: None,
        at_most_once: diff::at_most_once_queues(&comparison.desired).into_iter().map(str::to_owned).collect(),
    }
}

/// Queues that are there and do not work. Nothing is written for that; it must be told.
fn unavailable(comparison: &Diff, view: View<'_>) -> Vec<Blocked> {
    let wanted = comparison.desired.queues.iter().map(|wanted| &wanted.queue.name);
    let down = wanted.filter(|name| view.observed.unavailable.contains(*name));
    let blocked = |name: &String| {
        Blocked {
        by: BlockedBy::Missing,
        object: format!("queue {name}"),
        why: "too few of its nodes are up: start them, or if they are lost for good, delete the queue, which loses its messages".to_owned(),
    }
    };
    down.map(blocked).collect()
}

fn depths(desired: &Desired, observed: &Observed) -> Vec<(QueueRole, String, Option<i64>)> {
    let depth = |name: &str| observed.queues.get(name).and_then(|queue| queue.totals.ready);
    let queues = desired.queues.iter();
    queues.map(|queue| (queue.role.clone(), queue.queue.name.clone(), depth(&queue.queue.name))).collect()
}
