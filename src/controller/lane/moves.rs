//! Messages that are being moved from one queue to another, beside the lane's own work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::broker::moving::{MoveError, move_all};
use crate::broker::{AddressGuard, Endpoint};
use crate::topology::plan::{Blocked, BlockedBy, Move};

/// Moves of one lane at the same time; the others begin when these are done.
const AT_ONCE: usize = 4;

/// A move that is not asked for again for so long is over, and its consumer forgotten.
const LATE: Duration = Duration::from_secs(30);

/// How long what is under way may take to be settled when the lane ends.
const GRACE: Duration = Duration::from_secs(5);

/// The moves that are under way.
pub(super) struct Moves {
    running: JoinSet<(Move, Option<MoveError>)>,
    under_way: BTreeSet<Move>,
    /// When one from this queue was last begun or seen at work.
    seen: BTreeMap<String, Instant>,
    /// Those that failed, and fail again until somebody does something.
    stopped: BTreeMap<Move, String>,
    stop: CancellationToken,
}

impl Moves {
    /// Nothing moves. `shutdown` ends what begins later, with nothing doubled.
    pub(super) fn new(shutdown: &CancellationToken) -> Self {
        Self {
            running: JoinSet::new(),
            under_way: BTreeSet::new(),
            seen: BTreeMap::new(),
            stopped: BTreeMap::new(),
            stop: shutdown.child_token(),
        }
    }

    /// Begins what is not under way. A move that failed is begun again at the next look.
    pub(super) fn begin(
        &mut self,
        moves: BTreeSet<Move>,
        endpoint: &Arc<Endpoint>,
        guard: &AddressGuard,
        vhost: &str,
    ) {
        while let Some(ended) = self.running.try_join_next() {
            match ended {
                Ok((ended, error)) => self.ended(ended, error),
                // It has panicked, and nobody can say which one.
                Err(_) if self.running.is_empty() => self.under_way.clear(),
                Err(_) => {}
            }
        }
        self.seen.retain(|_, seen| seen.elapsed() < LATE);
        for moved in moves {
            self.seen.insert(moved.from.clone(), Instant::now());
            if self.running.len() >= AT_ONCE || !self.under_way.insert(moved.clone()) {
                continue;
            }
            let (endpoint, guard, vhost) = (Arc::clone(endpoint), guard.clone(), vhost.to_owned());
            let stop = self.stop.clone();
            self.running.spawn(async move {
                match move_all(&endpoint, &guard, &vhost, &moved, &stop).await {
                    Ok(count) => {
                        tracing::info!(vhost, from = moved.from, to = moved.to, count, "moved");
                        (moved, None)
                    }
                    Err(error) => {
                        tracing::warn!(vhost, from = moved.from, to = moved.to, %error, "not moved yet");
                        (moved, Some(error))
                    }
                }
            });
        }
    }

    fn ended(&mut self, ended: Move, error: Option<MoveError>) {
        self.under_way.remove(&ended);
        // What a lost connection or a slow broker stopped goes on by itself.
        match error.filter(MoveError::is_permanent) {
            Some(error) => drop(self.stopped.insert(ended, error.to_string())),
            None => drop(self.stopped.remove(&ended)),
        }
    }

    /// Why some of these do not go on by themselves.
    pub(super) fn obstacles(&self, moves: &[Move]) -> Vec<Blocked> {
        let stopped = moves.iter().filter_map(|moved| Some((moved, self.stopped.get(moved)?)));
        let blocked = |(Move { from, to }, why): (&Move, &String)| Blocked {
            by: BlockedBy::Missing,
            object: format!("queue {from}"),
            why: format!("its messages can't be moved to {to}: {why}"),
        };
        stopped.map(blocked).collect()
    }

    /// Whether messages are moved from this queue, or were a moment ago: the broker tells of a
    /// consumer some seconds late.
    pub(super) fn concern(&self, queue: &str) -> bool {
        let is_under_way = self.under_way.iter().any(|moved| moved.from == queue);
        is_under_way || self.seen.get(queue).is_some_and(|seen| seen.elapsed() < LATE)
    }

    /// Ends all, each once what it has published is settled.
    pub(super) async fn finish(mut self) {
        self.stop.cancel();
        let ended = async { while self.running.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, ended).await.is_err() {
            tracing::warn!("a move did not end in time: what it has published last may be there twice");
        }
    }
}
