//! A look at nothing but a few pipelines' own objects.
//!
//! Reading a vhost of a thousand pipelines costs its broker about a second. Where
//! only a few have changed, their own objects are asked for one by one instead.
//! That is enough to declare, to bind and to write policies. Whatever depends on
//! what the rest of the vhost holds (what may be removed, what may be adopted, who
//! else owns an object) is not decided here: the round then reads it whole.

use std::collections::BTreeSet;

use crate::broker::{BrokerError, Names};
use crate::topology::desired;
use crate::topology::effective::PolicyIndex;
use crate::topology::generations;
use crate::topology::model::ObjectKey;
use crate::topology::observed::Observed;
use crate::topology::ownership::{Inventory, State};
use crate::topology::plan::Step;

use super::Lane;
use super::active::{Active, Scope};
use super::compare::{Decision, View, decide};
use super::identity::KnownBroker;
use super::job::{Maintain, Task};
use super::work::Work;

/// So many pipelines are looked at one by one; a broker answers for one in about
/// a quarter of the time that its whole vhost takes, whatever the size.
const FEW: usize = 2;

/// In a vhost of fewer pipelines the whole is as quick.
const MANY: usize = 30;

impl Lane {
    /// Compares all open jobs with their own objects, or says that it takes the
    /// whole vhost.
    pub(super) async fn targeted(
        &mut self,
        active: &mut [Active],
        scope: Scope,
        broker: &KnownBroker,
    ) -> Result<Option<(Work, Observed)>, BrokerError> {
        let open: Vec<&Active> = active.iter().skip(scope.from).filter(|entry| entry.is_open()).collect();
        // What queues do, the first look at the whole vhost shows.
        if self.watch.is_new() || open.len() > FEW || self.shared.count_members(&self.key) < MANY {
            return Ok(None);
        }
        // What drift is, the whole vhost shows, and its own objects would be asked for in vain.
        if open.iter().any(|entry| self.drifted.contains(entry.task.uid())) {
            return Ok(None);
        }
        let mut names = Names::default();
        for entry in &open {
            match &entry.task {
                Task::Maintain(task) => add_names(&mut names, task, &entry.inventory, broker),
                Task::Remove(_) => return Ok(None),
            }
        }
        // Whether the vhost is gone is for the whole look to find out, and it shows what can't
        // be read alone: 4.0 answers 500 for a classic queue whose node is down.
        let observed = match self.management.look(&self.key.vhost, &names).await {
            Err(BrokerError::VhostNotFound { .. } | BrokerError::ServerError { .. }) => return Ok(None),
            other => other?,
        };
        let work = self.decide_targeted(active, scope, broker, &names, &observed);
        Ok(work.map(|work| (work, observed)))
    }

    fn decide_targeted(
        &self,
        active: &mut [Active],
        scope: Scope,
        broker: &KnownBroker,
        names: &Names,
        observed: &Observed,
    ) -> Option<Work> {
        let policies = PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref());
        let seen = self.watch.seen();
        let claims = &self.shared.claims;
        let view = View { broker, observed, policies: &policies, claims, seen: &seen, ear: &self.ear };
        let mut decisions = Vec::new();
        for (index, entry) in active.iter().enumerate().skip(scope.from).filter(|(_, entry)| entry.is_open())
        {
            let Task::Maintain(task) = &entry.task else { return None };
            let decision = decide(task, &entry.inventory, &BTreeSet::new(), view);
            if !stands(&decision, &entry.inventory, names) {
                return None;
            }
            decisions.push((index, decision));
        }
        let mut work = Work::default();
        for (index, decision) in decisions {
            work.take(index, &mut active[index], decision, scope.turns);
        }
        Some(work)
    }
}

/// Adds all objects that a comparison of this pipeline asks for.
fn add_names(names: &mut Names, task: &Maintain, inventory: &Inventory, broker: &KnownBroker) {
    for key in inventory.keys() {
        match key {
            ObjectKey::Queue(name) => drop(names.queues.insert(name.clone())),
            ObjectKey::Exchange(name) => drop(names.exchanges.insert(name.clone())),
            ObjectKey::Policy(_) | ObjectKey::Binding { .. } => {}
        }
    }
    // With nothing observed, the newest known generations are wanted.
    let generations =
        generations::choose(&task.pipeline, &broker.facts, &Observed::default(), inventory, false);
    let desired = desired::build(&task.pipeline, &broker.facts, &generations);
    names.queues.extend(desired.queues.into_iter().map(|wanted| wanted.queue.name));
    for wanted in desired.exchanges {
        if wanted.closed {
            names.closed.insert(wanted.exchange.name.clone());
        }
        names.exchanges.insert(wanted.exchange.name);
    }
    names.exchanges.extend(desired.bindings.into_iter().map(|wanted| wanted.binding.source));
    names.exchanges.insert(crate::topology::names::OWNER_EXCHANGE.to_owned());
}

/// Whether a decision on so little holds for the whole vhost.
fn stands(decision: &Decision, inventory: &Inventory, names: &Names) -> bool {
    let Decision { comparison, maintained, .. } = decision;
    let queues: BTreeSet<&str> =
        comparison.desired.queues.iter().map(|wanted| wanted.queue.name.as_str()).collect();
    let exchanges: BTreeSet<&str> =
        comparison.desired.exchanges.iter().map(|wanted| wanted.exchange.name.as_str()).collect();
    let all_seen = queues.iter().all(|name| names.queues.contains(*name))
        && exchanges.iter().all(|name| names.exchanges.contains(*name));
    let all_wanted = inventory.iter().all(|(key, record)| {
        record.state != State::Intended
            && match key {
                ObjectKey::Queue(name) => queues.contains(name.as_str()),
                ObjectKey::Exchange(name) => exchanges.contains(name.as_str()),
                ObjectKey::Policy(_) | ObjectKey::Binding { .. } => true,
            }
    });
    // What is there without a marker of ours needs more than its own objects.
    let declares_only = comparison.plan.steps.iter().all(|planned| {
        matches!(
            planned.step,
            Step::CreateQueue { .. }
                | Step::CreateExchange { .. }
                | Step::Bind(_)
                | Step::Unbind(_)
                | Step::SetPolicy(_)
        )
    });
    let untroubled = maintained.blocked.is_empty()
        && maintained.draining.is_empty()
        && comparison.forgotten.is_empty()
        && decision.findings.is_empty();
    all_seen && all_wanted && declares_only && untroubled
}
