//! A look at a whole vhost, for all jobs of a round at once.

use std::collections::BTreeSet;

use crate::broker::BrokerError;
use crate::topology::effective::PolicyIndex;
use crate::topology::observed::Observed;

use super::Lane;
use super::active::{Active, Scope};
use super::compare::{View, decide};
use super::identity::KnownBroker;
use super::job::{Done, RemovalStep, Task};
use super::remove::{self, removal};
use super::work::Work;

impl Lane {
    /// Compares all open jobs with the whole vhost.
    pub(super) async fn whole(
        &mut self,
        active: &mut [Active],
        scope: Scope,
        broker: &KnownBroker,
    ) -> Result<(Work, Observed), BrokerError> {
        let observed = match self.management.snapshot(&self.key.vhost).await {
            Err(BrokerError::VhostNotFound { vhost }) => {
                self.vhost_is_gone(active).await?;
                return Err(BrokerError::VhostNotFound { vhost });
            }
            other => other?,
        };
        if self.watch.is_new() {
            self.look_at_queues(&observed).await;
        }
        let policies = PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref());
        let (shared, seen, ear) = (self.shared.clone(), self.watch.seen(), self.ear.clone());
        let view = View {
            broker,
            observed: &observed,
            policies: &policies,
            claims: &shared.claims,
            seen: &seen,
            ear: &ear,
        };
        let mut work = Work::default();
        let mut waiting = Vec::new();
        let mut unproven = BTreeSet::new();
        let mut moves = BTreeSet::new();
        let open = active.iter_mut().enumerate().skip(scope.from).filter(|(_, entry)| entry.is_open());
        for (index, entry) in open {
            match &entry.task {
                Task::Maintain(_) if entry.waits && work.is_full(scope.turns) => {}
                Task::Maintain(task) => {
                    let decision = decide(task, &entry.inventory, &BTreeSet::new(), view);
                    if decision.unproven().is_empty() {
                        work.take(index, entry, decision, scope.turns);
                    } else {
                        unproven.extend(decision.unproven().iter().cloned());
                        moves.extend(decision.comparison.plan.moves);
                        waiting.push(index);
                    }
                }
                Task::Remove(task) if task.step == RemovalStep::Prove => {
                    unproven
                        .extend(removal(task, &observed).queues_to_prove().into_iter().map(str::to_owned));
                    waiting.push(index);
                }
                Task::Remove(task) => {
                    let removal = removal(task, &observed);
                    if task.step == RemovalStep::Unbind {
                        // What was proven with the inflow in place must be proven again without.
                        self.proofs.forget(&removal.queues());
                    }
                    let progress = remove::step(task.step, &removal);
                    work.take_removal(index, entry, progress);
                }
            }
        }
        self.moves.begin(moves, &self.endpoint, &shared.guard, &self.key.vhost);
        self.prove(active, (&waiting, &unproven), view, scope, &mut work).await;
        Ok((work, observed))
    }

    /// Looks once at all queues that some job needs to be empty.
    async fn prove(
        &mut self,
        active: &mut [Active],
        (waiting, queues): (&[usize], &BTreeSet<String>),
        view: View<'_>,
        scope: Scope,
        work: &mut Work,
    ) {
        self.proofs.forget_missing(view.observed);
        let verdict = self
            .proofs
            .look(queues, view.observed, &self.endpoint, &self.shared.guard, &self.key.vhost)
            .await;
        for index in waiting {
            let entry = &mut active[*index];
            match &entry.task {
                Task::Maintain(task) => {
                    let mut decision = decide(task, &entry.inventory, &verdict.empty, view);
                    let obstacles = self.moves.obstacles(&decision.comparison.plan.moves);
                    decision.maintained.blocked.extend(obstacles);
                    work.take(*index, entry, decision, scope.turns);
                }
                Task::Remove(task) => {
                    let removed = remove::proven(&removal(task, view.observed), &verdict);
                    entry.done = Some(Done::Removed(removed));
                }
            }
        }
    }
}
