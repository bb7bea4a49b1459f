//! How long a lane waits for company before it looks.
//!
//! A policy costs the broker the more, the more queues its vhost has, so that those who are
//! applied together should be written together. Over many vhosts a crowd comes to each lane
//! one by one, with long gaps: so lanes look at what comes to the others as well.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::BATCH;
use super::job::{Job, Task};

/// How long nobody may have come, to any lane, for one that has a single pipeline, and for one
/// that has some. Whoever comes a little later still joins, as `batch` says.
const ALONE: Duration = Duration::from_millis(25);
const IN_COMPANY: Duration = Duration::from_millis(40);

/// Deletions come one by one and are worth more company: each of their steps looks at the
/// whole vhost, and policies that go while others' queues stand cost the most.
pub(super) const DELETIONS: Duration = Duration::from_millis(100);

/// How long it waits in all.
const GATHERING: Duration = Duration::from_secs(5);

/// When somebody last came to any lane.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<Option<Instant>>);

impl Arrivals {
    /// Notes who comes to maintain a pipeline.
    pub(super) fn note(&self, task: &Task) {
        if matches!(task, Task::Maintain(_)) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }

    fn last(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes what waits, and what follows at once.
pub(super) async fn gather(first: Job, jobs: &mut mpsc::Receiver<Job>, arrivals: &Arrivals) -> Vec<Job> {
    let end = Instant::now() + GATHERING;
    let mut quiet_since = Instant::now();
    let mut batch = vec![first];
    while batch.len() < BATCH {
        let until = (quiet_since + pause(&batch)).min(end);
        match timeout_at(until, jobs.recv()).await {
            Ok(Some(job)) => {
                batch.push(job);
                quiet_since = Instant::now();
            }
            Ok(None) => break,
            Err(_) => match arrivals.last().filter(|last| *last > quiet_since && until < end) {
                Some(last) if is_maintained(&batch) => quiet_since = last,
                _ => break,
            },
        }
    }
    batch
}

fn is_maintained(batch: &[Job]) -> bool {
    matches!(batch[0].task, Task::Maintain(_))
}

fn pause(batch: &[Job]) -> Duration {
    match batch[0].task {
        Task::Remove(_) => DELETIONS,
        Task::Maintain(_) if batch.len() > 1 => IN_COMPANY,
        Task::Maintain(_) => ALONE,
    }
}
