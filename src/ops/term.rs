//! For how long this process may write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A leader's term: as long as it holds, no other process has taken over. Clones share it.
///
/// It is asked before each write, since a process that was stopped goes on where it was, before
/// any of its timers have told it that it is late.
#[derive(Clone, Debug)]
pub struct Term {
    began: Instant,
    /// In milliseconds since `began`.
    until: Arc<AtomicU64>,
}

impl Term {
    /// Never ends: of a process that is the only one.
    #[must_use]
    pub fn unlimited() -> Self {
        Self { began: Instant::now(), until: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// Holds until a moment, unless it is prolonged.
    #[must_use]
    pub fn until(end: Instant) -> Self {
        let began = Instant::now();
        let until = millis(end.saturating_duration_since(began));
        Self { began, until: Arc::new(AtomicU64::new(until)) }
    }

    /// Whether this process may write now.
    #[must_use]
    pub fn holds(&self) -> bool {
        millis(self.began.elapsed()) < self.until.load(Ordering::Acquire)
    }

    /// Lets it hold until a later moment. One that has ended stays so.
    pub fn prolong(&self, end: Instant) {
        let end = millis(end.saturating_duration_since(self.began));
        let now = millis(self.began.elapsed());
        let prolonged = |until| (now < until).then_some(end.max(until));
        let _ = self.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, prolonged);
    }

    /// Ends it now, for good.
    pub fn end(&self) {
        self.until.store(0, Ordering::Release);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_ends_when_it_is_not_prolonged() {
        let term = Term::until(Instant::now() + Duration::from_secs(60));
        assert!(term.holds());
        assert!(!Term::until(Instant::now()).holds());
    }

    #[test]
    fn a_term_that_has_ended_stays_so() {
        let later = Instant::now() + Duration::from_secs(60);
        let late = Term::until(Instant::now());
        late.prolong(later);
        assert!(!late.holds());
        let given_up = Term::until(later);
        given_up.end();
        given_up.prolong(later);
        assert!(!given_up.holds());
    }

    #[test]
    fn a_term_that_is_prolonged_outlasts_its_first_end() {
        let term = Term::until(Instant::now() + Duration::from_millis(200));
        term.prolong(Instant::now() + Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(250));
        assert!(term.holds());
    }

    #[test]
    fn whoever_shares_a_term_sees_its_end() {
        let term = Term::unlimited();
        let shared = term.clone();
        assert!(shared.holds());
        term.end();
        assert!(!shared.holds());
    }
}
