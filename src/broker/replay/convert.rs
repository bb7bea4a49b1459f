//! Between the AMQP client's types and ours, without a loss either way: every type of header
//! that the client knows has its own in [`Value`].

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString};

use crate::replay::message::{Message, Properties, Table, Value};

/// A delivery as a message. The body moves; the client gives its headers only on loan.
pub fn message(delivery: Delivery) -> Message {
    Message {
        exchange: delivery.exchange.into(),
        routing_key: delivery.routing_key.into(),
        redelivered: delivery.redelivered,
        properties: properties(&delivery.properties),
        body: delivery.data,
    }
}

/// The client's properties as ours.
pub fn properties(from: &BasicProperties) -> Properties {
    let text = |value: &Option<ShortString>| value.as_ref().map(|text| text.as_str().to_owned());
    Properties {
        content_type: text(from.content_type()),
        content_encoding: text(from.content_encoding()),
        headers: from.headers().as_ref().map(table),
        delivery_mode: *from.delivery_mode(),
        priority: *from.priority(),
        correlation_id: text(from.correlation_id()),
        reply_to: text(from.reply_to()),
        expiration: text(from.expiration()),
        message_id: text(from.message_id()),
        timestamp: *from.timestamp(),
        kind: text(from.kind()),
        user_id: text(from.user_id()),
        app_id: text(from.app_id()),
        cluster_id: text(from.cluster_id()),
    }
}

fn table(from: &FieldTable) -> Table {
    from.inner().iter().map(|(name, value)| (name.as_str().to_owned(), self::value(value))).collect()
}

fn value(from: &AMQPValue) -> Value {
    match from {
        AMQPValue::Boolean(value) => Value::Bool(*value),
        AMQPValue::ShortShortInt(value) => Value::I8(*value),
        AMQPValue::ShortShortUInt(value) => Value::U8(*value),
        AMQPValue::ShortInt(value) => Value::I16(*value),
        AMQPValue::ShortUInt(value) => Value::U16(*value),
        AMQPValue::LongInt(value) => Value::I32(*value),
        AMQPValue::LongUInt(value) => Value::U32(*value),
        AMQPValue::LongLongInt(value) => Value::I64(*value),
        AMQPValue::Float(value) => Value::F32(*value),
        AMQPValue::Double(value) => Value::F64(*value),
        AMQPValue::DecimalValue(decimal) => Value::Decimal { scale: decimal.scale, value: decimal.value },
        AMQPValue::ShortString(text) => Value::Short(text.as_str().to_owned()),
        AMQPValue::LongString(text) => Value::Text(text.as_bytes().to_vec()),
        AMQPValue::FieldArray(list) => Value::Array(list.as_slice().iter().map(value).collect()),
        AMQPValue::Timestamp(seconds) => Value::Timestamp(*seconds),
        AMQPValue::FieldTable(inner) => Value::Table(table(inner)),
        AMQPValue::ByteArray(bytes) => Value::Bytes(bytes.as_slice().to_vec()),
        AMQPValue::Void => Value::Void,
    }
}

/// A text was too long for its place on the wire: 255 bytes are the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// A text as the client sends it.
pub fn short(text: String) -> Result<ShortString, TooLong> {
    ShortString::try_new(text).map_err(|_| TooLong)
}

/// Our properties as the client's.
///
/// # Errors
/// [`TooLong`] where a name or a text fits no frame.
pub fn to_properties(from: Properties) -> Result<BasicProperties, TooLong> {
    let mut to = BasicProperties::default();
    macro_rules! set {
        ($field:ident, $with:ident, $convert:expr) => {
            if let Some(value) = from.$field {
                to = to.$with($convert(value)?);
            }
        };
    }
    set!(content_type, with_content_type, short);
    set!(content_encoding, with_content_encoding, short);
    set!(headers, with_headers, to_table);
    set!(delivery_mode, with_delivery_mode, Ok);
    set!(priority, with_priority, Ok);
    set!(correlation_id, with_correlation_id, short);
    set!(reply_to, with_reply_to, short);
    set!(expiration, with_expiration, short);
    set!(message_id, with_message_id, short);
    set!(timestamp, with_timestamp, Ok);
    set!(kind, with_type, short);
    set!(user_id, with_user_id, short);
    set!(app_id, with_app_id, short);
    set!(cluster_id, with_cluster_id, short);
    Ok(to)
}

fn to_table(from: Table) -> Result<FieldTable, TooLong> {
    let mut to = BTreeMap::new();
    for (name, value) in from {
        to.insert(short(name)?, to_value(value)?);
    }
    Ok(to.into())
}

fn to_value(from: Value) -> Result<AMQPValue, TooLong> {
    Ok(match from {
        Value::Bool(value) => AMQPValue::Boolean(value),
        Value::I8(value) => AMQPValue::ShortShortInt(value),
        Value::U8(value) => AMQPValue::ShortShortUInt(value),
        Value::I16(value) => AMQPValue::ShortInt(value),
        Value::U16(value) => AMQPValue::ShortUInt(value),
        Value::I32(value) => AMQPValue::LongInt(value),
        Value::U32(value) => AMQPValue::LongUInt(value),
        Value::I64(value) => AMQPValue::LongLongInt(value),
        Value::F32(value) => AMQPValue::Float(value),
        Value::F64(value) => AMQPValue::Double(value),
        Value::Decimal { scale, value } => AMQPValue::DecimalValue(DecimalValue { scale, value }),
        Value::Short(text) => AMQPValue::ShortString(short(text)?),
        Value::Text(bytes) => AMQPValue::LongString(bytes.into()),
        Value::Array(list) => {
            let list = list.into_iter().map(to_value).collect::<Result<Vec<_>, _>>()?;
            AMQPValue::FieldArray(FieldArray::from(list))
        }
        Value::Timestamp(seconds) => AMQPValue::Timestamp(seconds),
        Value::Table(inner) => AMQPValue::FieldTable(to_table(inner)?),
        Value::Bytes(bytes) => AMQPValue::ByteArray(bytes.into()),
        Value::Void => AMQPValue::Void,
    })
}

#[cfg(test)]
mod tests;
