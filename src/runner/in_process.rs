//! The worker as a task of the operator, for development and small installations.
//!
//! The same code as in a Job. A run that fails is tried again as a Job would, and given up after
//! as many failures.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{End, State, Work, work};

/// Failures until a run is given up.
const FAILURES: u32 = 6;

/// The wait after the first failure; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// All runs, by the replay's UID.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<Runs>);

#[derive(Default)]
struct Runs {
    by_uid: HashMap<String, Run>,
    /// The operator stops: nothing begins any more.
    closed: bool,
}

struct Run {
    stop: CancellationToken,
    task: JoinHandle<Result<End, String>>,
    failures: u32,
    last_failure: String,
    again_at: Option<Instant>,
}

impl Tasks {
    /// Sees to it that a run is under way, and says how it is. `ended` is called whenever a task
    /// ends.
    pub(crate) async fn ensure(
        &self,
        uid: &str,
        job: impl FnOnce() -> Work,
        ended: impl FnOnce() + Send + 'static,
    ) -> State {
        if let Some(task) = self.take_finished(uid) {
            let result = task.await.unwrap_or_else(|panic| Err(panic.to_string()));
            self.note(uid, result);
        }
        let mut runs = self.lock();
        if runs.closed {
            return State::Working;
        }
        let runs = &mut runs.by_uid;
        match runs.get(uid) {
            Some(run) if run.failures >= FAILURES => {
                return State::Failed(format!("it failed {FAILURES} times: {}", run.last_failure));
            }
            Some(run) if run.again_at.is_none_or(|at| at > Instant::now()) => return State::Working,
            _ => {}
        }
        let (failures, last_failure) =
            runs.get(uid).map_or((0, String::new()), |run| (run.failures, run.last_failure.clone()));
        let stop = CancellationToken::new();
        let running = work(job(), stop.clone());
        let task = tokio::spawn(async move {
            let result = running.await.map_err(|error| error.to_string());
            // After this task: who looks then finds it ended.
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                ended();
            });
            result
        });
        runs.insert(uid.to_owned(), Run { stop, task, failures, last_failure, again_at: None });
        State::Working
    }

    /// Stops a run, so that nothing stays unacknowledged, and says whether it is over.
    pub(crate) fn stop(&self, uid: &str) -> bool {
        let runs = &mut self.lock().by_uid;
        let Some(run) = runs.get(uid) else { return true };
        run.stop.cancel();
        let is_over = run.task.is_finished();
        if is_over {
            runs.remove(uid);
        }
        is_over
    }

    /// Whether a run is under way.
    pub(crate) fn is_at_work(&self, uid: &str) -> bool {
        self.lock().by_uid.get(uid).is_some_and(|run| run.again_at.is_none() && !run.task.is_finished())
    }

    /// Stops all runs and waits until they have settled.
    pub(crate) async fn finish(&self) {
        let runs = std::mem::replace(&mut *self.lock(), Runs { by_uid: HashMap::new(), closed: true }).by_uid;
        for run in runs.values() {
            run.stop.cancel();
        }
        for run in runs.into_values() {
            let _ = run.task.await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task of a run that has ended and was not looked at yet.
    fn take_finished(&self, uid: &str) -> Option<JoinHandle<Result<End, String>>> {
        let mut runs = self.lock();
        let run = runs.by_uid.get_mut(uid).filter(|run| run.again_at.is_none() && run.task.is_finished())?;
        // Until the result is noted, nobody starts another one.
        Some(std::mem::replace(&mut run.task, tokio::spawn(std::future::pending())))
    }

    fn note(&self, uid: &str, result: Result<End, String>) {
        let mut runs = self.lock();
        let Some(run) = runs.by_uid.get_mut(uid) else { return };
        run.task.abort();
        run.again_at = Some(Instant::now());
        match result {
            Ok(End::Finished | End::Interrupted) => {}
            Err(why) => {
                tracing::warn!(uid, why, "a replay's worker failed");
                run.failures += 1;
                run.last_failure = why;
                run.again_at = Some(Instant::now() + FIRST_WAIT * (1 << run.failures.min(6)));
            }
        }
    }
}
