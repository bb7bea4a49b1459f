//! Policies: ours, and those of others that hide them or are dangerous.

use std::collections::BTreeMap;

use super::super::desired::{Desired, DesiredPolicy, DesiredQueue};
use super::super::effective::Subject;
use super::super::model::{Destination, ObjectKey, Policy};
use super::super::ownership::State;
use super::super::plan::{BlockedBy, Stage, Step};
use super::super::policy_check::{self, Danger};
use super::Differ;

impl Differ<'_> {
    pub(super) fn check_policies(&mut self, desired: &Desired) {
        let owner = &self.context.pipeline.identity;
        // A wildcard is one cause, however many queues it meets.
        let mut queues: BTreeMap<Danger, Vec<&str>> = BTreeMap::new();
        for queue in &desired.queues {
            let ours = desired.policies.iter().find(|policy| policy.queue == queue.queue.name);
            let ours = ours.map(|policy| &policy.policy);
            for danger in policy_check::dangers(owner, queue, ours, self.context.policies) {
                queues.entry(danger).or_default().push(&queue.queue.name);
            }
        }
        let mut exchanges: BTreeMap<Danger, Vec<&str>> = BTreeMap::new();
        let without_alternate = desired
            .exchanges
            .iter()
            .filter(|exchange| exchange.closed && exchange.exchange.arguments.is_empty());
        for exchange in without_alternate {
            let name = &exchange.exchange.name;
            if let Some(danger) = policy_check::alternate_by_policy(name, self.context.policies) {
                exchanges.entry(danger).or_default().push(name);
            }
        }
        for (kind, met) in [("queue", queues), ("exchange", exchanges)] {
            for (danger, names) in met {
                self.block(BlockedBy::PolicyShadowed, all_of(kind, names), danger.to_string());
            }
        }
    }

    pub(super) fn policies(&mut self, desired: &Desired) {
        for wanted in &desired.policies {
            let Some(queue) = desired.queues.iter().find(|queue| queue.queue.name == wanted.queue) else {
                continue;
            };
            let Some(policy) = self.policy_to_write(wanted, queue) else { continue };
            self.record(ObjectKey::Policy(policy.name.clone()), State::Created, 1);
            if self.context.policies.named(&policy.name) != Some(&policy) {
                self.plan.push(wanted.stage, Step::SetPolicy(policy));
            }
        }
    }

    /// Our policy with what it must merge, or nothing where it would not hold.
    fn policy_to_write(&mut self, wanted: &DesiredPolicy, queue: &DesiredQueue) -> Option<Policy> {
        let policy = wanted.policy.clone();
        let external = wanted.stage == Stage::Source;
        if external && !self.is_usable(&Destination::Queue(wanted.queue.clone())) {
            return None;
        }
        let owner = &self.context.pipeline.identity;
        let matching = self.context.policies.user(&wanted.queue, Subject::Queue(queue.queue.kind));
        let Some(other) = matching.into_iter().find(|other| !policy_check::is_own(owner, other)) else {
            return Some(policy);
        };
        if other.priority >= policy.priority {
            let by = if external { BlockedBy::PolicyConflict } else { BlockedBy::PolicyShadowed };
            let keys: Vec<&str> = other.definition.keys().map(String::as_str).collect();
            let why = format!(
                "policy {:?} with {} has priority {} and hides ours: write settings.policy.priority above {}",
                other.name,
                keys.join(", "),
                other.priority,
                other.priority
            );
            self.block(by, format!("queue {}", wanted.queue), why);
            // Ours must stand ready for the moment in which the other one goes.
            return (!external).then_some(policy);
        }
        if external { self.merged(policy, queue, other) } else { Some(policy) }
    }

    /// Takes over the keys of an External source's own policy, which ours hides.
    fn merged(&mut self, mut policy: Policy, queue: &DesiredQueue, other: &Policy) -> Option<Policy> {
        let object = format!("queue {}", queue.queue.name);
        if !self.context.pipeline.spec.merge_policy {
            let keys: Vec<&str> = other.definition.keys().map(String::as_str).collect();
            let why = format!(
                "has the policy {:?} with {}, which ours would hide: set mergePolicy: true",
                other.name,
                keys.join(", ")
            );
            self.block(BlockedBy::PolicyConflict, object, why);
            return None;
        }
        let ours = |key: &str| policy.definition.get(key);
        let differs =
            other.definition.iter().find(|(key, value)| ours(key).is_some_and(|ours| ours != *value));
        let mut dangers = policy_check::unmergeable(queue, other).into_iter();
        let danger = dangers.find(|danger| ours(&danger.key).is_none());
        let why = match (differs, danger) {
            (Some((key, value)), _) => format!(
                "policy {:?} sets {key} to {value}, and ours must differ: remove that key from it",
                other.name
            ),
            (None, Some(danger)) => danger.to_string(),
            (None, None) => {
                policy.definition.extend(other.definition.clone());
                return Some(policy);
            }
        };
        self.block(BlockedBy::PolicyConflict, object, why);
        None
    }
}

/// `queue a`, or `queues a, b, c and 4 more`.
fn all_of(kind: &str, mut names: Vec<&str>) -> String {
    const NAMED: usize = 3;
    names.sort_unstable();
    if let [only] = names.as_slice() {
        return format!("{kind} {only}");
    }
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{kind}s {}{more}", names.join(", "))
}
