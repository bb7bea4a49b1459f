//! What a round of a batch writes.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api::RetryPipeline;
use crate::topology::effective::PolicyIndex;
use crate::topology::observed::Observed;
use crate::topology::ownership::Inventory;
use crate::topology::plan::{Plan, Stage, Step};
use crate::topology::watch::Seen;

use super::super::broker_events::Ear;
use super::super::claims::Claims;
use super::active::Active;
use super::compare::{Decision, View, decide};
use super::identity::KnownBroker;
use super::job::{Cause, Maintained, Task};
use super::remove::Progress;

/// What a round writes.
#[derive(Default)]
pub(super) struct Work {
    pub(super) starts: Vec<Start>,
    pub(super) rests: Vec<Rest>,
}

/// What comes first, of every pipeline, before any queue is declared.
pub(super) struct Start {
    /// Which job.
    pub(super) index: usize,
    pub(super) object: Arc<RetryPipeline>,
    /// What is about to exist, where it must still be recorded.
    pub(super) intended: Option<Inventory>,
    /// The steps up to the policies.
    pub(super) plan: Plan,
}

/// What comes after, of those whose turn it is.
pub(super) struct Rest {
    /// Which job.
    pub(super) index: usize,
    pub(super) plan: Plan,
    pub(super) then: Then,
}

/// What is true once a plan is applied.
#[derive(Default)]
pub(super) struct Then {
    /// What the inventory says; nothing new about what is removed.
    inventory: Option<Inventory>,
    /// What there is to report, where that is known without another look.
    foreseen: Option<Maintained>,
}

impl Work {
    /// Ends a job that has nothing to write, or takes over its plan. No more than
    /// `turns` pipelines get beyond their policies in this round.
    pub(super) fn take(&mut self, index: usize, entry: &mut Active, decision: Decision, turns: usize) {
        entry.note(decision.findings);
        if !decision.act {
            entry.finish(decision.maintained);
            return;
        }
        let intended = decision.comparison.intended(&entry.inventory);
        let (early, late) = decision.comparison.plan.split_after(Stage::Policy);
        self.starts.push(Start {
            index,
            object: entry.task.object().clone(),
            intended: (intended != entry.inventory).then_some(intended),
            plan: early,
        });
        entry.waits = self.is_full(turns);
        if !entry.waits {
            entry.turns += 1;
            let then = Then { inventory: Some(decision.comparison.inventory), foreseen: None };
            self.rests.push(Rest { index, plan: late, then });
        }
    }

    /// Ends a removal that has nothing to write, or takes over its plan.
    pub(super) fn take_removal(&mut self, index: usize, entry: &mut Active, progress: Progress) {
        match progress {
            Progress::Done(done) => entry.done = Some(done),
            Progress::Write(plan) => {
                entry.turns += 1;
                self.rests.push(Rest { index, plan, then: Then::default() });
            }
        }
    }

    /// All steps that are about to be written.
    fn steps(&self) -> impl Iterator<Item = &Step> {
        let starts = self.starts.iter().map(|start| &start.plan);
        let plans = starts.chain(self.rests.iter().map(|rest| &rest.plan));
        plans.flat_map(|plan| &plan.steps).map(|planned| &planned.step)
    }

    /// Keeps what will be true of each pipeline once its plan is applied: every write is
    /// acknowledged, so that another look, which costs more, would show nothing else.
    /// The next poll looks all the same. Whoever waits for a proof is looked at again.
    pub(super) fn foresee(
        &mut self,
        active: &[Active],
        broker: &KnownBroker,
        mut observed: Observed,
        claims: &Claims,
        seen: &Seen,
        ear: &Ear,
    ) {
        if self.rests.iter().all(|rest| rest.then.inventory.is_none()) {
            return;
        }
        observed.advance(self.steps());
        let policies = PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref());
        let view = View { broker, observed: &observed, policies: &policies, claims, seen, ear };
        for Rest { index, then, .. } in &mut self.rests {
            let (Task::Maintain(task), Some(inventory)) = (&active[*index].task, &then.inventory) else {
                continue;
            };
            // Whatever happens to it from its declaration on concerns the lane.
            ear.know(&task.pipeline, inventory);
            let decision = decide(task, inventory, &BTreeSet::new(), view);
            let is_last = !decision.act && decision.unproven().is_empty();
            then.foreseen = is_last.then_some(decision.maintained);
        }
    }

    /// Whether as many pipelines write in this round as may.
    pub(super) fn is_full(&self, turns: usize) -> bool {
        self.rests.len() >= turns
    }

    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.starts.is_empty() && self.rests.is_empty()
    }
}

impl Then {
    /// Takes over what came of the plan.
    pub(super) fn settle(self, entry: &mut Active, result: Result<(), Cause>) {
        if let Err(cause) = result {
            entry.failure = Some(cause);
            return;
        }
        if let Some(inventory) = self.inventory {
            entry.inventory = inventory;
        }
        if let Some(maintained) = self.foreseen {
            entry.finish(maintained);
        }
    }
}
