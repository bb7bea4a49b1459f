//! The source queue, its dead-letter way and numbers, and what leads to it.

use super::super::model::{Args, Binding, Destination, Exchange, QueueType};
use super::super::observed::BrokerFacts;
use super::super::plan::Stage;
use super::super::spec::{Mode, Ownership};
use super::super::validate::Pipeline;
use super::{
    Builder, DEFAULT_DELIVERY_LIMIT, DesiredBinding, DesiredExchange, DesiredPolicy, DesiredQueue, QueueRole,
    new_queue, policy_keys,
};

impl Builder<'_> {
    pub(super) fn source(&mut self) {
        let pipeline = self.pipeline;
        let source = &pipeline.spec.source;
        let mut queue = new_queue(source.queue.clone(), source.kind, source.group_size);
        if source.single_active_consumer {
            queue.arguments.insert("x-single-active-consumer".into(), true.into());
        }
        if source.kind == QueueType::Classic && source.max_length.is_some() {
            queue.arguments.insert("x-overflow".into(), "reject-publish".into());
        }
        let way = self.dead_letter_way();
        let numbers = self.source_numbers();
        let declared = source.ownership == Ownership::Managed;
        if declared {
            queue.arguments.extend(way.into_iter().map(|(key, value)| (format!("x-{key}"), value)));
            self.settle(Stage::Policy, "source", &mut queue, &numbers);
        } else {
            // Its application owns the arguments, so all of it goes by policy.
            let mut definition = way;
            if source.kind == QueueType::Quorum || source.max_length.is_some() {
                definition.insert("overflow".into(), "reject-publish".into());
            }
            definition.extend(policy_keys(&queue, &numbers));
            let policy = self.policy("source", &queue, definition);
            self.desired.policies.push(DesiredPolicy {
                stage: Stage::Source,
                queue: queue.name.clone(),
                policy,
            });
        }
        let queue =
            DesiredQueue { stage: Stage::Source, role: QueueRole::Source, queue, declared, generation: 1 };
        self.desired.queues.push(queue);
    }

    /// Where the source's dead letters go, as policy keys.
    fn dead_letter_way(&self) -> Args {
        let mut way = Args::new();
        if self.pipeline.has_chain() {
            way.insert("dead-letter-exchange".into(), self.pipeline.names().head().as_str().into());
        } else {
            way.insert("dead-letter-exchange".into(), "".into());
            way.insert("dead-letter-routing-key".into(), self.pipeline.dlq.as_str().into());
        }
        if self.pipeline.spec.source.kind == QueueType::Quorum {
            way.insert("dead-letter-strategy".into(), "at-least-once".into());
        }
        way
    }

    fn source_numbers(&self) -> Vec<(&'static str, Option<i64>)> {
        let source = &self.pipeline.spec.source;
        let mut numbers = vec![
            ("max-length", source.max_length),
            ("message-ttl", source.message_ttl),
            ("consumer-timeout", source.consumer_timeout),
            ("delivery-limit", delivery_limit(self.pipeline, self.facts)),
        ];
        if let Mode::Native { min, max, .. } = self.pipeline.spec.mode {
            numbers.extend([("delayed-retry-min", Some(min)), ("delayed-retry-max", Some(max))]);
        }
        numbers
    }

    pub(super) fn user_side(&mut self) {
        let source = &self.pipeline.spec.source;
        if let Some(exchange) = &source.exchange {
            let exchange = Exchange {
                name: exchange.name.clone(),
                kind: exchange.kind.clone(),
                internal: false,
                arguments: Args::new(),
            };
            let wanted = DesiredExchange {
                stage: Stage::UserExchange,
                exchange,
                shared: true,
                closed: false,
                generation: 1,
            };
            self.desired.exchanges.push(wanted);
        }
        for wanted in &source.bindings {
            let binding = Binding {
                source: wanted.exchange.clone(),
                destination: Destination::Queue(source.queue.clone()),
                routing_key: wanted.routing_key.clone(),
                arguments: Args::new(),
            };
            self.desired.bindings.push(DesiredBinding { stage: Stage::UserBinding, binding, user: true });
        }
    }
}

/// The limit to set on the source, or `None` where the broker's default is right.
///
/// From 4.3 on one count follows a message from queue to queue and is checked on
/// every requeue, so the whole walk needs room for `limit` failures at each stay
/// and one per rejection. Before, each stay counts for itself.
#[must_use]
pub fn delivery_limit(pipeline: &Pipeline, facts: &BrokerFacts) -> Option<i64> {
    let source = &pipeline.spec.source;
    if source.kind != QueueType::Quorum {
        return None;
    }
    let per_stay = source.delivery_limit.unwrap_or(DEFAULT_DELIVERY_LIMIT);
    let limit = match pipeline.spec.mode {
        Mode::Native { attempts, .. } => attempts,
        Mode::Broker if facts.counts_deliveries_across_queues() => {
            let tiers = i64::try_from(pipeline.tiers.len()).unwrap_or(i64::MAX);
            per_stay * (tiers + 1) + tiers
        }
        _ => per_stay,
    };
    (limit != DEFAULT_DELIVERY_LIMIT).then_some(limit)
}
