//! What queues do beside being as declared: who consumes them, and whether their dead
//! letters move.
//!
//! Neither shows in a vhost's configuration, and neither can be put right from here: a
//! consumer belongs to somebody, and dead letters that wait are held because the next queue
//! does not take them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::desired::{Desired, QueueRole};
use super::plan::{Blocked, BlockedBy};

/// What looks at a vhost have shown of its queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The users that consume from a queue, by the queue's name. The name of a user that the
    /// broker does not tell is empty; where none may be told, there is no name.
    pub consumers: BTreeMap<String, BTreeSet<String>>,
    /// Queues whose dead letters do not move.
    pub stuck: BTreeSet<String>,
}

/// Something that a queue suffers from, and who does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What to report.
    pub blocked: Blocked,
    /// The broker's users who do it, where it tells.
    pub by: Option<String>,
}

/// What of it concerns a pipeline: nobody may consume from its retry queues, and the dead
/// letters of its source and its retry queues must move, also of those that only drain.
#[must_use]
pub fn troubles(desired: &Desired, draining: &[String], seen: &Seen) -> Vec<Trouble> {
    let named = |is_meant: fn(&QueueRole) -> bool| {
        let meant = desired.queues.iter().filter(move |queue| is_meant(&queue.role));
        meant.map(|queue| queue.queue.name.as_str())
    };
    let tiers = named(|role| matches!(role, QueueRole::Retry { .. }));
    let consumed = tiers.filter_map(|name| Some(consumed(name, seen.consumers.get(name)?)));
    let dying = named(|role| matches!(role, QueueRole::Retry { .. } | QueueRole::Source));
    let dying = dying.chain(draining.iter().map(String::as_str));
    let stuck = dying.filter(|name| seen.stuck.contains(*name)).map(stuck);
    consumed.chain(stuck).collect()
}

/// Whether a report names a queue as one whose dead letters do not move.
#[must_use]
pub fn says_stuck(report: &str, queue: &str) -> bool {
    report.contains(&stuck(queue).blocked.to_string())
}

fn consumed(queue: &str, users: &BTreeSet<String>) -> Trouble {
    let known: Vec<&str> = users.iter().map(String::as_str).filter(|user| !user.is_empty()).collect();
    let by = (!known.is_empty()).then(|| known.join(", "));
    let who = by.as_ref().map_or_else(|| "somebody".to_owned(), |users| format!("the user {users}"));
    let why = format!(
        "{who} consumes from it, and what is taken from it is not retried: stop that consumer, which belongs on the source queue"
    );
    Trouble { blocked: Blocked { by: BlockedBy::Consumer, object: format!("queue {queue}"), why }, by }
}

fn stuck(queue: &str) -> Trouble {
    let why = "its dead letters are held and do not move: the queue that they lead to is full, gone or without a majority; make room there, and they move within six minutes".to_owned();
    Trouble { blocked: Blocked { by: BlockedBy::Stuck, object: format!("queue {queue}"), why }, by: None }
}

/// Consumers, from look to look.
///
/// Right after a consumer came the broker may not tell yet whose it is. It is told with its
/// user's name, so that one whose user is unknown counts only if it still is at the next look.
#[derive(Clone, Debug, Default)]
pub struct Consumers {
    unnamed: BTreeSet<String>,
}

impl Consumers {
    /// Takes a look, the users by queue, and says which of them count.
    pub fn look(
        &mut self,
        mut found: BTreeMap<String, BTreeSet<String>>,
    ) -> BTreeMap<String, BTreeSet<String>> {
        let before = std::mem::take(&mut self.unnamed);
        found.retain(|queue, users| {
            let is_unnamed = users.remove("") && users.is_empty();
            if is_unnamed {
                users.insert(String::new());
                self.unnamed.insert(queue.clone());
            }
            !is_unnamed || before.contains(queue)
        });
        found
    }
}

/// Dead letters that wait in queues, from look to look.
///
/// A queue at work has some on their way at nearly every look, but their number falls now and
/// then. Where it never does, they are stuck: none leaves, and others may come.
#[derive(Clone, Debug, Default)]
pub struct Waiting(BTreeMap<String, Held>);

#[derive(Clone, Copy, Debug)]
struct Held {
    count: i64,
    /// When the count last fell, or was first seen.
    since: Duration,
    /// Whether they were stuck before anything was counted here.
    recalled: bool,
}

impl Waiting {
    /// Takes a look: how many dead letters wait in each queue. A queue that is not named, or has
    /// none, is forgotten. `now` is what any clock says that only goes forward.
    pub fn look(&mut self, now: Duration, counts: impl IntoIterator<Item = (String, i64)>) {
        let before = std::mem::take(&mut self.0);
        let waiting = counts.into_iter().filter(|(_, count)| *count > 0);
        self.0 = waiting
            .map(|(name, count)| {
                let held = before.get(&name).filter(|held| held.count <= count);
                let since = held.map_or(now, |held| held.since);
                let recalled = held.is_some_and(|held| held.recalled);
                (name, Held { count, since, recalled })
            })
            .collect();
    }

    /// Takes a queue's dead letters for stuck at once, if it has any: an operator before this one
    /// has seen them for long enough.
    pub fn recall(&mut self, queue: &str) {
        if let Some(held) = self.0.get_mut(queue) {
            held.recalled = true;
        }
    }

    /// Queues of which none has left for so long.
    #[must_use]
    pub fn stuck(&self, now: Duration, after: Duration) -> BTreeSet<String> {
        let is_old = |held: &Held| held.recalled || now.saturating_sub(held.since) >= after;
        let old = self.0.iter().filter(|(_, held)| is_old(held));
        old.map(|(name, _)| name.clone()).collect()
    }

    /// How many a queue has.
    #[must_use]
    pub fn count(&self, queue: &str) -> i64 {
        self.0.get(queue).map_or(0, |held| held.count)
    }

    /// Whether no queue has any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    fn stuck_after(counts: &[i64]) -> Vec<String> {
        let mut waiting = Waiting::default();
        for (minute, count) in (0..).zip(counts) {
            waiting.look(at(60 * minute), [("orders".to_owned(), *count)]);
        }
        let end = u64::try_from(counts.len()).unwrap().saturating_sub(1) * 60;
        waiting.stuck(at(end), LONG).into_iter().collect()
    }

    #[test]
    fn dead_letters_that_stay_or_grow_for_five_minutes_are_stuck() {
        assert_eq!(stuck_after(&[32, 32, 32, 32, 32, 32]), ["orders"]);
        assert_eq!(stuck_after(&[0, 0, 1, 5, 32, 32, 700, 700]), ["orders"]);
    }

    #[test]
    fn dead_letters_that_fall_now_and_then_move() {
        assert!(stuck_after(&[32, 32, 32, 32, 32]).is_empty(), "four minutes are no five");
        assert!(stuck_after(&[3, 5, 4, 4, 4, 6, 6]).is_empty(), "it fell four minutes ago");
        assert!(stuck_after(&[9, 9, 9, 9, 9, 9, 0]).is_empty());
        assert!(stuck_after(&[9, 9, 9, 0, 9, 9, 9]).is_empty());
    }

    #[test]
    fn what_was_stuck_before_a_restart_is_stuck_until_some_leave() {
        let mut waiting = Waiting::default();
        waiting.look(at(0), [("orders".to_owned(), 3)]);
        waiting.recall("orders");
        waiting.recall("empty");
        assert_eq!(waiting.stuck(at(0), LONG).into_iter().collect::<Vec<_>>(), ["orders"]);
        waiting.look(at(60), [("orders".to_owned(), 3)]);
        assert!(!waiting.stuck(at(60), LONG).is_empty());
        waiting.look(at(120), [("orders".to_owned(), 2)]);
        assert!(waiting.stuck(at(120), LONG).is_empty());
        let report = format!("x; {}", stuck("orders").blocked);
        assert!(says_stuck(&report, "orders") && !says_stuck(&report, "rders"));
    }

    #[test]
    fn a_consumer_whose_user_is_not_known_yet_counts_at_the_second_look() {
        let found = |queues: &[(&str, &[&str])]| -> BTreeMap<String, BTreeSet<String>> {
            let users = |users: &[&str]| users.iter().map(|user| (*user).to_owned()).collect();
            queues.iter().map(|(queue, of)| ((*queue).to_owned(), users(of))).collect()
        };
        let mut consumers = Consumers::default();
        let first = consumers.look(found(&[("a", &[""]), ("b", &["", "shop"]), ("c", &[""])]));
        assert_eq!(first, found(&[("b", &["shop"])]));
        let second = consumers.look(found(&[("a", &["shop"]), ("c", &[""]), ("d", &[""])]));
        assert_eq!(second, found(&[("a", &["shop"]), ("c", &[""])]));
        assert_eq!(consumers.look(found(&[("c", &[""])])), found(&[("c", &[""])]));
        assert_eq!(consumers.look(found(&[])), found(&[]));
        assert_eq!(consumers.look(found(&[("c", &[""])])), found(&[]), "another one, perhaps");
    }

    #[test]
    fn a_queue_that_is_not_counted_is_forgotten() {
        let mut waiting = Waiting::default();
        waiting.look(at(0), [("orders".to_owned(), 3)]);
        assert!(!waiting.is_empty());
        waiting.look(at(200), []);
        assert!(waiting.is_empty());
        waiting.look(at(400), [("orders".to_owned(), 3)]);
        assert!(waiting.stuck(at(600), LONG).is_empty());
    }
}
