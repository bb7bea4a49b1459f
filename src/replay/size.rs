//! How many bytes a message's properties take on the wire.

use super::message::{Properties, Table, Value};

/// Type, channel, length and end of every frame.
const FRAME: usize = 8;

/// Class, weight, size of the body and the flags of a content header.
const CONTENT_HEADER: usize = 14;

/// The bytes of the one frame that holds a message's properties: AMQP has no second one, so
/// that what is above the connection's `frame_max` can't be published.
#[must_use]
pub fn header_frame(properties: &Properties) -> usize {
    let Properties {
        content_type,
        content_encoding,
        headers,
        delivery_mode,
        priority,
        correlation_id,
        reply_to,
        expiration,
        message_id,
        timestamp,
        kind,
        user_id,
        app_id,
        cluster_id,
    } = properties;
    let texts = [
        content_type,
        content_encoding,
        correlation_id,
        reply_to,
        expiration,
        message_id,
        kind,
        user_id,
        app_id,
        cluster_id,
    ];
    let texts: usize = texts.into_iter().flatten().map(|text| 1 + text.len()).sum();
    let octets = usize::from(delivery_mode.is_some()) + usize::from(priority.is_some());
    let timestamp = if timestamp.is_some() { 8 } else { 0 };
    FRAME + CONTENT_HEADER + texts + octets + timestamp + headers.as_ref().map_or(0, table)
}

/// The bytes by which a table grows with these fields.
#[must_use]
pub fn fields(fields: &Table) -> usize {
    fields.iter().map(|(name, field)| 1 + name.len() + value(field)).sum()
}

fn table(table: &Table) -> usize {
    4 + fields(table)
}

/// The bytes of a value, with the one that names its type.
fn value(field: &Value) -> usize {
    1 + match field {
        Value::Void => 0,
        Value::Bool(_) | Value::I8(_) | Value::U8(_) => 1,
        Value::I16(_) | Value::U16(_) => 2,
        Value::I32(_) | Value::U32(_) | Value::F32(_) => 4,
        Value::Decimal { .. } => 5,
        Value::I64(_) | Value::F64(_) | Value::Timestamp(_) => 8,
        Value::Short(text) => 1 + text.len(),
        Value::Text(bytes) | Value::Bytes(bytes) => 4 + bytes.len(),
        Value::Array(values) => 4 + values.iter().map(value).sum::<usize>(),
        Value::Table(fields) => table(fields),
    }
}
