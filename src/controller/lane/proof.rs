//! Proof that a queue is empty.
//!
//! A count may lag, and some of what a queue holds is in no ready count at all. So
//! a queue counts as empty only if the broker says so twice, ten seconds apart, in
//! the totals (ready, unacknowledged, waiting for dead-lettering) and in a passive
//! declaration. A count that the broker leaves out proves nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::broker::management::IN_FLIGHT;
use crate::broker::{AddressGuard, BrokerError, Endpoint, amqp};
use crate::topology::observed::Observed;

/// How far apart the two looks must be.
pub(crate) const APART: Duration = Duration::from_secs(10);

/// After this time a first look says nothing any more about a second one: the queue
/// may have been in use in between.
const STALE: Duration = Duration::from_secs(120);

/// When each queue was first seen empty, without a message since.
#[derive(Debug, Default)]
pub(super) struct Proofs(HashMap<String, Instant>);

/// What a look at some queues has shown. A queue that is in neither was seen empty,
/// and is to be looked at again.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Proven empty.
    pub(super) empty: BTreeSet<String>,
    /// Not empty, or unknown; with the count where there is one.
    pub(super) holding: BTreeMap<String, Option<i64>>,
    /// Why nobody could be asked, such as a limit of connections.
    pub(super) unasked: Option<BrokerError>,
}

impl Proofs {
    /// Looks at queues once more: over one connection, however many there are.
    pub(super) async fn look(
        &mut self,
        queues: &BTreeSet<String>,
        observed: &Observed,
        endpoint: &Endpoint,
        guard: &AddressGuard,
        vhost: &str,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        let mut quiet = Vec::new();
        for queue in queues {
            match observed.queues.get(queue) {
                None => {
                    verdict.empty.insert(queue.clone());
                }
                Some(found) if found.totals.proven_empty() => quiet.push(queue.clone()),
                Some(found) => {
                    self.0.remove(queue);
                    verdict.holding.insert(queue.clone(), found.totals.messages);
                }
            }
        }
        if !quiet.is_empty() {
            self.confirm(quiet, endpoint, guard, vhost, &mut verdict).await;
        }
        verdict
    }

    async fn confirm(
        &mut self,
        queues: Vec<String>,
        endpoint: &Endpoint,
        guard: &AddressGuard,
        vhost: &str,
        verdict: &mut Verdict,
    ) {
        let connection = match amqp::connect(endpoint, guard, vhost, "redrive proof of empty queues").await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::info!(%error, "queues can't be proven empty without AMQP");
                verdict.holding.extend(queues.into_iter().map(|queue| (queue, None)));
                verdict.unasked = Some(error);
                return;
            }
        };
        let share = queues.len().div_ceil(IN_FLIGHT);
        let shares =
            queues.chunks(share).map(|some| amqp::declared_all(&connection, endpoint, vhost, some.to_vec()));
        let answers = futures::future::join_all(shares).await;
        for (queue, answer) in answers.into_iter().flatten() {
            match answer.map(|found| found.map_or(0, |found| found.ready)) {
                Ok(0) => {
                    let since = self.0.entry(queue.clone()).or_insert_with(Instant::now);
                    if since.elapsed() >= STALE {
                        *since = Instant::now();
                    }
                    if since.elapsed() >= APART {
                        verdict.empty.insert(queue);
                    }
                }
                Ok(count) => {
                    self.0.remove(&queue);
                    verdict.holding.insert(queue, Some(count.into()));
                }
                Err(error) => {
                    tracing::info!(%error, queue, "the queue can't be proven empty");
                    verdict.holding.insert(queue, None);
                }
            }
        }
        if let Err(error) = connection.close(200, "done".into()).await {
            tracing::debug!(%error, "the connection was closed already");
        }
    }

    /// Forgets what was seen of these queues.
    pub(super) fn forget(&mut self, queues: &[&str]) {
        for queue in queues {
            self.0.remove(*queue);
        }
    }

    /// Forgets queues that are gone.
    pub(super) fn forget_missing(&mut self, observed: &Observed) {
        self.0.retain(|queue, _| observed.queues.contains_key(queue));
    }
}
