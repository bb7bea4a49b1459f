//! Looks at the origin queue and the target while messages move, and what follows from them.

use std::time::Duration;

use super::Engine;
use super::canary::Trial;
use super::event::{Command, Order, TargetLook};
use super::pass::Reading;
use super::phase::{Next, Phase};
use crate::replay::breaker::Look;

/// How often it looks at least.
const EACH: Duration = Duration::from_secs(1);
/// How often it looks at most, however short the batches are.
const AT_MOST_EACH: Duration = Duration::from_millis(20);
/// How long nothing may be ready and nothing come until the queue counts as read. What is ready is
/// no longer counted once it is on its way to us; and a quorum queue without a leader counts none.
const SILENCE: Duration = Duration::from_secs(10);

/// What is known from looks, and what is asked.
#[derive(Debug, Default)]
pub(super) struct Looks {
    asked: Option<Asked>,
    last: Option<Duration>,
    /// Whether this pass had one.
    seen: bool,
    /// Whether one was asked and answered since the last batch ended.
    seen_between: bool,
    /// When a look found nothing ready, and how much was read by then.
    empty_at: Option<(Duration, u64)>,
    /// Why the target should get nothing now, in words.
    pub(super) obstacle: Option<String>,
}

/// A look under way.
#[derive(Clone, Copy, Debug)]
struct Asked {
    order: Order,
    /// What we held when the broker was asked.
    look: Look,
    /// Whether that was after the last batch.
    between: bool,
}

impl Looks {
    pub(super) fn begin_pass(&mut self) {
        *self = Self::default();
    }
}

impl Engine {
    fn look(&mut self, now: Duration) {
        if self.looks.asked.is_some() {
            return;
        }
        self.looks.last = Some(now);
        let order = self.next_order();
        let look = Look {
            ready: 0,
            held: self.ledger.unacked(),
            expected: self.pass.ready.saturating_sub(self.pass.acked),
            moved: self.moved(),
            time: now,
        };
        let between = self.rate.between_batches();
        self.looks.asked = Some(Asked { order, look, between });
        self.out.push(Command::Look(order));
    }

    pub(super) fn look_each_second(&mut self, now: Duration) {
        let next = self.looks.last.map_or(now, |last| last + EACH);
        if next <= now {
            self.look(now);
        }
        if self.looks.asked.is_none() {
            self.wake_at(next.max(now));
        }
    }

    /// Looks before a batch. A batch that lasts longer than a look waits for what it shows: else
    /// a breaker would trip a batch too late. The answer for a shorter one may come while it is
    /// under way, so that it costs no time; but a batch later it must be there.
    pub(super) fn look_before_batch(&mut self, now: Duration) -> bool {
        if self.looks.seen_between {
            return true;
        }
        if self.looks.asked.is_some() {
            return false;
        }
        if self.looks.last.is_none_or(|last| last + AT_MOST_EACH <= now) {
            self.look(now);
            return self.looks.seen && self.rate.batch_lasts(now) < AT_MOST_EACH;
        }
        self.looks.seen
    }

    /// What is seen from now on may lack what this batch does.
    pub(super) fn batch_begins(&mut self) {
        self.looks.seen_between = false;
        if let Some(asked) = &mut self.looks.asked {
            asked.between = false;
        }
    }

    pub(super) fn looked(&mut self, order: Order, ready: u64, target: Option<TargetLook>, now: Duration) {
        let Some(asked) = self.looks.asked.take_if(|asked| asked.order == order) else { return };
        let look = Look { ready, ..asked.look };
        self.looks.seen = true;
        self.looks.seen_between |= asked.between;
        match self.phase {
            Phase::Moving => {
                self.looks.obstacle = target.and_then(|target| self.target_obstacle(target));
                self.notice_the_end(ready, now);
                self.breaker.note(look);
                self.judge_returns(now);
            }
            Phase::Settling(..) => self.notice_the_end(ready, now),
            Phase::Resting => self.judge_trial(look, now),
            _ => {}
        }
    }

    fn target_obstacle(&self, target: TargetLook) -> Option<String> {
        let guard = &self.orders.guard;
        if guard.require_consumers && target.consumers == 0 {
            return Some("the target has no consumer".to_owned());
        }
        let most = guard.pause_above_target_depth.filter(|most| target.ready > *most)?;
        Some(format!("the target holds more than {most} messages"))
    }

    /// Reading ends early where the queue is shorter than the fence said: somebody else took
    /// messages, or they expired. Looks with nothing read between them tell, after a while.
    fn notice_the_end(&mut self, ready: u64, now: Duration) {
        if ready > 0 || self.pass.reading != Reading::On {
            self.looks.empty_at = None;
            return;
        }
        match self.looks.empty_at {
            Some((since, taken)) if taken == self.pass.taken => {
                if since + SILENCE <= now {
                    self.stop_reading();
                }
            }
            _ => self.looks.empty_at = Some((now, self.pass.taken)),
        }
    }

    fn judge_returns(&mut self, now: Duration) {
        if self.trial != Trial::None {
            return;
        }
        if let Some(why) = self.breaker.trips(&self.orders.guard) {
            self.trial = Trial::Waiting { until: now + self.orders.guard.canary.after, failed: 0, why };
            self.begin_settling(Next::Rest, now);
        }
    }

    /// Looks again while a test is watched.
    pub(super) fn look_while_resting(&mut self, now: Duration) {
        self.look_each_second(now);
    }
}
