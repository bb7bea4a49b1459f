//! How often and how late a failed message is tried again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{Duration, rules, schema};
use super::QueueType;

/// How often and how late a failed message is tried again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::retry()))]
pub struct Retry {
    /// Broker (default): the broker walks the retries, the consumer only rejects. Application: the
    /// client library publishes to the retry queues itself. Native: the broker delays inside the
    /// work queue (RabbitMQ 4.3.1 or newer). None: a failed message is dead at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<RetryMode>,

    /// One retry per delay, in this order, at most 32. Default 5s, 30s, 2m, 10m. Empty only in mode
    /// Application, for a client that never retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub delays: Option<Vec<Duration>>,

    /// Growing delays, instead of a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,

    /// Spread the delays, so that a failed burst doesn't come back at one instant. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Jitter>,

    /// How the retry queues are called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub naming: Option<Naming>,

    /// The kind of the retry queues: quorum (default) or classic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_type: Option<QueueType>,

    /// Replicas of each retry queue if quorum, 1 to 15. Default: the broker's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 15))]
    pub group_size: Option<i32>,

    /// The numbers of mode Native, instead of delays or backoff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<NativeRetry>,
}

/// Who walks the retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RetryMode {
    /// The broker; the consumer only rejects.
    #[default]
    Broker,
    /// The client library, which publishes to the retry queues itself.
    Application,
    /// The work queue itself, by delayed retry.
    Native,
    /// Nobody.
    None,
}

/// Growing delays: `initial`, then each `factor` times the one before, never above `max`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::backoff()))]
pub struct Backoff {
    /// The first delay.
    pub initial: Duration,
    /// By how much each delay grows, 1 to 100.
    #[schemars(range(min = 1, max = 100))]
    pub factor: i32,
    /// The longest delay. Default: no limit but the broker's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Duration>,
    /// How many retries, 1 to 32.
    #[schemars(range(min = 1, max = 32))]
    pub steps: i32,
}

/// How delays are spread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Jitter {
    /// How far a delay may be off, in percent, 0 to 100, to either side.
    #[schemars(range(min = 0, max = 100))]
    pub percent: i32,
    /// How many queues share each delay, 2 to 64; retries times shards is 64 at most.
    #[schemars(range(min = 2, max = 64))]
    pub shards: i32,
}

/// How retry queues are called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Naming {
    /// The name of each, with {queue} for the work queue and {attempt} for the retry's number or
    /// {delay} for its delay; a single one needs neither. Default "{queue}.retry.{attempt}".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::retry_name_template")]
    pub template: Option<String>,
    /// The number of the first retry, 0 to 1000. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000))]
    pub number_from: Option<i32>,
}

/// The numbers of mode Native: the n-th retry waits n times `min`, but never longer than `max`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::native()))]
pub struct NativeRetry {
    /// The first delay, and by how much each grows.
    pub min: Duration,
    /// The longest delay.
    pub max: Duration,
    /// How many retries, 1 to 10000; sets the delivery limit.
    #[schemars(range(min = 1, max = 10_000))]
    pub attempts: i32,
}
