//! Observes what bears on a replay, before anything moves: the origin queue, the target with
//! the queues it reaches, alarms.
//!
//! Guarantees: nothing is written; policies count, not only arguments. Left out: what it
//! means, which `replay::plan::preflight` says.

mod effective;
mod routes;

use std::collections::{BTreeMap, BTreeSet};

use lapin::Connection;

use super::super::amqp::{self, Declared};
use super::super::{BrokerError, Endpoint, Management, Names};
use crate::replay::plan::facts::{ExchangeFacts, Facts, QueueFacts, Routes, TargetFacts};
use crate::replay::run::Target;
use crate::topology::observed::{BrokerFacts, Observed};

/// The longest way through exchanges that is followed.
const MAX_HOPS: usize = 16;

/// The version from which on a consumer may bring its own timeout.
const OWN_TIMEOUT: (u32, u32, u32) = (4, 3, 0);

/// Where to look.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// The management API.
    pub management: &'a Management,
    /// A connection into the vhost, for exact counts.
    pub connection: &'a Connection,
    /// Where that connection leads.
    pub endpoint: &'a Endpoint,
    /// The vhost.
    pub vhost: &'a str,
}

/// What a replay will touch.
#[derive(Clone, Copy, Debug)]
pub struct Touched<'a> {
    /// The queue it reads.
    pub origin: &'a str,
    /// Where it publishes to.
    pub target: &'a Target,
    /// The queue for messages replayed too often.
    pub limit_queue: Option<&'a str>,
}

impl Look<'_> {
    /// Observes what a replay will touch.
    ///
    /// # Errors
    /// [`BrokerError::VhostNotFound`], [`BrokerError::Forbidden`] where something may not be
    /// seen, and every error of a connection.
    pub async fn facts(&self, broker: &BrokerFacts, touched: Touched<'_>) -> Result<Facts, BrokerError> {
        let alarms = self.management.alarms().await?;
        let mut names: BTreeSet<String> = [touched.origin.to_owned()].into();
        names.extend(touched.limit_queue.map(str::to_owned));
        let mut routes = Routes::default();
        let mut exchanges = BTreeSet::new();
        match touched.target {
            Target::Queue(queue) => drop(names.insert(queue.clone())),
            Target::Exchange { name, routing_key } => {
                routes = self.routes(name, routing_key).await?;
                names.extend(routes.queues.keys().cloned());
                exchanges.insert(name.clone());
            }
            Target::Origin { exchanges: allowed } => exchanges.extend(allowed.iter().cloned()),
            Target::Discard => {}
        }
        let names = Names { queues: names, exchanges, closed: BTreeSet::new() };
        let observed = self.management.look(self.vhost, &names).await?;
        let mut queues = self.queues(&observed, names.queues).await?;
        let limit_queue = touched.limit_queue.map(|name| (name.to_owned(), queues.get(name).cloned()));
        let target = target(touched.target, &observed, routes, &queues);
        Ok(Facts {
            origin: touched.origin.to_owned(),
            origin_queue: queues.remove(touched.origin),
            target,
            limit_queue,
            alarms,
            own_timeout: broker.version >= OWN_TIMEOUT,
            frame_max: self.connection.configuration().frame_max(),
        })
    }

    /// The queues of these names that exist, with exact counts.
    async fn queues(
        &self,
        observed: &Observed,
        names: BTreeSet<String>,
    ) -> Result<BTreeMap<String, QueueFacts>, BrokerError> {
        let policies = effective::policies(observed);
        let mut queues = BTreeMap::new();
        for name in names {
            let Some(queue) = observed.queues.get(&name) else { continue };
            let available = !observed.unavailable.contains(&name);
            // One that belongs to another connection, or doesn't answer, can't be asked.
            let counts = if available && !queue.exclusive {
                amqp::declared(self.connection, self.endpoint, self.vhost, &name).await?
            } else {
                None
            };
            let Declared { ready, consumers } = counts.unwrap_or(Declared { ready: 0, consumers: 0 });
            let known = |count: u32| counts.map(|_| u64::from(count));
            let facts = effective::queue(&name, queue, &policies);
            queues.insert(
                name,
                QueueFacts { available, ready: known(ready), consumers: known(consumers), ..facts },
            );
        }
        Ok(queues)
    }

    /// The queues that a publish reaches, by following bindings from exchange to exchange.
    async fn routes(&self, exchange: &str, routing_key: &str) -> Result<Routes, BrokerError> {
        let mut routes = Routes::default();
        let mut seen = BTreeSet::from([exchange.to_owned()]);
        let mut open = seen.clone();
        for _ in 0..MAX_HOPS {
            if open.is_empty() {
                return Ok(routes);
            }
            let names = Names { queues: BTreeSet::new(), exchanges: open.clone(), closed: open.clone() };
            let observed = self.management.look(self.vhost, &names).await?;
            let mut next = BTreeSet::new();
            for name in &open {
                let step = routes::step(&observed, name, routing_key);
                routes.queues.extend(step.queues.into_iter().map(|queue| (queue, None)));
                next.extend(step.exchanges);
                routes.unknown = routes.unknown.take().or(step.unknown);
            }
            open = next.into_iter().filter(|name| seen.insert(name.clone())).collect();
        }
        routes.unknown = Some(format!("its messages pass more than {MAX_HOPS} exchanges"));
        Ok(routes)
    }
}

fn target(
    target: &Target,
    observed: &Observed,
    routes: Routes,
    queues: &BTreeMap<String, QueueFacts>,
) -> TargetFacts {
    let policies = effective::policies(observed);
    let exchange = |name: &String| -> Option<ExchangeFacts> {
        let found = observed.exchanges.get(name)?;
        Some(ExchangeFacts {
            name: name.clone(),
            internal: found.internal,
            alternate: effective::alternate(name, found, &policies),
        })
    };
    match target {
        Target::Queue(queue) => TargetFacts::Queue(queue.clone(), queues.get(queue).cloned()),
        Target::Exchange { name, .. } => {
            let known = |(queue, _): (String, _)| {
                let facts = queues.get(&queue).cloned();
                (queue, facts)
            };
            let queues = routes.queues.into_iter().map(known).collect();
            TargetFacts::Exchange(name.clone(), exchange(name), Routes { queues, unknown: routes.unknown })
        }
        Target::Origin { exchanges } => TargetFacts::Origin(exchanges.iter().filter_map(exchange).collect()),
        Target::Discard => TargetFacts::Discard,
    }
}
