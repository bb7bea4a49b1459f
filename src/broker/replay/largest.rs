//! The largest body that the broker takes, as far as it was met.
//!
//! Nothing tells it beforehand: the broker closes the channel on a publish that is larger, with
//! a sentence that names its limit. What is under way on that channel is in doubt then, so that
//! the limit is learnt once, and larger messages stay from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::broker::amqp;

const PRECONDITION_FAILED: u16 = 406;

/// The limit, shared between those who meet it and the judge's thread.
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

    /// Learns from what closed a channel. Whoever says that a connection is lost calls this
    /// first, so that the next one has learnt it.
    pub(super) fn learn(&self, error: &lapin::Error) {
        if let Some((PRECONDITION_FAILED, text)) = amqp::reply(error)
            && let Some(limit) = limit(&text)
        {
            self.0.fetch_min(limit, Ordering::Relaxed);
        }
    }
}

/// The last number of the sentence, where it is about a body's size.
fn limit(text: &str) -> Option<u64> {
    let (_, sizes) = text.split_once("message size ")?;
    let mut numbers = sizes.rsplit(|letter: char| !letter.is_ascii_digit()).filter(|part| !part.is_empty());
    numbers.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_last_number_of_the_sentence() {
        for (text, found) in [
            ("PRECONDITION_FAILED - message size 2001 is larger than configured max size 1000", Some(1_000)),
            ("PRECONDITION_FAILED - message size 2001 is larger than max size 1000", Some(1_000)),
            ("PRECONDITION_FAILED - delivery acknowledgement on channel 3 timed out", None),
            ("PRECONDITION_FAILED - message size is too large", None),
        ] {
            assert_eq!(limit(text), found, "{text}");
        }
    }

    #[test]
    fn what_was_not_met_is_taken() {
        let largest = Largest::default();
        assert!(largest.takes(usize::MAX));
        largest.0.fetch_min(1_000, Ordering::Relaxed);
        assert!(largest.takes(1_000) && !largest.takes(1_001));
    }
}
