//! Which messages a replay moves.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{DeathReason, Duration, rules, schema};

/// Which messages move: those for which every given part holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::select()))]
pub struct Selection {
    /// Headers with the exact text each must have, at most 16.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::headers")]
    pub headers: BTreeMap<String, String>,

    /// Why the message died last: any of rejected, expired, maxlen, delivery_limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "atomic"))]
    pub reasons: Vec<DeathReason>,

    /// The queue in which the message died first: any of these, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 255)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub first_death_queues: Vec<String>,

    /// The routing key: any of these topic patterns, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(max = 255)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub routing_keys: Vec<String>,

    /// The message id: any of these, at most 500.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 500),
        inner(length(min = 1, max = 255)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub message_ids: Vec<String>,

    /// Dead for longer than this when the replay starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than: Option<Duration>,

    /// Dead for less than this when the replay starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_than: Option<Duration>,

    /// A CEL expression over headers, properties and, where the pipeline allows it, body; at most
    /// 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1_024))]
    pub expression: Option<String>,

    /// Move at most that many. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,

    /// Read at most that many. Default 1000000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub scan_limit: Option<i64>,
}
