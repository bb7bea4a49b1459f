//! One life of both connections: opened together, closed together.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use lapin::{Connection, Event as Happened};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::counting::Counting;
use super::judging::Case;
use super::largest::Largest;
use super::lock::{self, Lock};
use super::publisher::{Parcel, Published, Publisher};
use super::reader::{Channels, Gone, Order, Reader};
use super::{Site, convert};
use crate::broker::http::REQUEST_TIMEOUT;
use crate::broker::{BrokerError, amqp};
use crate::replay::engine::Tag;

/// How long closing a connection in order may take before it is dropped.
const CLOSING: Duration = Duration::from_secs(5);

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;

/// More than any window.
const PARCELS: usize = 16_384;
/// Each order to the reader comes after a window that was read.
const READS: usize = 64;

/// What the connections tell besides messages.
#[derive(Debug)]
pub(super) enum Signal {
    Blocked,
    Unblocked,
    Lost,
    /// As `Lost`, and another connection would be refused in the same way.
    Failed(String),
    Published(Vec<Published>),
}

/// Where a session's news go.
#[derive(Clone)]
pub(super) struct Lines {
    pub(super) cases: mpsc::Sender<Case>,
    pub(super) signals: mpsc::Sender<(u32, Signal)>,
}

/// What all sessions of a run have in common.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) site: Site,
    /// The queue whose depth and consumers count.
    pub(super) target: Option<String>,
    /// Milliseconds that the broker may wait for an acknowledgement, where it can be told.
    pub(super) consumer_timeout: Option<u64>,
    pub(super) lines: Lines,
    pub(super) largest: Largest,
}

/// Both connections and their tasks.
pub(super) struct Session {
    pub(super) number: u32,
    pub(super) channels: Channels,
    pub(super) counting: Arc<Counting>,
    pub(super) reads: mpsc::Sender<Order>,
    pub(super) parcels: mpsc::Sender<(Tag, Arc<Parcel>)>,
    connections: [Arc<Connection>; 2],
    queue: String,
    tasks: JoinSet<()>,
}

impl Session {
    /// Connects both, takes the lock, and starts the tasks.
    ///
    /// # Errors
    /// [`BrokerError::InUse`] where another replay has the lock, and every error of a
    /// connection.
    pub(super) async fn open(number: u32, plan: &Plan) -> Result<Self, BrokerError> {
        let site = &plan.site;
        let connect = |name| amqp::connect(&site.endpoint, &site.guard, &site.vhost, name);
        let reading = Arc::new(connect("redrive replay: reads").await?);
        let queue = &site.queue;
        match ask(site, &format!("lock the queue {queue:?}"), lock::take(&reading, queue)).await? {
            Lock::Ours => {}
            Lock::Taken => {
                let action = format!("replay the queue {queue:?}: another replay is at it");
                return Err(BrokerError::InUse { action });
            }
        }
        let publishing = Arc::new(connect("redrive replay: publishes").await?);
        let publisher = ask(site, "publish", Publisher::open(&publishing, plan.largest.clone())).await?;
        Ok(Self::start(number, plan, [reading, publishing], publisher))
    }

    fn start(number: u32, plan: &Plan, connections: [Arc<Connection>; 2], publisher: Publisher) -> Self {
        let channels = Channels::default();
        let (reads, orders) = mpsc::channel(READS);
        let (parcels, to_publish) = mpsc::channel(PARCELS);
        let [reading, publishing] = &connections;
        let reader = Reader {
            connection: Arc::clone(reading),
            channels: channels.clone(),
            queue: convert::short(plan.site.queue.clone()).unwrap_or_default(),
            consumer_timeout: plan.consumer_timeout,
            session: number,
            cases: plan.lines.cases.clone(),
        };
        let mut tasks = JoinSet::new();
        let signals = plan.lines.signals.clone();
        tasks.spawn(async move {
            if matches!(reader.run(orders).await, Gone::Lost) {
                let _ = signals.send((number, Signal::Lost)).await;
            }
        });
        let signals = plan.lines.signals.clone();
        tasks.spawn(async move {
            if let Err(error) = publisher.run(to_publish, number, signals.clone()).await {
                let _ = signals.send((number, publisher_lost(&error))).await;
            }
        });
        tasks.spawn(listen(Arc::clone(reading), number, plan.clone(), false));
        tasks.spawn(listen(Arc::clone(publishing), number, plan.clone(), true));
        let counting = Arc::new(Counting::new(Arc::clone(reading), plan));
        let queue = plan.site.queue.clone();
        Self { number, channels, counting, reads, parcels, connections, queue, tasks }
    }

    /// Ends the tasks and closes both connections, which returns everything unacknowledged
    /// and frees the lock.
    pub(super) async fn close(mut self) {
        self.tasks.shutdown().await;
        // Nothing is held by now, or the connection is lost and has no lock any more.
        let _ = timeout(CLOSING, lock::release(&self.connections[0], &self.queue)).await;
        // A blocked connection never gets its farewell out, hence the limit.
        let closing = self.connections.iter().map(|connection| connection.close(200, "OK".into()));
        let _ = timeout(CLOSING, futures::future::join_all(closing)).await;
    }
}

/// Asks the broker within the time of every call.
///
/// # Errors
/// What the broker answers, or that it does not.
pub(super) async fn ask<T>(
    site: &Site,
    verb: &str,
    call: impl Future<Output = lapin::Result<T>>,
) -> Result<T, BrokerError> {
    match timeout(REQUEST_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|error| amqp::sort(&site.endpoint, &site.vhost, verb, error)),
        Err(_) => Err(amqp::late(&site.endpoint)),
    }
}

/// What the end of a publishing channel means: an exchange that is gone or a missing right is
/// refused at every publish, everything else may be cured by another connection.
fn publisher_lost(error: &lapin::Error) -> Signal {
    match amqp::reply(error) {
        Some((ACCESS_REFUSED | NOT_FOUND, reason)) => Signal::Failed(format!(
            "the broker takes no publishes to the target ({reason}): repair that, and move the rest with a new replay"
        )),
        _ => Signal::Lost,
    }
}

/// Passes on what happens to a connection. Only the publisher's blocks matter: an alarm
/// stops no reading.
async fn listen(connection: Arc<Connection>, session: u32, plan: Plan, publishes: bool) {
    let mut happened = Box::pin(connection.events_listener());
    while let Some(event) = happened.next().await {
        let signal = match event {
            Happened::ConnectionBlocked(_) if publishes => Signal::Blocked,
            Happened::ConnectionUnblocked if publishes => Signal::Unblocked,
            Happened::Error(error) => {
                plan.largest.learn(&error);
                if publishes { publisher_lost(&error) } else { Signal::Lost }
            }
            _ => continue,
        };
        if plan.lines.signals.send((session, signal)).await.is_err() {
            return;
        }
    }
}
