//! The work queue of a pipeline and what feeds it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{Duration, is_false, rules, schema};

/// The work queue and what feeds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Managed (default): we declare the queue. External: it must exist; we add one policy, the
    /// return bindings and the listed bindings, and never declare or delete it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ownership: Option<Ownership>,

    /// The work queue.
    pub queue: SourceQueue,

    /// The exchange that producers publish to; declared when given. Several pipelines may share
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<SourceExchange>,

    /// Which messages reach the queue, at most 64 bindings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::bindings())
    )]
    pub bindings: Vec<SourceBinding>,

    /// True: bindings that are not listed are drift. Default false: they may be the application's.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exclusive_bindings: bool,

    /// Crashes and requeues before a message counts as poison, 1 to 10000. Default 20. Quorum
    /// queues only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub delivery_limit: Option<i32>,
}

impl Source {
    /// Who owns the queue.
    pub fn ownership(&self) -> Ownership {
        self.ownership.unwrap_or_default()
    }
}

/// Who owns the work queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Ownership {
    /// We declare it.
    #[default]
    Managed,
    /// The application declares it.
    External,
}

/// The kind of a queue on the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum QueueType {
    /// Replicated; dead-letters at-least-once.
    #[default]
    Quorum,
    /// Not replicated; dead-letters at-most-once.
    Classic,
}

impl QueueType {
    /// The value of the argument `x-queue-type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// The work queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceQueue {
    /// Its name. Immutable.
    #[schemars(schema_with = "schema::own_name")]
    pub name: String,

    /// Its kind: quorum (default) or classic. Immutable.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<QueueType>,

    /// The most messages it holds; further ones are refused, never dropped. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_length: Option<i64>,

    /// How long a message may wait before it is dead-lettered. Default: for ever.
    #[serde(rename = "messageTTL", default, skip_serializing_if = "Option::is_none")]
    pub message_ttl: Option<Duration>,

    /// How long a consumer may take to acknowledge. Default: the broker's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer_timeout: Option<Duration>,

    /// Deliver to one consumer at a time. Default false. Fixed once declared.
    #[serde(default, skip_serializing_if = "is_false")]
    pub single_active_consumer: bool,

    /// Replicas of a quorum queue, 1 to 15. Default: the broker's. Fixed once declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 15))]
    pub group_size: Option<i32>,
}

impl SourceQueue {
    /// The queue's kind.
    pub fn queue_type(&self) -> QueueType {
        self.type_.unwrap_or_default()
    }
}

/// The exchange that producers publish to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceExchange {
    /// Its name.
    #[schemars(schema_with = "schema::own_name")]
    pub name: String,
    /// How it routes: direct, fanout, headers or topic.
    #[serde(rename = "type")]
    pub type_: ExchangeType,
}

/// How an exchange routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ExchangeType {
    /// By equal routing keys.
    Direct,
    /// To everything bound.
    Fanout,
    /// By headers.
    Headers,
    /// By patterns over the routing key.
    Topic,
}

impl ExchangeType {
    /// The broker's word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Headers => "headers",
            Self::Topic => "topic",
        }
    }
}

/// A binding that feeds the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceBinding {
    /// The exchange to bind to: ours, or any that exists, an `amq.` one included. Not the default
    /// exchange, which leads to every queue anyway.
    #[schemars(schema_with = "schema::binding_exchange")]
    pub exchange: String,
    /// The routing key, or on a topic exchange the pattern. Default: empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::binding_key")]
    pub routing_key: String,
}
