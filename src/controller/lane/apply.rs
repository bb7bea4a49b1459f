//! Writes plans, each step after step of its own, many of them side by side.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use tokio::sync::OnceCell;

use crate::broker::management::IN_FLIGHT;
use crate::broker::{BrokerError, Declared, Management};
use crate::topology::model::{Binding, Exchange};
use crate::topology::names::OWNER_EXCHANGE;
use crate::topology::plan::{Plan, Step};

use super::super::broker_events::Ear;
use super::job::Cause;

/// Plans under way at the same time: enough that the client, which bounds the calls,
/// always has one to make.
pub(super) const PLANS: usize = 2 * IN_FLIGHT;

/// What came of a declaration.
type Outcome = Result<Declared, Cause>;

/// Writes the plans of one round.
pub(super) struct Writer<'a> {
    management: &'a Management,
    vhost: &'a str,
    /// So that what we write is no news to ourselves.
    ear: &'a Ear,
    /// An exchange that several plans declare is declared once.
    exchanges: Mutex<BTreeMap<String, Arc<OnceCell<Outcome>>>>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(management: &'a Management, vhost: &'a str, ear: &'a Ear) -> Self {
        Self { management, vhost, ear, exchanges: Mutex::default() }
    }

    /// Runs the steps of a plan, stage by stage; after the first that fails, no other
    /// stage begins.
    pub(super) async fn run(&self, mut plan: Plan) -> Result<(), Cause> {
        plan.sort();
        let together = plan.steps.chunk_by(|a, b| (a.stage, a.step.rank()) == (b.stage, b.step.rank()));
        for steps in together {
            let calls: Vec<_> = steps.iter().map(|planned| self.step(&planned.step)).collect();
            let mut results = futures::stream::iter(calls).buffer_unordered(IN_FLIGHT);
            let mut failed = None;
            // A write that is under way is not dropped: nobody could say what it did.
            while let Some(result) = results.next().await {
                failed = failed.or(result.err());
            }
            if let Some(cause) = failed {
                return Err(cause);
            }
        }
        Ok(())
    }

    async fn step(&self, step: &Step) -> Result<(), Cause> {
        let (management, vhost) = (self.management, self.vhost);
        match step {
            Step::CreateQueue { queue, marker } => {
                self.ear.expect(step);
                let declared = management.put_queue(vhost, queue).await.map_err(Cause::Broker)?;
                self.mark_new(declared, marker).await
            }
            Step::CreateExchange { exchange, marker } => {
                let declared = self.declare_once(exchange, step).await?;
                match marker {
                    Some(marker) => self.mark_new(declared, marker).await,
                    None => Ok(()),
                }
            }
            Step::Mark(binding) | Step::Bind(binding) => {
                self.ear.expect(step);
                management.bind(vhost, binding).await.map_err(Cause::Broker)
            }
            Step::Unmark(binding) | Step::Unbind(binding) => {
                self.ear.expect(step);
                unless_gone(management.unbind(vhost, binding).await.map(|_| ()))
            }
            Step::SetPolicy(policy) => {
                self.ear.expect(step);
                management.put_policy(vhost, policy).await.map(|_| ()).map_err(Cause::Broker)
            }
            Step::ClearPolicy(name) => {
                self.ear.expect(step);
                unless_gone(management.delete_policy(vhost, name).await.map(|_| ()))
            }
            Step::DeleteQueue(name) => {
                self.ear.expect(step);
                unless_gone(management.delete_queue(vhost, name).await.map(|_| ()))
            }
            Step::DeleteExchange(name) => {
                self.ear.expect(step);
                unless_gone(management.delete_exchange(vhost, name, false).await.map(|_| ()))
            }
        }
    }

    async fn declare_once(&self, exchange: &Exchange, step: &Step) -> Outcome {
        let cell = super::lock(&self.exchanges).entry(exchange.name.clone()).or_default().clone();
        let declare = || async {
            self.ear.expect(step);
            self.management.put_exchange(self.vhost, exchange).await.map_err(Cause::Broker)
        };
        cell.get_or_init(declare).await.clone()
    }

    /// Marks what we have just declared. Where it was there already, somebody else
    /// was faster: it is not ours, and the next look decides.
    async fn mark_new(&self, declared: Declared, marker: &Binding) -> Result<(), Cause> {
        debug_assert_eq!(marker.source, OWNER_EXCHANGE);
        if declared == Declared::Existed {
            return Err(Cause::Raced(marker.destination.to_string()));
        }
        self.ear.expect(&Step::Mark(marker.clone()));
        self.management.bind(self.vhost, marker).await.map_err(Cause::Broker)
    }
}

/// What is gone already needs no removal.
fn unless_gone(result: Result<(), BrokerError>) -> Result<(), Cause> {
    match result {
        Ok(()) | Err(BrokerError::NotFound { .. } | BrokerError::VhostNotFound { .. }) => Ok(()),
        Err(error) => Err(Cause::Broker(error)),
    }
}
