//! The state machine of a run: what to read, publish, record and settle, and when.
//!
//! It is told what happened ([`Event`]) and says what to do ([`Command`]); it knows tags, fates
//! and counts, never a message. A run is a row of *passes*: each opens the origin queue, reads
//! up to the fence, and ends with nothing unacknowledged, because the run is over, is held, or
//! lost a connection.
//!
//! Guarantees, whatever the order of events:
//! - a message is acknowledged only after its clean confirm and its record;
//! - at most `window` messages are published and not surely settled, so that a crash doubles
//!   at most so many, and `duplicates_possible` counts them;
//! - what was not acknowledged is returned ascending, once the consumer is cancelled. Each
//!   consumer has a channel of its own, which is what the broker returns in one piece;
//! - what a crash leaves unknown is at most what the last checkpoint allowed: a batch, or two
//!   seconds' worth where batches are shorter. So far may the next worker read beyond the
//!   fence, and `beyond_fence` is at least what it moved there.

mod canary;
mod checkpoints;
mod event;
mod flow;
mod fringe;
mod ledger;
mod look;
mod pass;
mod phase;
mod retry;

pub use event::{Command, Event, Order, Setup, Tag, TargetLook, Verdict};

use std::time::Duration;

use self::canary::Trial;
use self::checkpoints::Checkpoints;
use self::flow::Flow;
use self::fringe::Fringe;
use self::ledger::Ledger;
use self::look::Looks;
use self::pass::Pass;
use self::phase::Phase;
use super::breaker::Breaker;
use super::outcome::{Activity, Checkpoint, Counts};
use super::rate::{Meter, Rate};
use super::run::{Fence, Limits, Orders};

/// How long a confirm may take, and how long a pass may take to settle.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One run, or one worker's part of it.
#[derive(Debug)]
pub struct Engine {
    limits: Limits,
    orders: Orders,
    planned: Option<Fence>,
    fence: Option<Fence>,
    counts: Counts,
    /// When the first message moved, in milliseconds since 1970.
    started: Option<u64>,
    /// When this worker began.
    began: Duration,
    fringe: Fringe,
    /// Messages that the pass before returned: they are served first.
    back: u64,
    phase: Phase,
    stop: bool,
    /// Whether the next pass goes on with the one before, as nothing but time ended that.
    renews: bool,
    pass: Pass,
    ledger: Ledger,
    flow: Flow,
    checkpoints: Checkpoints,
    rate: Rate,
    meter: Meter,
    breaker: Breaker,
    looks: Looks,
    trial: Trial,
    /// Tests that failed in a row.
    failed_tests: u32,
    orders_given: u64,
    wake: Option<Duration>,
    out: Vec<Command>,
}

impl Engine {
    /// A run that has not begun: the first event sets it going. Times count from 1970.
    #[must_use]
    pub fn new(setup: Setup, now: Duration) -> Self {
        let rate = Rate::new(setup.orders.pace.clone(), now);
        let mut engine = Self {
            limits: setup.limits,
            orders: setup.orders,
            planned: setup.planned,
            fence: None,
            counts: Counts::default(),
            started: None,
            began: now,
            fringe: Fringe::default(),
            back: 0,
            phase: Phase::Closed { opening: false },
            stop: false,
            renews: false,
            pass: Pass::default(),
            ledger: Ledger::default(),
            flow: Flow::default(),
            checkpoints: Checkpoints::default(),
            rate,
            meter: Meter::default(),
            breaker: Breaker::new(0.0),
            looks: Looks::default(),
            trial: Trial::None,
            failed_tests: 0,
            orders_given: 0,
            wake: None,
            out: Vec::new(),
        };
        if let Some(checkpoint) = setup.checkpoint {
            engine.resume(checkpoint);
        }
        engine
    }

    fn resume(&mut self, checkpoint: Checkpoint) {
        self.set_fence(checkpoint.fence);
        self.counts = checkpoint.counts;
        self.back = self.counts.examined.saturating_sub(self.moved());
        self.counts.duplicates_possible += checkpoint.in_flight;
        self.started = checkpoint.started;
        self.fringe = Fringe::after_crash(checkpoint.under_way);
    }

    fn set_fence(&mut self, fence: Fence) {
        self.fence = Some(fence);
        let usual = self.planned.map_or(0.0, |planned| arrivals_per_second(planned, fence));
        self.breaker = Breaker::new(usual);
    }

    /// Takes events that came together, and says what to do about them. `now` never goes back.
    pub fn step(&mut self, events: impl IntoIterator<Item = Event>, now: Duration) -> Vec<Command> {
        for event in events {
            self.apply(event, now);
        }
        self.advance(now);
        std::mem::take(&mut self.out)
    }

    /// When to send a [`Event::Tick`] if nothing happens before.
    #[must_use]
    pub fn wake(&self) -> Option<Duration> {
        self.wake
    }

    /// What the run does at present.
    #[must_use]
    pub fn activity(&self, now: Duration) -> Activity {
        if let Some(why) = &self.orders.hold {
            return Activity::Paused(why.clone());
        }
        if let Some(why) = self.trial.pause() {
            return Activity::Paused(why.to_owned());
        }
        if let Some(why) = self.obstacle(now) {
            return Activity::Paused(why);
        }
        if self.trial == Trial::None { Activity::Running } else { Activity::Canary }
    }

    /// Whether it was told to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop
    }

    /// Where reading stops, once that is known.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// The numbers so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Messages per second at present.
    #[must_use]
    pub fn per_second(&self, now: Duration) -> f64 {
        self.meter.per_second(self.moved(), now)
    }

    /// Messages that surely left the origin queue.
    fn moved(&self) -> u64 {
        self.counts.replayed + self.counts.quarantined
    }

    fn apply(&mut self, event: Event, now: Duration) {
        match event {
            Event::Opened { ready } => self.opened(ready, now),
            Event::Read { tag, bytes, verdict } => self.read(tag, bytes, verdict, now),
            Event::Cancelled => self.pass.cancelled(),
            Event::Confirmed(tag) => self.confirmed(tag),
            Event::Returned(tag) => self.returned(tag),
            Event::Refused(tag) => self.refused(tag, now),
            Event::Recorded(order) => self.recorded(order, now),
            Event::RecordFailed(order, why) => self.record_failed(order, &why, now),
            Event::Flushed(order) => self.flushed(order, now),
            Event::Checkpointed(order) => self.checkpointed(order),
            Event::CheckpointFailed(order, why) => self.checkpoint_failed(order, &why, now),
            Event::Looked { order, ready, target } => self.looked(order, ready, target, now),
            Event::Blocked => self.flow.blocked = true,
            Event::Unblocked => self.unblocked(now),
            Event::Lost => self.lost(now),
            Event::Failed(why) => self.failed(why, now),
            Event::Ordered(orders) => self.ordered(orders, now),
            Event::Stop => self.stop = true,
            Event::Tick => {}
        }
    }

    fn advance(&mut self, now: Duration) {
        self.wake = None;
        self.meter.mark(self.moved(), now);
        self.interrupt(now);
        match self.phase {
            Phase::Closed { .. } | Phase::Resting => self.rest_or_open(now),
            Phase::Moving => {
                self.look_each_second(now);
                self.settle_what_can_be(now);
                self.publish(now);
                self.read_on();
                self.end_pass(now);
            }
            Phase::Settling(..) => self.settle(now),
            Phase::Returning(..) | Phase::Parting(..) | Phase::Over => {}
        }
    }

    fn ordered(&mut self, orders: Orders, now: Duration) {
        if orders.pace != self.orders.pace {
            self.rate.edit(orders.pace.clone(), now);
        }
        self.orders = orders;
    }

    fn next_order(&mut self) -> Order {
        self.orders_given += 1;
        Order(self.orders_given)
    }

    fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// When the run must end.
    fn deadline(&self) -> Duration {
        let from = self.started.map_or(self.began, Duration::from_millis);
        from.saturating_add(self.limits.deadline)
    }
}

/// How many messages arrive per second anyhow, by two counts before anything moved.
fn arrivals_per_second(planned: Fence, fence: Fence) -> f64 {
    let arrived = fence.count.saturating_sub(planned.count);
    let millis = fence.time.saturating_sub(planned.time);
    if millis == 0 {
        return 0.0;
    }
    // Lossy for counts that no queue ever reaches.
    #[allow(clippy::cast_precision_loss)]
    let rate = arrived as f64 * 1_000.0 / millis as f64;
    rate
}
