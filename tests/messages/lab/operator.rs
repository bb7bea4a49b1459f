//! A small operator: it looks, compares and applies, as the controller does, with
//! no Kubernetes behind it. The inventory that status would hold stays in memory.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use redrive::broker::moving::move_all;
use redrive::broker::{BrokerError, Endpoint, Management, amqp};
use redrive::topology::diff::{Context, Diff, diff};
use redrive::topology::effective::PolicyIndex;
use redrive::topology::model::Destination;
use redrive::topology::names::OWNER_EXCHANGE;
use redrive::topology::observed::{BrokerFacts, Observed};
use redrive::topology::ownership::Inventory;
use redrive::topology::plan::{Move, Step};
use redrive::topology::validate::Pipeline;
use tokio_util::sync::CancellationToken;

use super::Broker;

/// How long a queue must stay empty and unreachable before it may go. Its totals
/// can be five seconds old, or older where the broker is busy.
const PROOF: Duration = Duration::from_secs(10);

/// What one look led to.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The steps applied.
    pub(crate) steps: Vec<String>,
    /// The steps left for the next look.
    pub(crate) left: Vec<String>,
    /// What stands in the way.
    pub(crate) blocked: Vec<String>,
    /// What was there and is gone.
    pub(crate) missing: Vec<String>,
    /// Queues that wait to be proven empty.
    pub(crate) draining: Vec<String>,
}

/// Keeps one pipeline true in one vhost.
pub(crate) struct Operator {
    pub(crate) management: Management,
    pub(crate) vhost: String,
    pub(crate) facts: BrokerFacts,
    pub(crate) pipeline: Pipeline,
    pub(crate) inventory: Inventory,
    empty_since: BTreeMap<String, Instant>,
    endpoint: Endpoint,
    asking: Option<lapin::Connection>,
    /// The pending plan that is allowed.
    pub(crate) consent: Option<String>,
    /// What the last look wanted to be empty, although something may lead there.
    emptied: BTreeSet<String>,
}

impl Operator {
    pub(crate) fn new(
        management: Management,
        endpoint: Endpoint,
        vhost: &str,
        facts: BrokerFacts,
        pipeline: Pipeline,
    ) -> Self {
        Self {
            management,
            vhost: vhost.to_owned(),
            facts,
            pipeline,
            inventory: Inventory::new(),
            empty_since: BTreeMap::new(),
            endpoint,
            asking: None,
            consent: None,
            emptied: BTreeSet::new(),
        }
    }

    /// Looks once and applies at most so many steps. What is left is found again
    /// by the next look, as after the death of an operator.
    pub(crate) async fn round(&mut self, most: usize) -> Result<Round, BrokerError> {
        let found = self.look().await?;
        let mut round = Round {
            blocked: found.plan.blocked.iter().map(ToString::to_string).collect(),
            draining: found.plan.draining.clone(),
            missing: found.missing.iter().map(ToString::to_string).collect(),
            ..Round::default()
        };
        let (now, later) = found.plan.steps.split_at(most.min(found.plan.steps.len()));
        round.left = later.iter().map(|planned| planned.step.to_string()).collect();
        for planned in now {
            self.apply(&planned.step).await?;
            round.steps.push(planned.step.to_string());
        }
        if round.left.is_empty() {
            self.inventory = found.inventory;
        }
        for moved in &found.plan.moves {
            self.move_messages(moved).await;
        }
        Ok(round)
    }

    /// Wants something else, and allows what it takes.
    pub(crate) async fn allow(&mut self, pipeline: Pipeline) -> Result<(), BrokerError> {
        self.pipeline = pipeline;
        self.consent = self.look().await?.plan.pending.map(|pending| pending.hash);
        Ok(())
    }

    /// What a look would do; all of it is intended from now on.
    pub(crate) async fn plan(&mut self) -> Result<Vec<Step>, BrokerError> {
        Ok(self.look().await?.plan.steps.into_iter().map(|planned| planned.step).collect())
    }

    /// What does not move now moves after a later look.
    async fn move_messages(&self, moved: &Move) {
        let (guard, stop) = (Broker::guard(), CancellationToken::new());
        drop(move_all(&self.endpoint, &guard, &self.vhost, moved, &stop).await);
    }

    async fn look(&mut self) -> Result<Diff, BrokerError> {
        let observed = self.management.snapshot(&self.vhost).await?;
        let proven_empty = self.proven_empty(&observed).await?;
        let policies = PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref());
        let found = diff(&Context {
            pipeline: &self.pipeline,
            facts: &self.facts,
            observed: &observed,
            policies: &policies,
            inventory: &self.inventory,
            adopt: false,
            proven_empty: &proven_empty,
            contested: &BTreeMap::new(),
            edited: true,
            consent: self.consent.as_deref(),
        });
        let deleted = found.plan.steps.iter().filter_map(|planned| match &planned.step {
            Step::DeleteQueue(name) => Some(name),
            _ => None,
        });
        self.emptied = found.plan.draining.iter().chain(deleted).cloned().collect();
        self.inventory = found.intended(&self.inventory);
        Ok(found)
    }

    async fn apply(&self, step: &Step) -> Result<(), BrokerError> {
        let (broker, vhost) = (&self.management, self.vhost.as_str());
        match step {
            Step::CreateQueue { queue, marker } => {
                broker.put_queue(vhost, queue).await?;
                broker.bind(vhost, marker).await
            }
            Step::CreateExchange { exchange, marker } => {
                broker.put_exchange(vhost, exchange).await?;
                match marker {
                    Some(marker) => broker.bind(vhost, marker).await,
                    None => Ok(()),
                }
            }
            Step::Mark(binding) | Step::Bind(binding) => broker.bind(vhost, binding).await,
            Step::Unmark(binding) | Step::Unbind(binding) => broker.unbind(vhost, binding).await.map(|_| ()),
            Step::SetPolicy(policy) => broker.put_policy(vhost, policy).await.map(|_| ()),
            Step::ClearPolicy(name) => broker.delete_policy(vhost, name).await.map(|_| ()),
            Step::DeleteQueue(name) => broker.delete_queue(vhost, name).await.map(|_| ()),
            Step::DeleteExchange(name) => broker.delete_exchange(vhost, name, false).await.map(|_| ()),
        }
    }

    /// Queues that were empty, with nothing leading to them, in two looks, and of which the
    /// broker says now that nothing is ready in them.
    async fn proven_empty(&mut self, observed: &Observed) -> Result<BTreeSet<String>, BrokerError> {
        let unreachable = |name: &str| {
            let queue = Destination::Queue(name.to_owned());
            self.emptied.contains(name)
                || observed.bindings_to(&queue).all(|binding| binding.source == OWNER_EXCHANGE)
        };
        let empty = observed.queues.iter().filter(|(_, queue)| queue.totals.proven_empty());
        let empty: BTreeSet<&String> = empty.map(|(name, _)| name).filter(|name| unreachable(name)).collect();
        self.empty_since.retain(|name, _| empty.contains(name));
        for name in &empty {
            self.empty_since.entry((*name).clone()).or_insert_with(Instant::now);
        }
        let due = self.empty_since.iter().filter(|(_, since)| since.elapsed() >= PROOF);
        let mut proven: BTreeSet<String> = due.map(|(name, _)| name.clone()).collect();
        for name in proven.clone() {
            if self.ready(&name).await? > 0 {
                proven.remove(&name);
                self.empty_since.remove(&name);
            }
        }
        Ok(proven)
    }

    /// How many messages of a queue are ready: exact and current.
    async fn ready(&mut self, queue: &str) -> Result<u32, BrokerError> {
        let asking = self.asking.take().filter(|connection| connection.status().connected());
        let connection = match asking {
            Some(connection) => connection,
            None => {
                amqp::connect(&self.endpoint, &Broker::guard(), &self.vhost, "the lab's operator").await?
            }
        };
        let ready = amqp::ready_count(&connection, &self.endpoint, &self.vhost, queue).await?;
        self.asking = Some(connection);
        Ok(ready.unwrap_or_default())
    }
}
