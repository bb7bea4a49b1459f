//! Replays on the broker: the driver around the AMQP client.
//!
//! The pure `replay` decides, this module does: one connection reads, another publishes,
//! since alarms block publishers only. Nothing reconnects by itself.

pub mod convert;
pub mod examine;
pub mod preflight;

use std::sync::Arc;

use super::{AddressGuard, Endpoint};
pub use crate::replay::judge::Judge;
use crate::replay::message::Message;
use crate::replay::outcome::{Activity, Checkpoint, Counts};
use crate::replay::run::{Fence, Guard, Limits, Pace, Target};

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

/// What may change while a run is under way; it takes effect with the next batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Orders {
    /// How fast.
    pub pace: Pace,
    /// When to pause or stop.
    pub guard: Guard,
    /// Why nothing may move for now, in words; nothing stays unacknowledged meanwhile.
    pub hold: Option<String>,
    /// End it for good.
    pub cancel: bool,
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
