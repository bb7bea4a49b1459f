//! What every replay of a pipeline must respect.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::is_false;
use super::SecretRef;

/// What every DlqReplay of a pipeline must respect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplayPolicy {
    /// A second person has to approve. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub require_approval: bool,

    /// Messages that may move without approval within 24 hours, over all replays; 0 asks always.
    /// Default: 50 where approval is required, otherwise without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub messages_without_approval: Option<i64>,

    /// The most messages per second, 1 to 100000. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_rate: Option<i32>,

    /// Where a replay may move messages to. Default WorkQueue, Quarantine, ParkingLot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 7), extend("x-kubernetes-list-type" = "set"))]
    pub allowed_targets: Option<Vec<TargetKind>>,

    /// Whether expressions and samples may read bodies. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow_body: bool,

    /// Headers that may be shown in plans and written to the audit trail, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(min = 1, max = 127)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub audit_headers: Vec<String>,

    /// BestEffort (default): records on standard output, and in a stream where there is one.
    /// Required: a durable stream, or no replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditLevel>,

    /// A broker user for replays alone, in a Secret of the same shape. Default: the pipeline's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// Where a replay moves messages to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TargetKind {
    /// The pipeline's work queue.
    WorkQueue,
    /// The exchange and key that each message was first published with.
    Origin,
    /// A quarantine queue of the pipeline.
    Quarantine,
    /// The pipeline's parking lot.
    ParkingLot,
    /// Any queue by name.
    Queue,
    /// Any exchange by name.
    Exchange,
    /// Nowhere: the messages are deleted.
    Discard,
}

/// How surely each moved message is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AuditLevel {
    /// Records may get lost with the node's logs.
    #[default]
    BestEffort,
    /// Without a durable record nothing moves.
    Required,
}
