//! How a message died: what the broker and the clients wrote into its headers.
//!
//! Guarantees: whatever a header holds, nothing panics; what is malformed counts as absent.
//! The broker writes `x-death` and `x-first-death-*` itself, but in a queue that applications
//! publish to, every header may be forged: none of this may decide alone where a message goes.

use super::message::{Message, Table, Value};

/// The broker's list of deaths, the newest first.
const DEATHS: &str = "x-death";

/// The most entries that are read; the broker keeps one for each queue and reason.
const MAX_DEATHS: usize = 1_000;

/// One entry of `x-death`: all deaths in one queue for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Death {
    /// The queue in which it died.
    pub queue: Option<String>,
    /// Why, such as `rejected` or `expired`.
    pub reason: Option<String>,
    /// The exchange that it had been published to.
    pub exchange: Option<String>,
    /// The routing keys that it had been published with, CC included.
    pub routing_keys: Vec<String>,
    /// When it died there first, in seconds since 1970.
    pub time: Option<u64>,
}

/// What is known of a message's deaths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deaths {
    /// The first one, as far as it is known.
    pub first: Option<Death>,
    /// Why it died last.
    pub last_reason: Option<String>,
    /// The latest time of all entries, in seconds since 1970. An entry holds the time of its
    /// *first* death, so that the last death was at this time or later.
    pub time: Option<u64>,
}

/// What failures are counted by in a plan; each part is absent where no client wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Why it died last.
    pub reason: Option<String>,
    /// The header `x-error-type`.
    pub error_type: Option<String>,
    /// The header `x-opt-category`.
    pub category: Option<String>,
    /// The header `x-error-stack-hash`.
    pub stack_hash: Option<String>,
}

/// What the headers say of a message's deaths.
#[must_use]
pub fn deaths(message: &Message) -> Deaths {
    let properties = &message.properties;
    let text = |name: &str| properties.header(name).and_then(Value::as_text).map(str::to_owned);
    let entries = entries(properties.header(DEATHS));
    let queue = text("x-first-death-queue");
    let reason = text("x-first-death-reason");
    let exchange = text("x-first-death-exchange");
    let named = |death: &&Death| death.queue == queue && death.reason == reason;
    let listed = match queue {
        Some(_) => entries.iter().find(named),
        None => entries.last(),
    };
    let listed = listed.cloned().unwrap_or_default();
    let first = Death {
        queue: queue.or(listed.queue),
        reason: reason.or(listed.reason),
        exchange: exchange.or(listed.exchange),
        ..listed
    };
    Deaths {
        first: (first != Death::default()).then_some(first),
        last_reason: text("x-last-death-reason").or_else(|| entries.first()?.reason.clone()),
        time: last_time(message),
    }
}

/// The latest time of all deaths, as [`Deaths::time`], without the rest.
#[must_use]
pub fn last_time(message: &Message) -> Option<u64> {
    tables(message.properties.header(DEATHS)).filter_map(time).max()
}

/// When a message entered the queue that it is in, in seconds since 1970: its last death,
/// else the time that its publisher wrote.
#[must_use]
pub fn entered(message: &Message) -> Option<u64> {
    last_time(message).or(message.properties.timestamp)
}

/// How often a message was delivered, as quorum queues count; the number rises with each
/// delivery, also with those that look only.
#[must_use]
pub fn delivery_count(message: &Message) -> Option<u64> {
    let header = |name| message.properties.header(name).and_then(Value::as_count);
    header("x-acquired-count").or_else(|| header("x-delivery-count"))
}

/// What a message's failure is counted by.
#[must_use]
pub fn class(message: &Message) -> Class {
    let header = |name| message.properties.header(name).and_then(Value::printed);
    Class {
        reason: deaths(message).last_reason,
        error_type: header("x-error-type"),
        category: header("x-opt-category"),
        stack_hash: header("x-error-stack-hash"),
    }
}

fn entries(header: Option<&Value>) -> Vec<Death> {
    tables(header).map(entry).collect()
}

fn tables(header: Option<&Value>) -> impl Iterator<Item = &Table> {
    let entries = match header {
        Some(Value::Array(entries)) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().take(MAX_DEATHS).filter_map(|entry| match entry {
        Value::Table(table) => Some(table),
        _ => None,
    })
}

fn entry(table: &Table) -> Death {
    let text = |name: &str| table.get(name).and_then(Value::as_text).map(str::to_owned);
    Death {
        queue: text("queue"),
        reason: text("reason"),
        exchange: text("exchange"),
        routing_keys: routing_keys(table),
        time: time(table),
    }
}

fn time(table: &Table) -> Option<u64> {
    match table.get("time") {
        Some(Value::Timestamp(seconds)) => Some(*seconds),
        _ => None,
    }
}

fn routing_keys(table: &Table) -> Vec<String> {
    let Some(Value::Array(keys)) = table.get("routing-keys") else { return Vec::new() };
    keys.iter().filter_map(Value::as_text).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::message::Properties;

    fn death(queue: &str, reason: &str, exchange: &str, key: &str, time: u64) -> Value {
        Value::Table(Table::from([
            ("queue".to_owned(), Value::from(queue)),
            ("reason".to_owned(), Value::from(reason)),
            ("exchange".to_owned(), Value::from(exchange)),
            ("routing-keys".to_owned(), Value::Array(vec![Value::from(key)])),
            ("count".to_owned(), Value::I64(1)),
            ("time".to_owned(), Value::Timestamp(time)),
        ]))
    }

    fn message(headers: impl IntoIterator<Item = (&'static str, Value)>) -> Message {
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Message {
            properties: Properties { headers: Some(headers), ..Properties::default() },
            ..Message::default()
        }
    }

    #[test]
    fn the_first_death_is_looked_up_and_the_latest_time_counts() {
        let message = message([
            (
                "x-death",
                Value::Array(vec![
                    death("orders.retry.0", "expired", "orders.dlx", "orders.created", 200),
                    death("orders", "rejected", "shop", "orders.created", 100),
                ]),
            ),
            ("x-first-death-queue", Value::from("orders")),
            ("x-first-death-reason", Value::from("rejected")),
            ("x-first-death-exchange", Value::from("shop")),
            ("x-last-death-reason", Value::from("rejected")),
        ]);
        let found = deaths(&message);
        let first = found.first.expect("a first death");
        assert_eq!((first.queue.as_deref(), first.exchange.as_deref()), (Some("orders"), Some("shop")));
        assert_eq!((first.routing_keys, first.time), (vec!["orders.created".to_owned()], Some(100)));
        assert_eq!((found.last_reason.as_deref(), found.time), (Some("rejected"), Some(200)));
    }

    #[test]
    fn without_the_short_headers_the_oldest_entry_is_the_first_and_the_newest_the_last() {
        let entries = vec![death("b", "expired", "x", "k", 7), death("a", "rejected", "y", "l", 5)];
        let found = deaths(&message([("x-death", Value::Array(entries))]));
        assert_eq!(found.first.and_then(|death| death.queue).as_deref(), Some("a"));
        assert_eq!(found.last_reason.as_deref(), Some("expired"));
    }

    #[test]
    fn what_is_malformed_counts_as_absent() {
        let odd = [
            Value::from("text"),
            Value::Void,
            Value::Array(vec![Value::from("text"), Value::I64(1)]),
            Value::Array(vec![Value::Table(Table::from([
                ("queue".to_owned(), Value::I64(1)),
                ("routing-keys".to_owned(), Value::from("no list")),
                ("time".to_owned(), Value::from("yesterday")),
            ]))]),
            Value::Array(vec![Value::Table(Table::new())]),
        ];
        for odd in odd {
            assert_eq!(deaths(&message([("x-death", odd.clone())])), Deaths::default(), "{odd:?}");
        }
        let odd = message([("x-first-death-queue", Value::Text(vec![0xFF]))]);
        assert_eq!(deaths(&odd), Deaths::default());
        assert_eq!(deaths(&Message::default()), Deaths::default());
    }

    #[test]
    fn a_message_without_deaths_entered_when_it_was_published() {
        let mut message = message([]);
        assert_eq!(entered(&message), None);
        message.properties.timestamp = Some(9);
        assert_eq!(entered(&message), Some(9));
        let died = Value::Array(vec![death("a", "rejected", "y", "l", 5)]);
        message.properties.headers = Some(Table::from([("x-death".to_owned(), died)]));
        assert_eq!(entered(&message), Some(5));
    }

    #[test]
    fn failures_are_told_apart_by_what_clients_wrote() {
        let message = message([
            ("x-error-type", Value::from("Timeout")),
            ("x-opt-category", Value::I32(7)),
            ("x-error-stack-hash", Value::Table(Table::new())),
            ("x-delivery-count", Value::I64(3)),
        ]);
        let class = class(&message);
        assert_eq!((class.error_type.as_deref(), class.category.as_deref()), (Some("Timeout"), Some("7")));
        assert_eq!((class.stack_hash, class.reason), (None, None));
        assert_eq!(delivery_count(&message), Some(3));
    }
}
