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
