//! `DlqReplay`: one audited, throttled run that moves dead letters.

mod pace;
mod run;
mod select;
mod status;

pub use pace::*;
pub use run::{ReplayRun, RunName};
pub use select::*;
pub use status::*;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Duration, TargetKind, Time, is_false, rules, schema};

/// One run that moves dead letters. Everything but suspend, cancel, pace, guard and approval is
/// immutable.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "redrive.dev",
    version = "v1alpha1",
    kind = "DlqReplay",
    plural = "dlqreplays",
    shortname = "dr",
    category = "redrive",
    namespaced,
    status = "DlqReplayStatus",
    derive = "PartialEq",
    doc = "One audited, throttled, loss-free replay of dead letters. It runs once.",
    validation = rules::OBJECT_NAME,
    printcolumn(name = "Phase", type_ = "string", json_path = r#".status.conditions[?(@.type=="Succeeded")].reason"#, description = "How far it has come"),
    printcolumn(name = "Pipeline", type_ = "string", json_path = ".spec.pipelineRef.name"),
    printcolumn(name = "Replayed", type_ = "integer", json_path = ".status.progress.replayed", description = "Messages moved"),
    printcolumn(name = "Matched", type_ = "integer", json_path = ".status.progress.matched", description = "Messages selected so far"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.progress.failed", description = "Selected messages that stayed"),
    printcolumn(name = "ETA", type_ = "string", json_path = ".status.progress.eta", description = "Time left at the present rate"),
    printcolumn(name = "Requested-By", type_ = "string", json_path = ".spec.requestedBy"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Approved-By", type_ = "string", json_path = ".spec.approval.approvedBy", priority = 1),
    printcolumn(name = "Rate", type_ = "string", json_path = ".status.progress.rate", priority = 1, description = "Messages per second"),
    printcolumn(name = "Justification", type_ = "string", json_path = ".spec.justification", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(
    extend("x-kubernetes-validations" = rules::dlq_replay()),
    transform = schema::spec
)]
pub struct DlqReplaySpec {
    /// The pipeline whose dead letters move, in this namespace.
    pub pipeline_ref: PipelineRef,

    /// The queue to read from. Default: the dead-letter queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ReplayFrom>,

    /// Where messages move to. Default: the work queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<ReplayTo>,

    /// Which messages move: those for which every given part holds. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<Selection>,

    /// How fast. May change while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Pace>,

    /// When to stop by itself. May change while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,

    /// What happens to a moved message that fails again: DeadLetter (default) sends it straight
    /// back, so that the guard sees it; Retry lets it walk the retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,

    /// What becomes of a message's own time to live: Drop (default) or Keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiration: Option<Expiration>,

    /// How often one message may be replayed, 1 to 100; then it goes to the quarantine
    /// replay-limit where quarantine is set, else it stays. Default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_replays_per_message: Option<i32>,

    /// A header by which consumers recognise a message that they have seen. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency: Option<Idempotency>,

    /// The target may reach more than one queue. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow_fanout: bool,

    /// End after the plan; nothing moves. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,

    /// Why it is right to replay now, 10 characters or more.
    #[schemars(schema_with = "justification")]
    pub justification: String,

    /// The user who asks: the one who creates this resource. Stamped where the cluster can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub requested_by: Option<String>,

    /// A second person's consent to the plan. Never at creation; set once; counts for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,

    /// Not to start before this moment. Default: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::moment")]
    pub not_before: Option<Time>,

    /// The longest it may run, from the first message on. Default 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,

    /// Hold it; nothing stays unacknowledged. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub suspend: bool,

    /// End it for good. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancel: bool,

    /// How long after its end this resource is deleted. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_after_finished: Option<Duration>,
}

impl DlqReplaySpec {
    /// The queue to read from.
    pub fn from(&self) -> ReplayFrom {
        self.from.clone().unwrap_or(ReplayFrom::DeadLetter {})
    }

    /// Where messages move to.
    pub fn to(&self) -> ReplayTo {
        self.to.clone().unwrap_or(ReplayTo::WorkQueue {})
    }
}

fn justification(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "maxLength": 1024,
        "x-kubernetes-validations": schema::rules(&[(
            "self.trim().size() >= 10",
            "say in 10 characters or more why it is right to replay now, such as which fix is deployed",
        )]),
    })
}

/// A RetryPipeline in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineRef {
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// The queue a replay reads from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::union)]
pub enum ReplayFrom {
    /// The pipeline's dead-letter queue.
    DeadLetter {},
    /// One of its quarantine queues.
    Quarantine(Category),
    /// Its parking lot.
    ParkingLot {},
}

/// Where a replay moves messages to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::union)]
pub enum ReplayTo {
    /// The pipeline's work queue.
    WorkQueue {},
    /// The exchange and routing key that each message was first published with.
    Origin {},
    /// One of the pipeline's quarantine queues.
    Quarantine(Category),
    /// The pipeline's parking lot.
    ParkingLot {},
    /// A queue by name.
    Queue(TargetQueue),
    /// An exchange by name.
    Exchange(TargetExchange),
    /// Nowhere: the messages are deleted, each recorded. Needs approval always.
    Discard {},
}

impl ReplayTo {
    /// The kind of target, as a pipeline's `replayPolicy.allowedTargets` names it.
    pub const fn kind(&self) -> TargetKind {
        match self {
            Self::WorkQueue {} => TargetKind::WorkQueue,
            Self::Origin {} => TargetKind::Origin,
            Self::Quarantine(_) => TargetKind::Quarantine,
            Self::ParkingLot {} => TargetKind::ParkingLot,
            Self::Queue(_) => TargetKind::Queue,
            Self::Exchange(_) => TargetKind::Exchange,
            Self::Discard {} => TargetKind::Discard,
        }
    }
}

/// A quarantine queue by its category.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Category {
    /// The category, or replay-limit for messages that were replayed too often.
    #[schemars(schema_with = "schema::category")]
    pub category: String,
}

/// A queue to move messages to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetQueue {
    /// Its name. It must exist in the pipeline's vhost.
    #[schemars(schema_with = "schema::own_name")]
    pub name: String,
}

/// An exchange to publish messages to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetExchange {
    /// Its name. It must exist in the pipeline's vhost.
    #[schemars(schema_with = "schema::foreign_name")]
    pub name: String,
    /// The routing key. Default: empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::routing_key")]
    pub routing_key: String,
}

/// What happens to a moved message that fails again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// Straight back to the dead-letter queue.
    #[default]
    DeadLetter,
    /// Through all retries again.
    Retry,
}

/// What becomes of a message's own time to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Expiration {
    /// It is removed.
    #[default]
    Drop,
    /// It stays, and counts from anew.
    Keep,
}

/// A header by which consumers recognise a message that they have seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Idempotency {
    /// The header's name.
    #[schemars(length(min = 1, max = 127))]
    pub header: String,
    /// Give the header to messages that lack it. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub generate: bool,
}

/// A second person's consent to a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// The user who approves; not the one who asked.
    #[schemars(length(min = 1, max = 253))]
    pub approved_by: String,
    /// The most messages that may move.
    #[schemars(range(min = 1))]
    pub max_messages: i64,
    /// The hash of the plan, from the status.
    #[schemars(length(min = 1, max = 64))]
    pub plan_hash: String,
    /// Anything worth saying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1_024))]
    pub comment: Option<String>,
}
