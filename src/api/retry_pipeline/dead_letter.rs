//! Where messages go that failed for good.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{Duration, is_false, rules, schema};
use super::QueueType;

/// Where messages go that failed for good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::dead_letter()))]
pub struct DeadLetter {
    /// The queue's name, with {queue} for the work queue. Default "{queue}.dlq".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::dead_letter_name")]
    pub name: Option<String>,

    /// How long a dead message is kept before it is deleted. Default: nothing expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Duration>,

    /// The kind of this queue, of quarantine and of the parking lot: quorum (default) or classic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_type: Option<QueueType>,

    /// Replicas of each of these queues if quorum, 1 to 15. Default: the broker's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 15))]
    pub group_size: Option<i32>,

    /// The most dead messages; further ones stay where they are, old ones are never dropped.
    /// Default: no limit. Not behind classic queues, which would lose the further ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_length: Option<i64>,

    /// Queues for messages of a certain kind, called "<name>.quarantine.<category>", at most 16.
    /// The first match wins; the rest goes to the dead-letter queue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::quarantine())
    )]
    pub quarantine: Vec<Quarantine>,

    /// Declare the queue "<name>.parking" for messages that people set aside. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub parking_lot: bool,
}

/// Which dead messages go into one quarantine queue: those for which every given part holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::quarantine_entry()))]
pub struct Quarantine {
    /// The end of the queue's name: lower case letters, digits and hyphens, up to 40.
    #[schemars(schema_with = "schema::category")]
    pub category: String,
    /// Why the message died: any of rejected, expired, maxlen, delivery_limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "atomic"))]
    pub reasons: Vec<DeathReason>,
    /// Headers with the exact text each must have: an AMQP 1.0 annotation, or a header of the
    /// published message.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::headers")]
    pub headers: BTreeMap<String, String>,
}

/// Why the broker dead-lettered a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeathReason {
    /// A consumer rejected it.
    Rejected,
    /// It waited longer than its time to live.
    Expired,
    /// The queue was full.
    Maxlen,
    /// It was delivered too often.
    DeliveryLimit,
}

impl DeathReason {
    /// The broker's word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Maxlen => "maxlen",
            Self::DeliveryLimit => "delivery_limit",
        }
    }
}
