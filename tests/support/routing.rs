//! How a broker routes: a model of one vhost, exact where the topology relies on it.
//!
//! An alternate exchange is asked only where the exchange itself matches nothing,
//! a queue or exchange behind a binding counting as a match whatever it then does;
//! no exchange is asked twice, and no queue gets more than one copy. A random
//! exchange has one outcome for each of its bindings.

#![allow(dead_code, unreachable_pub, reason = "each test crate uses a part of it")]

use std::collections::BTreeSet;

use redrive::topology::effective::{PolicyIndex, Subject};
use redrive::topology::model::{Arg, Args, Binding, Destination, Policy, QueueType};
use redrive::topology::observed::{Observed, ObservedQueue};

/// What becomes of a message that a queue dead-letters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It gets into these queues.
    Queues(BTreeSet<String>),
    /// At-least-once: it stays in its queue until there is a way.
    Held,
    /// It is lost.
    Dropped,
}

/// A message that dies in a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Death {
    /// Why.
    pub reason: &'static str,
    /// The exchange through which it had come.
    pub exchange: String,
    /// Its headers.
    pub headers: Args,
}

/// A vhost at one moment.
pub struct Router<'a> {
    observed: &'a Observed,
    policies: PolicyIndex<'a>,
}

impl<'a> Router<'a> {
    pub fn new(observed: &'a Observed) -> Self {
        let operator = observed.operator_policies.as_deref();
        Self { observed, policies: PolicyIndex::new(&observed.policies, operator) }
    }

    /// Every possible outcome for a message that dies in a queue.
    pub fn fates(&self, queue: &str, death: &Death) -> BTreeSet<Fate> {
        let Some(found) = self.observed.queues.get(queue) else { return BTreeSet::new() };
        let way = self.way(queue, found);
        let lost = if way.at_least_once { Fate::Held } else { Fate::Dropped };
        let Some(exchange) = way.exchange else { return [Fate::Dropped].into() };
        let mut headers = death.headers.clone();
        headers.insert("x-last-death-reason".into(), death.reason.into());
        headers.insert("x-last-death-exchange".into(), death.exchange.as_str().into());
        headers.insert("x-last-death-queue".into(), queue.into());
        let key = way.key.unwrap_or_else(|| "some.key".to_owned());
        let outcomes = self.route(&exchange, &headers, &key);
        let fate =
            |queues: BTreeSet<String>| if queues.is_empty() { lost.clone() } else { Fate::Queues(queues) };
        outcomes.into_iter().map(fate).collect()
    }

    /// Every possible set of queues for a message that enters an exchange.
    pub fn route(&self, exchange: &str, headers: &Args, key: &str) -> Vec<BTreeSet<String>> {
        if exchange.is_empty() {
            let queue = self.observed.queues.contains_key(key).then(|| key.to_owned());
            return vec![queue.into_iter().collect()];
        }
        let walk = Walk {
            todo: vec![exchange.to_owned()],
            seen: [exchange.to_owned()].into(),
            queues: BTreeSet::new(),
        };
        let mut open = vec![walk];
        let mut outcomes = Vec::new();
        while let Some(mut walk) = open.pop() {
            match walk.todo.pop() {
                None => outcomes.push(walk.queues),
                Some(exchange) => open.extend(self.step(&exchange, headers, key, &walk)),
            }
        }
        outcomes
    }

    fn step(&self, exchange: &str, headers: &Args, key: &str, walk: &Walk) -> Vec<Walk> {
        let Some(found) = self.observed.exchanges.get(exchange) else { return vec![walk.clone()] };
        let bindings = self.observed.bindings_from(exchange);
        let matching: Vec<&Destination> = bindings
            .filter(|binding| matches(&found.kind, binding, headers, key))
            .map(|binding| &binding.destination)
            .collect();
        if matching.is_empty() {
            let alternate = self.alternate(exchange).map(Destination::Exchange);
            return vec![walk.with(alternate.iter())];
        }
        if found.kind == "x-random" {
            return matching.into_iter().map(|only| walk.with([only])).collect();
        }
        vec![walk.with(matching)]
    }

    fn alternate(&self, exchange: &str) -> Option<String> {
        let argument = text(self.observed.exchanges.get(exchange)?.arguments.get("alternate-exchange"));
        let policy = self.policies.user(exchange, Subject::Exchange).into_iter().next();
        argument.or_else(|| text(policy?.definition.get("alternate-exchange")))
    }

    fn way(&self, name: &str, queue: &ObservedQueue) -> Way {
        let subject = Subject::Queue(queue.kind);
        let user = self.policies.user(name, subject).into_iter().next();
        let operator = self.policies.operator(name, subject).into_iter().next();
        let by_policy = |policy: Option<&Policy>, key: &str| text(policy?.definition.get(key));
        let argument = |key: &str| text(queue.arguments.get(&format!("x-{key}")));
        // The argument wins, but for overflow.
        let setting = |key: &str| argument(key).or_else(|| by_policy(user, key));
        let overflow = by_policy(operator, "overflow")
            .or_else(|| by_policy(user, "overflow"))
            .or_else(|| argument("overflow"));
        Way {
            exchange: setting("dead-letter-exchange"),
            key: setting("dead-letter-routing-key"),
            at_least_once: queue.kind == QueueType::Quorum
                && setting("dead-letter-strategy").as_deref() == Some("at-least-once")
                && overflow.as_deref() == Some("reject-publish"),
        }
    }
}

struct Way {
    exchange: Option<String>,
    key: Option<String>,
    at_least_once: bool,
}

#[derive(Clone)]
struct Walk {
    todo: Vec<String>,
    seen: BTreeSet<String>,
    queues: BTreeSet<String>,
}

impl Walk {
    fn with<'b>(&self, destinations: impl IntoIterator<Item = &'b Destination>) -> Self {
        let mut walk = self.clone();
        for destination in destinations {
            match destination {
                Destination::Queue(queue) => {
                    walk.queues.insert(queue.clone());
                }
                Destination::Exchange(exchange) if walk.seen.insert(exchange.clone()) => {
                    walk.todo.push(exchange.clone());
                }
                Destination::Exchange(_) => {}
            }
        }
        walk
    }
}

fn text(value: Option<&Arg>) -> Option<String> {
    match value {
        Some(Arg::Str(text)) => Some(text.clone()),
        _ => None,
    }
}

fn matches(kind: &str, binding: &Binding, headers: &Args, key: &str) -> bool {
    match kind {
        "fanout" | "x-random" => true,
        "direct" => binding.routing_key == key,
        "topic" => {
            let pattern: Vec<&str> = binding.routing_key.split('.').collect();
            topic_matches(&pattern, &key.split('.').collect::<Vec<_>>())
        }
        "headers" => headers_match(&binding.arguments, headers),
        other => panic!("no model of exchange type {other}"),
    }
}

fn topic_matches(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern.split_first(), key.split_first()) {
        (None, None) => true,
        (Some((&"#", rest)), _) => (0..=key.len()).any(|skip| topic_matches(rest, &key[skip..])),
        (Some((word, pattern)), Some((found, key))) => {
            (*word == "*" || word == found) && topic_matches(pattern, key)
        }
        _ => false,
    }
}

fn headers_match(wanted: &Args, headers: &Args) -> bool {
    let mode = text(wanted.get("x-match")).unwrap_or_else(|| "all".to_owned());
    let with_x = mode.ends_with("-with-x");
    let mut rules = wanted.iter().filter(|(key, _)| *key != "x-match" && (with_x || !key.starts_with("x-")));
    let equal = |(key, value): (&String, &Arg)| headers.get(key) == Some(value);
    if mode.starts_with("any") { rules.any(equal) } else { rules.all(equal) }
}
