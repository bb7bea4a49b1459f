//! A message as AMQP 0.9.1 carries it, in terms of our own.

use std::collections::BTreeMap;

/// A header's value; every type that RabbitMQ knows, so that a replay changes none.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A signed byte.
    I8(i8),
    /// An unsigned byte.
    U8(u8),
    /// 16 bits, signed.
    I16(i16),
    /// 16 bits, unsigned.
    U16(u16),
    /// 32 bits, signed.
    I32(i32),
    /// 32 bits, unsigned.
    U32(u32),
    /// 64 bits, signed.
    I64(i64),
    /// 32 bits, floating.
    F32(f32),
    /// 64 bits, floating.
    F64(f64),
    /// A decimal: `value` with so many digits behind the point.
    Decimal {
        /// Digits behind the point.
        scale: u8,
        /// All digits.
        value: u32,
    },
    /// A text of up to 255 bytes.
    Short(String),
    /// A text, or bytes that are none.
    Text(Vec<u8>),
    /// A list.
    Array(Vec<Value>),
    /// Seconds since 1970.
    Timestamp(u64),
    /// A table in the table.
    Table(Table),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Nothing.
    Void,
}

/// Headers, by name.
pub type Table = BTreeMap<String, Value>;

/// The 14 properties of a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties {
    /// What the body is.
    pub content_type: Option<String>,
    /// How the body is packed.
    pub content_encoding: Option<String>,
    /// The headers; `None` differs from an empty table.
    pub headers: Option<Table>,
    /// 1 for transient, 2 for persistent.
    pub delivery_mode: Option<u8>,
    /// The priority.
    pub priority: Option<u8>,
    /// What it answers.
    pub correlation_id: Option<String>,
    /// Where an answer goes.
    pub reply_to: Option<String>,
    /// Its time to live, as a text in milliseconds.
    pub expiration: Option<String>,
    /// Its id.
    pub message_id: Option<String>,
    /// When it was made, in seconds since 1970.
    pub timestamp: Option<u64>,
    /// Its kind.
    pub kind: Option<String>,
    /// Who published it; the broker compares it with the connection's user.
    pub user_id: Option<String>,
    /// Which application published it.
    pub app_id: Option<String>,
    /// Reserved.
    pub cluster_id: Option<String>,
}

/// A message that was read from a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// The exchange it came through last.
    pub exchange: String,
    /// The routing key it came with last.
    pub routing_key: String,
    /// Whether it was delivered before.
    pub redelivered: bool,
    /// Its properties.
    pub properties: Properties,
    /// Its body.
    pub body: Vec<u8>,
}

/// A message that is to be published, and where to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// The exchange; empty for the default one, whose routing key is a queue's name.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// Its properties, rewritten.
    pub properties: Properties,
    /// Its body, as it was.
    pub body: Vec<u8>,
}

impl Value {
    /// The value as a text, where it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Short(text) => Some(text),
            Self::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The value as a number of at least zero, where it is one.
    pub fn as_count(&self) -> Option<u64> {
        match self {
            Self::U8(value) => Some((*value).into()),
            Self::U16(value) => Some((*value).into()),
            Self::U32(value) => Some((*value).into()),
            Self::I8(value) => u64::try_from(*value).ok(),
            Self::I16(value) => u64::try_from(*value).ok(),
            Self::I32(value) => u64::try_from(*value).ok(),
            Self::I64(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// The value as people write it: texts as they are, numbers in digits, `true` and
    /// `false`, times in seconds since 1970. Nothing for bytes, lists, tables and void.
    pub fn printed(&self) -> Option<String> {
        match self {
            Self::Short(_) | Self::Text(_) => self.as_text().map(str::to_owned),
            Self::Bool(value) => Some(value.to_string()),
            Self::I8(value) => Some(value.to_string()),
            Self::U8(value) => Some(value.to_string()),
            Self::I16(value) => Some(value.to_string()),
            Self::U16(value) => Some(value.to_string()),
            Self::I32(value) => Some(value.to_string()),
            Self::U32(value) => Some(value.to_string()),
            Self::I64(value) => Some(value.to_string()),
            Self::F32(value) => Some(value.to_string()),
            Self::F64(value) => Some(value.to_string()),
            Self::Timestamp(seconds) => Some(seconds.to_string()),
            Self::Decimal { scale, value } => Some(decimal(*scale, *value)),
            Self::Array(_) | Self::Table(_) | Self::Bytes(_) | Self::Void => None,
        }
    }
}

/// All digits with the point before the last `scale` of them.
fn decimal(scale: u8, value: u32) -> String {
    let scale = usize::from(scale);
    let digits = format!("{value:0>width$}", width = scale + 1);
    let (whole, behind) = digits.split_at(digits.len() - scale);
    if behind.is_empty() { digits } else { format!("{whole}.{behind}") }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.as_bytes().to_vec())
    }
}

impl Properties {
    /// The header of that name.
    pub fn header(&self, name: &str) -> Option<&Value> {
        self.headers.as_ref()?.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_print_as_people_write_them() {
        let cases = [
            (Value::Bool(true), Some("true")),
            (Value::I8(-1), Some("-1")),
            (Value::U32(42), Some("42")),
            (Value::F64(1.5), Some("1.5")),
            (Value::Decimal { scale: 3, value: 5 }, Some("0.005")),
            (Value::Decimal { scale: 0, value: 5 }, Some("5")),
            (Value::Timestamp(9), Some("9")),
            (Value::from("a b"), Some("a b")),
            (Value::Text(vec![0xFF]), None),
            (Value::Bytes(vec![65]), None),
            (Value::Array(Vec::new()), None),
            (Value::Void, None),
        ];
        for (value, printed) in cases {
            assert_eq!(value.printed().as_deref(), printed, "{value:?}");
        }
    }
}
