//! One lane per credentials and vhost: all reads and writes of its pipelines.
//!
//! Pipelines that wait are taken together: one snapshot of the vhost serves all,
//! and their plans are applied stage by stage side by side, policies before the
//! queues of any of them. Between two batches a lane compares the vhost with what
//! its pipelines want, once per poll interval, and wakes those that differ.
//!
//! A lane never repeats a failed call; the pipelines come back after their
//! backoff. It ends when its last pipeline is gone.

mod active;
mod apply;
mod batch;
mod compare;
mod findings;
mod gathering;
mod identity;
mod job;
mod poll;
mod proof;
mod remove;
mod targeted;
mod watch;
mod whole;
mod work;

pub(crate) use job::{
    Action, Cause, Done, Failure, Finding, Job, Maintain, Maintained, Outcome, RemovalStep, Remove, Removed,
    Task,
};
pub(crate) use proof::APART;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::gathering::{Arrivals, gather};
use super::claims::Claims;
use super::rabbitmq_cluster::Clusters;
use super::secrets::Secrets;
use super::{Guarded, backoff};
use crate::broker::{AddressGuard, BrokerError, Endpoint, Management};

/// How many pipelines one batch takes at the most.
const BATCH: usize = 2_048;

/// While dead letters wait, they are counted so many times between two polls: a queue at work
/// has fewer at one of several looks, a stuck one never.
const COUNTS: u32 = 4;

/// What every lane is told.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    pub(crate) poll_interval: Duration,
    pub(crate) cluster_wide_rights: bool,
    /// How long dead letters may be held before they count as stuck.
    pub(crate) stuck_after: Duration,
    pub(crate) shutdown: CancellationToken,
}

/// What lanes work with.
pub(crate) struct Surroundings {
    pub(crate) client: Client,
    pub(crate) cluster: String,
    pub(crate) guard: AddressGuard,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) clusters: Arc<Clusters>,
}

/// What tells lanes apart: never shared between credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    endpoint: String,
    vhost: String,
}

/// What all lanes share.
struct Shared {
    client: Client,
    cluster: String,
    guard: AddressGuard,
    secrets: Arc<Secrets>,
    clusters: Arc<Clusters>,
    store: Store<Guarded>,
    triggers: mpsc::Sender<ObjectRef<Guarded>>,
    tuning: Tuning,
    claims: Claims,
    /// Which lane a pipeline is in, by UID.
    members: Mutex<HashMap<String, (ObjectRef<Guarded>, Key)>>,
    /// Which pipelines a reconciliation is at work on, by UID.
    busy: Mutex<HashSet<String>>,
    /// One client per credentials, however many vhosts.
    clients: Mutex<HashMap<String, Management>>,
    arrivals: Arrivals,
}

/// All lanes.
pub(crate) struct Lanes {
    shared: Arc<Shared>,
    open: Mutex<HashMap<Key, mpsc::Sender<Job>>>,
    running: Mutex<JoinSet<()>>,
}

impl Lanes {
    pub(crate) fn new(
        surroundings: Surroundings,
        store: Store<Guarded>,
        triggers: mpsc::Sender<ObjectRef<Guarded>>,
        tuning: Tuning,
    ) -> Self {
        let Surroundings { client, cluster, guard, secrets, clusters } = surroundings;
        let shared = Shared {
            client,
            cluster,
            guard,
            secrets,
            clusters,
            store,
            triggers,
            tuning,
            claims: Claims::default(),
            members: Mutex::default(),
            busy: Mutex::default(),
            clients: Mutex::default(),
            arrivals: Arrivals::default(),
        };
        Self { shared: Arc::new(shared), open: Mutex::default(), running: Mutex::default() }
    }

    /// Brings a pipeline to its lane and waits for the result.
    pub(crate) async fn submit(&self, endpoint: &Arc<Endpoint>, vhost: &str, task: Task) -> Outcome {
        let key = Key { endpoint: endpoint.fingerprint(), vhost: vhost.to_owned() };
        let uid = task.uid().to_owned();
        let member = (task.reference(), key.clone());
        lock(&self.shared.members).insert(uid, member);
        let (reply, answer) = oneshot::channel();
        self.shared.arrivals.note(&task);
        let mut job = Job { task, reply };
        // A lane that has just ended is opened again.
        for _ in 0..3 {
            let lane = self.lane(&key, endpoint).map_err(Failure::broker)?;
            match lane.send(job).await {
                Ok(()) => return answer.await.unwrap_or_else(|_| Err(Failure::stopped())),
                Err(mpsc::error::SendError(back)) => {
                    lock(&self.open).remove(&key);
                    job = back;
                }
            }
        }
        Err(Failure::stopped())
    }

    /// Until this is dropped, no poll wakes the pipeline: its status may be out of
    /// date because it is about to be written.
    pub(crate) fn busy(&self, uid: &str) -> Busy {
        lock(&self.shared.busy).insert(uid.to_owned());
        Busy { shared: self.shared.clone(), uid: uid.to_owned() }
    }

    /// Forgets a pipeline that is gone.
    pub(crate) fn forget(&self, uid: &str) {
        lock(&self.shared.members).remove(uid);
        self.shared.claims.remove(uid);
    }

    /// Waits until what is under way is done, after `shutdown`; whoever waits less
    /// long drops it unfinished.
    pub(crate) async fn finish(&self) {
        lock(&self.open).clear();
        let mut running = std::mem::take(&mut *lock(&self.running));
        while running.join_next().await.is_some() {}
    }

    fn lane(&self, key: &Key, endpoint: &Arc<Endpoint>) -> Result<mpsc::Sender<Job>, BrokerError> {
        let mut open = lock(&self.open);
        if let Some(lane) = open.get(key).filter(|lane| !lane.is_closed()) {
            return Ok(lane.clone());
        }
        let management = self.shared.management(endpoint)?;
        let (sender, jobs) = mpsc::channel(BATCH);
        let lane = Lane {
            shared: self.shared.clone(),
            key: key.clone(),
            endpoint: endpoint.clone(),
            management,
            facts: None,
            proofs: proof::Proofs::default(),
            watch: watch::Watch::default(),
        };
        let mut running = lock(&self.running);
        while running.try_join_next().is_some() {}
        running.spawn(lane.run(jobs));
        drop(running);
        open.insert(key.clone(), sender.clone());
        Ok(sender)
    }
}

/// A pipeline that a reconciliation is at work on.
pub(crate) struct Busy {
    shared: Arc<Shared>,
    uid: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        lock(&self.shared.busy).remove(&self.uid);
    }
}

impl Shared {
    fn management(&self, endpoint: &Endpoint) -> Result<Management, BrokerError> {
        let mut clients = lock(&self.clients);
        let fingerprint = endpoint.fingerprint();
        if let Some(client) = clients.get(&fingerprint) {
            return Ok(client.clone());
        }
        let client = Management::new(endpoint, self.guard.clone())?;
        clients.insert(fingerprint, client.clone());
        Ok(client)
    }

    /// The pipelines of a lane.
    fn members_of(&self, key: &Key) -> Vec<ObjectRef<Guarded>> {
        let members = lock(&self.members);
        members.values().filter(|(_, lane)| lane == key).map(|(reference, _)| reference.clone()).collect()
    }

    /// How many pipelines a lane has.
    fn count_members(&self, key: &Key) -> usize {
        lock(&self.members).values().filter(|(_, lane)| lane == key).count()
    }

    /// Forgets a broker's client once no lane of its credentials has members.
    fn close(&self, key: &Key) {
        let in_use = lock(&self.members).values().any(|(_, lane)| lane.endpoint == key.endpoint);
        if !in_use {
            lock(&self.clients).remove(&key.endpoint);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One lane's own state.
struct Lane {
    shared: Arc<Shared>,
    key: Key,
    endpoint: Arc<Endpoint>,
    management: Management,
    facts: Option<identity::KnownBroker>,
    proofs: proof::Proofs,
    watch: watch::Watch,
}

impl Lane {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let interval = self.shared.tuning.poll_interval;
        let mut next_poll = tokio::time::Instant::now() + backoff::jittered(interval);
        let mut next_count = next_poll;
        let shutdown = self.shared.tuning.shutdown.clone();
        loop {
            tokio::select! {
                job = jobs.recv() => {
                    let Some(job) = job else { break };
                    let batch = gather(job, &mut jobs, &self.shared.arrivals).await;
                    self.batch(batch, &mut jobs).await;
                }
                () = tokio::time::sleep_until(next_poll) => {
                    next_poll = tokio::time::Instant::now() + backoff::jittered(interval);
                    let members = self.shared.members_of(&self.key);
                    if members.is_empty() && jobs.is_empty() {
                        jobs.close();
                        continue;
                    }
                    self.poll(members).await;
                    next_count = tokio::time::Instant::now() + interval / COUNTS;
                }
                () = tokio::time::sleep_until(next_count), if self.watch.is_waiting() => {
                    next_count = tokio::time::Instant::now() + interval / COUNTS;
                    self.count_waiting().await;
                }
                () = shutdown.cancelled() => jobs.close(),
            }
            if shutdown.is_cancelled() {
                break;
            }
        }
        // Whoever still waits learns that the lane is gone.
        self.shared.close(&self.key);
    }
}
