//! One batch: observe, compare, record, apply, and look again until nothing differs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::sync::mpsc;

use crate::broker::BrokerError;
use crate::topology::effective::PolicyIndex;
use crate::topology::ownership::Inventory;
use crate::topology::plan::{Plan, Stage, Step};
use crate::topology::validate::claimed_queues;

use super::super::api_server;
use super::super::retry_pipeline::update_status::record_inventory;
use super::apply::{Applied, apply};
use super::compare::{Decision, View, decide};
use super::identity::{KnownBroker, changed_broker};
use super::job::{Cause, Done, Failure, Finding, Job, Maintained, Outcome, RemovalStep, Task};
use super::remove::{self, Progress, removal};
use super::{BATCH, Lane};

/// More turns than any pipeline needs: build, switch over, remove.
const MAX_TURNS: usize = 5;

/// A large batch goes in about so many parts, so that the first pipelines are reported
/// while the last are declared, and their plans are never all in memory.
const PARTS: usize = 8;

/// What is not worth a part of its own.
const FEWEST_TURNS: usize = 32;

/// How long a round takes in those who come late.
const JOINING: Duration = Duration::from_secs(20);

/// A job and how far it got.
pub(super) struct Active {
    pub(super) job: Job,
    pub(super) inventory: Inventory,
    findings: Vec<Finding>,
    /// The failure of a round, which ends the job.
    pub(super) failure: Option<Cause>,
    pub(super) done: Option<Done>,
    /// How often it was its turn to write.
    turns: usize,
    /// Whether its policies are written, and its turn is yet to come.
    waits: bool,
}

impl Active {
    /// Takes up a job, unless nobody waits for it any more.
    fn new(job: Job) -> Option<Self> {
        if job.reply.is_closed() {
            return None;
        }
        let inventory = match &job.task {
            Task::Maintain(task) => task.inventory.clone(),
            Task::Remove(task) => task.inventory.clone(),
        };
        Some(Self { job, inventory, findings: Vec::new(), failure: None, done: None, turns: 0, waits: false })
    }

    pub(super) fn is_open(&self) -> bool {
        self.failure.is_none() && self.done.is_none()
    }

    fn reply(self) {
        let outcome: Outcome = match (self.failure, self.done) {
            (None, Some(done)) => Ok(done),
            (cause, _) => Err(Failure {
                cause: cause.unwrap_or(Cause::Stopped),
                inventory: Some(Box::new(self.inventory)),
            }),
        };
        // A reconciliation that was cancelled does not wait any more.
        let _ = self.job.reply.send(outcome);
    }
}

/// Which jobs to look at, and how many of them may write.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    /// The index of the first.
    pub(super) from: usize,
    pub(super) turns: usize,
}

/// What a round writes.
#[derive(Default)]
pub(super) struct Work {
    /// Up to the policies, of all.
    early: Vec<(usize, Plan)>,
    /// The rest, of those whose turn it is.
    late: Vec<(usize, Plan)>,
    records: BTreeMap<usize, Records>,
}

/// What the inventory says before and after a plan.
struct Records {
    intended: Inventory,
    applied: Inventory,
    /// What there is to report then, where that is known without another look.
    foreseen: Option<Maintained>,
}

impl Work {
    /// Ends a job that has nothing to write, or takes over its plan. No more than
    /// `turns` pipelines get beyond their policies in this round.
    pub(super) fn take(&mut self, index: usize, entry: &mut Active, decision: Decision, turns: usize) {
        for finding in decision.findings {
            if !entry.findings.iter().any(|known| known.object == finding.object) {
                entry.findings.push(finding);
            }
        }
        if !decision.act {
            let findings = std::mem::take(&mut entry.findings);
            entry.done = Some(Done::Maintained(Box::new(Maintained { findings, ..decision.maintained })));
            return;
        }
        let intended = decision.comparison.intended(&entry.inventory);
        self.records
            .insert(index, Records { intended, applied: decision.comparison.inventory, foreseen: None });
        let (early, late) = decision.comparison.plan.split_after(Stage::Policy);
        if !early.steps.is_empty() {
            self.early.push((index, early));
        }
        entry.waits = self.late.len() >= turns;
        if !entry.waits {
            entry.turns += 1;
            self.late.push((index, late));
        }
    }

    fn remove(&mut self, index: usize, entry: &mut Active, progress: Progress) {
        match progress {
            Progress::Done(done) => entry.done = Some(done),
            Progress::Write(plan) => {
                entry.turns += 1;
                self.late.push((index, plan));
            }
        }
    }

    /// All steps that are about to be written.
    pub(super) fn steps(&self) -> impl Iterator<Item = &Step> {
        let plans = self.early.iter().chain(&self.late);
        plans.flat_map(|(_, plan)| &plan.steps).map(|planned| &planned.step)
    }

    /// Keeps what will be true of each pipeline once its plan is applied.
    pub(super) fn foresee(&mut self, outcome: impl Fn(usize, &Inventory) -> Option<Maintained>) {
        for (index, records) in &mut self.records {
            records.foreseen = outcome(*index, &records.applied);
        }
    }

    /// Adds what others are about to write; no index is in both.
    fn join(&mut self, other: Self) {
        self.late.extend(other.late);
        self.records.extend(other.records);
    }

    fn is_empty(&self) -> bool {
        self.early.is_empty() && self.late.is_empty()
    }

    /// Whether something is about to be declared.
    fn declares(&self) -> bool {
        !self.records.is_empty()
    }
}

impl Lane {
    /// Works on all jobs and answers each; `jobs` is where more may come from.
    pub(super) async fn batch(&mut self, first: Vec<Job>, jobs: &mut mpsc::Receiver<Job>) {
        let started = Instant::now();
        let mut active: Vec<Active> = first.into_iter().filter_map(Active::new).collect();
        if let Err(error) = self.rounds(&mut active, jobs).await {
            // Another broker may answer next time.
            self.facts = None;
            for entry in active.iter_mut().filter(|entry| entry.is_open()) {
                entry.failure = Some(Cause::Broker(error.clone()));
            }
        }
        tracing::debug!(elapsed = ?started.elapsed(), vhost = self.key.vhost, "batch done");
        active.into_iter().for_each(Active::reply);
    }

    async fn rounds(
        &mut self,
        active: &mut Vec<Active>,
        jobs: &mut mpsc::Receiver<Job>,
    ) -> Result<(), BrokerError> {
        let broker = self.known_broker().await?;
        self.claim(active, &broker);
        let mut turns = FEWEST_TURNS;
        while active.iter().any(Active::is_open) {
            turns = turns.max(active.len() / PARTS);
            self.round(active, &broker, jobs, turns).await?;
            for entry in active.iter_mut().filter(|entry| entry.is_open() && entry.turns > MAX_TURNS) {
                tracing::warn!(pipeline = entry.job.task.claim().who, "does not settle; trying again later");
                entry.failure = Some(Cause::Raced("the pipeline".to_owned()));
            }
            // Those that are done need not wait for the others.
            let (open, done): (Vec<_>, Vec<_>) =
                std::mem::take(active).into_iter().partition(Active::is_open);
            done.into_iter().for_each(Active::reply);
            *active = open;
        }
        Ok(())
    }

    /// Says what these jobs want, and fails those whose broker is another one now.
    fn claim(&self, active: &mut [Active], broker: &KnownBroker) {
        for entry in active {
            entry.failure = changed_broker(&entry.job.task, broker);
            if let Task::Maintain(task) = &entry.job.task {
                let claim = entry.job.task.claim();
                let id = broker.id.as_deref().unwrap_or(&self.key.endpoint);
                self.shared.claims.set(&claim, id, &self.key.vhost, claimed_queues(&task.pipeline));
            }
        }
    }

    /// Compares, records, and writes. Whoever comes before the first queue is
    /// declared still joins: a policy costs the broker the more, the more queues
    /// there are, so that pipelines which are applied together must stay together.
    async fn round(
        &mut self,
        active: &mut Vec<Active>,
        broker: &KnownBroker,
        jobs: &mut mpsc::Receiver<Job>,
        turns: usize,
    ) -> Result<(), BrokerError> {
        let started = Instant::now();
        let mut work = self.prepare(active, Scope { from: 0, turns }, broker).await?;
        let mut joined = 0;
        while work.declares() && started.elapsed() < JOINING && active.len() < BATCH {
            let late: Vec<Active> = drain(jobs).into_iter().filter_map(Active::new).collect();
            if late.is_empty() {
                break;
            }
            let from = active.len();
            joined += late.len();
            active.extend(late);
            self.claim(&mut active[from..], broker);
            work.join(self.prepare(active, Scope { from, turns }, broker).await?);
        }
        let prepared = started.elapsed();
        let writing = work.late.len();
        for (index, applied) in apply(&self.management, &self.key.vhost, work.late).await {
            settle(&mut active[index], applied, work.records.remove(&index));
        }
        let elapsed = started.elapsed();
        tracing::debug!(?prepared, ?elapsed, writing, joined, vhost = self.key.vhost, "round done");
        Ok(())
    }

    /// Compares the jobs from an index on, records what they are about to declare,
    /// and writes their policies. What is left to write is returned.
    async fn prepare(
        &mut self,
        active: &mut [Active],
        scope: Scope,
        broker: &KnownBroker,
    ) -> Result<Work, BrokerError> {
        let mut work = match self.targeted(active, scope, broker).await? {
            Some(work) => work,
            None => self.whole(active, scope, broker).await?,
        };
        if !work.is_empty() {
            self.confirm_broker(active, broker).await?;
        }
        self.record(active, &mut work).await;
        let early = std::mem::take(&mut work.early);
        let early = early.into_iter().filter(|(index, _)| active[*index].is_open()).collect();
        for (index, applied) in apply(&self.management, &self.key.vhost, early).await {
            active[index].failure = applied.stopped;
        }
        work.late.retain(|(index, _)| active[*index].is_open());
        Ok(work)
    }

    /// Compares all open jobs with the whole vhost.
    async fn whole(
        &mut self,
        active: &mut [Active],
        scope: Scope,
        broker: &KnownBroker,
    ) -> Result<Work, BrokerError> {
        let observed = match self.management.snapshot(&self.key.vhost).await {
            Err(BrokerError::VhostNotFound { vhost }) => {
                self.vhost_is_gone(active).await?;
                return Err(BrokerError::VhostNotFound { vhost });
            }
            other => other?,
        };
        let policies = PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref());
        let shared = self.shared.clone();
        let view = View { broker, observed: &observed, policies: &policies, claims: &shared.claims };
        let mut work = Work::default();
        let mut waiting = Vec::new();
        let mut unproven = BTreeSet::new();
        let open = active.iter_mut().enumerate().skip(scope.from).filter(|(_, entry)| entry.is_open());
        for (index, entry) in open {
            match &entry.job.task {
                Task::Maintain(_) if entry.waits && work.late.len() >= scope.turns => {}
                Task::Maintain(task) => {
                    let decision = decide(task, &entry.inventory, &BTreeSet::new(), view);
                    if decision.unproven().is_empty() {
                        work.take(index, entry, decision, scope.turns);
                    } else {
                        unproven.extend(decision.unproven().iter().cloned());
                        waiting.push(index);
                    }
                }
                Task::Remove(task) if task.step == RemovalStep::Prove => {
                    unproven.extend(removal(task, &observed).queues().into_iter().map(str::to_owned));
                    waiting.push(index);
                }
                Task::Remove(task) => {
                    let removal = removal(task, &observed);
                    if task.step == RemovalStep::Unbind {
                        // What was proven with the inflow in place must be proven again without.
                        self.proofs.forget(&removal.queues());
                    }
                    let progress = remove::step(task.step, &removal);
                    work.remove(index, entry, progress);
                }
            }
        }
        self.prove(active, (&waiting, &unproven), view, scope, &mut work).await;
        Ok(work)
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
            match &entry.job.task {
                Task::Maintain(task) => {
                    let decision = decide(task, &entry.inventory, &verdict.empty, view);
                    work.take(*index, entry, decision, scope.turns);
                }
                Task::Remove(task) => {
                    let removed = remove::proven(&removal(task, view.observed), &verdict);
                    entry.done = Some(Done::Removed(removed));
                }
            }
        }
    }

    /// Records what is about to exist.
    async fn record(&self, active: &mut [Active], work: &mut Work) {
        let intended = work.records.iter_mut().filter_map(|(index, records)| {
            let entry = &active[*index];
            let intended = std::mem::take(&mut records.intended);
            (intended != entry.inventory).then(|| (*index, entry.job.task.object().clone(), intended))
        });
        let intended: Vec<_> = intended.collect();
        let mut written = futures::stream::iter(intended)
            .map(async |(index, object, intended)| {
                let result = record_inventory(&self.shared.client, &object, &intended).await;
                (index, intended, result)
            })
            .buffer_unordered(api_server::IN_FLIGHT);
        while let Some((index, intended, result)) = written.next().await {
            match result {
                Ok(()) => active[index].inventory = intended,
                Err(error) => active[index].failure = Some(Cause::Record(error)),
            }
        }
    }
}

/// What waits now.
fn drain(jobs: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    std::iter::from_fn(|| jobs.try_recv().ok()).take(BATCH).collect()
}

/// Takes over what was applied.
fn settle(entry: &mut Active, applied: Applied, records: Option<Records>) {
    match applied.stopped {
        Some(cause) => entry.failure = Some(cause),
        None => {
            let Some(Records { applied, foreseen, .. }) = records else { return };
            entry.inventory = applied;
            if let Some(maintained) = foreseen {
                let findings = std::mem::take(&mut entry.findings);
                entry.done = Some(Done::Maintained(Box::new(Maintained { findings, ..maintained })));
            }
        }
    }
}
