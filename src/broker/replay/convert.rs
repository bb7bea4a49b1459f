//! Messages between lapin's terms and our own, without any loss either way.

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString, ShortString};

use crate::replay::message::{Message, Properties, Table, Value};

/// A text that doesn't fit into AMQP's short strings of 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a text of {bytes} bytes does not fit into AMQP's 255")]
pub struct TooLong {
    /// Its length.
    pub bytes: usize,
}

/// A delivery in our own terms; the body moves, nothing is copied twice.
pub fn message(delivery: Delivery) -> Message {
    Message {
        exchange: delivery.exchange.into(),
        routing_key: delivery.routing_key.into(),
        redelivered: delivery.redelivered,
        properties: properties(&delivery.properties),
        body: delivery.data,
    }
}

/// Properties in our own terms.
pub fn properties(properties: &BasicProperties) -> Properties {
    let text = |text: &Option<ShortString>| text.as_ref().map(|text| text.as_str().to_owned());
    Properties {
        content_type: text(properties.content_type()),
        content_encoding: text(properties.content_encoding()),
        headers: properties.headers().as_ref().map(table),
        delivery_mode: *properties.delivery_mode(),
        priority: *properties.priority(),
        correlation_id: text(properties.correlation_id()),
        reply_to: text(properties.reply_to()),
        expiration: text(properties.expiration()),
        message_id: text(properties.message_id()),
        timestamp: *properties.timestamp(),
        kind: text(properties.kind()),
        user_id: text(properties.user_id()),
        app_id: text(properties.app_id()),
        cluster_id: text(properties.cluster_id()),
    }
}

/// Properties in lapin's terms.
///
/// # Errors
/// [`TooLong`] for a short text or a header's name of more than 255 bytes, which no
/// delivery holds.
pub fn basic_properties(properties: &Properties) -> Result<BasicProperties, TooLong> {
    let mut basic = BasicProperties::default();
    let texts: [(&Option<String>, fn(BasicProperties, ShortString) -> BasicProperties); 10] = [
        (&properties.content_type, BasicProperties::with_content_type),
        (&properties.content_encoding, BasicProperties::with_content_encoding),
        (&properties.correlation_id, BasicProperties::with_correlation_id),
        (&properties.reply_to, BasicProperties::with_reply_to),
        (&properties.expiration, BasicProperties::with_expiration),
        (&properties.message_id, BasicProperties::with_message_id),
        (&properties.kind, BasicProperties::with_type),
        (&properties.user_id, BasicProperties::with_user_id),
        (&properties.app_id, BasicProperties::with_app_id),
        (&properties.cluster_id, BasicProperties::with_cluster_id),
    ];
    for (text, set) in texts {
        if let Some(text) = text {
            basic = set(basic, short(text)?);
        }
    }
    if let Some(headers) = &properties.headers {
        basic = basic.with_headers(field_table(headers)?);
    }
    if let Some(mode) = properties.delivery_mode {
        basic = basic.with_delivery_mode(mode);
    }
    if let Some(priority) = properties.priority {
        basic = basic.with_priority(priority);
    }
    if let Some(timestamp) = properties.timestamp {
        basic = basic.with_timestamp(timestamp);
    }
    Ok(basic)
}

fn table(fields: &FieldTable) -> Table {
    fields.inner().iter().map(|(name, field)| (name.as_str().to_owned(), value(field))).collect()
}

fn value(field: &AMQPValue) -> Value {
    match field {
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
        AMQPValue::FieldArray(array) => Value::Array(array.as_slice().iter().map(value).collect()),
        AMQPValue::Timestamp(seconds) => Value::Timestamp(*seconds),
        AMQPValue::FieldTable(fields) => Value::Table(table(fields)),
        AMQPValue::ByteArray(bytes) => Value::Bytes(bytes.as_slice().to_vec()),
        AMQPValue::Void => Value::Void,
    }
}

/// A table in lapin's terms.
///
/// # Errors
/// [`TooLong`] as in [`basic_properties`].
pub fn field_table(table: &Table) -> Result<FieldTable, TooLong> {
    let mut fields = FieldTable::default();
    for (name, value) in table {
        fields.insert(short(name)?, field(value)?);
    }
    Ok(fields)
}

fn field(value: &Value) -> Result<AMQPValue, TooLong> {
    Ok(match value {
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::I8(value) => AMQPValue::ShortShortInt(*value),
        Value::U8(value) => AMQPValue::ShortShortUInt(*value),
        Value::I16(value) => AMQPValue::ShortInt(*value),
        Value::U16(value) => AMQPValue::ShortUInt(*value),
        Value::I32(value) => AMQPValue::LongInt(*value),
        Value::U32(value) => AMQPValue::LongUInt(*value),
        Value::I64(value) => AMQPValue::LongLongInt(*value),
        Value::F32(value) => AMQPValue::Float(*value),
        Value::F64(value) => AMQPValue::Double(*value),
        Value::Decimal { scale, value } => {
            AMQPValue::DecimalValue(DecimalValue { scale: *scale, value: *value })
        }
        Value::Short(text) => AMQPValue::ShortString(short(text)?),
        Value::Text(bytes) => AMQPValue::LongString(LongString::from(bytes.as_slice())),
        Value::Array(values) => {
            AMQPValue::FieldArray(FieldArray::from(values.iter().map(field).collect::<Result<Vec<_>, _>>()?))
        }
        Value::Timestamp(seconds) => AMQPValue::Timestamp(*seconds),
        Value::Table(table) => AMQPValue::FieldTable(field_table(table)?),
        Value::Bytes(bytes) => AMQPValue::ByteArray(ByteArray::from(bytes.as_slice())),
        Value::Void => AMQPValue::Void,
    })
}

fn short(text: &str) -> Result<ShortString, TooLong> {
    ShortString::try_new(text).map_err(|_| TooLong { bytes: text.len() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    fn every_type() -> Table {
        let inner = Table::from([
            ("deep".to_owned(), Value::Array(vec![Value::Void, Value::Table(Table::new())])),
            ("ключ".to_owned(), Value::from("значение")),
        ]);
        let values = [
            Value::Bool(true),
            Value::I8(-8),
            Value::U8(200),
            Value::I16(-16),
            Value::U16(60_000),
            Value::I32(-32),
            Value::U32(4_000_000_000),
            Value::I64(i64::MIN),
            Value::F32(-1.5),
            Value::F64(f64::MIN_POSITIVE),
            Value::Decimal { scale: 3, value: 12_345 },
            Value::Short("short".to_owned()),
            Value::Text(vec![0xFF, 0x00, 0xFE]),
            Value::Array(vec![Value::I32(1), Value::from("two"), Value::Array(Vec::new())]),
            Value::Timestamp(u64::MAX),
            Value::Table(inner),
            Value::Bytes(vec![0, 1, 2, 255]),
            Value::Void,
        ];
        values.into_iter().enumerate().map(|(index, value)| (format!("h{index}"), value)).collect()
    }

    fn full() -> Properties {
        let text = |text: &str| Some(text.to_owned());
        Properties {
            content_type: text("application/json"),
            content_encoding: text("gzip"),
            headers: Some(every_type()),
            delivery_mode: Some(1),
            priority: Some(4),
            correlation_id: text("c"),
            reply_to: text("r"),
            expiration: text("300"),
            message_id: text("m"),
            timestamp: Some(1_700_000_000),
            kind: text("k"),
            user_id: text("u"),
            app_id: text("a"),
            cluster_id: text("cl"),
        }
    }

    #[test]
    fn every_property_and_every_type_of_header_survives() {
        for whole in [full(), Properties::default()] {
            assert_eq!(properties(&basic_properties(&whole).unwrap()), whole);
        }
    }

    #[test]
    fn the_size_that_is_computed_is_the_size_that_is_sent() {
        use lapin::protocol::basic::gen_properties;
        // Type, channel and length of the frame, class, weight and size of the body, the end.
        const AROUND: usize = 7 + 12 + 1;
        for whole in [full(), Properties::default()] {
            let basic = basic_properties(&whole).unwrap();
            let (sent, _) = gen_properties(&basic)(Vec::new().into()).unwrap().into_inner();
            assert_eq!(crate::replay::size::header_frame(&whole), AROUND + sent.len());
        }
    }

    #[test]
    fn an_empty_table_is_not_the_same_as_none() {
        let empty = Properties { headers: Some(Table::new()), ..Properties::default() };
        assert_eq!(properties(&basic_properties(&empty).unwrap()).headers, Some(Table::new()));
    }

    #[test]
    fn what_is_too_long_for_amqp_is_an_error_and_no_panic() {
        let long = "é".repeat(128);
        let id = Properties { message_id: Some(long.clone()), ..Properties::default() };
        assert_eq!(basic_properties(&id), Err(TooLong { bytes: 256 }));
        let header = Table::from([(long, Value::Void)]);
        assert_eq!(field_table(&header), Err(TooLong { bytes: 256 }));
    }

    #[test]
    fn a_delivery_becomes_a_message() {
        let mut delivery = Delivery::mock(1, "ex".into(), "key".into(), true, vec![1, 2]);
        delivery.properties = basic_properties(&full()).unwrap();
        let expected = Message {
            exchange: "ex".to_owned(),
            routing_key: "key".to_owned(),
            redelivered: true,
            properties: full(),
            body: vec![1, 2],
        };
        assert_eq!(message(delivery), expected);
    }
}
