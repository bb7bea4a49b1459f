//! The messages around the fence: which of those that move may have come after it.
//!
//! A queue doesn't say when a message came. It is served in order, so that what stands behind
//! as many messages as are surely left came later. Two things blur that. A crash or a lost
//! connection leaves some messages uncounted: so many more are read than are left. And a
//! connection that is lost while what came back before is being read again puts the read ones
//! behind the others, so that a later message, read ahead, may come to stand in front.

use std::cmp::min;

use super::pass::Pass;

/// What is known of the place of the fence. Every number errs towards more.
#[derive(Debug, Default)]
pub(super) struct Fringe {
    /// Messages that may be gone from the origin queue without being counted.
    doubt: u64,
    /// Whether later messages may stand anywhere.
    scattered: bool,
    /// The most messages that a pass has read and did not take up.
    read_ahead: u64,
    /// Messages that surely stand before the fence, as this pass began.
    certain: u64,
    /// Later messages that this pass may still move.
    possible: u64,
}

impl Fringe {
    /// After a crash: nobody knows how often connections were lost before it.
    pub(super) fn after_crash(doubt: u64) -> Self {
        Self { doubt, scattered: true, read_ahead: u64::from(u16::MAX), ..Self::default() }
    }

    /// A pass begins, with so many messages in the queue and so many not counted as moved.
    pub(super) fn begin_pass(&mut self, ready: u64, left: u64) {
        self.certain = self.surely(left);
        let astray = if self.scattered { self.read_ahead } else { 0 };
        self.possible = min(ready.saturating_sub(self.certain), self.doubt + astray);
    }

    /// How many of those left are surely there.
    pub(super) fn surely(&self, left: u64) -> u64 {
        left.saturating_sub(self.doubt)
    }

    /// Whether the message read as this one of the pass may be a later one.
    pub(super) fn may_hold(&self, place: u64) -> bool {
        self.scattered || place > self.certain
    }

    /// How many of the moved ones that may be later ones can be.
    pub(super) fn moved(&mut self, maybe_later: u64) -> u64 {
        let later = min(maybe_later, self.possible);
        self.possible -= later;
        later
    }

    /// The most later messages among the next so many that move.
    pub(super) fn among(&self, next: u64) -> u64 {
        min(next, self.possible)
    }

    /// Messages that may have moved with a checkpoint that nobody could correct.
    pub(super) fn may_have_moved(&self, allowed: u64) -> u64 {
        self.doubt + allowed
    }

    /// A pass was cut off. `back` is what had come back before it.
    pub(super) fn cut_off(&mut self, pass: &Pass, back: u64, uncounted: u64) {
        self.doubt += uncounted;
        self.read_ahead = self.read_ahead.max(pass.taken - pass.read);
        self.scattered |= pass.is_cut_in_disorder(back);
    }

    /// A pass has returned what it held, in order.
    pub(super) fn returned(&mut self, pass: &Pass) {
        self.read_ahead = self.read_ahead.max(pass.taken - pass.read);
    }
}
