//! Who answers: nothing is written to a broker that is not the one of before.

use std::time::{Duration, Instant};

use super::Lane;
use super::active::Active;
use super::job::{Cause, Done, Removed, Task};
use crate::broker::BrokerError;
use crate::topology::observed::BrokerFacts;

/// How far apart the two looks are that must agree on a missing vhost.
const VHOST_RECHECK: Duration = Duration::from_secs(2);

/// A broker that has told who it is.
#[derive(Clone, Debug)]
pub(super) struct KnownBroker {
    pub(super) facts: BrokerFacts,
    pub(super) id: Option<String>,
    read: Instant,
}

impl Lane {
    /// Who the broker is; asked again once per poll interval.
    pub(super) async fn known_broker(&mut self) -> Result<KnownBroker, BrokerError> {
        if let Some(known) =
            self.facts.as_ref().filter(|known| known.read.elapsed() < self.shared.tuning.poll_interval)
        {
            return Ok(known.clone());
        }
        self.facts = None;
        let overview = self.management.overview().await?;
        let id = self.management.internal_cluster_id().await?;
        let known = KnownBroker { facts: overview.facts, id, read: Instant::now() };
        self.facts = Some(known.clone());
        Ok(known)
    }

    /// Asks once more who answers, before anything is written: what is known may be
    /// as old as a poll interval, and another broker may answer by now.
    pub(super) async fn confirm_broker(
        &mut self,
        active: &mut [Active],
        known: &KnownBroker,
    ) -> Result<(), BrokerError> {
        let id = self.management.internal_cluster_id().await?;
        if id == known.id {
            return Ok(());
        }
        self.facts = None;
        let found = KnownBroker { id, ..known.clone() };
        for entry in active.iter_mut().filter(|entry| entry.is_open()) {
            let changed = changed_broker(&entry.task, &found);
            entry.failure = Some(changed.unwrap_or_else(|| Cause::Raced("the broker".to_owned())));
        }
        Ok(())
    }

    /// Where the whole vhost is gone, removals have nothing left to do. One
    /// answer is no proof: a restarting node could say so of any vhost.
    pub(super) async fn vhost_is_gone(&mut self, active: &mut [Active]) -> Result<(), BrokerError> {
        let removals = |entry: &Active| entry.is_open() && matches!(entry.task, Task::Remove(_));
        if !active.iter().any(removals) {
            return Ok(());
        }
        tokio::time::sleep(VHOST_RECHECK).await;
        self.facts = None;
        self.known_broker().await?;
        if self.management.vhost_exists(&self.key.vhost).await? {
            return Ok(());
        }
        for entry in active.iter_mut().filter(|entry| removals(entry)) {
            entry.done = Some(Done::Removed(Removed::Deleted { left: Vec::new() }));
        }
        Ok(())
    }
}

/// What stops a task whose pipeline was on another broker before.
pub(super) fn changed_broker(task: &Task, broker: &KnownBroker) -> Option<Cause> {
    let recorded = task.object().status.as_ref()?.broker_id.as_ref()?;
    let found = broker.id.as_ref()?;
    (recorded != found).then(|| Cause::BrokerChanged { recorded: recorded.clone(), found: found.clone() })
}
