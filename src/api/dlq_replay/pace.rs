//! How fast a replay goes, and when it stops by itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::Duration;

/// How fast messages move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pace {
    /// The most messages per second, 1 to 100000. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub messages_per_second: Option<i32>,
    /// Messages between two pauses, 1 to 100000. Default 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub batch: Option<i32>,
    /// How long to pause after each batch. Default: no pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_between_batches: Option<Duration>,
    /// Start slowly. Default: at full speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Ramp>,
    /// Messages in flight, 1 to 10000; a crash duplicates at most that many. Default 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub window: Option<i32>,
}

/// A slow start: the rate grows step by step up to `messagesPerSecond`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ramp {
    /// Messages per second at the start, 1 to 100000.
    #[schemars(range(min = 1, max = 100_000))]
    pub from: i32,
    /// How long each step lasts.
    pub every: Duration,
    /// By how much the rate grows with each step, 2 to 100.
    #[schemars(range(min = 2, max = 100))]
    pub factor: i32,
}

/// When a replay pauses or stops by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Guard {
    /// Pause when that many percent of the last `sample` messages came back, 1 to 100. Default 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub stop_on_return_percent: Option<i32>,
    /// How many of the last moved messages count, 1 to 100000. Default 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub sample: Option<i32>,
    /// Messages that must have come back before the percentage counts, 1 to 100000. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min_returns: Option<i32>,
    /// A few messages that test, after a pause, whether the failures are over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// Pause while the target holds more messages than this. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pause_above_target_depth: Option<i64>,
    /// Move only while the target has a consumer. Default: true, but false for a quarantine and the
    /// parking lot, where messages wait for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_consumers: Option<bool>,
    /// Stop when that many messages found no queue, 1 to 100000. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_unroutable: Option<i32>,
}

/// How a paused replay tests whether the failures are over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// Messages per test, 1 to 1000. Default 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000))]
    pub messages: Option<i32>,
    /// How long to wait before each test. Default 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Duration>,
    /// Failed tests before it stops for good, 1 to 100. Default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub tries: Option<i32>,
}
