//! How much work an expression is at most on one message, known before it is evaluated.
//!
//! A step is one byte that one part of an expression looks at or copies; a number counts as
//! eight. Each part looks at no more than what its own parts bring: the variables that are named
//! in it, as often as they are named, and its constants. Inside a loop that is so for each turn,
//! but for the loop's own variable, whose values are all of the list together.

use super::check::Uses;
use crate::replay::message::{Message, Table, Value};

/// The most steps on one message; where there could be more, the expression fails on it.
pub(super) const MOST: u64 = 1 << 30;

/// What a value takes besides its text.
const EACH: u64 = 8;

/// Properties that a loop could go over.
const PROPERTIES: u64 = 16;

/// The most steps that an expression of this length takes on this message.
pub(super) fn steps(uses: &Uses, length: u64, message: &Message) -> u64 {
    let (mut values, mut bytes) = (0, properties(message));
    if uses.headers {
        message.properties.headers.iter().for_each(|headers| add_table(headers, &mut values, &mut bytes));
    }
    // A list may stand in the expression itself, too.
    let turns = if uses.loops { values + PROPERTIES + length } else { 0 };
    let repeated = bytes.saturating_mul(uses.inside).saturating_add(length).saturating_mul(turns);
    let once = bytes.saturating_mul(uses.outside).saturating_add(length);
    let bodies = (message.body.len() as u64).saturating_mul(uses.bodies);
    repeated.saturating_add(once).saturating_add(bodies).saturating_mul(uses.parts)
}

fn properties(message: &Message) -> u64 {
    let found = &message.properties;
    let texts = [
        &found.content_type,
        &found.content_encoding,
        &found.correlation_id,
        &found.reply_to,
        &found.expiration,
        &found.message_id,
        &found.kind,
        &found.user_id,
        &found.app_id,
    ];
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    PROPERTIES * EACH + (texts + message.exchange.len() + message.routing_key.len()) as u64
}

fn add_table(table: &Table, values: &mut u64, bytes: &mut u64) {
    for (name, value) in table {
        *bytes += name.len() as u64;
        add(value, values, bytes);
    }
}

fn add(value: &Value, values: &mut u64, bytes: &mut u64) {
    *values += 1;
    *bytes += EACH;
    match value {
        Value::Array(list) => list.iter().for_each(|value| add(value, values, bytes)),
        Value::Table(table) => add_table(table, values, bytes),
        Value::Text(text) | Value::Bytes(text) => *bytes += text.len() as u64,
        Value::Short(text) => *bytes += text.len() as u64,
        _ => {}
    }
}
