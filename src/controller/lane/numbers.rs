//! What the last look at each vhost has shown of its queues, for metrics.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::watch::Watch;
use crate::topology::desired::{Desired, DesiredQueue, QueueRole};
use crate::topology::observed::{Observed, Totals};
use crate::topology::validate::Pipeline;

/// One queue of a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) name: String,
    pub(crate) role: QueueRole,
    /// Of a retry queue.
    pub(crate) delay: Option<Duration>,
    pub(crate) max_length: Option<i64>,
    pub(crate) totals: Totals,
    /// Dead letters on their way out.
    pub(crate) dead_lettering: i64,
    /// None where the broker does not tell.
    pub(crate) consumers: Option<u64>,
    /// Since which look it was never seen empty.
    pub(crate) filled: Option<SystemTime>,
}

/// A vhost, by the address of its management API and its name.
type Place = (String, String);

/// The numbers of all lanes.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// By the pipeline's UID.
    queues: Mutex<HashMap<String, Vec<Numbers>>>,
    /// Whether the last look at a vhost succeeded.
    up: Mutex<HashMap<Place, bool>>,
}

/// What a lane knows beside the counts of a look.
pub(super) struct Known<'a> {
    pub(super) observed: &'a Observed,
    pub(super) watch: &'a Watch,
}

impl Board {
    /// Takes over what a look has shown of a pipeline's queues.
    pub(super) fn note(&self, pipeline: &Pipeline, desired: &Desired, known: &Known<'_>) {
        let mut all = lock(&self.queues);
        let before = all.remove(&pipeline.identity.uid).unwrap_or_default();
        let numbers = |wanted: &DesiredQueue| {
            let name = &wanted.queue.name;
            let totals = known.observed.queues.get(name)?.totals;
            let filled = totals.messages.is_some_and(|messages| messages > 0).then(|| {
                let before = before.iter().find(|before| before.name == *name);
                before.and_then(|before| before.filled).unwrap_or_else(SystemTime::now)
            });
            Some(Numbers {
                name: name.clone(),
                role: wanted.role.clone(),
                delay: delay(pipeline, &wanted.role),
                max_length: max_length(pipeline, &wanted.role),
                totals,
                dead_lettering: known.watch.dead_lettering(name),
                consumers: known.watch.consumers(name),
                filled,
            })
        };
        let numbers = desired.queues.iter().filter_map(numbers).collect();
        all.insert(pipeline.identity.uid.clone(), numbers);
    }

    /// Says whether a vhost could be read.
    pub(super) fn looked(&self, address: &str, vhost: &str, up: bool) {
        lock(&self.up).insert((address.to_owned(), vhost.to_owned()), up);
    }

    /// Forgets a pipeline.
    pub(super) fn forget(&self, uid: &str) {
        lock(&self.queues).remove(uid);
    }

    /// Forgets a vhost that nobody looks at any more.
    pub(super) fn close(&self, address: &str, vhost: &str) {
        lock(&self.up).remove(&(address.to_owned(), vhost.to_owned()));
    }

    /// Whether each vhost could be read.
    pub(crate) fn up(&self) -> Vec<(Place, bool)> {
        lock(&self.up).iter().map(|(place, up)| (place.clone(), *up)).collect()
    }

    /// Calls `each` for the queues of a pipeline.
    pub(crate) fn of(&self, uid: &str, each: impl FnMut(&Numbers)) {
        lock(&self.queues).get(uid).into_iter().flatten().for_each(each);
    }
}

fn delay(pipeline: &Pipeline, role: &QueueRole) -> Option<Duration> {
    let QueueRole::Retry { number } = role else { return None };
    let tier = pipeline.tiers.iter().find(|tier| tier.number == *number)?;
    u64::try_from(tier.delay).ok().map(Duration::from_millis)
}

fn max_length(pipeline: &Pipeline, role: &QueueRole) -> Option<i64> {
    match role {
        QueueRole::Source => pipeline.spec.source.max_length,
        QueueRole::DeadLetter => pipeline.spec.dead_letter.max_length,
        QueueRole::Retry { .. } | QueueRole::Quarantine(_) | QueueRole::ParkingLot => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
