//! A specification in the topology's own terms, with the documented defaults applied.

use crate::topology::model::{Arg, QueueType as TopologyQueueType};
use crate::topology::spec as topology;

use super::{
    Backoff, DeadLetter, DeletionPolicy, Jitter, NativeRetry, Ownership, QueueType, Retry, RetryMode,
    RetryPipelineSpec, Settings, Source,
};
use crate::api::Duration;

/// The delays of a pipeline that names none, in milliseconds.
const DEFAULT_DELAYS: [i64; 4] = [5_000, 30_000, 120_000, 600_000];

/// The priority of our policies where the user names none.
const DEFAULT_PRIORITY: i32 = 10;

/// What mode Native waits where the user gives no numbers; the schema asks for them.
const NO_NATIVE: NativeRetry =
    NativeRetry { min: Duration::from_millis(0), max: Duration::from_millis(0), attempts: 0 };

impl RetryPipelineSpec {
    /// The specification in the topology's terms. Nothing is checked here.
    pub fn to_topology(&self) -> topology::Spec {
        let no_retry = Retry::default();
        let retry = self.retry.as_ref().unwrap_or(&no_retry);
        let naming = retry.naming.clone().unwrap_or_default();
        topology::Spec {
            source: source(&self.source),
            mode: mode(retry),
            delays: delays(retry),
            jitter: retry.jitter.as_ref().map(jitter),
            retry_template: naming.template.unwrap_or_else(|| "{queue}.retry.{attempt}".to_owned()),
            number_from: naming.number_from.unwrap_or_default().unsigned_abs(),
            retry_type: retry.queue_type.unwrap_or_default().into(),
            retry_group_size: retry.group_size.map(i64::from),
            dead_letter: dead_letter(self.dead_letter.as_ref()),
            settings: self.topology_settings(),
            merge_policy: self.merge_policy,
        }
    }

    /// Where numbers that may change later go.
    fn topology_settings(&self) -> topology::Settings {
        let priority = match &self.settings {
            Some(Settings::Arguments {}) => return topology::Settings::Arguments,
            Some(Settings::Policy(policy)) => policy.priority,
            None => None,
        };
        topology::Settings::Policy { priority: priority.unwrap_or(DEFAULT_PRIORITY).into() }
    }

    /// Whether a deletion of the resource has work on the broker.
    pub fn cleans_up(&self) -> bool {
        self.deletion_policy() != DeletionPolicy::Retain
    }
}

impl From<QueueType> for TopologyQueueType {
    fn from(kind: QueueType) -> Self {
        match kind {
            QueueType::Quorum => Self::Quorum,
            QueueType::Classic => Self::Classic,
        }
    }
}

fn source(source: &Source) -> topology::Source {
    let queue = &source.queue;
    topology::Source {
        ownership: match source.ownership() {
            Ownership::Managed => topology::Ownership::Managed,
            Ownership::External => topology::Ownership::External,
        },
        queue: queue.name.clone(),
        kind: queue.queue_type().into(),
        max_length: queue.max_length,
        message_ttl: queue.message_ttl.map(Duration::as_millis),
        consumer_timeout: queue.consumer_timeout.map(Duration::as_millis),
        single_active_consumer: queue.single_active_consumer,
        group_size: queue.group_size.map(i64::from),
        exchange: source.exchange.as_ref().map(|exchange| topology::SourceExchange {
            name: exchange.name.clone(),
            kind: exchange.type_.as_str().to_owned(),
        }),
        bindings: source
            .bindings
            .iter()
            .map(|binding| topology::SourceBinding {
                exchange: binding.exchange.clone(),
                routing_key: binding.routing_key.clone(),
            })
            .collect(),
        exclusive_bindings: source.exclusive_bindings,
        delivery_limit: source.delivery_limit.map(i64::from),
    }
}

fn mode(retry: &Retry) -> topology::Mode {
    match retry.mode.unwrap_or_default() {
        RetryMode::Broker => topology::Mode::Broker,
        RetryMode::Application => topology::Mode::Application,
        RetryMode::None => topology::Mode::None,
        RetryMode::Native => {
            let native = retry.native.as_ref().unwrap_or(&NO_NATIVE);
            topology::Mode::Native {
                min: native.min.as_millis(),
                max: native.max.as_millis(),
                attempts: native.attempts.into(),
            }
        }
    }
}

fn delays(retry: &Retry) -> topology::Delays {
    if let Some(Backoff { initial, factor, max, steps }) = &retry.backoff {
        return topology::Delays::Backoff {
            initial: initial.as_millis(),
            factor: f64::from(*factor),
            max: max.map_or(crate::topology::validate::MAX_TTL, Duration::as_millis),
            steps: steps.unsigned_abs(),
        };
    }
    let listed = retry.delays.as_ref().map(|delays| delays.iter().map(|delay| delay.as_millis()).collect());
    topology::Delays::List(listed.unwrap_or_else(|| DEFAULT_DELAYS.to_vec()))
}

fn jitter(jitter: &Jitter) -> topology::Jitter {
    topology::Jitter { percent: jitter.percent.unsigned_abs(), shards: jitter.shards.unsigned_abs() }
}

fn dead_letter(dead_letter: Option<&DeadLetter>) -> topology::DeadLetter {
    let defaults = DeadLetter::default();
    let dead_letter = dead_letter.unwrap_or(&defaults);
    topology::DeadLetter {
        template: dead_letter.name.clone().unwrap_or_else(|| "{queue}.dlq".to_owned()),
        retention: dead_letter.retention.map(Duration::as_millis),
        kind: dead_letter.queue_type.unwrap_or_default().into(),
        group_size: dead_letter.group_size.map(i64::from),
        max_length: dead_letter.max_length,
        quarantine: dead_letter
            .quarantine
            .iter()
            .map(|category| topology::Category {
                name: category.category.clone(),
                reasons: category.reasons.iter().map(|reason| reason.as_str().to_owned()).collect(),
                headers: category
                    .headers
                    .iter()
                    .map(|(key, value)| (key.clone(), Arg::Str(value.clone())))
                    .collect(),
            })
            .collect(),
        parking_lot: dead_letter.parking_lot,
    }
}
