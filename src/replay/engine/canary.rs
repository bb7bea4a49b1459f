//! After too many came back: a wait with nothing held, a few messages as a test, a verdict.

use std::time::Duration;

use super::Engine;
use super::event::Command;
use super::look::Looks;
use super::phase::Next;
use crate::replay::breaker::{Look, exceeds, returned};
use crate::replay::outcome::Outcome;

/// How long a test is watched at most, once its messages are moved.
const WATCH: Duration = Duration::from_secs(30);

/// Where a test stands. `failed` counts the tests before it; a passed one wipes them out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// Messages move, and no test is needed.
    None,
    /// Nothing moves until then.
    Waiting { until: Duration, failed: u32, why: String },
    /// The test's messages move.
    Sending { left: u32 },
    /// Whether they come back shows until then.
    Watching { until: Duration },
}

impl Trial {
    /// Why nothing moves, in words.
    pub(super) fn pause(&self) -> Option<&str> {
        match self {
            Self::Waiting { why, .. } => Some(why),
            _ => None,
        }
    }
}

impl Engine {
    /// The next step of a run that rests without being held: open, or watch, or wait.
    pub(super) fn resume_trial(&mut self, now: Duration) -> bool {
        match self.trial {
            Trial::None | Trial::Sending { .. } => true,
            Trial::Waiting { until, failed, .. } if until <= now => {
                self.failed_tests = failed;
                self.trial = Trial::Sending { left: self.orders.guard.canary.messages.max(1) };
                true
            }
            Trial::Watching { until } if until <= now => {
                self.failed_tests = 0;
                self.trial = Trial::None;
                self.breaker.forget();
                true
            }
            Trial::Waiting { until, .. } => {
                self.wake_at(until);
                false
            }
            Trial::Watching { until } => {
                self.wake_at(until);
                self.look_while_resting(now);
                false
            }
        }
    }

    /// What follows for the test once a pass is settled.
    pub(super) fn trial_rests(&mut self, now: Duration) {
        if let Trial::Sending { left } = self.trial {
            self.looks = Looks::default();
            let canary = &self.orders.guard.canary;
            self.trial = if left == 0 {
                Trial::Watching { until: now + canary.after.min(WATCH) }
            } else {
                // Held or cut off in the midst of it: it begins anew.
                let why = "the test of a few messages was interrupted".to_owned();
                Trial::Waiting { until: now, failed: self.failed_tests, why }
            };
        }
    }

    /// Judges a test by what came back since its pass began.
    pub(super) fn judge_trial(&mut self, look: Look, now: Duration) {
        if !matches!(self.trial, Trial::Watching { .. }) {
            return;
        }
        let guard = &self.orders.guard;
        let since = now.saturating_sub(self.pass.began);
        let arrived = look.ready.saturating_sub(look.expected);
        let back = returned(arrived, self.breaker.usual(), since);
        if back == 0 || !exceeds(back, guard.stop_on_return_percent, self.pass.acked) {
            return;
        }
        let failed = self.failed_tests + 1;
        let why = format!("{back} of {} test messages came back", self.pass.acked);
        if failed >= guard.canary.tries {
            let tests = if failed == 1 { "1 test".to_owned() } else { format!("{failed} tests") };
            let stopped = format!("{why}, after {tests}");
            self.trial = Trial::None;
            self.end(Next::End(Outcome::Stopped(stopped)));
        } else {
            self.trial = Trial::Waiting { until: now + guard.canary.after, failed, why };
        }
    }

    /// Opens the origin queue.
    pub(super) fn open(&mut self) {
        let expected = self.fringe.surely(self.left());
        self.out.push(Command::Open { expected });
    }
}
