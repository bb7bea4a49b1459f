//! One pass over the origin queue: from its opening until nothing is unacknowledged.

use std::time::Duration;

use super::Engine;
use super::event::{Command, Tag, Verdict, millis};
use super::ledger::{Ledger, Slot, State};
use super::phase::Phase;
use crate::replay::run::{Fence, Left};

/// How many unmovable messages are named.
const NAMED: usize = 10;

/// What may be on its way to us at once where nearly all is held: a consumer's credit grows to
/// as many messages, and memory stays the same however many there are.
const UNDER_WAY: u64 = 4 * 1024 * 1024;
/// It grows by this part of what is held.
const GROWTH: u64 = 8;
/// Large messages would take too many channels of the 2,047 that a broker allows: credit is at
/// least this part of what is held, so that ten million take 2,000.
const LEAST: u64 = 256;
/// What it is at most then.
const MOST_PREFETCH: u64 = 16_384;

/// Whether messages still come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reading {
    /// They do.
    On,
    /// The consumer is being cancelled.
    Ending,
    /// They don't.
    #[default]
    Off,
}

/// What a pass has seen. Messages that stay are seen again by the next pass, so that these
/// numbers begin anew with each.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pub(super) number: u32,
    pub(super) began: Duration,
    /// Messages ready at its opening.
    pub(super) ready: u64,
    /// Messages moved by the run before this pass.
    pub(super) base: u64,
    /// Messages that it reads at most.
    pub(super) limit: u64,
    /// Whether the scan limit, not the fence, set `limit`.
    pub(super) scan_limited: bool,
    /// Messages read, up to `limit`.
    pub(super) read: u64,
    /// Messages read, all of them.
    pub(super) taken: u64,
    /// The size of these.
    bytes: u64,
    /// When the last one was read.
    pub(super) last_read: Duration,
    pub(super) acked: u64,
    pub(super) selected: u64,
    pub(super) skipped: u64,
    pub(super) unmovable: u64,
    pub(super) unroutable: u64,
    pub(super) timed_out: u64,
    pub(super) reading: Reading,
    /// The consumer at present: its channel, its credit, and how much is held since it came.
    channel: u16,
    prefetch: u16,
    pub(super) held: u64,
}

impl Pass {
    pub(super) fn cancelled(&mut self) {
        if self.reading == Reading::Ending {
            self.reading = Reading::Off;
        }
    }

    /// Whether what it held may not come back in the order of the queue if its connection is
    /// lost: what came back before is not all read again, or channels end in any order.
    pub(super) fn is_cut_in_disorder(&self, back: u64) -> bool {
        (self.taken > 0 && self.taken < back) || self.channel > 0
    }

    /// Selected messages that stayed.
    pub(super) fn stayed(&self) -> u64 {
        self.skipped + self.unmovable + self.unroutable + self.timed_out
    }
}

impl Engine {
    pub(super) fn opened(&mut self, ready: u64, now: Duration) {
        if self.phase != (Phase::Closed { opening: true }) {
            return;
        }
        if self.fence.is_none() {
            self.set_fence(Fence { count: ready, time: millis(now) });
        }
        let (moved, left) = (self.moved(), self.left());
        let scan = self.limits.scan.saturating_sub(moved);
        let reach = left.min(ready);
        self.pass = Pass {
            number: self.pass.number + 1,
            began: now,
            ready,
            base: moved,
            limit: reach.min(scan),
            scan_limited: scan < reach,
            ..Pass::default()
        };
        self.fringe.begin_pass(ready, left);
        self.ledger = Ledger::default();
        self.flow.begin_pass();
        self.checkpoints.begin_pass();
        self.looks.begin_pass();
        self.breaker.begin_pass(moved, now);
        if !std::mem::take(&mut self.renews) {
            self.rate.restart(now);
        }
        self.phase = Phase::Moving;
        if self.pass.limit > 0 {
            self.pass.reading = Reading::On;
            self.consume();
        }
    }

    /// Messages before the fence that are not surely gone.
    pub(super) fn left(&self) -> u64 {
        self.fence.map_or(0, |fence| fence.count.saturating_sub(self.moved()))
    }

    pub(super) fn read(&mut self, tag: Tag, bytes: u64, verdict: Verdict, now: Duration) {
        if tag.pass != self.pass.number {
            return;
        }
        self.pass.taken += 1;
        self.pass.bytes = self.pass.bytes.saturating_add(bytes);
        self.pass.last_read = now;
        if self.pass.read >= self.pass.limit || self.phase != Phase::Moving {
            self.pass.held += 1;
            self.ledger.insert(tag, Slot::new(State::Held));
            return;
        }
        self.pass.read += 1;
        let slot = match verdict {
            Verdict::Publish { over_limit } => Slot { over_limit, ..Slot::new(State::Waiting) },
            Verdict::Discard => Slot { discard: true, ..Slot::new(State::Waiting) },
            Verdict::Leave { why, name } => {
                self.leave(why, name);
                Slot::new(State::Held)
            }
        };
        let beyond = self.fringe.may_hold(self.pass.read);
        self.ledger.insert(tag, Slot { beyond, ..slot });
        if slot.state == State::Waiting {
            self.pass.selected += 1;
            self.flow.waiting.push_back(tag);
        }
        self.counts.examined = self.counts.examined.max(self.pass.base + self.pass.read);
        self.counts.matched = self.counts.matched.max(self.pass.base + self.pass.selected);
    }

    fn leave(&mut self, why: Left, name: Option<String>) {
        self.pass.held += 1;
        match why {
            Left::NotSelected | Left::Returned | Left::BehindFence => return,
            Left::UnknownOrigin | Left::TooManyReplays => self.pass.skipped += 1,
            Left::Unmovable => {
                self.pass.unmovable += 1;
                self.name_unmovable(name);
            }
        }
        self.pass.selected += 1;
        self.counts.skipped = self.counts.skipped.max(self.pass.skipped);
        self.counts.unmovable = self.counts.unmovable.max(self.pass.unmovable);
    }

    fn name_unmovable(&mut self, name: Option<String>) {
        let name = name.unwrap_or_else(|| format!("position {}", self.pass.base + self.pass.read));
        let names = &mut self.counts.unmovable_messages;
        if names.len() < NAMED && !names.contains(&name) {
            names.push(name);
        }
    }

    /// Keeps messages coming: by another consumer once this one's credit is held, none once
    /// enough are read.
    pub(super) fn read_on(&mut self) {
        if self.pass.reading != Reading::On {
            return;
        }
        let settled = self.phase != Phase::Moving && self.flow.is_settled();
        let enough = self.pass.read >= self.pass.limit || settled;
        if enough && self.may_cancel() {
            self.stop_reading();
        } else if self.holds_all_credit() {
            self.ledger.seal(self.pass.channel);
            self.pass.held = 0;
            self.pass.channel += 1;
            self.consume();
        }
    }

    /// Whether nothing more comes to this consumer. What was held on channels before it counts
    /// no credit of its own.
    fn holds_all_credit(&self) -> bool {
        let prefetch = u64::from(self.pass.prefetch);
        self.pass.held >= prefetch && self.ledger.held_on(self.pass.channel) >= prefetch
    }

    /// Whether cancelling and returning keep the order. What the broker has sent to a consumer
    /// that it cancels it puts at the end of the queue, so nothing may be under way to us: all
    /// of the credit is used up by what we have seen, and nothing is acknowledged until the
    /// consumer is cancelled. That we hold nothing at all says nothing: what follows an
    /// acknowledgement is sent at once. And what the pass before returned must all be read
    /// again: it would come to stand before what is returned now.
    fn may_cancel(&self) -> bool {
        let full = self.ledger.unacked_on(self.pass.channel) >= u64::from(self.pass.prefetch);
        let drained = self.pass.taken >= self.pass.ready;
        self.pass.taken >= self.back && (full || drained)
    }

    pub(super) fn stop_reading(&mut self) {
        if self.pass.reading == Reading::On {
            self.pass.reading = Reading::Ending;
            self.out.push(Command::Cancel);
        }
    }

    /// The credit that so many held messages of this size ask for.
    fn grown_credit(&self) -> u64 {
        let held = self.ledger.unacked();
        let each = (self.pass.bytes / self.pass.taken.max(1)).max(1);
        (held / GROWTH).min(UNDER_WAY / each).max(held / LEAST).min(MOST_PREFETCH)
    }

    fn consume(&mut self) {
        // Twice the window, so that a window is left where another is held. Each consumer
        // takes a channel, so that where nearly all is held their credit grows.
        let window = u64::from(self.orders.pace.window).saturating_mul(2).max(2);
        self.pass.prefetch = u16::try_from(window.max(self.grown_credit())).unwrap_or(u16::MAX);
        self.out.push(Command::Consume {
            pass: self.pass.number,
            channel: self.pass.channel,
            prefetch: self.pass.prefetch,
        });
    }
}
