//! What the operator reports about a pipeline.
//!
//! Bounded everywhere: the largest allowed pipeline has a status below 64 KiB, a change under way
//! included, and its replays add up to 30 kB more; etcd takes 1.5 MiB. The checks of the
//! specification see to that: `topology::budget`.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::{Condition, Duration, Time, is_false, schema};
use super::{
    AuditLevel, DeletionPolicy, Drift, DriftDetection, DriftPolicy, NativeRetry, Ownership, QueueType,
    RetryMode, Settings, TargetKind,
};

/// What the operator reports about a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::status)]
pub struct RetryPipelineStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The generation of the spec that was last carried out in full. What differs from it since is
    /// drift; what differs from a later generation is a change under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_generation: Option<i64>,

    /// Ready, AtLeastOnce, Drifted, Suspended, Stalled, Reconciling.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// The broker's `internal_cluster_id`, recorded at the first contact. Another one behind the
    /// same reference stops all writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub broker_id: Option<String>,

    /// The UID of the RabbitmqCluster that this was built on, where spec.broker refers to one.
    /// Another one of the same name is built on anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub cluster_uid: Option<String>,

    /// The settings in force, defaults filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,

    /// What this pipeline has declared on the broker, grouped. Deletion touches only what stands
    /// here and carries our marker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512), extend("x-kubernetes-list-type" = "atomic"))]
    pub inventory: Vec<InventoryEntry>,

    /// The queues that an application may declare or publish to, exactly as they are declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "atomic"))]
    pub client_contract: Vec<ContractQueue>,

    /// Messages in each queue, at most a minute old when written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "atomic"))]
    pub queues: Vec<QueueDepth>,

    /// What was found to differ, and how often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,

    /// How soon a difference is noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_detection: Option<DriftDetection>,

    /// The last 50 replays of this pipeline, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "atomic"))]
    pub replays: Vec<ReplayRecord>,

    /// Up to 1,000 earlier replays: 8 bytes each, a hash of name and immutable spec, the newest
    /// last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "earlier_replays")]
    pub earlier_replays: Option<ByteString>,

    /// What waits for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_plan: Option<PendingPlan>,

    /// How far the deletion of this resource has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<Cleanup>,
}

/// 8,000 bytes, which are 10,668 characters of base64.
fn earlier_replays(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "string", "format": "byte", "maxLength": 10_668})
}

/// The settings in force, defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Effective {
    /// The broker's reference, such as `cluster messaging/rmq` or `secret rabbit-connection`.
    #[schemars(length(max = 330))]
    pub broker: String,
    /// The virtual host.
    #[schemars(length(max = 255))]
    pub vhost: String,
    /// Who owns the work queue.
    pub ownership: Ownership,
    /// The kind of the work queue.
    pub source_type: QueueType,
    /// The delivery limit as the user means it; none on classic queues and in mode Native.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_limit: Option<i32>,
    /// Who walks the retries.
    pub mode: RetryMode,
    /// How many retries there are.
    pub steps: i32,
    /// The delay of each retry, expanded from a backoff where one is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub delays: Vec<Duration>,
    /// The numbers of mode Native.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<NativeRetry>,
    /// How far delays are spread, in percent; 0 without jitter.
    pub jitter_percent: i32,
    /// How many queues share each delay; 1 without jitter.
    pub shards: i32,
    /// The kind of the retry queues.
    pub retry_type: QueueType,
    /// The dead-letter queue.
    pub dead_letter: EffectiveDeadLetter,
    /// Where changeable numbers are kept.
    pub settings: Settings,
    /// What replays must respect.
    pub replay_policy: EffectiveReplayPolicy,
    /// What happens when the broker differs.
    pub drift_policy: DriftPolicy,
    /// What happens on the broker when the resource is deleted.
    pub deletion_policy: DeletionPolicy,
}

/// The dead-letter queue, defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveDeadLetter {
    /// Its name, placeholders filled in.
    #[schemars(length(max = 255))]
    pub name: String,
    /// Its kind.
    #[serde(rename = "type")]
    pub type_: QueueType,
    /// How long a dead message is kept; for ever without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Duration>,
    /// The most dead messages; no limit without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<i64>,
}

/// What replays must respect, defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveReplayPolicy {
    /// Whether a second person has to approve.
    pub require_approval: bool,
    /// Messages that may move without approval within 24 hours; no limit without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages_without_approval: Option<i64>,
    /// The most messages per second.
    pub max_rate: i32,
    /// Where a replay may move messages to.
    #[schemars(length(max = 7), extend("x-kubernetes-list-type" = "atomic"))]
    pub allowed_targets: Vec<TargetKind>,
    /// Whether expressions and samples may read bodies.
    pub allow_body: bool,
    /// How surely each moved message is recorded.
    pub audit: AuditLevel,
}

/// Objects on the broker that belong to a pipeline and differ in their names alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventoryEntry {
    /// Queue, Exchange, Policy or Binding.
    pub kind: ObjectKind,
    /// Intended (about to be declared), Created (by us) or Adopted (it was there).
    pub state: InventoryState,
    /// The generation of migrated queues or exchanges; the first one has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The names of queues, exchanges or policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 512),
        inner(length(max = 1_024)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub names: Vec<String>,
    /// For bindings of the work queue: the exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub exchange: Option<String>,
    /// For bindings of the work queue: the routing keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 255)), extend("x-kubernetes-list-type" = "atomic"))]
    pub routing_keys: Vec<String>,
}

/// The kind of an object on the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ObjectKind {
    /// A queue.
    Queue,
    /// An exchange.
    Exchange,
    /// A policy.
    Policy,
    /// A binding.
    Binding,
}

/// How far an object in the inventory has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum InventoryState {
    /// Recorded before the declaration; it may not exist yet.
    Intended,
    /// Declared by us.
    Created,
    /// It was there and equal.
    Adopted,
}

/// A queue that an application may declare or publish to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContractQueue {
    /// Its name.
    #[schemars(length(max = 255))]
    pub name: String,
    /// Its kind.
    #[serde(rename = "type")]
    pub type_: QueueType,
    /// Its arguments, `x-queue-type` included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::arguments")]
    pub arguments: BTreeMap<String, Value>,
}

/// How many messages a queue holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueDepth {
    /// Source, Retry, DeadLetter, Quarantine or ParkingLot.
    pub role: QueueRole,
    /// Its name.
    #[schemars(length(max = 255))]
    pub name: String,
    /// Messages ready for delivery.
    pub ready: i64,
}

/// What a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum QueueRole {
    /// The work queue.
    Source,
    /// A delay before the next attempt.
    Retry,
    /// The dead-letter queue.
    DeadLetter,
    /// Dead messages of one category.
    Quarantine,
    /// Messages that people set aside.
    ParkingLot,
}

/// A finished replay, as the pipeline remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplayRecord {
    /// The DlqReplay's name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The hash of its immutable spec.
    #[schemars(length(max = 64))]
    pub spec_hash: String,
    /// How it ended: the reason of its condition Succeeded.
    #[schemars(length(max = 64))]
    pub result: String,
    /// When it ended.
    #[schemars(schema_with = "schema::moment")]
    pub finished: Time,
    /// How many messages it moved.
    pub moved: i64,
    /// Whether a second person approved it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub approved: bool,
}

/// A change that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingPlan {
    /// The hash to put into the annotation `redrive.dev/allow-recreate`.
    #[schemars(length(max = 64))]
    pub hash: String,
    /// Why it waits, and what it would do.
    #[schemars(length(max = 1_024))]
    pub why: String,
}

/// How far the deletion of a pipeline has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cleanup {
    /// Proving, Draining, ProvingAgain, or Waiting for a broker or Secret.
    pub stage: CleanupStage,
    /// Since when this stage lasts.
    #[schemars(schema_with = "schema::moment")]
    pub since: Time,
}

/// The stages of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CleanupStage {
    /// All queues are being proved empty, bindings in place.
    Proving,
    /// The bindings that feed the queues are removed, and the longest delay has to pass, for
    /// messages on their way.
    Draining,
    /// All queues are being proved empty once more.
    ProvingAgain,
    /// The broker or its Secret is out of reach; bounded in time.
    Waiting,
}
