//! Which messages a replay moves: those for which every given part holds.
//!
//! Guarantees: no message, however odd, makes it fail; what can't be told, such as the age of
//! a message without any time, does not match. Limits of a run, such as how many messages it
//! moves at most, are the engine's.

pub mod expression;
mod topic;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use expression::{Expression, ExpressionError};
pub use topic::Pattern;

use super::death;
use super::message::{Message, Value};
use super::origin;
use super::run::Fence;

/// What is asked for; empty parts and `None` ask for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Criteria {
    /// Headers with the exact text each must have; numbers and truths as they print.
    pub headers: BTreeMap<String, String>,
    /// Why the message died last: any of these.
    pub reasons: BTreeSet<String>,
    /// The queue in which it died first: any of these.
    pub first_death_queues: BTreeSet<String>,
    /// The routing key that it was first published with, else that it has: any of these topic
    /// patterns.
    pub routing_keys: Vec<String>,
    /// Its id: any of these.
    pub message_ids: BTreeSet<String>,
    /// It entered the queue longer ago than this before the fence.
    pub older_than: Option<Duration>,
    /// It entered the queue less long ago than this before the fence.
    pub newer_than: Option<Duration>,
    /// An expression in CEL.
    pub expression: Option<String>,
}

/// Criteria, ready to be asked.
#[derive(Debug)]
pub struct Selection {
    criteria: Criteria,
    patterns: Vec<Pattern>,
    expression: Option<Expression>,
}

/// What a selection says of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is selected.
    Yes,
    /// It is not.
    No,
    /// It is not, as the expression failed on it: a missing key, a wrong type, too much work.
    Failed,
}

impl Selection {
    /// Makes criteria ready; `allow_body` says whether the expression may read bodies.
    ///
    /// # Errors
    /// [`ExpressionError`], with the place in the text and what to write instead.
    pub fn new(criteria: Criteria, allow_body: bool) -> Result<Self, ExpressionError> {
        let compile = |source: &String| Expression::new(source, allow_body);
        let expression = criteria.expression.as_ref().map(compile).transpose()?;
        let patterns = criteria.routing_keys.iter().map(|pattern| Pattern::new(pattern)).collect();
        Ok(Self { criteria, patterns, expression })
    }

    /// Whether the body must be there when a message is asked about.
    #[must_use]
    pub fn reads_body(&self) -> bool {
        self.expression.as_ref().is_some_and(Expression::reads_body)
    }

    /// Whether a message is selected. The cheap parts come first, the expression last.
    #[must_use]
    pub fn answer(&self, message: &Message, fence: Fence) -> Answer {
        let fits = self.fits_headers(message)
            && self.fits_id(message)
            && self.fits_deaths(message)
            && self.fits_routing_key(message)
            && self.fits_age(message, fence);
        if !fits {
            return Answer::No;
        }
        match &self.expression {
            None => Answer::Yes,
            Some(expression) => match expression.holds(message) {
                Some(true) => Answer::Yes,
                Some(false) => Answer::No,
                None => Answer::Failed,
            },
        }
    }

    fn fits_headers(&self, message: &Message) -> bool {
        let printed = |name: &String| message.properties.header(name).and_then(Value::printed);
        self.criteria.headers.iter().all(|(name, wanted)| printed(name).as_ref() == Some(wanted))
    }

    fn fits_id(&self, message: &Message) -> bool {
        any_of(&self.criteria.message_ids, message.properties.message_id.as_ref())
    }

    fn fits_deaths(&self, message: &Message) -> bool {
        if self.criteria.reasons.is_empty() && self.criteria.first_death_queues.is_empty() {
            return true;
        }
        let deaths = death::deaths(message);
        let queue = deaths.first.and_then(|first| first.queue);
        any_of(&self.criteria.reasons, deaths.last_reason.as_ref())
            && any_of(&self.criteria.first_death_queues, queue.as_ref())
    }

    fn fits_routing_key(&self, message: &Message) -> bool {
        if self.patterns.is_empty() {
            return true;
        }
        let origin = origin::origin(message).map(|origin| origin.routing_key);
        let key = origin.as_deref().unwrap_or(&message.routing_key);
        self.patterns.iter().any(|pattern| pattern.matches(key))
    }

    fn fits_age(&self, message: &Message, fence: Fence) -> bool {
        let Criteria { older_than, newer_than, .. } = &self.criteria;
        if older_than.is_none() && newer_than.is_none() {
            return true;
        }
        let Some(entered) = death::entered(message) else { return false };
        // What entered after the fence, by another clock, is as new as can be.
        let age = Duration::from_millis(fence.time.saturating_sub(entered.saturating_mul(1_000)));
        older_than.is_none_or(|least| age > least) && newer_than.is_none_or(|most| age < most)
    }
}

fn any_of(wanted: &BTreeSet<String>, found: Option<&String>) -> bool {
    wanted.is_empty() || found.is_some_and(|found| wanted.contains(found))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use crate::replay::message::{Properties, Table};

    const FENCE: Fence = Fence { count: 10, time: 1_000_000_000 };

    fn answer(change: impl FnOnce(&mut Criteria), message: &Message) -> Answer {
        let mut criteria = Criteria::default();
        change(&mut criteria);
        Selection::new(criteria, false).unwrap().answer(message, FENCE)
    }

    fn texts<T: FromIterator<String>>(texts: &[&str]) -> T {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn dead(key: &str, seconds_before_fence: u64) -> Message {
        let entry = Table::from([
            ("queue".to_owned(), Value::from("orders")),
            ("reason".to_owned(), Value::from("rejected")),
            ("exchange".to_owned(), Value::from("shop")),
            ("routing-keys".to_owned(), Value::Array(vec![Value::from(key)])),
            ("time".to_owned(), Value::Timestamp(FENCE.time / 1_000 - seconds_before_fence)),
        ]);
        let headers = Table::from([
            ("x-death".to_owned(), Value::Array(vec![Value::Table(entry)])),
            ("number".to_owned(), Value::I32(42)),
            ("truth".to_owned(), Value::Bool(true)),
            ("text".to_owned(), Value::from("Timeout")),
            ("bytes".to_owned(), Value::Bytes(b"Timeout".to_vec())),
        ]);
        let properties = Properties {
            headers: Some(headers),
            message_id: Some("m-1".to_owned()),
            ..Properties::default()
        };
        Message { properties, routing_key: "last.key".to_owned(), ..Message::default() }
    }

    #[test]
    fn no_criteria_select_everything() {
        assert_eq!(answer(|_| {}, &Message::default()), Answer::Yes);
    }

    #[test]
    fn headers_are_compared_as_they_print() {
        let cases = [
            ("number", "42", Answer::Yes),
            ("number", "042", Answer::No),
            ("truth", "true", Answer::Yes),
            ("text", "Timeout", Answer::Yes),
            ("text", "timeout", Answer::No),
            ("bytes", "Timeout", Answer::No),
            ("missing", "", Answer::No),
        ];
        for (name, text, expected) in cases {
            let headers = BTreeMap::from([(name.to_owned(), text.to_owned())]);
            assert_eq!(
                answer(|criteria| criteria.headers = headers, &dead("k", 1)),
                expected,
                "{name}={text}"
            );
        }
    }

    #[test]
    fn reasons_queues_and_ids_are_lists_of_alternatives() {
        let message = dead("k", 1);
        let fits = |change: fn(&mut Criteria)| answer(change, &message) == Answer::Yes;
        assert!(fits(|criteria| criteria.reasons = texts(&["expired", "rejected"])));
        assert!(!fits(|criteria| criteria.reasons = texts(&["expired"])));
        assert!(fits(|criteria| criteria.first_death_queues = texts(&["orders"])));
        assert!(!fits(|criteria| criteria.first_death_queues = texts(&["carts"])));
        assert!(fits(|criteria| criteria.message_ids = texts(&["m-1", "m-2"])));
        assert!(!fits(|criteria| criteria.message_ids = texts(&["m-2"])));
        assert_eq!(
            answer(|criteria| criteria.reasons = texts(&["rejected"]), &Message::default()),
            Answer::No
        );
    }

    #[test]
    fn the_routing_key_is_the_first_one_where_it_is_known() {
        let message = dead("orders.created", 1);
        let patterns = |pattern: &str| answer(|criteria| criteria.routing_keys = texts(&[pattern]), &message);
        assert_eq!(patterns("orders.*"), Answer::Yes);
        assert_eq!(patterns("last.#"), Answer::No);
        let unknown = Message { routing_key: "last.key".to_owned(), ..Message::default() };
        assert_eq!(answer(|criteria| criteria.routing_keys = texts(&["last.#"]), &unknown), Answer::Yes);
    }

    #[test]
    fn ages_count_from_the_fence_and_not_from_now() {
        let minute = Some(Duration::from_secs(60));
        for (seconds, older, newer) in [(59, false, true), (60, false, false), (61, true, false)] {
            let message = dead("k", seconds);
            assert_eq!(answer(|criteria| criteria.older_than = minute, &message) == Answer::Yes, older);
            assert_eq!(answer(|criteria| criteria.newer_than = minute, &message) == Answer::Yes, newer);
        }
        let ageless = Message::default();
        assert_eq!(answer(|criteria| criteria.older_than = minute, &ageless), Answer::No);
        assert_eq!(answer(|criteria| criteria.newer_than = minute, &ageless), Answer::No);
    }

    #[test]
    fn every_part_must_hold_and_a_failing_expression_is_told_apart() {
        let message = dead("k", 1);
        let with = |expression: &str, id: &str| {
            answer(
                |criteria| {
                    criteria.expression = Some(expression.to_owned());
                    criteria.message_ids = texts(&[id]);
                },
                &message,
            )
        };
        assert_eq!(with("headers.number == 42", "m-1"), Answer::Yes);
        assert_eq!(with("headers.number == 43", "m-1"), Answer::No);
        assert_eq!(with("headers.missing == 42", "m-1"), Answer::Failed);
        assert_eq!(with("headers.number == 42", "m-2"), Answer::No);
    }
}
