//! What arguments and policies make of a queue together.

use std::time::Duration;

use crate::replay::plan::facts::{Kind, QueueFacts};
use crate::topology::effective::{PolicyIndex, Subject};
use crate::topology::model::{Arg, Policy, QueueType};
use crate::topology::observed::{Observed, ObservedExchange, ObservedQueue};

/// The policies of what was observed.
pub(super) fn policies(observed: &Observed) -> PolicyIndex<'_> {
    PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref())
}

/// A queue without what only asking it tells.
pub(super) fn queue(name: &str, queue: &ObservedQueue, policies: &PolicyIndex<'_>) -> QueueFacts {
    let of = Sources::new(name, queue, policies);
    let flag = |key: &str| queue.arguments.get(key) == Some(&Arg::Bool(true));
    let overflow = of.text("overflow");
    let timeout = of.least("consumer-timeout").and_then(|millis| u64::try_from(millis).ok());
    QueueFacts {
        name: name.to_owned(),
        kind: match queue.kind {
            QueueType::Quorum => Kind::Quorum,
            QueueType::Classic => Kind::Classic,
            QueueType::Stream => Kind::Stream,
        },
        available: true,
        exclusive: queue.exclusive,
        single_active_consumer: flag("x-single-active-consumer"),
        delivery_limit: of.delivery_limit(),
        consumers: None,
        ready: None,
        max_length: of.least("max-length"),
        max_length_bytes: of.least("max-length-bytes"),
        rejects: overflow.is_some_and(|overflow| overflow.starts_with("reject-publish")),
        message_ttl: of.least("message-ttl"),
        consumer_timeout: timeout.map(Duration::from_millis),
    }
}

/// Where an exchange sends what it can't route: its argument goes before its policy.
pub(super) fn alternate(
    name: &str,
    exchange: &ObservedExchange,
    policies: &PolicyIndex<'_>,
) -> Option<String> {
    let by_policy = || policies.user(name, Subject::Exchange).first()?.definition.get("alternate-exchange");
    match exchange.arguments.get("alternate-exchange").or_else(by_policy) {
        Some(Arg::Str(alternate)) => Some(alternate.clone()),
        _ => None,
    }
}

/// The places that may set a key: the queue's argument, its policy, its operator policy.
struct Sources<'a> {
    queue: &'a ObservedQueue,
    user: Option<&'a Policy>,
    operator: Option<&'a Policy>,
}

impl<'a> Sources<'a> {
    fn new(name: &str, queue: &'a ObservedQueue, policies: &PolicyIndex<'a>) -> Self {
        let subject = Subject::Queue(queue.kind);
        Self {
            queue,
            user: policies.user(name, subject).first().copied(),
            operator: policies.operator(name, subject).first().copied(),
        }
    }

    /// The values of a key, the argument first.
    fn all(&self, key: &str) -> impl Iterator<Item = &'a Arg> {
        let argument = self.queue.arguments.get(&format!("x-{key}"));
        let policy = |policy: Option<&'a Policy>| policy.and_then(|policy| policy.definition.get(key));
        [argument, policy(self.user), policy(self.operator)].into_iter().flatten()
    }

    fn numbers(&self, key: &str) -> impl Iterator<Item = i64> {
        self.all(key).filter_map(|value| match value {
            Arg::Int(number) => Some(*number),
            _ => None,
        })
    }

    /// Of several numbers the least applies.
    fn least(&self, key: &str) -> Option<i64> {
        self.numbers(key).min()
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.all(key).find_map(|value| match value {
            Arg::Str(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// Of several limits the least applies. A policy's limit beats an argument's -1 (seen on
    /// both series); wherever a limit stands, it counts here, since doubts must forbid reading.
    fn delivery_limit(&self) -> Option<i64> {
        let limits: Vec<i64> = self.numbers("delivery-limit").collect();
        let limited = limits.iter().copied().filter(|limit| *limit >= 0).min();
        limited.or_else(|| limits.into_iter().max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::model::{ApplyTo, Args};
    use crate::topology::observed::Totals;

    fn observed(arguments: Args) -> ObservedQueue {
        ObservedQueue {
            kind: QueueType::Quorum,
            durable: true,
            auto_delete: false,
            exclusive: false,
            arguments,
            totals: Totals::default(),
        }
    }

    fn args<const N: usize>(pairs: [(&str, Arg); N]) -> Args {
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    fn policy(definition: Args) -> Policy {
        let apply_to = ApplyTo::Queues;
        Policy { name: "p".into(), pattern: "^q$".into(), apply_to, priority: 1, definition }
    }

    fn facts(arguments: Args, user: Option<Args>, operator: Option<Args>) -> QueueFacts {
        let user: Vec<Policy> = user.map(policy).into_iter().collect();
        let operator: Vec<Policy> = operator.map(policy).into_iter().collect();
        queue("q", &observed(arguments), &PolicyIndex::new(&user, Some(&operator)))
    }

    #[test]
    fn a_delivery_limit_anywhere_is_a_limit() {
        let limit = |number: i64| args([("delivery-limit", number.into())]);
        let argument = |number: i64| args([("x-delivery-limit", number.into())]);
        let none = Args::new;
        let cases = [
            (facts(none(), None, None), None),
            (facts(argument(-1), None, None), Some(-1)),
            (facts(none(), Some(limit(-1)), None), Some(-1)),
            (facts(argument(-1), Some(limit(2)), None), Some(2)),
            (facts(argument(5), Some(limit(-1)), None), Some(5)),
            (facts(argument(-1), Some(limit(-1)), Some(limit(7))), Some(7)),
            (facts(argument(5), Some(limit(3)), None), Some(3)),
        ];
        for (facts, expected) in cases {
            assert_eq!(facts.delivery_limit, expected);
        }
    }

    #[test]
    fn the_least_number_and_the_first_text_apply() {
        let found = facts(
            args([("x-max-length", 9.into()), ("x-overflow", "reject-publish-dlx".into())]),
            Some(args([
                ("max-length", 7.into()),
                ("overflow", "drop-head".into()),
                ("message-ttl", 5.into()),
            ])),
            Some(args([("max-length", 8.into()), ("consumer-timeout", 60_000.into())])),
        );
        assert_eq!((found.max_length, found.message_ttl, found.rejects), (Some(7), Some(5), true));
        assert_eq!(found.consumer_timeout, Some(Duration::from_secs(60)));
        let single = facts(args([("x-single-active-consumer", true.into())]), None, None);
        assert!(single.single_active_consumer && !single.rejects);
    }
}
