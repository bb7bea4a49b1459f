//! The phases of a run: opening, moving, settling, resting, ending.

use std::time::Duration;

use super::event::{Command, Order};
use super::ledger::Ledger;
use super::pass::Reading;
use super::{Engine, PATIENCE};
use crate::replay::outcome::{Ended, Outcome};

/// What a run is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing is read; the queue is being opened, or will be.
    Closed { opening: bool },
    /// A pass is under way.
    Moving,
    /// Nothing more is published, and what is under way comes to its end until then.
    Settling(Next, Duration),
    /// What was held is being returned, and this flush makes sure of it.
    Returning(Next, Order),
    /// Nothing is held, on purpose.
    Resting,
    /// The last checkpoint is being kept.
    Parting(Ended, Order),
    /// Nothing more happens.
    Over,
}

/// What comes after a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Rest, with nothing held.
    Rest,
    /// The end of the queue: the outcome is what the pass shows.
    Finish,
    /// This end, whatever the pass shows.
    End(Outcome),
    /// Leave the rest to another worker.
    Leave,
}

impl Engine {
    /// What people or clocks demand comes before everything else.
    pub(super) fn interrupt(&mut self, now: Duration) {
        let Some(next) = self.demanded(now) else { return };
        match &mut self.phase {
            Phase::Moving => self.begin_settling(next, now),
            Phase::Settling(before, _) | Phase::Returning(before, _)
                if next != Next::Rest && !matches!(before, Next::End(_)) =>
            {
                *before = next;
            }
            Phase::Closed { .. } if next == Next::Rest => self.phase = Phase::Resting,
            Phase::Closed { .. } | Phase::Resting if next != Next::Rest => self.end(next),
            _ => {}
        }
    }

    fn demanded(&mut self, now: Duration) -> Option<Next> {
        if self.orders.cancel {
            return Some(Next::End(Outcome::Cancelled));
        }
        if self.stop {
            return Some(Next::Leave);
        }
        let deadline = self.deadline();
        if deadline <= now {
            return Some(Next::End(Outcome::DeadlineExceeded));
        }
        self.wake_at(deadline);
        if self.orders.hold.is_some() {
            return Some(Next::Rest);
        }
        self.must_renew(now).then(|| self.renewal())
    }

    /// What comes after a pass that has lasted too long: another, unless messages that find no
    /// queue took all of its time, as they would of the next, for ever.
    fn renewal(&mut self) -> Next {
        if self.pass.acked == 0 && self.pass.unroutable > 0 {
            return Next::End(Outcome::Unroutable);
        }
        self.renews = true;
        Next::Rest
    }

    /// Whether a pass has lasted so long that all must be returned and read again, before the
    /// broker takes it back with the channel. Half of the time is left for settling.
    fn must_renew(&mut self, now: Duration) -> bool {
        let Some(longest) = self.limits.hold.filter(|_| self.phase == Phase::Moving) else { return false };
        let due = self.pass.began + longest / 2;
        if due > now {
            self.wake_at(due);
            return false;
        }
        true
    }

    pub(super) fn rest_or_open(&mut self, now: Duration) {
        if self.orders.hold.is_some() || self.phase == (Phase::Closed { opening: true }) {
            return;
        }
        if self.phase == (Phase::Closed { opening: false }) || self.resume_trial(now) {
            self.phase = Phase::Closed { opening: true };
            self.open();
        }
    }

    pub(super) fn begin_settling(&mut self, next: Next, now: Duration) {
        if self.phase != Phase::Moving {
            return;
        }
        self.phase = Phase::Settling(next, now + PATIENCE);
        self.hold_what_waits();
        self.settle(now);
    }

    /// Waits for what is under way, but not for ever: then the connections are closed, which
    /// returns everything, and what was under way may be there twice.
    pub(super) fn settle(&mut self, now: Duration) {
        self.settle_what_can_be(now);
        self.read_on();
        if self.pass.reading == Reading::On {
            self.look_each_second(now);
        }
        let Phase::Settling(next, until) = &self.phase else { return };
        let (next, until) = (next.clone(), (*until).max(self.pass.last_read + PATIENCE));
        if self.pass.reading == Reading::Off && self.flow.is_settled() {
            let returns = self.ledger.returns();
            if returns.is_empty() {
                self.after_pass(next, now);
            } else {
                let order = self.next_order();
                self.phase = Phase::Returning(next, order);
                self.out.extend(returns);
                self.out.push(Command::Flush(order));
            }
        } else if until <= now {
            self.out.push(Command::Close);
            self.lost(now);
        } else {
            self.wake_at(until);
        }
    }

    pub(super) fn everything_returned(&mut self, order: Order, now: Duration) {
        match &self.phase {
            Phase::Returning(next, flush) if *flush == order => {
                let next = next.clone();
                self.after_pass(next, now);
            }
            _ => {}
        }
    }

    fn after_pass(&mut self, next: Next, now: Duration) {
        self.back = self.ledger.unacked();
        self.fringe.returned(&self.pass);
        self.ledger = Ledger::default();
        if next == Next::Rest {
            self.trial_rests(now);
            self.phase = Phase::Resting;
            self.keep_settled();
            self.rest_or_open(now);
        } else {
            self.end(next);
        }
    }

    /// Everything unacknowledged is back in the queue. What was under way may be there twice,
    /// and what was acknowledged last may be gone or not.
    pub(super) fn lost(&mut self, now: Duration) {
        if !matches!(self.phase, Phase::Moving | Phase::Settling(..) | Phase::Returning(..)) {
            return;
        }
        self.counts.duplicates_possible += self.flow.open;
        self.checkpoints.use_up();
        let doubtful = self.flow.in_doubt();
        self.counts.beyond_fence += self.fringe.moved(doubtful.beyond);
        self.fringe.cut_off(&self.pass, self.back, doubtful.total());
        self.flow.begin_pass();
        self.checkpoints.begin_pass();
        self.back = self.back.saturating_sub(self.pass.taken) + self.ledger.unacked();
        self.ledger = Ledger::default();
        self.pass.reading = Reading::Off;
        self.looks = super::look::Looks::default();
        self.trial_rests(now);
        let phase = std::mem::replace(&mut self.phase, Phase::Closed { opening: false });
        match phase {
            Phase::Returning(Next::Finish, _) => self.end(Next::Finish),
            Phase::Settling(next, _) | Phase::Returning(next, _) => match next {
                Next::Rest => self.phase = Phase::Resting,
                Next::Finish => {}
                next => self.end(next),
            },
            _ => {}
        }
    }

    /// What was lost would be lost again and again.
    pub(super) fn failed(&mut self, why: String, now: Duration) {
        self.lost(now);
        if matches!(self.phase, Phase::Closed { .. } | Phase::Resting) {
            self.end(Next::End(Outcome::Failed(why)));
        }
    }

    /// Ends this worker's part, once what it did is kept.
    pub(super) fn end(&mut self, next: Next) {
        let ended = match next {
            Next::Leave => Ended::Interrupted,
            Next::End(outcome) => Ended::Finished(outcome),
            Next::Finish | Next::Rest => Ended::Finished(self.outcome()),
        };
        match self.keep_settled() {
            Some(order) => self.phase = Phase::Parting(ended, order),
            None => {
                self.phase = Phase::Over;
                self.out.push(Command::End(ended));
            }
        }
    }

    /// Keeps that nothing is under way. Nothing may be sent then without another checkpoint.
    fn keep_settled(&mut self) -> Option<Order> {
        let checkpoint = self.checkpoint(0)?;
        let order = self.next_order();
        self.checkpoints.use_up();
        self.out.push(Command::Checkpoint(order, checkpoint));
        Some(order)
    }

    /// The last checkpoint is kept, or can't be: either way it is over.
    pub(super) fn parted(&mut self, order: Order) {
        match &self.phase {
            Phase::Parting(ended, last) if *last == order => {
                let ended = ended.clone();
                self.phase = Phase::Over;
                self.out.push(Command::End(ended));
            }
            _ => {}
        }
    }

    fn outcome(&self) -> Outcome {
        if self.pass.scan_limited {
            return Outcome::ScanLimitReached;
        }
        if self.pass.stayed() > 0 { Outcome::CompletedWithFailures } else { Outcome::Completed }
    }
}
