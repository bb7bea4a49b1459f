//! Runs the plans of a batch, stage by stage, side by side.
//!
//! All plans move through the stages together, so that no queue of any of them is
//! declared before the policies of all are written. A plan whose step fails stops
//! there; the others go on.

use std::collections::BTreeMap;

use futures::StreamExt;

use crate::broker::{BrokerError, Declared, Management};
use crate::topology::model::Binding;
use crate::topology::names::OWNER_EXCHANGE;
use crate::topology::plan::{Plan, Stage, Step};

use super::job::Cause;

/// Steps under way at the same time; the client bounds the calls.
const IN_FLIGHT: usize = crate::broker::management::IN_FLIGHT;

/// A plan that was applied: only this makes a status.
#[derive(Debug)]
pub(super) struct Applied {
    /// What stopped it, if anything did.
    pub(super) stopped: Option<Cause>,
}

/// Applies plans, each under an index of its owner's choice.
pub(super) async fn apply(
    management: &Management,
    vhost: &str,
    plans: Vec<(usize, Plan)>,
) -> BTreeMap<usize, Applied> {
    let mut applied: BTreeMap<usize, Applied> =
        plans.iter().map(|(owner, _)| (*owner, Applied { stopped: None })).collect();
    let mut stages: BTreeMap<(Stage, u8), Vec<(usize, Step)>> = BTreeMap::new();
    for (owner, plan) in plans {
        for planned in plan.steps {
            stages.entry((planned.stage, planned.step.rank())).or_default().push((owner, planned.step));
        }
    }
    for (_, steps) in stages {
        let runnable = steps.into_iter().filter(|(owner, _)| is_running(&applied, *owner)).collect();
        let Shared { leaders, followers } = share(runnable);
        run_all(management, vhost, leaders, &mut applied).await;
        let mut marks = Vec::new();
        for (leader, owner, mark) in followers {
            match applied.get(&leader).and_then(|applied| applied.stopped.clone()) {
                Some(cause) => stop(&mut applied, owner, cause),
                None => marks.extend(mark.map(|mark| (owner, Step::Mark(mark)))),
            }
        }
        run_all(management, vhost, marks, &mut applied).await;
    }
    applied
}

fn is_running(applied: &BTreeMap<usize, Applied>, owner: usize) -> bool {
    applied.get(&owner).is_some_and(|applied| applied.stopped.is_none())
}

fn stop(applied: &mut BTreeMap<usize, Applied>, owner: usize, cause: Cause) {
    if let Some(entry) = applied.get_mut(&owner) {
        entry.stopped = Some(cause);
    }
}

/// Steps of one stage; an exchange that several plans declare is declared once.
struct Shared {
    leaders: Vec<(usize, Step)>,
    /// Whose step it is in, whose it is as well, and the marker to add.
    followers: Vec<(usize, usize, Option<Binding>)>,
}

fn share(steps: Vec<(usize, Step)>) -> Shared {
    let mut first: BTreeMap<String, usize> = BTreeMap::new();
    let mut shared = Shared { leaders: Vec::new(), followers: Vec::new() };
    for (owner, step) in steps {
        if let Step::CreateExchange { exchange, marker } = &step {
            if let Some(leader) = first.get(&exchange.name) {
                shared.followers.push((*leader, owner, marker.clone()));
                continue;
            }
            first.insert(exchange.name.clone(), owner);
        }
        shared.leaders.push((owner, step));
    }
    shared
}

/// Runs steps side by side; a plan whose step fails stops there.
async fn run_all(
    management: &Management,
    vhost: &str,
    steps: Vec<(usize, Step)>,
    applied: &mut BTreeMap<usize, Applied>,
) {
    let mut results = futures::stream::iter(steps)
        .map(async |(owner, step)| (owner, run(management, vhost, &step).await))
        .buffer_unordered(IN_FLIGHT);
    while let Some((owner, result)) = results.next().await {
        if let Err(cause) = result {
            stop(applied, owner, cause);
        }
    }
}

async fn run(management: &Management, vhost: &str, step: &Step) -> Result<(), Cause> {
    match step {
        Step::CreateQueue { queue, marker } => {
            let declared = management.put_queue(vhost, queue).await.map_err(Cause::Broker)?;
            mark_new(management, vhost, declared, marker).await
        }
        Step::CreateExchange { exchange, marker } => {
            let declared = management.put_exchange(vhost, exchange).await.map_err(Cause::Broker)?;
            match marker {
                Some(marker) => mark_new(management, vhost, declared, marker).await,
                None => Ok(()),
            }
        }
        Step::Mark(binding) | Step::Bind(binding) => {
            management.bind(vhost, binding).await.map_err(Cause::Broker)
        }
        Step::Unmark(binding) | Step::Unbind(binding) => {
            unless_gone(management.unbind(vhost, binding).await.map(|_| ()))
        }
        Step::SetPolicy(policy) => {
            management.put_policy(vhost, policy).await.map(|_| ()).map_err(Cause::Broker)
        }
        Step::ClearPolicy(name) => unless_gone(management.delete_policy(vhost, name).await.map(|_| ())),
        Step::DeleteQueue(name) => unless_gone(management.delete_queue(vhost, name).await.map(|_| ())),
        Step::DeleteExchange(name) => {
            unless_gone(management.delete_exchange(vhost, name, false).await.map(|_| ()))
        }
    }
}

/// Marks what we have just declared. Where it was there already, somebody else
/// was faster: it is not ours, and the next look decides.
async fn mark_new(
    management: &Management,
    vhost: &str,
    declared: Declared,
    marker: &Binding,
) -> Result<(), Cause> {
    debug_assert_eq!(marker.source, OWNER_EXCHANGE);
    if declared == Declared::Existed {
        return Err(Cause::Raced(marker.destination.to_string()));
    }
    management.bind(vhost, marker).await.map_err(Cause::Broker)
}

/// What is gone already needs no removal.
fn unless_gone(result: Result<(), BrokerError>) -> Result<(), Cause> {
    match result {
        Ok(()) | Err(BrokerError::NotFound { .. } | BrokerError::VhostNotFound { .. }) => Ok(()),
        Err(error) => Err(Cause::Broker(error)),
    }
}
