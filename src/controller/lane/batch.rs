//! One batch: observe, compare, record and apply, until nothing differs.

use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::sync::mpsc;
use tracing::{Instrument as _, Span};

use crate::broker::BrokerError;
use crate::topology::ownership::Inventory;
use crate::topology::plan::Stage;

use super::super::retry_pipeline::is_about_to_delete;
use super::super::retry_pipeline::update_status::record_inventory;
use super::active::{Active, Scope};
use super::apply::{PLANS, Writer};
use super::gathering::{DELETIONS, gather};
use super::identity::{KnownBroker, changed_broker};
use super::job::{Cause, Job, Task};
use super::work::{Rest, Start, Work};
use super::{BATCH, Lane};

/// More turns than any pipeline needs: build, switch over, remove.
const MAX_TURNS: usize = 5;

/// A large batch goes in so many equal parts, so that the first pipelines are reported
/// while the last are declared, and their plans are never all in memory.
const PARTS: usize = 8;

/// Fewer are not worth a part of their own.
const FEWEST_TURNS: usize = 128;

/// How long a round takes in those who come late.
const JOINING: Duration = Duration::from_secs(20);

/// How long it waits for them before it removes policies.
const LINGERING: Duration = Duration::from_millis(100);

impl Lane {
    /// Works on all jobs and answers each; `jobs` is where more may come from.
    pub(super) async fn batch(&mut self, first: Vec<Job>, jobs: &mut mpsc::Receiver<Job>) {
        let started = Instant::now();
        let look = tracing::debug_span!("look", vhost = self.key.vhost, pipelines = first.len());
        link(&look, &first);
        let mut active: Vec<Active> = first.into_iter().filter_map(Active::new).collect();
        let worked = self.rounds(&mut active, jobs).instrument(look).await;
        self.shared.numbers.looked(&self.address(), &self.key.vhost, worked.is_ok());
        if let Err(error) = worked {
            // Another broker may answer next time.
            self.facts = None;
            for entry in active.iter_mut().filter(|entry| entry.is_open()) {
                entry.failure = Some(Cause::Broker(error.clone()));
            }
        }
        tracing::debug!(elapsed = ?started.elapsed(), vhost = self.key.vhost, "batch done");
        active.iter_mut().for_each(Active::answer);
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
            turns = turns.max(part_of(active.len()));
            self.round(active, &broker, jobs, turns).await?;
            for entry in active.iter_mut().filter(|entry| entry.is_open() && entry.turns > MAX_TURNS) {
                tracing::warn!(pipeline = entry.task.claim().who, "does not settle; trying again later");
                entry.failure = Some(Cause::Raced("the pipeline".to_owned()));
            }
            active.iter_mut().filter(|entry| !entry.is_open()).for_each(Active::answer);
            active.retain(Active::is_open);
        }
        Ok(())
    }

    /// Says what these jobs want, and fails those whose broker is another one now.
    fn claim(&self, active: &mut [Active], broker: &KnownBroker) {
        for entry in active {
            entry.failure = changed_broker(&entry.task, broker);
            if let Task::Maintain(task) = &entry.task {
                let claim = entry.task.claim();
                let id = broker.id.as_deref().unwrap_or(&self.key.endpoint);
                self.shared.claims.set(&claim, id, &self.key.vhost, task.pipeline.claimed_queues());
                self.ear.know(&task.pipeline, &task.inventory);
            }
        }
    }

    /// Compares, records, and writes. A policy costs the broker the more, the more
    /// queues there are, so that pipelines which are applied or removed together must
    /// stay together: whoever comes before the first queue is declared still joins, and
    /// policies go when nobody waits to delete more queues.
    async fn round(
        &mut self,
        active: &mut Vec<Active>,
        broker: &KnownBroker,
        jobs: &mut mpsc::Receiver<Job>,
        turns: usize,
    ) -> Result<(), BrokerError> {
        let started = Instant::now();
        let mut scope = Scope { from: 0, turns };
        let mut policies = Vec::new();
        loop {
            scope.turns = turns;
            let mut rests = self.prepare(active, scope, broker).await?;
            while !rests.is_empty() {
                let late = self.late_comers(active, &rests, jobs).await;
                if !self.join(active, &mut scope, broker, late, started) {
                    break;
                }
                scope.turns = turns.saturating_sub(rests.len());
                rests.extend(self.prepare(active, scope, broker).await?);
            }
            tracing::debug!(elapsed = ?started.elapsed(), writing = rests.len(), vhost = self.key.vhost, "prepared");
            policies.extend(self.finish(active, rests).await);
            if policies.is_empty() {
                break;
            }
            let late = self.linger(active, jobs, started).await;
            if !self.join(active, &mut scope, broker, late, started) {
                break;
            }
        }
        self.clear_policies(active, policies).await;
        tracing::debug!(elapsed = ?started.elapsed(), vhost = self.key.vhost, "round done");
        Ok(())
    }

    /// Who else is there to write with these. Removals are quick and come together, one after the
    /// other as their status is written: a look for each few would take longer than to wait.
    async fn late_comers(
        &self,
        active: &[Active],
        rests: &[Rest],
        jobs: &mut mpsc::Receiver<Job>,
    ) -> Vec<Job> {
        let removes = |rest: &Rest| matches!(active[rest.index].task, Task::Remove(_));
        if !rests.iter().all(removes) {
            return drain(jobs);
        }
        match tokio::time::timeout(DELETIONS, jobs.recv()).await {
            Ok(Some(first)) => gather(first, jobs, &self.shared.arrivals).await,
            Ok(None) | Err(_) => Vec::new(),
        }
    }

    /// What waits now, or comes within a moment; within the time of a round, whoever is
    /// about to delete queues as well.
    async fn linger(&self, active: &[Active], jobs: &mut mpsc::Receiver<Job>, started: Instant) -> Vec<Job> {
        loop {
            match tokio::time::timeout(LINGERING, jobs.recv()).await {
                Ok(first) => return first.into_iter().chain(drain(jobs)).collect(),
                Err(_) if started.elapsed() < JOINING && self.is_deletion_near(active) => {}
                Err(_) => return Vec::new(),
            }
        }
    }

    /// Whether a pipeline of this lane that is not at work here will soon delete its queues.
    fn is_deletion_near(&self, active: &[Active]) -> bool {
        let members = self.shared.members_of(&self.key);
        let objects = members.iter().filter_map(|reference| self.shared.store.get(reference));
        objects.filter_map(|object| object.0.as_ref().ok().cloned()).any(|object| {
            let is_here = active.iter().any(|entry| entry.task.object().metadata.uid == object.metadata.uid);
            !is_here && is_about_to_delete(&object)
        })
    }

    /// Takes in those who have come meanwhile, and aims the scope at them; `false` where
    /// nobody has, or the round has waited long enough.
    fn join(
        &self,
        active: &mut Vec<Active>,
        scope: &mut Scope,
        broker: &KnownBroker,
        late: Vec<Job>,
        started: Instant,
    ) -> bool {
        link(&Span::current(), &late);
        scope.from = active.len();
        active.extend(late.into_iter().filter_map(Active::new));
        self.claim(&mut active[scope.from..], broker);
        active.len() > scope.from && started.elapsed() < JOINING && active.len() < BATCH
    }

    /// Compares the jobs from an index on, records what they are about to declare,
    /// and writes their policies. What is left to write is returned.
    async fn prepare(
        &mut self,
        active: &mut [Active],
        scope: Scope,
        broker: &KnownBroker,
    ) -> Result<Vec<Rest>, BrokerError> {
        let (mut work, observed) = match self.targeted(active, scope, broker).await? {
            Some(seen) => seen,
            None => self.whole(active, scope, broker).await?,
        };
        work.foresee(active, broker, observed, &self.shared.claims, &self.watch.seen(), &self.ear);
        if !work.is_empty() {
            self.confirm_broker(active, broker).await?;
        }
        let Work { starts, mut rests } = work;
        self.begin(active, starts).await;
        // Whoever was only to be looked at may come back with more before the round ends.
        active.iter_mut().filter(|entry| !entry.is_open()).for_each(Active::answer);
        rests.retain(|rest| active[rest.index].is_open());
        Ok(rests)
    }

    /// Records what is about to exist, and then writes the policies: the broker is at
    /// work on those of one pipeline while the API server records another.
    async fn begin(&self, active: &mut [Active], starts: Vec<Start>) {
        let writer = Writer::new(&self.management, &self.key.vhost, &self.ear);
        let starts = starts.into_iter().filter(|start| active[start.index].is_open());
        let starts: Vec<_> = starts.map(|start| self.start(start, &writer)).collect();
        let mut begun = futures::stream::iter(starts).buffer_unordered(PLANS);
        while let Some((index, recorded, result)) = begun.next().await {
            let entry = &mut active[index];
            entry.inventory = recorded.unwrap_or_else(|| std::mem::take(&mut entry.inventory));
            entry.failure = result.err();
        }
    }

    async fn start(
        &self,
        start: Start,
        writer: &Writer<'_>,
    ) -> (usize, Option<Inventory>, Result<(), Cause>) {
        let Start { index, object, intended, plan } = start;
        if let Some(intended) = &intended
            && let Err(error) = record_inventory(&self.shared.client, &object, intended).await
        {
            return (index, None, Err(Cause::Record(error)));
        }
        (index, intended, writer.run(plan).await)
    }

    /// Writes the rest, and answers whoever needs no other look. Returns those that
    /// have policies left to remove.
    async fn finish(&self, active: &mut [Active], rests: Vec<Rest>) -> Vec<Rest> {
        let writer = Writer::new(&self.management, &self.key.vhost, &self.ear);
        let rests: Vec<_> = rests.into_iter().map(|rest| write_all_but_policies(rest, &writer)).collect();
        let mut written = futures::stream::iter(rests).buffer_unordered(PLANS);
        let mut policies = Vec::new();
        while let Some((rest, result)) = written.next().await {
            if result.is_ok() && !rest.plan.steps.is_empty() {
                policies.push(rest);
            } else {
                settle(active, rest, result);
            }
        }
        policies
    }

    async fn clear_policies(&self, active: &mut [Active], policies: Vec<Rest>) {
        let writer = Writer::new(&self.management, &self.key.vhost, &self.ear);
        let policies: Vec<_> = policies.into_iter().map(|rest| write_rest(rest, &writer)).collect();
        let mut written = futures::stream::iter(policies).buffer_unordered(PLANS);
        while let Some((rest, result)) = written.next().await {
            settle(active, rest, result);
        }
    }
}

/// Has the span of a look lead to what has asked for it.
fn link(look: &Span, jobs: &[Job]) {
    for job in jobs {
        look.follows_from(&job.asked);
    }
}

/// What is left then are the policies to remove.
async fn write_all_but_policies(rest: Rest, writer: &Writer<'_>) -> (Rest, Result<(), Cause>) {
    let (plan, policies) = rest.plan.split_after(Stage::RemoveExchange);
    (Rest { plan: policies, ..rest }, writer.run(plan).await)
}

async fn write_rest(mut rest: Rest, writer: &Writer<'_>) -> (Rest, Result<(), Cause>) {
    let plan = std::mem::take(&mut rest.plan);
    let result = writer.run(plan).await;
    (rest, result)
}

/// Takes over what came of a plan, and answers if nothing is left to do.
fn settle(active: &mut [Active], rest: Rest, result: Result<(), Cause>) {
    let entry = &mut active[rest.index];
    rest.then.settle(entry, result);
    if !entry.is_open() {
        entry.answer();
    }
}

/// How many of a batch may write in one round.
fn part_of(batch: usize) -> usize {
    batch.div_ceil((batch / FEWEST_TURNS).clamp(1, PARTS))
}

/// What waits now.
fn drain(jobs: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    std::iter::from_fn(|| jobs.try_recv().ok()).take(BATCH).collect()
}
