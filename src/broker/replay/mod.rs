//! Replays on the broker: the driver around the AMQP client.
//!
//! The pure `replay` decides, this module does: one connection reads, another publishes,
//! since alarms block publishers only. The AMQP client reconnects nothing by itself; the
//! driver opens both anew where one is lost.
//!
//! One loop (`driver`) talks to the engine and never waits. Beside it: a task that reads, one
//! that publishes and takes confirms, and the judge's thread. Between them are bounded
//! channels; what the broker may send is bounded by the prefetch, and what is kept of a
//! message that stays is one byte or two.

mod clock;
mod confirms;
pub mod convert;
mod counting;
mod driver;
pub mod examine;
pub mod exclusive;
mod judging;
mod largest;
mod lock;
mod opening;
pub mod preflight;
mod publisher;
mod reader;
mod session;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::clock::Clock;
use self::driver::{Driver, Inputs};
use self::judging::Judging;
use self::largest::Largest;
use self::opening::Opening;
use self::session::{Lines, Plan};
use super::{AddressGuard, BrokerError, Endpoint};
use crate::replay::engine::{Engine, Setup};
pub use crate::replay::judge::Judge;
use crate::replay::message::Message;
use crate::replay::outcome::{Activity, Checkpoint, Counts, Ended, Outcome};
pub use crate::replay::run::Orders;
use crate::replay::run::{Fence, Limits, Target};

/// Where a replay reads.
#[derive(Clone)]
pub struct Site {
    /// The broker and the user.
    pub endpoint: Arc<Endpoint>,
    /// Which addresses may be connected to.
    pub guard: AddressGuard,
    /// The vhost of origin and target.
    pub vhost: String,
    /// The origin queue.
    pub queue: String,
}

/// One moved message as the audit trail keeps it: never the body.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What was read, without its body.
    pub message: Message,
    /// Where it went; the target's exchange and routing key, or nothing for a discard.
    pub went: Option<(String, String)>,
    /// Its replay id.
    pub replay_id: Option<String>,
    /// Milliseconds since 1970.
    pub time: u64,
}

/// What outlives the process: records and checkpoints.
pub trait Journal: Send + Sync + 'static {
    /// Whether records are kept at all; without them [`Journal::record`] is never called.
    fn keeps_records(&self) -> bool {
        true
    }
    /// Records moved messages, before they are acknowledged on the origin queue. An error
    /// leaves them unacknowledged.
    fn record(&self, entries: Vec<Entry>) -> impl Future<Output = Result<(), String>> + Send;
    /// Keeps how far the run is, before a batch.
    fn checkpoint(&self, checkpoint: Checkpoint) -> impl Future<Output = Result<(), String>> + Send;
}

/// What a run is told once.
pub struct Assignment<J> {
    /// Where it reads.
    pub site: Site,
    /// Where it publishes.
    pub target: Target,
    /// Who judges.
    pub judge: J,
    /// How far it may go.
    pub limits: Limits,
    /// Where an earlier worker of the same run came to; without it the fence is set now.
    pub checkpoint: Option<Checkpoint>,
    /// What was ready when the run was planned: with the fence it tells how many messages
    /// arrive anyhow. Without it none are expected.
    pub planned: Option<Fence>,
    /// The one queue that the target reaches, where it is known: its depth and its consumers
    /// count. For [`Target::Queue`] that queue is taken.
    pub watched: Option<String>,
    /// Whether the broker lets a consumer set its own timeout (from 4.3 on); it gets the
    /// deadline then.
    pub sets_consumer_timeout: bool,
}

/// What a run shows of itself; the newest replaces the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What it does.
    pub activity: Activity,
    /// Where it stops reading, once it is set.
    pub fence: Option<Fence>,
    /// The numbers.
    pub counts: Counts,
    /// Messages per second at present.
    pub rate: f64,
}

/// Messages and news that may wait between two tasks.
const BETWEEN: usize = 16;

/// How long a task that was woken waits for company, where much is under way. Woken for each
/// message, the tasks and the client's threads would spend more time waking each other than
/// working.
const LINGER: Duration = Duration::from_millis(1);

/// Carries out a run, or one worker's part of it. Orders take effect at once; reports replace
/// each other, at most five a second, and the last one is complete. With `stop` it settles
/// what is under way and leaves the rest to another worker.
///
/// Returns once nothing is unacknowledged and both connections are closed.
///
/// # Errors
/// Where connecting fails in a way that trying again won't cure, and [`BrokerError::InUse`]
/// where another replay has the queue's lock.
pub async fn run<J: Judge, R: Journal>(
    assignment: Assignment<J>,
    orders: watch::Receiver<Orders>,
    reports: watch::Sender<Report>,
    journal: R,
    stop: CancellationToken,
) -> Result<Ended, BrokerError> {
    let (cases, to_judge) = mpsc::channel(BETWEEN);
    let (says, said) = mpsc::channel(BETWEEN);
    let (signals, news) = mpsc::channel(BETWEEN);
    let Assignment { site, target, judge, limits, checkpoint, planned, watched, sets_consumer_timeout } =
        assignment;
    let queue = site.queue.clone();
    let watched = match target {
        Target::Queue(name) => Some(name),
        _ => watched,
    };
    let deadline = u64::try_from(limits.deadline.as_millis()).unwrap_or(u64::MAX);
    let largest = Largest::default();
    let plan = Plan {
        site,
        target: watched,
        consumer_timeout: sets_consumer_timeout.then_some(deadline),
        lines: Lines { cases, signals },
        largest: largest.clone(),
    };
    let clock = Clock::start();
    let opening = Opening::new(checkpoint.is_some());
    let now = orders.borrow().clone();
    let engine = Engine::new(Setup { limits, orders: now, checkpoint, planned }, clock.now());
    let keeps_records = journal.keeps_records();
    let judging = Judging { judge, keeps_records, largest };
    let judging = tokio::task::spawn_blocking(move || judging.run(to_judge, &says));
    let mut driver = Driver::new(engine, plan, Arc::new(journal), clock, reports, opening);
    let ended = driver.run(Inputs { orders, said, signals: news, stop }).await;
    // Without the driver's end of its channels the judge's thread ends.
    drop(driver);
    let _ = judging.await;
    match ended {
        Err(BrokerError::NotFound { .. }) => {
            Ok(Ended::Finished(Outcome::Failed(format!("the queue {queue:?} does not exist"))))
        }
        ended => ended,
    }
}
