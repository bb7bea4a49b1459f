//! Waits between two tries.

use std::time::Duration;

/// The first wait after something failed that is tried again.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest such wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Something that is tried again, each time after twice the wait.
#[derive(Debug, Default)]
pub(super) struct Retry {
    pub(super) why: Option<String>,
    pub(super) at: Duration,
    wait: Duration,
}

impl Retry {
    pub(super) fn fail(&mut self, why: String, now: Duration) {
        self.wait = (self.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
        self.at = now + self.wait;
        self.why = Some(why);
    }

    pub(super) fn succeed(&mut self) {
        *self = Self::default();
    }
}
