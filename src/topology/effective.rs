//! Which policy a queue really has, computed from the two policy lists.
//!
//! The queue listing names the effective policy only in some of its forms, and
//! late, so Redrive computes it: of the matching policies the one with the
//! highest priority applies, whole; an operator policy is merged on top.
//!
//! Patterns are searched byte by byte, as Erlang's `re` does: names and patterns
//! are mapped to one character per byte first. A pattern that can't be read here
//! counts as matching, so that a doubt shows instead of hiding. A policy with a key
//! that a queue's type doesn't know is passed over whole, as the broker does.

use std::collections::HashMap;

use super::model::{ApplyTo, Policy, QueueType};
use super::names::escape;

/// What a policy is matched against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A queue of this type.
    Queue(QueueType),
    /// An exchange.
    Exchange,
}

/// Keys that quorum queues don't know (seen on 4.3.6, and so in the sources of 4.0).
const UNKNOWN_TO_QUORUM: [&str; 5] =
    ["max-age", "stream-max-segment-size-bytes", "initial-cluster-size", "queue-mode", "max-priority"];

/// Keys that classic queues don't know.
const UNKNOWN_TO_CLASSIC: [&str; 8] = [
    "max-age",
    "stream-max-segment-size-bytes",
    "initial-cluster-size",
    "delivery-limit",
    "dead-letter-strategy",
    "max-in-memory-length",
    "max-in-memory-bytes",
    "target-group-size",
];

impl Subject {
    fn takes(self, policy: &Policy) -> bool {
        let unknown: &[&str] = match self {
            Self::Queue(QueueType::Quorum) => &UNKNOWN_TO_QUORUM,
            Self::Queue(QueueType::Classic) => &UNKNOWN_TO_CLASSIC,
            Self::Queue(QueueType::Stream) | Self::Exchange => &[],
        };
        self.is_covered_by(policy.apply_to) && !unknown.iter().any(|key| policy.definition.contains_key(*key))
    }

    fn is_covered_by(self, apply_to: ApplyTo) -> bool {
        match self {
            Self::Exchange => matches!(apply_to, ApplyTo::All | ApplyTo::Exchanges),
            Self::Queue(kind) => {
                matches!(apply_to, ApplyTo::All | ApplyTo::Queues) || apply_to == ApplyTo::queues_of(kind)
            }
        }
    }
}

/// Compiled policies of a vhost; compile once per snapshot, ask per object.
#[derive(Debug)]
pub struct PolicyIndex<'a> {
    user: Vec<Compiled<'a>>,
    operator: Vec<Compiled<'a>>,
    /// Patterns of the form `^name\z` or `^name$`, by name: with a thousand
    /// pipelines nearly every policy is one, and a search through all of them
    /// for every queue would take seconds.
    exact: HashMap<String, Vec<&'a Policy>>,
    by_name: HashMap<&'a str, &'a Policy>,
}

#[derive(Debug)]
struct Compiled<'a> {
    policy: &'a Policy,
    pattern: Option<fancy_regex::Regex>,
}

impl<'a> PolicyIndex<'a> {
    /// Compiles the policies of a snapshot.
    #[must_use]
    pub fn new(user: &'a [Policy], operator: Option<&'a [Policy]>) -> Self {
        let mut exact: HashMap<String, Vec<&'a Policy>> = HashMap::new();
        let mut general = Vec::new();
        for policy in user {
            match exact_name(&without_quotes(&policy.pattern)) {
                Some(name) => exact.entry(name).or_default().push(policy),
                None => general.push(compile(policy)),
            }
        }
        let by_name = user.iter().map(|policy| (policy.name.as_str(), policy)).collect();
        let operator = operator.unwrap_or_default().iter().map(compile).collect();
        Self { user: general, operator, exact, by_name }
    }

    /// A user policy by its name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&'a Policy> {
        self.by_name.get(name).copied()
    }

    /// The user policies that match, best first; ties by name, which is how the
    /// broker was seen to decide though it promises nothing.
    #[must_use]
    pub fn user(&self, name: &str, subject: Subject) -> Vec<&'a Policy> {
        let mut found = matching(&self.user, name, subject);
        let exact = self.exact.get(name).into_iter().flatten().copied();
        found.extend(exact.filter(|policy| subject.takes(policy)));
        best_first(found)
    }

    /// The operator policies that match, best first.
    #[must_use]
    pub fn operator(&self, name: &str, subject: Subject) -> Vec<&'a Policy> {
        best_first(matching(&self.operator, name, subject))
    }
}

fn compile(policy: &Policy) -> Compiled<'_> {
    let pattern = one_char_per_byte(&without_quotes(&policy.pattern));
    Compiled { policy, pattern: fancy_regex::Regex::new(&pattern).ok() }
}

fn matching<'a>(compiled: &[Compiled<'a>], name: &str, subject: Subject) -> Vec<&'a Policy> {
    let name = one_char_per_byte(name);
    compiled
        .iter()
        .filter(|entry| subject.takes(entry.policy))
        .filter(|entry| match &entry.pattern {
            Some(pattern) => pattern.is_match(&name).unwrap_or(true),
            None => true,
        })
        .map(|entry| entry.policy)
        .collect()
}

fn best_first(mut policies: Vec<&Policy>) -> Vec<&Policy> {
    policies.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name)));
    policies
}

/// Bytes beyond ASCII become characters that are neither letters nor digits nor
/// blanks, as they are to the broker.
fn one_char_per_byte(text: &str) -> String {
    let character = |byte: u8| match byte {
        0..=127 => char::from(byte),
        _ => char::from_u32(0xE000 + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER),
    };
    text.bytes().map(character).collect()
}

/// Escapes what stands between `\Q` and `\E`, which only the broker's engine knows.
fn without_quotes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some((before, quoted)) = rest.split_once("\\Q") {
        let (literal, after) = quoted.split_once("\\E").unwrap_or((quoted, ""));
        out.push_str(before);
        out.push_str(&escape(literal));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The one name that a pattern of escaped literals between anchors matches.
pub(super) fn exact_name(pattern: &str) -> Option<String> {
    // `$` also matches before a final line break, but no name can hold one.
    let inner = pattern.strip_prefix('^')?;
    let inner = inner.strip_suffix("\\z").or_else(|| inner.strip_suffix('$'))?;
    let mut name = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                let escaped = characters.next()?;
                // A backslash before a letter or digit is a class, not a literal.
                if escaped.is_alphanumeric() {
                    return None;
                }
                name.push(escaped);
            }
            '.' | '+' | '*' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '^' | '$' => return None,
            literal => name.push(literal),
        }
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::super::names::exact_pattern;
    use super::*;

    fn policy(name: &str, pattern: &str, priority: i64, apply_to: ApplyTo) -> Policy {
        Policy { name: name.into(), pattern: pattern.into(), apply_to, priority, definition: [].into() }
    }

    fn winner(policies: &[Policy], queue: &str) -> Option<String> {
        let index = PolicyIndex::new(policies, None);
        index.user(queue, Subject::Queue(QueueType::Quorum)).first().map(|policy| policy.name.clone())
    }

    #[test]
    fn an_exact_pattern_matches_its_name_and_no_other() {
        for name in [
            "a+b",
            "a(b)",
            "a[b]",
            "a$b",
            "a^b",
            "a?b",
            "a*b",
            "a{2}b",
            "a\\b",
            "a|b",
            "orders.retry.1",
            "zakaz-é",
            "%2F",
        ] {
            let policies = [policy("p", &exact_pattern(name), 1, ApplyTo::Queues)];
            assert_eq!(winner(&policies, name).as_deref(), Some("p"), "{name}");
            assert_eq!(exact_name(&policies[0].pattern).as_deref(), Some(name));
            for other in [format!("{name}0"), format!("x{name}"), name.replace('.', "X")] {
                assert!(other == name || winner(&policies, &other).is_none(), "{name} matched {other}");
            }
        }
    }

    #[test]
    fn a_dot_matches_one_byte_and_not_one_letter() {
        let policies = [policy("p", "^zakaz-.$", 1, ApplyTo::All)];
        assert_eq!(winner(&policies, "zakaz-é"), None);
        assert_eq!(winner(&policies, "zakaz-e").as_deref(), Some("p"));
    }

    #[test]
    fn the_highest_priority_wins_among_those_that_apply() {
        let policies = [
            policy("low", "", 1, ApplyTo::All),
            policy("high", "^(?!amq\\.).*", 5, ApplyTo::QuorumQueues),
            policy("other-type", ".*", 9, ApplyTo::ClassicQueues),
            policy("exchanges", ".*", 9, ApplyTo::Exchanges),
        ];
        assert_eq!(winner(&policies, "orders").as_deref(), Some("high"));
        assert_eq!(winner(&policies, "amq.gen").as_deref(), Some("low"));
    }

    #[test]
    fn letters_beyond_ascii_are_no_word_characters() {
        assert_eq!(winner(&[policy("p", "^zakaz-\\w\\w$", 1, ApplyTo::All)], "zakaz-é"), None);
        assert_eq!(winner(&[policy("p", "^zakaz-..$", 1, ApplyTo::All)], "zakaz-é").as_deref(), Some("p"));
    }

    #[test]
    fn a_quoted_pattern_is_taken_literally() {
        let quoted = policy("p", "^\\Qa.b+\\E$", 1, ApplyTo::All);
        assert_eq!(winner(std::slice::from_ref(&quoted), "a.b+").as_deref(), Some("p"));
        assert_eq!(winner(std::slice::from_ref(&quoted), "aXb+"), None);
        assert_eq!(winner(&[policy("p", "^\\Qa.b", 1, ApplyTo::All)], "a.bc").as_deref(), Some("p"));
    }

    #[test]
    fn a_policy_with_a_key_that_the_type_does_not_know_is_passed_over() {
        let lazy = Policy {
            definition: [("queue-mode".to_owned(), "lazy".into())].into(),
            ..policy("lazy", ".*", 9, ApplyTo::All)
        };
        let limit = Policy {
            definition: [("delivery-limit".to_owned(), 3.into())].into(),
            ..policy("limit", ".*", 5, ApplyTo::All)
        };
        let policies = [lazy, limit];
        let index = PolicyIndex::new(&policies, None);
        let names = |kind| -> Vec<&str> {
            index.user("orders", Subject::Queue(kind)).iter().map(|policy| policy.name.as_str()).collect()
        };
        assert_eq!(names(QueueType::Quorum), ["limit"]);
        assert_eq!(names(QueueType::Classic), ["lazy"]);
    }

    #[test]
    fn a_pattern_that_cannot_be_read_counts_as_matching() {
        assert_eq!(winner(&[policy("odd", "(", 1, ApplyTo::All)], "orders").as_deref(), Some("odd"));
    }
}
