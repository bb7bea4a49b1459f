//! How fast messages may go: a token bucket that fills at the pace's rate, in batches with
//! pauses between them.
//!
//! Over a minute without pauses the rate is kept within 3 %, since what a late timer missed
//! stays in the bucket. The bucket holds at most a batch, and at most a tenth of a second, so
//! that nothing bursts after a wait; two milliseconds' worth always fit, because timers are
//! no finer than one.

use std::time::Duration;

use super::run::Pace;

/// The most that the bucket keeps, in seconds of the rate.
const MOST: f64 = 0.1;
/// The least that it must keep for timers of a millisecond.
const LEAST: f64 = 0.002;
/// A full token, less what floating point may lack.
const TOKEN: f64 = 1.0 - 1e-6;

/// The rate of one run. All times are those of one clock.
#[derive(Clone, Debug)]
pub struct Rate {
    pace: Pace,
    tokens: f64,
    filled: Duration,
    started: Duration,
    left: u32,
    resume: Duration,
}

impl Rate {
    /// A rate that starts now, with the ramp's first step and one message at once. The first
    /// batch is not open yet.
    #[must_use]
    pub fn new(pace: Pace, now: Duration) -> Self {
        Self { pace, tokens: 1.0, filled: now, started: now, left: 0, resume: now }
    }

    /// Starts over after a time in which nothing moved, with the ramp's first step.
    pub fn restart(&mut self, now: Duration) {
        *self = Self { resume: self.resume.max(now), ..Self::new(self.pace.clone(), now) };
    }

    /// Goes on at another pace: the batch under way is over, the ramp's clock goes on.
    pub fn edit(&mut self, pace: Pace, now: Duration) {
        self.fill(now);
        self.pace = pace;
        self.tokens = self.tokens.min(self.most(now));
        self.left = 0;
        self.resume = now;
    }

    /// The pace in use.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Messages per second that the ramp allows by now.
    #[must_use]
    pub fn per_second(&self, now: Duration) -> f64 {
        let full = f64::from(self.pace.per_second);
        let Some(ramp) = &self.pace.ramp else { return full };
        let steps = now.saturating_sub(self.started).as_nanos() / ramp.every.as_nanos().max(1);
        let steps = i32::try_from(steps).unwrap_or(i32::MAX);
        (f64::from(ramp.from) * f64::from(ramp.factor).powi(steps)).min(full)
    }

    /// Whether the next message is the first of a batch that is not open yet.
    #[must_use]
    pub fn between_batches(&self) -> bool {
        self.left == 0
    }

    /// How long a batch takes at the rate of now.
    #[must_use]
    pub fn batch_lasts(&self, now: Duration) -> Duration {
        Duration::from_secs_f64(f64::from(self.pace.batch) / self.per_second(now))
    }

    /// Opens the next batch, once the pause is over; returns whether one is open.
    pub fn open_batch(&mut self, now: Duration) -> bool {
        if self.left == 0 && now >= self.resume {
            self.left = self.pace.batch.max(1);
        }
        self.left > 0
    }

    /// Takes one message's turn, where it is due in an open batch.
    pub fn take(&mut self, now: Duration) -> bool {
        self.fill(now);
        if self.left == 0 || self.tokens < TOKEN {
            return false;
        }
        self.tokens -= 1.0;
        self.left -= 1;
        if self.left == 0 && !self.pace.pause.is_zero() {
            self.resume = now + self.pace.pause;
            // What a pause lasts is not made up for.
            self.tokens = 0.0;
            self.filled = self.resume;
        }
        true
    }

    /// When the next message is due at the earliest.
    #[must_use]
    pub fn due(&self, now: Duration) -> Duration {
        if self.left == 0 && now < self.resume {
            return self.resume;
        }
        let missing = TOKEN - self.tokens;
        if missing <= 0.0 {
            return now;
        }
        // A nanosecond more, so that rounding down never wakes too early.
        self.filled + Duration::from_secs_f64(missing / self.per_second(now)) + Duration::from_nanos(1)
    }

    fn most(&self, now: Duration) -> f64 {
        let rate = self.per_second(now);
        f64::from(self.pace.batch).min(rate * MOST).max(rate * LEAST).max(1.0)
    }

    fn fill(&mut self, now: Duration) {
        if now > self.filled {
            let passed = (now - self.filled).as_secs_f64();
            self.tokens = (self.tokens + passed * self.per_second(now)).min(self.most(now));
            self.filled = now;
        }
    }
}

/// Measures how many messages per second moved over the last ten seconds.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    // One mark a second at most: the time, and what had moved by then.
    marks: std::collections::VecDeque<(Duration, u64)>,
}

impl Meter {
    /// Notes how many had moved by now.
    pub fn mark(&mut self, moved: u64, now: Duration) {
        let last = self.marks.back().map(|(time, _)| *time);
        if last.is_none_or(|last| now.saturating_sub(last) >= Duration::from_secs(1)) {
            self.marks.push_back((now, moved));
        }
        while self.marks.len() > 11 {
            self.marks.pop_front();
        }
    }

    /// Messages per second at present.
    #[must_use]
    pub fn per_second(&self, moved: u64, now: Duration) -> f64 {
        let old = now.saturating_sub(Duration::from_secs(10));
        let Some((time, before)) = self.marks.iter().find(|(time, _)| *time >= old) else { return 0.0 };
        let passed = now.saturating_sub(*time).as_secs_f64();
        // Lossy for counts that no queue ever reaches.
        #[allow(clippy::cast_precision_loss)]
        let moved = moved.saturating_sub(*before) as f64;
        if passed > 0.0 { moved / passed } else { 0.0 }
    }
}

#[cfg(test)]
mod tests;
