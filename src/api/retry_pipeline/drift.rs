//! What the operator reports of drift.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{Time, schema};

/// What was found to differ, and how often.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// Findings since the pipeline was created.
    pub count: i64,
    /// The last finding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<DriftFinding>,
}

/// How soon a difference is noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftDetection {
    /// Events (the broker tells of changes, and each poll looks as well) or Polling (by the
    /// polls alone).
    pub mode: DetectionMode,
    /// What Events would take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1_024))]
    pub why: Option<String>,
}

/// What shows that something has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DetectionMode {
    /// The broker tells, within about a second.
    Events,
    /// The next poll.
    Polling,
}

/// One difference between the broker and a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftFinding {
    /// When it was found.
    #[schemars(schema_with = "schema::moment")]
    pub time: Time,
    /// The object, such as `queue orders.queue.dlq`.
    #[schemars(length(max = 1_024))]
    pub object: String,
    /// What differed.
    #[schemars(length(max = 1_024))]
    pub what: String,
    /// The broker user who did it, where the broker tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub by: Option<String>,
    /// What was done: Repaired, Reported or Blocked.
    pub action: DriftAction,
}

/// What was done about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DriftAction {
    /// It was put right.
    Repaired,
    /// It was only reported.
    Reported,
    /// It can't be put right without loss.
    Blocked,
}
