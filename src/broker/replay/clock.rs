//! The time of a run.

use std::time::Duration;

use tokio::time::Instant;

/// A wall clock that never goes back: it is asked once, and counts from there.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    began: Duration,
    at: Instant,
}

impl Clock {
    /// Begins with the time of the system.
    pub(super) fn start() -> Self {
        let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self { began: began.unwrap_or_default(), at: Instant::now() }
    }

    /// The time since 1970.
    pub(super) fn now(&self) -> Duration {
        self.began + self.at.elapsed()
    }

    /// When a moment comes, for timers.
    pub(super) fn instant(&self, moment: Duration) -> Instant {
        self.at + moment.saturating_sub(self.began)
    }
}
