//! What the pipeline says about itself: nothing here is known in advance.

use std::time::Duration;

use kube::{Api, Client};
use redrive::api::{QueueRole, RetryPipeline};

use crate::Result;

/// The names and delays of a pipeline, from its spec and status.
pub(crate) struct Topology {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) source: String,
    pub(crate) tiers: Vec<Tier>,
    pub(crate) dead: String,
    pub(crate) poison: String,
    /// All queues, in the order of a message's way.
    pub(crate) queues: Vec<String>,
}

/// One retry queue.
pub(crate) struct Tier {
    pub(crate) queue: String,
    /// The exchange through which its messages come back.
    pub(crate) way_back: String,
    pub(crate) delay: Duration,
    /// The delay as the manifest writes it.
    pub(crate) wanted: String,
}

impl Topology {
    pub(crate) async fn read(client: Client, namespace: &str, name: &str) -> Result<Self> {
        let api: Api<RetryPipeline> = Api::namespaced(client, namespace);
        let pipeline = api.get(name).await?;
        let incomplete = |what| format!("the pipeline {namespace}/{name} has no {what}: is it Ready?");
        let binding = pipeline.spec.source.bindings.first().ok_or_else(|| incomplete("binding"))?;
        let source = pipeline.spec.source.queue.name.clone();
        let status = pipeline.status.as_ref().ok_or_else(|| incomplete("status"))?;
        let delays = &status.effective.as_ref().ok_or_else(|| incomplete("delays"))?.delays;
        let of = |role| {
            let queues = status.queues.iter().filter(move |queue| queue.role == role);
            queues.map(|queue| queue.name.clone()).collect::<Vec<_>>()
        };
        let mut retries = of(QueueRole::Retry);
        retries.sort();
        let tiers: Vec<Tier> =
            (0..).zip(retries.iter().zip(delays)).map(|pair| tier(&source, pair)).collect();
        let dead = of(QueueRole::DeadLetter).pop().ok_or_else(|| incomplete("dead-letter queue"))?;
        let quarantines = of(QueueRole::Quarantine);
        let poison = quarantines.iter().find(|queue| queue.ends_with(".poison"));
        let poison = poison.ok_or_else(|| incomplete("quarantine for poison"))?.clone();
        let mut queues = vec![source.clone()];
        queues.extend(retries);
        queues.push(dead.clone());
        queues.extend(quarantines);
        Ok(Self {
            exchange: binding.exchange.clone(),
            routing_key: binding.routing_key.clone(),
            source,
            tiers,
            dead,
            poison,
            queues,
        })
    }

    /// The whole way of an order that always fails.
    pub(crate) fn longest_way(&self) -> Duration {
        self.tiers.iter().map(|tier| tier.delay).sum()
    }
}

fn tier(source: &str, (number, (queue, delay)): (u32, (&String, &redrive::api::Duration))) -> Tier {
    Tier {
        queue: queue.clone(),
        way_back: format!("{source}.return.{number}"),
        delay: delay.to_std(),
        wanted: delay.to_string(),
    }
}
