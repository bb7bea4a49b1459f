//! The replay id: how consumers recognise a message that a crash published twice.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::death;
use super::message::{Message, Properties, Table, Value};

/// Headers that the broker changes with every delivery, also when a message is only looked at
/// or read again after a crash: with them, the two copies would have two ids.
const COUNTERS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// The id of a message in a run: 32 hexadecimal digits.
///
/// It is a hash of the run, the message id, all properties and headers but the counters of
/// deliveries, where the message came through, its body and the time of its last death. Reading the message
/// again gives the same id; two different messages have two, unless they are equal in all of
/// that, which the plan counts.
#[must_use]
pub fn replay_id(run: &str, message: &Message) -> String {
    let mut id = String::with_capacity(32);
    for byte in &digest(run, message)[..16] {
        // Writing into a text never fails.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// The first 64 bits of the id, for counting equal ones.
#[must_use]
pub fn short_id(run: &str, message: &Message) -> u64 {
    let digest = digest(run, message);
    digest[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn digest(run: &str, message: &Message) -> [u8; 32] {
    let mut hash = Hash(Sha256::new());
    hash.bytes(run.as_bytes());
    hash.bytes(message.exchange.as_bytes());
    hash.bytes(message.routing_key.as_bytes());
    hash.properties(&message.properties);
    hash.number(death::last_time(message));
    hash.bytes(&message.body);
    hash.0.finalize().into()
}

/// Every part with its kind and length, so that no two messages feed the same bytes.
struct Hash(Sha256);

impl Hash {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    fn number(&mut self, number: Option<u64>) {
        self.0.update([u8::from(number.is_some())]);
        self.0.update(number.unwrap_or_default().to_be_bytes());
    }

    fn text(&mut self, text: Option<&str>) {
        self.0.update([u8::from(text.is_some())]);
        self.bytes(text.unwrap_or_default().as_bytes());
    }

    fn properties(&mut self, properties: &Properties) {
        // Named one by one, so that a property that is added can't be forgotten here.
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
            message_id,
            content_type,
            content_encoding,
            correlation_id,
            reply_to,
            expiration,
            kind,
            user_id,
            app_id,
            cluster_id,
        ];
        for text in texts {
            self.text(text.as_deref());
        }
        self.number(delivery_mode.map(u64::from));
        self.number(priority.map(u64::from));
        self.number(*timestamp);
        self.headers(headers.as_ref());
    }

    fn headers(&mut self, headers: Option<&Table>) {
        // Without the counters, a table that held nothing else is no table.
        let counted = |name: &&String| !COUNTERS.contains(&name.as_str());
        let all = headers.into_iter().flatten().filter(|(name, _)| counted(name));
        for (name, value) in all {
            self.bytes(name.as_bytes());
            self.value(value);
        }
        self.0.update([0xFF]);
    }

    fn value(&mut self, value: &Value) {
        let mut scalar = |kind: u8, bytes: &[u8]| {
            self.0.update([kind]);
            self.bytes(bytes);
        };
        match value {
            Value::Bool(value) => scalar(b't', &[u8::from(*value)]),
            Value::I8(value) => scalar(b'b', &value.to_be_bytes()),
            Value::U8(value) => scalar(b'B', &value.to_be_bytes()),
            Value::I16(value) => scalar(b's', &value.to_be_bytes()),
            Value::U16(value) => scalar(b'u', &value.to_be_bytes()),
            Value::I32(value) => scalar(b'I', &value.to_be_bytes()),
            Value::U32(value) => scalar(b'i', &value.to_be_bytes()),
            Value::I64(value) => scalar(b'l', &value.to_be_bytes()),
            Value::F32(value) => scalar(b'f', &value.to_bits().to_be_bytes()),
            Value::F64(value) => scalar(b'd', &value.to_bits().to_be_bytes()),
            Value::Decimal { scale, value } => {
                scalar(b'D', &[&[*scale][..], &value.to_be_bytes()[..]].concat());
            }
            Value::Short(text) => scalar(b'_', text.as_bytes()),
            Value::Text(bytes) => scalar(b'S', bytes),
            Value::Timestamp(seconds) => scalar(b'T', &seconds.to_be_bytes()),
            Value::Bytes(bytes) => scalar(b'x', bytes),
            Value::Void => scalar(b'V', &[]),
            Value::Array(values) => {
                scalar(b'A', &(values.len() as u64).to_be_bytes());
                values.iter().for_each(|value| self.value(value));
            }
            Value::Table(table) => {
                scalar(b'F', &(table.len() as u64).to_be_bytes());
                for (name, value) in table {
                    self.bytes(name.as_bytes());
                    self.value(value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(headers: impl IntoIterator<Item = (&'static str, Value)>) -> Message {
        let headers: Table = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Message {
            properties: Properties { headers: Some(headers), ..Properties::default() },
            body: b"body".to_vec(),
            ..Message::default()
        }
    }

    #[test]
    fn a_message_that_is_read_again_has_the_same_id() {
        let first = message([("x", Value::I32(1))]);
        let mut again = message([
            ("x", Value::I32(1)),
            ("x-delivery-count", Value::I64(4)),
            ("x-acquired-count", Value::I64(7)),
        ]);
        again.redelivered = true;
        assert_eq!(replay_id("run", &first), replay_id("run", &again));
        let mut bare = message([]);
        bare.properties.headers = None;
        assert_eq!(
            replay_id("run", &bare),
            replay_id("run", &message([("x-delivery-count", Value::I64(1))]))
        );
    }

    #[test]
    fn every_part_counts() {
        let base = message([("x", Value::I32(1))]);
        let changes: [fn(&mut Message); 9] = [
            |message| message.body.push(0),
            |message| message.exchange.push('x'),
            |message| message.routing_key.push('x'),
            |message| message.properties.message_id = Some("m".to_owned()),
            |message| message.properties.app_id = Some(String::new()),
            |message| message.properties.timestamp = Some(0),
            |message| message.properties.priority = Some(0),
            |message| *message = self::message([("x", Value::I64(1))]),
            |message| *message = self::message([("x", Value::Array(vec![Value::I32(1)]))]),
        ];
        let mut ids = vec![replay_id("run", &base), replay_id("other", &base)];
        for change in changes {
            let mut other = base.clone();
            change(&mut other);
            ids.push(replay_id("run", &other));
        }
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
        assert!(ids.iter().all(|id| id.len() == 32));
    }

    #[test]
    fn the_short_id_is_the_beginning_of_the_id() {
        let message = message([]);
        assert!(replay_id("r", &message).starts_with(&format!("{:016x}", short_id("r", &message))));
    }
}
