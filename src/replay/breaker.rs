//! Whether replayed messages fail again: how many came back to the origin queue.
//!
//! Nobody tells a replay that its messages fail; they just come back. So the breaker counts:
//! what is in the queue (ready, or held by us), less what the fence leaves there, less what
//! would have arrived anyhow. What the broker has sent and we have not seen yet is missing in
//! the count, so each look shows at most what came: the highest of them all is the truth as
//! far as it is known, and no look can cry wolf.

use std::collections::VecDeque;
use std::time::Duration;

use super::run::Guard;

/// One look at the origin queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Messages ready.
    pub ready: u64,
    /// Messages that we hold unacknowledged, counted before the broker was asked.
    pub held: u64,
    /// Messages that should be there if nothing had come: ready when this pass began, less
    /// those acknowledged since.
    pub expected: u64,
    /// Messages moved by the run so far.
    pub moved: u64,
    /// When it was.
    pub time: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    moved: u64,
    arrived: u64,
    time: Duration,
}

/// Counts what comes back, over the last messages moved.
#[derive(Clone, Debug)]
pub struct Breaker {
    /// Arrivals per second before the run.
    usual: f64,
    /// Arrivals of earlier passes.
    before: u64,
    /// Arrivals of this pass, the most that a look showed.
    arrived: u64,
    marks: VecDeque<Mark>,
}

impl Breaker {
    /// A breaker that expects so many arrivals per second besides ours.
    #[must_use]
    pub fn new(usual: f64) -> Self {
        Self { usual: usual.max(0.0), before: 0, arrived: 0, marks: VecDeque::new() }
    }

    /// Arrivals per second that it expects besides ours.
    #[must_use]
    pub fn usual(&self) -> f64 {
        self.usual
    }

    /// Begins a pass: counts start from what is there, and older marks stay.
    pub fn begin_pass(&mut self, moved: u64, now: Duration) {
        self.before += std::mem::take(&mut self.arrived);
        if self.marks.is_empty() {
            self.marks.push_back(Mark { moved, arrived: self.before, time: now });
        }
    }

    /// Forgets what came back so far, after a test that went well.
    pub fn forget(&mut self) {
        self.marks.clear();
    }

    /// Notes a look.
    pub fn note(&mut self, look: Look) {
        let arrived = (look.ready + look.held).saturating_sub(look.expected);
        self.arrived = self.arrived.max(arrived);
        self.marks.push_back(Mark {
            moved: look.moved,
            arrived: self.before + self.arrived,
            time: look.time,
        });
    }

    /// How many came back while the last `sample` messages moved.
    pub fn returns(&mut self, sample: u32) -> u64 {
        let Some(last) = self.marks.back().copied() else { return 0 };
        let from = last.moved.saturating_sub(u64::from(sample));
        while self.marks.get(1).is_some_and(|second| second.moved <= from) {
            self.marks.pop_front();
        }
        let Some(first) = self.marks.front() else { return 0 };
        returned(last.arrived - first.arrived, self.usual, last.time.saturating_sub(first.time))
    }

    /// Whether too many came back, with the reason in words.
    pub fn trips(&mut self, guard: &Guard) -> Option<String> {
        let returns = self.returns(guard.sample);
        let (sample, percent) = (guard.sample, guard.stop_on_return_percent);
        let enough = returns > 0 && returns >= u64::from(guard.min_returns);
        (enough && exceeds(returns, percent, u64::from(sample)))
            .then(|| format!("{returns} of the last {sample} messages came back, the limit is {percent} %"))
    }
}

/// Arrivals that the usual rate does not explain.
#[must_use]
pub fn returned(arrived: u64, usual: f64, during: Duration) -> u64 {
    let expected = (usual * during.as_secs_f64()).ceil();
    // The cast saturates, and a rate is never negative.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    arrived.saturating_sub(expected as u64)
}

/// Whether so many of so many reach a percentage.
#[must_use]
pub fn exceeds(returns: u64, percent: u32, of: u64) -> bool {
    returns.saturating_mul(100) >= u64::from(percent).saturating_mul(of)
}

#[cfg(test)]
mod tests;
