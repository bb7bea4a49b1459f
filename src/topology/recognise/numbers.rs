//! Limits and times, from a queue's arguments or from a policy of Redrive.

use super::super::desired::DEFAULT_DELIVERY_LIMIT;
use super::super::model::{Arg, Args, Policy, QueueType};
use super::super::observed::{BrokerFacts, ObservedQueue};
use super::super::spec::{Mode, Settings, Source};

/// Where the numbers of a queue are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers<'a> {
    arguments: Option<&'a Args>,
    policy: Option<&'a Policy>,
    /// Keys that another policy gave to ours.
    merged: Option<&'a Policy>,
}

impl<'a> Numbers<'a> {
    pub(super) fn new(queue: Option<&'a ObservedQueue>, policy: Option<&'a Policy>) -> Self {
        Self { arguments: queue.map(|queue| &queue.arguments), policy, merged: None }
    }

    /// Without what the other policy says as well.
    pub(super) fn without(self, other: Option<&'a Policy>) -> Self {
        Self { merged: other, ..self }
    }

    /// A number under a policy's key, or under the argument of that name.
    pub(super) fn get(&self, key: &str) -> Option<i64> {
        let by_policy = self.policy.and_then(|policy| policy.definition.get(key));
        let value = by_policy.or_else(|| self.arguments?.get(&format!("x-{key}")))?;
        let is_merged = self.merged.and_then(|other| other.definition.get(key)) == Some(value);
        integer(value).filter(|_| !is_merged)
    }
}

fn integer(value: &Arg) -> Option<i64> {
    match value {
        Arg::Int(number) => Some(*number),
        _ => None,
    }
}

/// A text among arguments.
pub(super) fn text<'a>(arguments: &'a Args, key: &str) -> Option<&'a str> {
    match arguments.get(key) {
        Some(Arg::Str(text)) => Some(text),
        _ => None,
    }
}

/// The initial group size of a queue.
pub(super) fn group_size(queue: &ObservedQueue) -> Option<i64> {
    queue.arguments.get("x-quorum-initial-group-size").and_then(integer)
}

/// A queue's TTL by argument.
pub(super) fn ttl(queue: &ObservedQueue) -> Option<i64> {
    queue.arguments.get("x-message-ttl").and_then(integer)
}

/// Fills in what a source's numbers say, but for its limit of deliveries.
pub(super) fn read_source(source: &mut Source, numbers: &Numbers<'_>) {
    source.max_length = numbers.get("max-length");
    source.message_ttl = numbers.get("message-ttl");
    source.consumer_timeout = numbers.get("consumer-timeout");
}

/// The limit for one stay that leads to this limit on the source; `None` where the default does.
pub(super) fn delivery_limit(
    kind: QueueType,
    mode: Mode,
    tiers: usize,
    facts: &BrokerFacts,
    on_the_queue: Option<i64>,
) -> Option<i64> {
    let limit = on_the_queue.unwrap_or(DEFAULT_DELIVERY_LIMIT);
    let tiers = i64::try_from(tiers).unwrap_or(i64::MAX - 1);
    let per_stay = match mode {
        _ if kind != QueueType::Quorum => return None,
        Mode::Native { .. } => return None,
        Mode::Broker if facts.counts_deliveries_across_queues() => {
            ((limit - tiers) % (tiers + 1) == 0).then_some((limit - tiers) / (tiers + 1))?
        }
        _ => limit,
    };
    (per_stay != DEFAULT_DELIVERY_LIMIT && per_stay > 0).then_some(per_stay)
}

/// Where numbers are kept, as far as there are any: in policies of ours, or in the arguments.
pub(super) fn settings(policies: &[Option<&Policy>], queues: &[Option<&ObservedQueue>]) -> Settings {
    const TUNABLE: [&str; 5] =
        ["x-max-length", "x-message-ttl", "x-consumer-timeout", "x-delayed-retry-min", "x-delivery-limit"];
    if let Some(policy) = policies.iter().flatten().next() {
        return Settings::Policy { priority: policy.priority };
    }
    // What holds dead letters always has -1 as its limit.
    let in_arguments = |queue: &ObservedQueue| {
        TUNABLE.iter().any(|key| queue.arguments.get(*key).and_then(integer).is_some_and(|number| number > 0))
    };
    if queues.iter().flatten().any(|queue| in_arguments(queue)) {
        return Settings::Arguments;
    }
    Settings::Policy { priority: 10 }
}
