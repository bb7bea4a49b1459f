//! Between the AMQP client's types and ours, without a loss either way: every type of header
//! that the client knows has its own in [`Value`].

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString};

use crate::replay::message::{Message, Properties, Table, Value};

/// A delivery as a message. The body moves; the client gives its headers only on loan.
pub(super) fn message(delivery: Delivery) -> Message {
    Message {
        exchange: delivery.exchange.into(),
        routing_key: delivery.routing_key.into(),
        redelivered: delivery.redelivered,
        properties: properties(&delivery.properties),
        body: delivery.data,
    }
}

/// The client's properties as ours.
pub(super) fn properties(from: &BasicProperties) -> Properties {
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
pub(super) struct TooLong;

/// A text as the client sends it.
pub(super) fn short(text: String) -> Result<ShortString, TooLong> {
    ShortString::try_new(text).map_err(|_| TooLong)
}

/// Our properties as the client's.
///
/// # Errors
/// [`TooLong`] where a name or a text fits no frame.
pub(super) fn to_properties(from: Properties) -> Result<BasicProperties, TooLong> {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values() -> impl Strategy<Value = Value> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::Bool),
            any::<i8>().prop_map(Value::I8),
            any::<u8>().prop_map(Value::U8),
            any::<i16>().prop_map(Value::I16),
            any::<u16>().prop_map(Value::U16),
            any::<i32>().prop_map(Value::I32),
            any::<u32>().prop_map(Value::U32),
            any::<i64>().prop_map(Value::I64),
            (-1e30f32..1e30).prop_map(Value::F32),
            (-1e300f64..1e300).prop_map(Value::F64),
            (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| Value::Decimal { scale, value }),
            "[a-zäß]{0,20}".prop_map(Value::Short),
            bytes().prop_map(Value::Text),
            any::<u64>().prop_map(Value::Timestamp),
            bytes().prop_map(Value::Bytes),
            Just(Value::Void),
        ];
        leaf.prop_recursive(3, 30, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
                prop::collection::btree_map("[a-z-]{1,12}", inner, 0..5).prop_map(Value::Table),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_header_and_property_comes_back_as_it_was(
            headers in prop::option::of(prop::collection::btree_map("[a-z-]{1,30}", values(), 0..8)),
            texts in prop::collection::vec(prop::option::of("[ -~]{0,60}"), 10),
            mode in prop::option::of(any::<u8>()),
            priority in prop::option::of(any::<u8>()),
            timestamp in prop::option::of(any::<u64>()),
        ) {
            let text = |n: usize| texts[n].clone();
            let before = Properties {
                content_type: text(0),
                content_encoding: text(1),
                headers,
                delivery_mode: mode,
                priority,
                correlation_id: text(2),
                reply_to: text(3),
                expiration: text(4),
                message_id: text(5),
                timestamp,
                kind: text(6),
                user_id: text(7),
                app_id: text(8),
                cluster_id: text(9),
            };
            let wire = to_properties(before.clone()).expect("nothing is too long");
            prop_assert_eq!(properties(&wire), before);
        }
    }

    #[test]
    fn a_text_that_fits_no_frame_is_refused() {
        let long = Properties { message_id: Some("x".repeat(256)), ..Properties::default() };
        assert_eq!(to_properties(long), Err(TooLong));
    }
}
