//! Foreign policies that would lose messages or send them astray.
//!
//! Only one user policy applies to a queue, and one operator policy on top, so
//! a wildcard that somebody else wrote can destroy what a pipeline promises. Such
//! policies are refused before the first write and reported at once afterwards.

use super::desired::{DEFAULT_DELIVERY_LIMIT, DesiredQueue, QueueRole, policy_name};
use super::effective::{PolicyIndex, Subject};
use super::model::{Arg, Args, Policy, QueueType};
use super::spec::Identity;

/// A key of a foreign policy that must not apply to one of our queues.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Danger {
    /// The policy's name.
    pub policy: String,
    /// Whether it is an operator policy.
    pub operator: bool,
    /// The key.
    pub key: String,
    /// Its value, as text.
    pub value: String,
    /// What it would do.
    pub effect: &'static str,
}

impl std::fmt::Display for Danger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.operator { "operator policy" } else { "policy" };
        write!(
            f,
            "{kind} {:?} sets {}: {}, which {}; narrow its pattern or remove the key",
            self.policy, self.key, self.value, self.effect
        )
    }
}

/// Whether a policy is one of this pipeline's, by its name; also one that it does
/// not want any more.
#[must_use]
pub fn is_own(owner: &Identity, policy: &Policy) -> bool {
    policy.name.starts_with(&policy_name(owner, ""))
}

/// What is dangerous among the policies of others that would apply to a queue,
/// given the one that we want for it.
#[must_use]
pub fn dangers(
    owner: &Identity,
    queue: &DesiredQueue,
    ours: Option<&Policy>,
    index: &PolicyIndex<'_>,
) -> Vec<Danger> {
    let subject = Subject::Queue(queue.queue.kind);
    let name = &queue.queue.name;
    let foreign = index.user(name, subject).into_iter().find(|policy| !is_own(owner, policy));
    let beats_ours = |policy: &&Policy| ours.is_none_or(|ours| policy.priority >= ours.priority);
    let user = foreign.filter(beats_ours).map(|policy| (policy, false));
    let operator = index.operator(name, subject).into_iter().next().map(|policy| (policy, true));
    let wanted = Wanted::new(queue, ours);
    user.into_iter()
        .chain(operator)
        .flat_map(|(policy, operator)| wanted.dangers_of(policy, operator))
        .collect()
}

/// An exchange without an alternate of its own must not get one by policy: the
/// messages that it can't route must stay where they are.
#[must_use]
pub fn alternate_by_policy(exchange: &str, index: &PolicyIndex<'_>) -> Option<Danger> {
    let policy = index.user(exchange, Subject::Exchange).into_iter().next()?;
    let value = policy.definition.get("alternate-exchange")?;
    Some(Danger {
        policy: policy.name.clone(),
        operator: false,
        key: "alternate-exchange".to_owned(),
        value: value.to_string(),
        effect: "would lead messages away that must wait here",
    })
}

/// Keys of an External source's own policy that ours can't take over.
#[must_use]
pub fn unmergeable(source: &DesiredQueue, policy: &Policy) -> Vec<Danger> {
    let its_own = ["message-ttl", "max-length", "max-length-bytes"];
    let mut dangers = Wanted::new(source, None).dangers_of(policy, false);
    dangers.retain(|danger| !its_own.contains(&danger.key.as_str()));
    dangers
}

struct Wanted<'a> {
    queue: &'a DesiredQueue,
    ours: Option<&'a Policy>,
}

impl<'a> Wanted<'a> {
    fn new(queue: &'a DesiredQueue, ours: Option<&'a Policy>) -> Self {
        Self { queue, ours }
    }

    fn dangers_of(&self, policy: &Policy, operator: bool) -> Vec<Danger> {
        let definition = &policy.definition;
        definition
            .iter()
            .filter_map(|(key, value)| {
                let effect = self.effect_of(key, value)?;
                Some(Danger {
                    policy: policy.name.clone(),
                    operator,
                    key: key.clone(),
                    value: value.to_string(),
                    effect,
                })
            })
            .collect()
    }

    fn effect_of(&self, key: &str, value: &Arg) -> Option<&'static str> {
        let external = !self.queue.declared;
        match key {
            "expires" => Some("deletes the queue with its messages"),
            "message-ttl" => self.lowers(key, value).then_some("removes messages before their time"),
            "max-length" => self.lowers(key, value).then_some("drops or refuses messages"),
            "max-length-bytes" => Some("drops or refuses messages"),
            "dead-letter-routing-key" => Some("sends dead letters elsewhere"),
            "dead-letter-exchange" if external || self.ends_the_line() => {
                Some("sends dead letters elsewhere")
            }
            // Where we declare the queue, its argument wins.
            "dead-letter-strategy" if external => (*value != Arg::from("at-least-once"))
                .then_some("loses dead letters that can't be delivered at once"),
            "overflow" if self.queue.queue.kind == QueueType::Quorum => {
                (*value != Arg::from("reject-publish")).then_some("switches at-least-once dead-lettering off")
            }
            "delivery-limit" if self.queue.role != QueueRole::Source => {
                matches!(value, Arg::Int(limit) if *limit >= 0)
                    .then_some("drops messages that are merely read")
            }
            // The application's own counts for an External source without a limit of ours.
            "delivery-limit" => self
                .cuts_attempts(value)
                .then_some("takes failing messages for poison before their attempts are used up"),
            _ => None,
        }
    }

    /// Whether a limit of the source's deliveries is below ours, or below the broker's default
    /// where that is wanted. An External source without a limit of ours keeps its own.
    fn cuts_attempts(&self, value: &Arg) -> bool {
        let ours = by_argument(&self.queue.queue.arguments, "delivery-limit")
            .or_else(|| self.ours.and_then(|policy| number(policy.definition.get("delivery-limit"))));
        if ours.is_none() && !self.queue.declared {
            return false;
        }
        matches!(value, Arg::Int(limit) if (0..ours.unwrap_or(DEFAULT_DELIVERY_LIMIT)).contains(limit))
    }

    fn ends_the_line(&self) -> bool {
        matches!(self.queue.role, QueueRole::DeadLetter | QueueRole::Quarantine(_) | QueueRole::ParkingLot)
    }

    /// Whether a foreign limit is below ours, or stands where we set none. The
    /// broker applies the lowest of argument, policy and operator policy.
    fn lowers(&self, key: &str, value: &Arg) -> bool {
        let ours = [
            by_argument(&self.queue.queue.arguments, key),
            self.ours.and_then(|policy| number(policy.definition.get(key))),
        ];
        let Some(lowest) = ours.into_iter().flatten().min() else { return true };
        number(Some(value)).is_none_or(|value| value < lowest)
    }
}

fn by_argument(arguments: &Args, key: &str) -> Option<i64> {
    number(arguments.get(&format!("x-{key}")))
}

fn number(value: Option<&Arg>) -> Option<i64> {
    match value {
        Some(Arg::Int(value)) => Some(*value),
        _ => None,
    }
}
