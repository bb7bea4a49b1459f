//! What queues do, beside being as declared: consumers, and messages that wait inside.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::MapAccess;

use super::error::BrokerError;
use super::lenient::{Row, Scalar, take, take_table};
use super::management::Management;
use super::wire::QueueRow;
use crate::topology::model::{Arg, Args};

/// Consumers come with the statistics, up to 5 s late.
const CONSUMERS: &str = "?columns=queue.name,channel_details.user";
/// As late; what is not counted yet is left out.
const COUNTS: &str = "?columns=name,consumers";
const TOTALS: &str = "?disable_stats=true&enable_queue_totals=true&columns=name,type,state,messages,messages_ready,messages_unacknowledged";
/// Delayed retries are in the statistics alone, up to 10 s late.
const DELAYED: &str = "?columns=name,messages_delayed";

/// Who consumes from the queues of a vhost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consumers {
    /// The users that consume from each queue that has consumers; an empty name where the broker
    /// does not tell yet whom a consumer belongs to, and no name where our user may not see the
    /// connections of others.
    pub users: BTreeMap<String, BTreeSet<String>>,
    /// How many each of these queues has; none where the broker keeps no statistics.
    pub counts: Option<BTreeMap<String, u64>>,
}

impl Management {
    /// Who consumes from each queue of a vhost. Nobody where the broker keeps no statistics.
    ///
    /// # Errors
    /// [`BrokerError::NotFound`] for a missing vhost, and every error of a connection.
    pub async fn consumers(&self, vhost: &str) -> Result<Consumers, BrokerError> {
        let (mut users, mut counts) = (BTreeMap::new(), BTreeMap::new());
        if !self.whoami().await?.sees_connections() {
            let mut is_told = false;
            let add = |row: CountRow| {
                is_told |= row.consumers.is_some();
                let count = row.consumers.and_then(|count| u64::try_from(count).ok());
                if let Some((name, count)) = row.name.zip(count.filter(|count| *count > 0)) {
                    users.insert(name.clone(), BTreeSet::new());
                    counts.insert(name, count);
                }
            };
            self.list("queues", COUNTS, vhost, add).await?;
            return Ok(Consumers { users, counts: is_told.then_some(counts) });
        }
        let add = |row: ConsumerRow| {
            if let Some(queue) = text(row.queue.as_ref(), "name") {
                *counts.entry(queue.clone()).or_default() += 1;
                let user = text(row.channel.as_ref(), "user").unwrap_or_default();
                users.entry(queue).or_insert_with(BTreeSet::new).insert(user);
            }
        };
        match self.list("consumers", CONSUMERS, vhost, add).await {
            Ok(()) => Ok(Consumers { users, counts: Some(counts) }),
            // Without statistics the broker refuses the question.
            Err(BrokerError::Refused { .. }) => Ok(Consumers::default()),
            Err(error) => Err(error),
        }
    }

    /// How many messages of each queue are neither ready nor delivered, where the broker says:
    /// dead letters that wait for their next queue, and delayed retries.
    ///
    /// # Errors
    /// [`BrokerError::NotFound`] for a missing vhost, and every error of a connection.
    pub async fn waiting(&self, vhost: &str) -> Result<BTreeMap<String, i64>, BrokerError> {
        let mut waiting = BTreeMap::new();
        let add = |row: QueueRow| {
            let count = row.totals().waiting();
            waiting.extend(row.name.zip(count));
        };
        self.list("queues", TOTALS, vhost, add).await?;
        Ok(waiting)
    }

    /// How many messages of each queue are in delayed retry, where the broker says.
    ///
    /// # Errors
    /// [`BrokerError::NotFound`] for a missing vhost, and every error of a connection.
    pub async fn delayed(&self, vhost: &str) -> Result<BTreeMap<String, i64>, BrokerError> {
        let mut delayed = BTreeMap::new();
        self.list("queues", DELAYED, vhost, |row: QueueRow| delayed.extend(row.name.zip(row.delayed)))
            .await?;
        Ok(delayed)
    }
}

/// The consumers of a queue of `/api/queues`.
#[derive(Default)]
struct CountRow {
    name: Option<String>,
    consumers: Option<i64>,
}

impl Row for CountRow {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "name" => take(&mut self.name, map, Scalar::text),
            "consumers" => take(&mut self.consumers, map, Scalar::int),
            _ => Ok(false),
        }
    }
}

/// A consumer of `/api/consumers`.
#[derive(Default)]
struct ConsumerRow {
    queue: Option<Args>,
    channel: Option<Args>,
}

impl Row for ConsumerRow {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "queue" => take_table(&mut self.queue, map),
            // Of AMQP 1.0 the broker tells none.
            "channel_details" => take_table(&mut self.channel, map),
            _ => Ok(false),
        }
    }
}

fn text(table: Option<&Args>, key: &str) -> Option<String> {
    match table?.get(key) {
        Some(Arg::Str(text)) => Some(text.clone()),
        _ => None,
    }
}
