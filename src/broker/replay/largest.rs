//! The largest body that the broker takes, as far as it was met.
//!
//! Nothing tells it beforehand: the broker closes the channel on a publish that is larger, with
//! a sentence that names its limit. What is under way on that channel is in doubt then, so that
//! the limit is learnt once, and larger messages stay from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::broker::amqp;

const PRECONDITION_FAILED: u16 = 406;

/// The limit, shared between the publisher, who meets it, and the judge's thread.
#[derive(Clone, Debug)]
pub(super) struct Largest(Arc<AtomicU64>);

impl Default for Largest {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

impl Largest {
    /// Whether the broker may take a body of so many bytes.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes as u64 <= self.0.load(Ordering::Relaxed)
    }

    /// Learns from the error of a channel, on which bodies of these sizes were under way.
    pub(super) fn learn(&self, error: &lapin::Error, under_way: impl Iterator<Item = usize>) {
        if let Some((PRECONDITION_FAILED, text)) = amqp::reply(error)
            && text.contains("message size")
        {
            self.lower(&text, under_way.max());
        }
    }

    /// One of those under way was too large, so the largest of them was.
    fn lower(&self, text: &str, largest: Option<usize>) {
        let too_large = largest.map_or(u64::MAX, |bytes| bytes as u64);
        // The last number of the sentence is the limit.
        let number = text.rsplit(|letter: char| !letter.is_ascii_digit()).find(|part| !part.is_empty());
        let named = number.and_then(|number| number.parse().ok()).unwrap_or(u64::MAX);
        self.0.fetch_min(named.min(too_large.saturating_sub(1)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(text: &str, under_way: Option<usize>) -> Largest {
        let largest = Largest::default();
        largest.lower(text, under_way);
        largest
    }

    #[test]
    fn the_limit_is_the_last_number_of_the_sentence() {
        let text = "PRECONDITION_FAILED - message size 2001 is larger than configured max size 1000";
        let largest = after(text, Some(2_001));
        assert!(largest.takes(1_000) && !largest.takes(1_001));
        largest.lower("message size 3000 is larger than max size 1500", Some(3_000));
        assert!(!largest.takes(1_001), "it never grows");
    }

    #[test]
    fn without_a_number_the_largest_under_way_was_too_large() {
        let largest = after("message size is too large", Some(2_001));
        assert!(largest.takes(2_000) && !largest.takes(2_001));
    }

    #[test]
    fn a_number_that_would_change_nothing_does_not_count() {
        let largest = after("message size 7 exceeds 99999999999", Some(2_001));
        assert!(!largest.takes(2_001));
    }
}
