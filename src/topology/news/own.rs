//! What we are writing ourselves.

use std::collections::HashMap;
use std::time::Duration;

use super::{Change, hash};
use crate::topology::model::Destination;
use crate::topology::plan::Step;

/// So long after it was written a change may be told. What is not told by then was there
/// already, and must not hide somebody else's change for longer.
const LATEST: Duration = Duration::from_secs(30);

/// Changes that are about to be told of us, each as often as it was written.
///
/// Times are what any clock says that only goes forward.
#[derive(Clone, Debug, Default)]
pub struct Own {
    written: HashMap<u64, Written>,
    /// What we have deleted takes its bindings along, which are told one by one.
    deleted: HashMap<u64, Duration>,
    /// When what is overdue was last let go.
    cleared: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Written {
    times: u32,
    until: Duration,
}

impl Own {
    /// Notes a step, before it is written.
    pub fn expect(&mut self, step: &Step, now: Duration) {
        if now >= self.cleared + LATEST {
            self.cleared = now;
            self.written.retain(|_, written| written.until > now);
            self.deleted.retain(|_, until| *until > now);
        }
        let (change, until) = (Change::of(step), now + LATEST);
        if let Change::Deleted(object) = &change {
            self.deleted.insert(hash(object), until);
        }
        let written = self.written.entry(change.hash()).or_insert(Written { times: 0, until });
        *written = Written { times: written.times + 1, until };
    }

    /// Whether a change is one of ours. Each of them counts once.
    pub fn is_own(&mut self, change: &Change, now: Duration) -> bool {
        let key = change.hash();
        if let Some(written) = self.written.get_mut(&key).filter(|written| written.until > now) {
            written.times -= 1;
            if written.times == 0 {
                self.written.remove(&key);
            }
            return true;
        }
        let Change::Unbound(binding) = change else { return false };
        let ends = [&binding.destination, &Destination::Exchange(binding.source.clone())];
        ends.into_iter().any(|end| self.deleted.get(&hash(end)).is_some_and(|until| *until > now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::model::{Args, Binding, Exchange};

    fn binding(source: &str, queue: &str) -> Binding {
        Binding {
            source: source.to_owned(),
            destination: Destination::Queue(queue.to_owned()),
            routing_key: "k".to_owned(),
            arguments: Args::new(),
        }
    }

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    #[test]
    fn each_write_of_ours_is_told_once_and_another_is_somebody_elses() {
        let mut own = Own::default();
        let rule = |key: &str| {
            let arguments = Args::from([(key.to_owned(), true.into())]);
            Binding { arguments, ..binding("chain", "q") }
        };
        own.expect(&Step::Bind(rule("a")), at(1));
        own.expect(&Step::Bind(rule("b")), at(1));
        assert!(own.is_own(&Change::Bound(rule("a")), at(2)));
        assert!(!own.is_own(&Change::Unbound(rule("a")), at(2)), "nobody of us unbinds it");
        assert!(own.is_own(&Change::Bound(rule("b")), at(2)));
        assert!(!own.is_own(&Change::Bound(rule("a")), at(2)), "the third is not ours");
    }

    #[test]
    fn a_policy_that_somebody_edits_right_after_us_is_theirs() {
        let mut own = Own::default();
        own.expect(&Step::ClearPolicy("p".to_owned()), at(1));
        assert!(!own.is_own(&Change::PolicySet("p".to_owned()), at(1)));
        assert!(own.is_own(&Change::PolicyCleared("p".to_owned()), at(1)));
        assert!(!own.is_own(&Change::PolicyCleared("p".to_owned()), at(1)));
    }

    #[test]
    fn what_we_delete_takes_its_bindings_along() {
        let mut own = Own::default();
        own.expect(&Step::DeleteQueue("q".to_owned()), at(1));
        own.expect(&Step::DeleteExchange("e".to_owned()), at(1));
        assert!(own.is_own(&Change::Deleted(Destination::Queue("q".to_owned())), at(2)));
        for told in [binding("any", "q"), binding("other", "q"), binding("e", "any")] {
            assert!(own.is_own(&Change::Unbound(told), at(2)));
        }
        assert!(!own.is_own(&Change::Unbound(binding("q", "e")), at(2)), "a queue is no exchange");
        assert!(!own.is_own(&Change::Unbound(binding("any", "q")), at(2) + LATEST));
    }

    #[test]
    fn what_was_never_told_is_forgotten() {
        let mut own = Own::default();
        let exchange = |name: &str| Exchange {
            name: name.to_owned(),
            kind: "fanout".to_owned(),
            internal: true,
            arguments: Args::new(),
        };
        let create = |name: &str| Step::CreateExchange { exchange: exchange(name), marker: None };
        own.expect(&create("there-already"), at(1));
        let told = Change::Declared(Destination::Exchange("there-already".to_owned()));
        assert!(!own.is_own(&told, at(1) + LATEST));
        own.expect(&create("new"), at(1) + LATEST);
        assert_eq!(own.written.len(), 1, "only what may still be told takes memory");
    }
}
