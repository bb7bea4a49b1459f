//! What outlives a worker: a checkpoint before messages go, which counts them as possibly moved.

use std::time::Duration;

use super::Engine;
use super::event::{Command, Order, millis};
use super::retry::Retry;
use crate::replay::outcome::Checkpoint;

/// Checkpoints come no faster.
const EVERY: Duration = Duration::from_secs(1);

/// The last checkpoint, and what it allows.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// Messages that may be sent by it, and those that were.
    allowance: u64,
    used: u64,
    /// The most that may be open by it.
    window: u64,
    /// When it was asked for.
    last: Option<Duration>,
    keeping: Option<Keeping>,
    /// Whether it could not be kept.
    pub(super) failing: Retry,
}

/// A checkpoint that is being kept, and what it allows then.
#[derive(Clone, Copy, Debug)]
struct Keeping {
    order: Order,
    allowance: u64,
    window: u64,
    /// What was on its way then: the checkpoint does not count it.
    open: u64,
}

impl Checkpoints {
    /// Forgets what belonged to the pass before; what is kept stays so.
    pub(super) fn begin_pass(&mut self) {
        self.failing = Retry::default();
    }

    /// Whether all that it allows is sent.
    pub(super) fn is_used_up(&self) -> bool {
        self.used >= self.allowance
    }

    pub(super) fn use_one(&mut self) {
        self.used += 1;
    }

    /// Nothing more is sent without another checkpoint: the last one says that the run is
    /// settled, or does not count duplicates that are possible since.
    pub(super) fn use_up(&mut self) {
        (self.allowance, self.used) = (0, 0);
        self.keeping = None;
    }
}

impl Engine {
    /// The most that may be open. Before the first checkpoint nothing is sent anyhow.
    pub(super) fn window(&self) -> u64 {
        let wanted = u64::from(self.orders.pace.window).max(1);
        match self.checkpoints.window {
            0 => wanted,
            allowed => wanted.min(allowed),
        }
    }

    /// Whether a batch may begin: the last checkpoint is young enough and allows it.
    pub(super) fn checkpoint_before_batch(&mut self, now: Duration) -> bool {
        if self.checkpoints.keeping.is_some() {
            return false;
        }
        let next = self.checkpoints.last.map_or(now, |last| last + EVERY);
        if next > now {
            if self.checkpoints.is_used_up() {
                self.wake_at(next);
                return false;
            }
            return true;
        }
        let pace = &self.orders.pace;
        let allowance = u64::from(pace.batch.max(pace.per_second.saturating_mul(2)));
        let Some(mut checkpoint) = self.checkpoint(allowance) else { return false };
        // A worker that dies in its first batch must not begin the deadline anew.
        checkpoint.started.get_or_insert(millis(now));
        let (order, window) = (self.next_order(), checkpoint.in_flight);
        let open = self.flow.open;
        self.checkpoints.keeping = Some(Keeping { order, allowance, window, open });
        self.checkpoints.last = Some(now);
        self.out.push(Command::Checkpoint(order, checkpoint));
        false
    }

    pub(super) fn checkpointed(&mut self, order: Order) {
        match self.checkpoints.keeping.take_if(|kept| kept.order == order) {
            Some(kept) => {
                self.checkpoints.allowance = kept.allowance;
                self.checkpoints.window = kept.window;
                self.checkpoints.used = kept.open;
                self.checkpoints.failing.succeed();
            }
            None => self.parted(order),
        }
    }

    pub(super) fn checkpoint_failed(&mut self, order: Order, why: &str, now: Duration) {
        match self.checkpoints.keeping.take_if(|kept| kept.order == order) {
            Some(_) => self.checkpoints.failing.fail(format!("progress can't be kept: {why}"), now),
            None => self.parted(order),
        }
    }

    /// What is known now, and that so many more may have moved when it is read. Nothing before
    /// there is a fence.
    pub(super) fn checkpoint(&self, allowed: u64) -> Option<Checkpoint> {
        let window = u64::from(self.orders.pace.window);
        let mut counts = self.counts.clone();
        counts.beyond_fence += self.fringe.among(allowed);
        Some(Checkpoint {
            fence: self.fence?,
            counts,
            started: self.started,
            under_way: self.fringe.may_have_moved(allowed),
            in_flight: window.min(allowed),
        })
    }
}
