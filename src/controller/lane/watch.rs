//! What queues do between two comparisons: who consumes from those that nobody may consume
//! from, and whether dead letters move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::super::Guarded;
use super::Lane;
use crate::api::conditions::PipelineCondition;
use crate::api::{Condition, RetryMode, RetryPipeline};
use crate::broker::{self, BrokerError};
use crate::topology::observed::Observed;
use crate::topology::watch::{Consumers, Seen, Waiting, says_stuck};

/// What a lane has seen of its queues.
#[derive(Debug)]
pub(super) struct Watch {
    began: Instant,
    waiting: Waiting,
    consumers: Consumers,
    /// How many consumers each queue has, where the broker tells.
    counts: Option<BTreeMap<String, u64>>,
    /// Queues of mode Native, whose delayed retries look like dead letters that wait.
    delaying: BTreeSet<String>,
    /// What comparisons are told. It changes with a poll alone, so that a poll and the batch
    /// that it leads to agree.
    seen: Arc<Seen>,
    /// Whether anything was looked at yet.
    has_looked: bool,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            waiting: Waiting::default(),
            consumers: Consumers::default(),
            counts: None,
            delaying: BTreeSet::new(),
            seen: Arc::default(),
            has_looked: false,
        }
    }
}

impl Watch {
    /// Takes over what a status says, which may be older than this operator.
    fn recall(&mut self, object: &RetryPipeline) {
        let drifted = |condition: &&Condition| condition.type_ == PipelineCondition::Drifted.as_str();
        let conditions = object.status.iter().flat_map(|status| &status.conditions);
        let Some(report) = conditions.into_iter().find(drifted).map(|condition| &condition.message) else {
            return;
        };
        let queues = object.status.iter().flat_map(|status| &status.queues).map(|queue| &queue.name);
        for queue in queues.filter(|queue| says_stuck(report, queue)) {
            self.waiting.recall(queue);
        }
    }

    /// What is known at present.
    pub(super) fn seen(&self) -> Arc<Seen> {
        self.seen.clone()
    }

    /// Whether nothing was looked at yet.
    pub(super) fn is_new(&self) -> bool {
        !self.has_looked
    }

    /// Dead letters of a queue that wait for the next one.
    pub(super) fn dead_lettering(&self, queue: &str) -> i64 {
        self.waiting.count(queue)
    }

    /// How many consumers a queue has, where the broker tells.
    pub(super) fn consumers(&self, queue: &str) -> Option<u64> {
        self.counts.as_ref().map(|counts| counts.get(queue).copied().unwrap_or_default())
    }

    /// Whether dead letters wait anywhere.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Lane {
    /// Takes in what a look at the vhost shows of the queues. What can't be read stays as it was.
    pub(super) async fn look_at_queues(&mut self, observed: &Observed) {
        let members = self.shared.members_of(&self.key);
        let members: Vec<Arc<Guarded>> =
            members.iter().filter_map(|member| self.shared.store.get(member)).collect();
        let objects = || members.iter().filter_map(|object| object.0.as_ref().ok());
        let is_native = |object: &&RetryPipeline| object.spec.mode() == RetryMode::Native;
        let native = objects().filter(is_native);
        self.watch.delaying = native.map(|object| object.spec.source.queue.name.clone()).collect();
        let totals = observed.queues.iter();
        let counts = totals.filter_map(|(name, queue)| Some((name.clone(), queue.totals.waiting()?)));
        self.note_waiting(counts.collect()).await;
        if self.watch.is_new() {
            objects().for_each(|object| self.watch.recall(object));
        }
        let has_tiers =
            |object: &RetryPipeline| matches!(object.spec.mode(), RetryMode::Broker | RetryMode::Application);
        let consumers = match objects().any(has_tiers) {
            true => self.management.consumers(&self.key.vhost).await,
            false => Ok(broker::Consumers::default()),
        };
        let consumers = match consumers {
            Ok(broker::Consumers { mut users, counts }) => {
                self.watch.counts = counts;
                // Whoever moves messages consumes them.
                users.retain(|queue, _| !self.moves.concern(queue));
                self.watch.consumers.look(users)
            }
            Err(error) => {
                unread(&error);
                self.watch.seen.consumers.clone()
            }
        };
        let stuck = self.watch.waiting.stuck(self.watch.began.elapsed(), self.shared.tuning.stuck_after);
        self.watch.seen = Arc::new(Seen { consumers, stuck });
        self.watch.has_looked = true;
    }

    /// Counts once more the dead letters that wait.
    pub(super) async fn count_waiting(&mut self) {
        match self.management.waiting(&self.key.vhost).await {
            Ok(counts) => self.note_waiting(counts).await,
            Err(error) => unread(&error),
        }
    }

    async fn note_waiting(&mut self, mut counts: BTreeMap<String, i64>) {
        counts.retain(|_, count| *count > 0);
        if counts.keys().any(|name| self.watch.delaying.contains(name)) {
            match self.management.delayed(&self.key.vhost).await {
                Ok(delayed) => without_delayed(&mut counts, &self.watch.delaying, &delayed),
                Err(error) => return unread(&error),
            }
        }
        self.watch.waiting.look(self.watch.began.elapsed(), counts);
    }
}

/// Takes off what is delayed; where the broker does not say how much that is, nothing is known.
fn without_delayed(
    counts: &mut BTreeMap<String, i64>,
    delaying: &BTreeSet<String>,
    delayed: &BTreeMap<String, i64>,
) {
    for name in delaying {
        let left = counts.get(name).zip(delayed.get(name)).map(|(count, delayed)| count - delayed);
        match left {
            Some(left) => drop(counts.insert(name.clone(), left)),
            None => drop(counts.remove(name)),
        }
    }
}

fn unread(error: &BrokerError) {
    tracing::info!(%error, "what queues do can't be read");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delayed_retries_are_no_dead_letters() {
        let table = |pairs: &[(&str, i64)]| -> BTreeMap<String, i64> {
            pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let mut counts = table(&[("native", 9), ("unknown", 3), ("all", 4), ("orders", 5)]);
        let delaying = ["native", "unknown", "all", "quiet"].map(str::to_owned).into();
        without_delayed(&mut counts, &delaying, &table(&[("native", 7), ("all", 4), ("orders", 5)]));
        assert_eq!(counts, table(&[("native", 2), ("all", 0), ("orders", 5)]));
    }
}
