//! How long to wait after a failure: per resource, growing, with jitter.
//!
//! The delays are kept by UID, so that a recreated resource starts afresh, and
//! are forgotten at the first success.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(120);

/// What no retry cures is looked at again after this time all the same.
pub(crate) const SLOW_RECHECK: Duration = Duration::from_secs(300);

/// Failures in a row, by UID.
#[derive(Debug, Default)]
pub(crate) struct Backoff(Mutex<HashMap<String, u32>>);

impl Backoff {
    /// The wait after one more failure.
    pub(crate) fn next(&self, uid: &str) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(uid.to_owned()).or_default();
        *count += 1;
        jittered(delay(*count))
    }

    /// Forgets the failures of a resource that works or is gone.
    pub(crate) fn reset(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

fn delay(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    FIRST.saturating_mul(1 << doublings).min(LONGEST)
}

/// Spreads a wait over ± 20 %, so that what failed together does not return together.
pub(crate) fn jittered(wait: Duration) -> Duration {
    // Each RandomState has keys of its own, which is all the chance that this needs.
    let draw = RandomState::new().hash_one(0) % 401;
    wait.mul_f64(0.8 + f64::from(u32::try_from(draw).unwrap_or(200)) / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_start_again_after_a_success() {
        assert_eq!(delay(1), FIRST);
        assert_eq!(delay(4), Duration::from_secs(8));
        assert_eq!(delay(u32::MAX), LONGEST);
        let backoff = Backoff::default();
        for _ in 0..20 {
            backoff.next("a");
        }
        assert!(backoff.next("a") >= LONGEST.mul_f64(0.8));
        backoff.reset("a");
        assert!(backoff.next("a") <= FIRST.mul_f64(1.2));
    }
}
