//! The jobs of a batch.

use tokio::sync::oneshot;

use crate::topology::ownership::Inventory;

use super::job::{Cause, Done, Failure, Finding, Job, Maintained, Outcome, Task};

/// A job and how far it got.
pub(super) struct Active {
    pub(super) task: Task,
    /// Where the result goes, until it has gone.
    reply: Option<oneshot::Sender<Outcome>>,
    pub(super) inventory: Inventory,
    findings: Vec<Finding>,
    /// The failure of a round, which ends the job.
    pub(super) failure: Option<Cause>,
    pub(super) done: Option<Done>,
    /// How often it was its turn to write.
    pub(super) turns: usize,
    /// Whether its policies are written, and its turn is yet to come.
    pub(super) waits: bool,
}

impl Active {
    /// Takes up a job, unless nobody waits for it any more.
    pub(super) fn new(job: Job) -> Option<Self> {
        if job.reply.is_closed() {
            return None;
        }
        let inventory = match &job.task {
            Task::Maintain(task) => task.inventory.clone(),
            Task::Remove(task) => task.inventory.clone(),
        };
        Some(Self {
            task: job.task,
            reply: Some(job.reply),
            inventory,
            findings: Vec::new(),
            failure: None,
            done: None,
            turns: 0,
            waits: false,
        })
    }

    /// Adds what was found; an object that is named already is not named again.
    pub(super) fn note(&mut self, findings: Vec<Finding>) {
        for finding in findings {
            if !self.findings.iter().any(|known| known.object == finding.object) {
                self.findings.push(finding);
            }
        }
    }

    /// Ends the job: nothing is left to write.
    pub(super) fn finish(&mut self, maintained: Maintained) {
        let mut findings = std::mem::take(&mut self.findings);
        // What is blocked counts as of the last look.
        findings.extend(maintained.findings);
        self.done = Some(Done::Maintained(Box::new(Maintained { findings, ..maintained })));
    }

    pub(super) fn is_open(&self) -> bool {
        self.reply.is_some() && self.failure.is_none() && self.done.is_none()
    }

    /// Says what came of a job that has ended, at once and only once.
    pub(super) fn answer(&mut self) {
        let Some(reply) = self.reply.take() else { return };
        let outcome: Outcome = match (self.failure.take(), self.done.take()) {
            (None, Some(done)) => Ok(done),
            (cause, _) => Err(Failure {
                cause: cause.unwrap_or(Cause::Stopped),
                inventory: Some(Box::new(std::mem::take(&mut self.inventory))),
            }),
        };
        // A reconciliation that was cancelled does not wait any more.
        let _ = reply.send(outcome);
    }
}

/// Which jobs to look at, and how many of them may write.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    /// The index of the first.
    pub(super) from: usize,
    pub(super) turns: usize,
}
