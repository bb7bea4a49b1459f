//! What is reported about a replay: the controller owns all but `progress`, the worker owns that.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{Condition, Duration, Time, schema};

/// What is reported about a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::status)]
pub struct DlqReplayStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Succeeded, Approved, Running, Suspended, Stalled, Reconciling.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// What it would do, made before approval is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<ReplayPlan>,
    /// Why it may move messages, and how many; set in the moment in which it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// How far it has come. Written by the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ReplayProgress>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<ReplaySummary>,
}

/// Why a replay may move messages, and how many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// Approval, Budget or NotRequired.
    pub by: AdmittedBy,
    /// The most messages that may move; no limit without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_messages: Option<i64>,
    /// When it was let through.
    #[schemars(schema_with = "schema::moment")]
    pub time: Time,
}

/// What lets a replay through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AdmittedBy {
    /// A second person's consent.
    Approval,
    /// It fits into the messages that may move without approval within 24 hours.
    Budget,
    /// The pipeline asks for no approval.
    NotRequired,
}

/// What a replay would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplayPlan {
    /// What an approval refers to: a hash over the immutable spec, pace, guard, routes and
    /// findings, not over counts, times or the histogram.
    #[schemars(length(max = 64))]
    pub hash: String,
    /// A hash over the pace and guard that it was made with: where they change before consent is
    /// given, another plan is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub settings_hash: Option<String>,
    /// When the queue was read.
    #[schemars(schema_with = "schema::moment")]
    pub made: Time,
    /// Messages in the queue it reads from.
    pub in_source: i64,
    /// Messages that match the selection.
    pub matching: i64,
    /// What died there, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Histogram>,
    /// The queues that the target reaches, at most 64 of them named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(max = 255)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub routes: Vec<String>,
    /// How many queues the target reaches.
    pub route_count: i64,
    /// Messages that can't be told apart by their replay id.
    pub colliding_ids: i64,
    /// What the checks found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub findings: Vec<Finding>,
    /// How long it takes at the pace given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_duration: Option<Duration>,
}

/// How matching messages spread, the 20 most frequent values each and the rest as "other".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Histogram {
    /// By reason of the last death.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21), extend("x-kubernetes-list-type" = "atomic"))]
    pub reasons: Vec<Bucket>,
    /// By error type, where clients add one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21), extend("x-kubernetes-list-type" = "atomic"))]
    pub error_types: Vec<Bucket>,
    /// By original exchange and routing key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21), extend("x-kubernetes-list-type" = "atomic"))]
    pub origins: Vec<Bucket>,
    /// By time since death.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21), extend("x-kubernetes-list-type" = "atomic"))]
    pub ages: Vec<Bucket>,
    /// By the headers that the pipeline allows to be shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub headers: Vec<HeaderBuckets>,
}

/// How often a value occurs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bucket {
    /// The value, shortened to 255 characters.
    #[schemars(length(max = 255))]
    pub value: String,
    /// Messages that have it.
    pub count: i64,
}

/// How the values of one header spread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeaderBuckets {
    /// The header's name.
    #[schemars(length(max = 127))]
    pub name: String,
    /// Its values.
    #[schemars(length(max = 21), extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<Bucket>,
}

/// What a check before the start found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Info, Warning, or Error (it can't start).
    pub severity: Severity,
    /// Which check, such as `TargetDropsHead`.
    #[schemars(length(max = 64))]
    pub check: String,
    /// What it found, and what to do.
    #[schemars(length(max = 1_024))]
    pub message: String,
}

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Severity {
    /// Good to know.
    Info,
    /// Risky, but the requester's decision.
    Warning,
    /// It can't start.
    Error,
}

/// Where a replay stops reading: what comes later stands behind the fence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fence {
    /// Messages ready at the start.
    pub count: i64,
    /// That moment.
    #[schemars(schema_with = "schema::moment")]
    pub time: Time,
}

/// How far a replay has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplayProgress {
    /// Running, Paused or Canary; the last one once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ProgressState>,
    /// Why it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1_024))]
    pub message: Option<String>,
    /// When the worker began to read; the deadline counts from then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::moment")]
    pub started: Option<Time>,
    /// How it ended, as the worker says; it never starts again from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<ProgressOutcome>,
    /// Where it stops reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// Messages read.
    pub examined: i64,
    /// Messages selected.
    pub matched: i64,
    /// Messages moved: confirmed by the broker and settled.
    pub replayed: i64,
    /// Selected messages that stayed: unroutable, refused or unmovable.
    pub failed: i64,
    /// Messages that the target routed nowhere; they stayed.
    pub unroutable: i64,
    /// Publishes that the broker refused; the messages stayed.
    pub nacked: i64,
    /// Messages that went to the quarantine replay-limit.
    pub quarantined: i64,
    /// Messages that can't be published any more; they stayed.
    pub unmovable: i64,
    /// The first 10 of those, by message id or position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 10),
        inner(length(max = 255)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub unmovable_messages: Vec<String>,
    /// Messages that were left on purpose: an unknown origin, too many replays.
    pub skipped: i64,
    /// Messages that may have been published twice.
    pub duplicates_possible: i64,
    /// Messages beyond the fence that may have moved with a batch under way at a crash.
    pub beyond_fence: i64,
    /// The most messages that may have moved since without being counted; what a worker that
    /// goes on must know.
    pub under_way: i64,
    /// The most of these that may have been published without being settled.
    pub in_flight: i64,
    /// Messages per second at present, with one decimal, such as "19.8".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub rate: Option<String>,
    /// Time left at the present rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta: Option<Duration>,
    /// When these numbers were last made durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::moment")]
    pub last_checkpoint: Option<Time>,
}

/// What a worker does at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ProgressState {
    /// Messages move.
    Running,
    /// Nothing moves for now.
    Paused,
    /// A few messages test whether the failures are over.
    Canary,
}

/// How a worker's run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgressOutcome {
    /// The reason that the condition Succeeded gets.
    #[schemars(length(max = 64))]
    pub result: String,
    /// What happened, in one sentence.
    #[schemars(length(max = 1_024))]
    pub message: String,
    /// When it ended.
    #[schemars(schema_with = "schema::moment")]
    pub finished: Time,
}

/// How a replay ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplaySummary {
    /// The reason of the condition Succeeded.
    #[schemars(length(max = 64))]
    pub result: String,
    /// What happened, in one sentence.
    #[schemars(length(max = 1_024))]
    pub message: String,
    /// When the first message moved; none if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::moment")]
    pub started: Option<Time>,
    /// When it ended.
    #[schemars(schema_with = "schema::moment")]
    pub finished: Time,
    /// Messages selected.
    pub matched: i64,
    /// Messages moved.
    pub replayed: i64,
    /// Selected messages that stayed.
    pub failed: i64,
    /// Messages that were left on purpose.
    pub skipped: i64,
    /// Messages that may have been published twice.
    pub duplicates_possible: i64,
}
