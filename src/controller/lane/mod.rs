//! One lane per credentials and vhost: all reads and writes of its pipelines.
//!
//! Pipelines that wait are taken together: one snapshot of the vhost serves all,
//! and their plans are applied stage by stage side by side, policies before the
//! queues of any of them. Between two batches a lane compares the vhost with what
//! its pipelines want, once per poll interval and when the broker tells of a change
//! that concerns them, and wakes those that differ.
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
mod moves;
pub(crate) mod numbers;
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

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use self::gathering::{Arrivals, gather};
use super::broker_events::{Board, DEFAULT_VHOST, Detection, Ear, Wanted};
use super::claims::Claims;
use super::rabbitmq_cluster::{self, Clusters, resource_of};
use super::secrets::Secrets;
use super::{Guarded, backoff};
use crate::api::RetryPipeline;
use crate::broker::{AddressGuard, BrokerError, Endpoint, Management, Supervision};

/// How many pipelines one batch takes at the most.
const BATCH: usize = 2_048;

/// While dead letters wait, they are counted so many times between two polls: a queue at work
/// has fewer at one of several looks, a stuck one never.
const COUNTS: u32 = 4;

/// However many changes a broker tells of, a lane looks no sooner than so long after its last
/// look ended.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

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
    pub(crate) board: Arc<Board>,
    pub(crate) supervision: Supervision,
}

/// What tells lanes apart: never shared between credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    endpoint: String,
    vhost: String,
}

/// A pipeline's place.
struct Member {
    reference: ObjectRef<Guarded>,
    lane: Key,
    /// The cluster that it refers to.
    cluster: Option<rabbitmq_cluster::Key>,
}

/// What all lanes share.
struct Shared {
    client: Client,
    cluster: String,
    guard: AddressGuard,
    secrets: Arc<Secrets>,
    clusters: Arc<Clusters>,
    board: Arc<Board>,
    supervision: Supervision,
    numbers: Arc<numbers::Board>,
    store: Store<Guarded>,
    triggers: mpsc::Sender<ObjectRef<Guarded>>,
    tuning: Tuning,
    claims: Claims,
    /// Which lane a pipeline is in, by UID.
    members: Mutex<HashMap<String, Member>>,
    /// The clusters on which members are maintained, as they were last found.
    in_use: Mutex<BTreeMap<rabbitmq_cluster::Key, Wanted>>,
    in_use_changed: Notify,
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
        let Surroundings { client, cluster, guard, secrets, clusters, board, supervision } = surroundings;
        let shared = Shared {
            client,
            cluster,
            guard,
            secrets,
            clusters,
            board,
            supervision,
            numbers: Arc::default(),
            store,
            triggers,
            tuning,
            claims: Claims::default(),
            members: Mutex::default(),
            in_use: Mutex::default(),
            in_use_changed: Notify::new(),
            busy: Mutex::default(),
            clients: Mutex::default(),
            arrivals: Arrivals::default(),
        };
        Self { shared: Arc::new(shared), open: Mutex::default(), running: Mutex::default() }
    }

    /// Brings a pipeline to its lane and waits for the result.
    pub(crate) async fn submit(&self, endpoint: &Arc<Endpoint>, vhost: &str, task: Task) -> Outcome {
        let key = Key { endpoint: endpoint.fingerprint(), vhost: vhost.to_owned() };
        self.shared.join(&task, &key, endpoint);
        let (reply, answer) = oneshot::channel();
        self.shared.arrivals.note(&task);
        let mut job = Job { task, asked: Span::current(), reply };
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
        self.shared.claims.remove(uid);
        self.shared.numbers.forget(uid);
        let mut members = lock(&self.shared.members);
        let Some(Member { cluster: Some(cluster), .. }) = members.remove(uid) else { return };
        if !members.values().any(|member| member.cluster.as_ref() == Some(&cluster)) {
            lock(&self.shared.in_use).remove(&cluster);
            self.shared.in_use_changed.notify_one();
        }
    }

    /// What the last looks have shown, for metrics.
    pub(crate) fn numbers(&self) -> Arc<numbers::Board> {
        self.shared.numbers.clone()
    }

    /// Whether the events of each broker are heard, where that was tried.
    pub(crate) fn listening(&self) -> Vec<(String, bool)> {
        self.shared.board.listening()
    }

    /// How drift of a pipeline is noticed on its broker, where that is known.
    pub(crate) fn detection(&self, object: &RetryPipeline, endpoint: &Endpoint) -> Option<Detection> {
        self.shared.detection(object, endpoint)
    }

    /// The clusters on which pipelines are at work, in a fixed order: each with its own credentials.
    pub(crate) fn clusters(&self) -> Vec<Wanted> {
        lock(&self.shared.in_use).values().cloned().collect()
    }

    /// Waits until they are others, or have other endpoints.
    pub(crate) async fn clusters_changed(&self) {
        self.shared.in_use_changed.notified().await;
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
            moves: moves::Moves::new(&self.shared.tuning.shutdown),
            ear: self.shared.board.ear(&endpoint.base_url(), &key.vhost),
            drifted: HashSet::new(),
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
        let client = Management::supervised(endpoint, self.guard.clone(), self.supervision.clone())?;
        clients.insert(fingerprint, client.clone());
        Ok(client)
    }

    /// Notes that a pipeline is in a lane. Whoever maintains one on a cluster uses that, with the
    /// endpoint that the cluster's own Secret has led to.
    fn join(&self, task: &Task, lane: &Key, endpoint: &Arc<Endpoint>) {
        let cluster = resource_of(task.object());
        let member = Member { reference: task.reference(), lane: lane.clone(), cluster: cluster.clone() };
        lock(&self.members).insert(task.uid().to_owned(), member);
        let (Some(cluster), Task::Maintain(task)) = (cluster, task) else { return };
        let vhost = task.events_vhost.clone().unwrap_or_else(|| DEFAULT_VHOST.to_owned());
        let found = Wanted { endpoint: endpoint.clone(), vhost };
        let before = lock(&self.in_use).insert(cluster, found.clone());
        if before.is_none_or(|before| before != found) {
            self.in_use_changed.notify_one();
        }
    }

    fn detection(&self, object: &RetryPipeline, endpoint: &Endpoint) -> Option<Detection> {
        self.board.detection(&endpoint.base_url(), resource_of(object).is_some())
    }

    /// The pipelines of a lane.
    fn members_of(&self, key: &Key) -> Vec<ObjectRef<Guarded>> {
        let members = lock(&self.members);
        members.values().filter(|member| member.lane == *key).map(|member| member.reference.clone()).collect()
    }

    /// How many pipelines a lane has.
    fn count_members(&self, key: &Key) -> usize {
        lock(&self.members).values().filter(|member| member.lane == *key).count()
    }

    /// Forgets a broker's client once no lane of its credentials has members.
    fn close(&self, key: &Key) {
        let in_use = lock(&self.members).values().any(|member| member.lane.endpoint == key.endpoint);
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
    moves: moves::Moves,
    ear: Arc<Ear>,
    /// Members that the last look at the vhost found to have drifted, by UID.
    drifted: HashSet<String>,
}

impl Lane {
    /// Where the management API is.
    fn address(&self) -> String {
        self.endpoint.management.to_string()
    }

    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let interval = self.shared.tuning.poll_interval;
        let mut next_poll = tokio::time::Instant::now() + backoff::jittered(interval);
        let mut next_count = next_poll;
        let mut next_look = tokio::time::Instant::now();
        let ear = self.ear.clone();
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
                () = ear.rung(next_look) => {
                    self.look().await;
                    next_look = tokio::time::Instant::now() + BETWEEN_LOOKS;
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
        self.shared.numbers.close(&self.address(), &self.key.vhost);
        drop(jobs);
        self.moves.finish().await;
    }
}
