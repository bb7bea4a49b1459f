//! A message in CEL's terms.

use std::collections::HashMap;
use std::sync::Arc;

use cel::Value as Cel;
use cel::objects::{Key, Map};

use crate::replay::message::{Message, Table, Value};

/// Lists and tables inside each other beyond this are left out.
const MAX_DEPTH: usize = 32;

/// The headers.
pub(super) fn headers(message: &Message) -> Cel {
    table(message.properties.headers.as_ref().unwrap_or(&Table::new()), 0)
}

/// The properties that are there, and the last exchange and routing key.
pub(super) fn properties(message: &Message) -> Cel {
    let properties = &message.properties;
    let mut map = HashMap::new();
    let mut add = |name: &'static str, value: Option<Cel>| {
        if let Some(value) = value {
            map.insert(Key::from(name.to_owned()), value);
        }
    };
    let text = |text: &Option<String>| text.as_deref().map(Cel::from);
    add("exchange", Some(Cel::from(message.exchange.as_str())));
    add("routingKey", Some(Cel::from(message.routing_key.as_str())));
    add("contentType", text(&properties.content_type));
    add("contentEncoding", text(&properties.content_encoding));
    add("deliveryMode", properties.delivery_mode.map(|mode| Cel::Int(mode.into())));
    add("priority", properties.priority.map(|priority| Cel::Int(priority.into())));
    add("correlationId", text(&properties.correlation_id));
    add("replyTo", text(&properties.reply_to));
    add("expiration", text(&properties.expiration));
    add("messageId", text(&properties.message_id));
    add("timestamp", properties.timestamp.map(seconds));
    add("type", text(&properties.kind));
    add("userId", text(&properties.user_id));
    add("appId", text(&properties.app_id));
    Cel::Map(Map { map: Arc::new(map) })
}

fn seconds(seconds: u64) -> Cel {
    i64::try_from(seconds).map_or(Cel::UInt(seconds), Cel::Int)
}

fn table(table: &Table, depth: usize) -> Cel {
    let entries = table.iter().map(|(name, field)| (Key::from(name.clone()), value(field, depth)));
    Cel::Map(Map { map: Arc::new(entries.collect()) })
}

/// Whole numbers become CEL's `int`, so that they compare with what people write.
fn value(field: &Value, depth: usize) -> Cel {
    match field {
        Value::Bool(value) => Cel::Bool(*value),
        Value::I8(value) => Cel::Int((*value).into()),
        Value::U8(value) => Cel::Int((*value).into()),
        Value::I16(value) => Cel::Int((*value).into()),
        Value::U16(value) => Cel::Int((*value).into()),
        Value::I32(value) => Cel::Int((*value).into()),
        Value::U32(value) => Cel::Int((*value).into()),
        Value::I64(value) => Cel::Int(*value),
        Value::F32(value) => Cel::Float((*value).into()),
        Value::F64(value) => Cel::Float(*value),
        Value::Decimal { scale, value } => Cel::Float(f64::from(*value) / 10_f64.powi((*scale).into())),
        Value::Short(text) => Cel::from(text.as_str()),
        Value::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Cel::from(text),
            Err(_) => Cel::Bytes(Arc::new(bytes.clone())),
        },
        Value::Bytes(bytes) => Cel::Bytes(Arc::new(bytes.clone())),
        Value::Timestamp(time) => seconds(*time),
        Value::Void => Cel::Null,
        Value::Array(_) | Value::Table(_) if depth >= MAX_DEPTH => Cel::Null,
        Value::Array(values) => {
            Cel::List(Arc::new(values.iter().map(|field| value(field, depth + 1)).collect()))
        }
        Value::Table(fields) => table(fields, depth + 1),
    }
}
