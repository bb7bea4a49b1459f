//! A look at single objects, for a few pipelines in a large vhost.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};

use super::error::BrokerError;
use super::http::{About, Call};
use super::lenient::{Lenient, Row};
use super::management::{IN_FLIGHT, Management};
use super::path;
use super::snapshot::{EXCHANGES, QUEUES};
use super::wire::{BindingRow, ExchangeRow, QueueRow};
use crate::topology::model::Binding;
use crate::topology::names::OWNER_EXCHANGE;
use crate::topology::observed::Observed;

/// Which objects to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Queues, with all bindings that lead to them.
    pub queues: BTreeSet<String>,
    /// Exchanges, with all bindings that lead to them.
    pub exchanges: BTreeSet<String>,
    /// Those exchanges whose own bindings are wanted as well.
    pub closed: BTreeSet<String>,
}

impl Management {
    /// Reads these objects and all policies of a vhost. Of whatever else is there
    /// the result says nothing, so that "nothing else leads there" can't be told
    /// from it.
    ///
    /// A request for each object, and one more for the bindings of each that
    /// exists; for more than a few pipelines [`Management::snapshot`] is cheaper.
    ///
    /// # Errors
    /// As [`Management::snapshot`].
    pub async fn look(&self, vhost: &str, names: &Names) -> Result<Observed, BrokerError> {
        // The policies first: they tell a missing vhost from missing objects.
        let lists = futures::try_join!(self.policies("policies", vhost), self.operator_policies(vhost));
        let (policies, operator_policies) = self.explained(vhost, lists).await?;
        let mut observed = Observed::default();
        observed.policies = policies;
        observed.operator_policies = operator_policies;
        let (queues, exchanges) = futures::try_join!(
            self.each("queues", QUEUES, vhost, &names.queues, Some),
            self.each("exchanges", EXCHANGES, vhost, &names.exchanges, ExchangeRow::into_exchange),
        )?;
        queues.into_iter().for_each(|row: QueueRow| row.add_to(&mut observed));
        observed.exchanges.extend(exchanges);
        let bindings = self.bindings_of(vhost, &observed, &names.closed).await?;
        observed.set_bindings(bindings);
        Ok(observed)
    }

    /// Objects by name, without those that do not exist.
    async fn each<R: Row, T>(
        &self,
        kind: &'static str,
        query: &'static str,
        vhost: &str,
        names: &BTreeSet<String>,
        read: fn(R) -> Option<T>,
    ) -> Result<Vec<T>, BrokerError> {
        let objects: Vec<Option<T>> = stream::iter(names.iter().cloned().collect::<Vec<_>>())
            .map(async |name| {
                let about = About::new("read", format!("{kind} {name:?}"), vhost);
                let call = Call::get(path::api(&[kind, vhost, &name])?, query, about);
                match self.send(call, &[]).await {
                    Ok(answer) => Ok(read(answer.json::<Lenient<R>>().await?.0)),
                    Err(BrokerError::NotFound { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            })
            .buffer_unordered(IN_FLIGHT)
            .try_collect()
            .await?;
        Ok(objects.into_iter().flatten().collect())
    }

    /// The bindings to what was observed, and those from the exchanges named.
    async fn bindings_of(
        &self,
        vhost: &str,
        observed: &Observed,
        closed: &BTreeSet<String>,
    ) -> Result<BTreeSet<Binding>, BrokerError> {
        let to_queues = observed.queues.keys().map(|name| End::ToQueue(name.clone()));
        let exchanges = observed.exchanges.keys().filter(|name| *name != OWNER_EXCHANGE);
        let to_exchanges = exchanges.map(|name| End::ToExchange(name.clone()));
        let closed = closed.iter().filter(|name| observed.exchanges.contains_key(*name));
        let from_exchanges = closed.map(|name| End::FromExchange(name.clone()));
        let ends: Vec<End> = to_queues.chain(to_exchanges).chain(from_exchanges).collect();
        let found: Vec<Vec<Binding>> = stream::iter(ends)
            .map(async |end| self.bindings_at(vhost, &end).await)
            .buffer_unordered(IN_FLIGHT)
            .try_collect()
            .await?;
        // Those between two of the objects are found from both ends.
        Ok(found.into_iter().flatten().collect())
    }

    async fn bindings_at(&self, vhost: &str, end: &End) -> Result<Vec<Binding>, BrokerError> {
        let (name, segments) = match end {
            End::ToQueue(name) => (name, vec!["queues", vhost, name, "bindings"]),
            End::ToExchange(name) => (name, vec!["exchanges", vhost, name, "bindings", "destination"]),
            End::FromExchange(name) => (name, vec!["exchanges", vhost, name, "bindings", "source"]),
        };
        let about = About::new("list", format!("bindings of {name:?}"), vhost);
        let answer = match self.send(Call::get(path::api(&segments)?, "", about), &[]).await {
            // It went in this moment, and its bindings with it.
            Err(BrokerError::NotFound { .. }) => return Ok(Vec::new()),
            answer => answer?,
        };
        let mut bindings = Vec::new();
        answer.rows(|row: BindingRow| bindings.extend(row.into_binding())).await?;
        Ok(bindings)
    }
}

/// One end of the bindings that are asked for.
enum End {
    ToQueue(String),
    ToExchange(String),
    FromExchange(String),
}
