//! One look at everything in a vhost.

use std::collections::{BTreeMap, HashSet};

use super::error::BrokerError;
use super::http::{About, Call};
use super::lenient::Row;
use super::management::Management;
use super::path;
use super::wire::{BindingRow, ExchangeRow, PolicyRow, QueueRow};
use crate::topology::model::{Args, Policy};
use crate::topology::observed::Observed;

/// Configuration without statistics is fresh (API-01: 0.01 s instead of up to
/// 8.7 s after a change). The totals are current for classic queues and up to
/// 5 s old for quorum queues (measured on 4.0.5 and 4.3.6).
///
/// With the columns named, the broker leaves the rest out, and a thousand
/// pipelines take it half the time.
pub(super) const QUEUES: &str = "?disable_stats=true&enable_queue_totals=true&columns=name,type,durable,auto_delete,exclusive,arguments,state,messages,messages_ready,messages_unacknowledged";
/// Without the totals, for which the broker leaves out each queue that does not work (QQ-07,
/// measured on 4.0.5 and 4.3.6), although it is there with all that it holds.
const ALL_QUEUES: &str =
    "?disable_stats=true&columns=name,type,durable,auto_delete,exclusive,arguments,state";
pub(super) const EXCHANGES: &str =
    "?disable_stats=true&columns=name,type,durable,auto_delete,internal,arguments";
const BINDINGS: &str = "?columns=source,destination,destination_type,routing_key,arguments";

impl Management {
    /// Reads queues with their totals, exchanges, bindings, policies and
    /// operator policies of a vhost: five requests side by side, and one more
    /// where there are queues that the first list left out.
    ///
    /// The five lists are not of one instant: what changes meanwhile can show
    /// in one and not in another, and the next snapshot shows it whole.
    ///
    /// # Errors
    /// [`BrokerError::VhostNotFound`] (see [`Management::vhost_exists`]),
    /// [`BrokerError::Forbidden`] where the user has no permission in the vhost,
    /// [`BrokerError::Unlistable`], and every error of a connection. Operator policies that may not be read
    /// are `None` and no error (4.0.5 and 4.3.6 show them to every user who has
    /// a permission in the vhost).
    pub async fn snapshot(&self, vhost: &str) -> Result<Observed, BrokerError> {
        let mut observed = Observed::default();
        let mut exchanges = BTreeMap::new();
        let mut bindings = Vec::new();
        // All bindings that mark one pipeline's objects have the same arguments.
        let mut known: HashSet<Args> = HashSet::new();
        let mut existing: HashSet<String> = HashSet::new();
        let mut add = |row: BindingRow| {
            existing.extend(row.queue_by_default().map(str::to_owned));
            let Some(mut binding) = row.into_binding() else { return };
            match known.get(&binding.arguments) {
                Some(same) => binding.arguments = same.clone(),
                None => {
                    known.insert(binding.arguments.clone());
                }
            }
            bindings.push(binding);
        };
        let result = futures::try_join!(
            self.list("queues", QUEUES, vhost, |row: QueueRow| row.add_to(&mut observed)),
            self.list("exchanges", EXCHANGES, vhost, |row: ExchangeRow| {
                exchanges.extend(row.into_exchange());
            }),
            self.bindings(vhost, &mut add),
            self.policies("policies", vhost),
            self.operator_policies(vhost),
        );
        let (_, _, _, policies, operator_policies) = self.explained(vhost, result).await?;
        observed.exchanges = exchanges;
        observed.policies = policies;
        observed.operator_policies = operator_policies;
        observed.set_bindings(bindings);
        existing.retain(|name| !observed.queues.contains_key(name));
        if !existing.is_empty() {
            self.list("queues", ALL_QUEUES, vhost, |row: QueueRow| row.add_to(&mut observed)).await?;
        }
        Ok(observed)
    }

    /// A list that does not exist means a vhost that does not.
    pub(super) async fn explained<T>(
        &self,
        vhost: &str,
        result: Result<T, BrokerError>,
    ) -> Result<T, BrokerError> {
        if let Err(BrokerError::NotFound { .. }) = &result {
            self.explain_missing(vhost).await?;
        }
        result
    }

    pub(super) async fn list<T: Row>(
        &self,
        what: &'static str,
        query: &'static str,
        vhost: &str,
        each: impl FnMut(T),
    ) -> Result<(), BrokerError> {
        let about = About::new("list", what, vhost);
        let call = Call::get(path::api(&[what, vhost])?, query, about);
        self.send(call, &[]).await?.rows(each).await
    }

    async fn bindings(&self, vhost: &str, each: impl FnMut(BindingRow)) -> Result<(), BrokerError> {
        match self.list("bindings", BINDINGS, vhost, each).await {
            Err(BrokerError::ServerError { status: 500, .. }) => {
                Err(BrokerError::Unlistable { vhost: vhost.to_owned() })
            }
            result => result,
        }
    }

    pub(super) async fn policies(&self, what: &'static str, vhost: &str) -> Result<Vec<Policy>, BrokerError> {
        let mut policies = Vec::new();
        self.list(what, "", vhost, |row: PolicyRow| policies.extend(row.into_policy())).await?;
        Ok(policies)
    }

    pub(super) async fn operator_policies(&self, vhost: &str) -> Result<Option<Vec<Policy>>, BrokerError> {
        match self.policies("operator-policies", vhost).await {
            Ok(policies) => Ok(Some(policies)),
            Err(BrokerError::Forbidden { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
