//! Plans in the background: at most two at a time, since each may read a whole queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::api::ReplayPlan;
use crate::runner::plan::{self, Failure, Request};

/// How many plans may be made at the same time.
const AT_A_TIME: usize = 2;

/// What came of a plan.
pub(super) type Planned = Result<ReplayPlan, Failure>;

/// Plans that are being made, and those that nobody has fetched yet.
pub(super) struct Plans {
    places: Arc<Semaphore>,
    known: Arc<Mutex<HashMap<String, Slot>>>,
}

enum Slot {
    Running(AbortHandle),
    Ready(Box<Planned>),
}

impl Default for Plans {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(AT_A_TIME)), known: Arc::default() }
    }
}

impl Plans {
    /// The plan of a replay, once it is made; it is begun where it was not. `made` is called
    /// when there is something to fetch.
    pub(super) fn fetch(
        &self,
        uid: &str,
        request: impl FnOnce() -> Request,
        made: impl FnOnce() + Send + 'static,
    ) -> Option<Planned> {
        let mut known = lock(&self.known);
        match known.remove(uid) {
            Some(Slot::Ready(planned)) => return Some(*planned),
            Some(running @ Slot::Running(_)) => drop(known.insert(uid.to_owned(), running)),
            None => {
                let task = tokio::spawn(make(
                    self.places.clone(),
                    self.known.clone(),
                    uid.to_owned(),
                    request(),
                    made,
                ));
                known.insert(uid.to_owned(), Slot::Running(task.abort_handle()));
            }
        }
        None
    }

    /// Gives up a plan that nobody wants any more.
    pub(super) fn forget(&self, uid: &str) {
        if let Some(Slot::Running(task)) = lock(&self.known).remove(uid) {
            task.abort();
        }
    }

    /// Gives up all plans.
    pub(super) fn stop(&self) {
        for (_, slot) in lock(&self.known).drain() {
            if let Slot::Running(task) = slot {
                task.abort();
            }
        }
    }
}

async fn make(
    places: Arc<Semaphore>,
    known: Arc<Mutex<HashMap<String, Slot>>>,
    uid: String,
    request: Request,
    made: impl FnOnce(),
) {
    // Never closed.
    let _place = places.acquire_owned().await;
    let planned = plan::make(request).await;
    if let Some(slot) = lock(&known).get_mut(&uid) {
        *slot = Slot::Ready(Box::new(planned));
    }
    made();
}

fn lock(known: &Mutex<HashMap<String, Slot>>) -> std::sync::MutexGuard<'_, HashMap<String, Slot>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}
