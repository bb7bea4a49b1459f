//! Where a message was first published: what Redrive, the broker and the common client
//! libraries keep of it.
//!
//! Anybody who may publish can forge all of these headers: whoever uses an origin as a target
//! checks it against the exchanges that are allowed.

use super::death::{self, Death};
use super::message::{Message, Value};

/// Headers in which a replayed message keeps its first origin.
pub mod header {
    /// The queue in which it died first.
    pub const QUEUE: &str = "x-redrive-origin-queue";
    /// The exchange that it was published to.
    pub const EXCHANGE: &str = "x-redrive-origin-exchange";
    /// The routing keys that it was published with, a list.
    pub const KEYS: &str = "x-redrive-origin-keys";
    /// Why it died first.
    pub const REASON: &str = "x-redrive-origin-reason";
    /// When it died first.
    pub const TIME: &str = "x-redrive-origin-time";
    /// The user who published it, who can't be kept in the property.
    pub const USER_ID: &str = "x-redrive-origin-user-id";
}

/// The kind of message in which EasyNetQ wraps what failed.
const EASYNETQ_ENVELOPE: &str = "EasyNetQ.SystemMessages.Error";

/// The largest envelope that is opened, in bytes.
const MAX_ENVELOPE: usize = 1 << 20;

/// Who wrote down where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// Redrive, at an earlier replay.
    Redrive,
    /// The broker, at the first death.
    Broker,
    /// rabbitkit.
    Rabbitkit,
    /// Spring AMQP.
    Spring,
    /// EasyNetQ, whose error queue holds envelopes: the message itself is inside the body.
    EasyNetQ,
    /// MassTransit; the exchange of a receive endpoint has its queue's name.
    MassTransit,
}

/// Where a message was first published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The exchange; empty for the default one.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// Who says so.
    pub witness: Witness,
}

impl Origin {
    /// Whether the message as it is can go back there: an envelope can't.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.witness != Witness::EasyNetQ
    }
}

/// Where a message was first published, by the first witness of [`Witness`]'s order that
/// names exchange and routing key; `None` where nobody does.
#[must_use]
pub fn origin(message: &Message) -> Option<Origin> {
    by_redrive(message)
        .or_else(|| by_broker(message))
        .or_else(|| by_rabbitkit(message))
        .or_else(|| by_spring(message))
        .or_else(|| by_easynetq(message))
        .or_else(|| by_masstransit(message))
}

fn text(message: &Message, name: &str) -> Option<String> {
    message.properties.header(name).and_then(Value::as_text).map(str::to_owned)
}

fn by_redrive(message: &Message) -> Option<Origin> {
    let exchange = text(message, header::EXCHANGE)?;
    let Some(Value::Array(keys)) = message.properties.header(header::KEYS) else { return None };
    let routing_key = keys.first()?.as_text()?.to_owned();
    Some(Origin { exchange, routing_key, witness: Witness::Redrive })
}

fn by_broker(message: &Message) -> Option<Origin> {
    let Death { exchange, routing_keys, .. } = death::deaths(message).first?;
    let routing_key = routing_keys.into_iter().next()?;
    Some(Origin { exchange: exchange?, routing_key, witness: Witness::Broker })
}

fn by_rabbitkit(message: &Message) -> Option<Origin> {
    let exchange = text(message, "x-rabbitkit-original-exchange")?;
    let routing_key = text(message, "x-rabbitkit-original-routing-key")?;
    Some(Origin { exchange, routing_key, witness: Witness::Rabbitkit })
}

fn by_spring(message: &Message) -> Option<Origin> {
    let exchange = text(message, "x-original-exchange")?;
    let routing_key = text(message, "x-original-routingKey")?;
    Some(Origin { exchange, routing_key, witness: Witness::Spring })
}

fn by_easynetq(message: &Message) -> Option<Origin> {
    let is_envelope = message.properties.kind.as_ref().is_some_and(|kind| kind.contains(EASYNETQ_ENVELOPE));
    if !is_envelope || message.body.len() > MAX_ENVELOPE {
        return None;
    }
    let envelope: serde_json::Value = serde_json::from_slice(&message.body).ok()?;
    // Newer versions write names in camel case.
    let field = |names: [&str; 2]| names.into_iter().find_map(|name| envelope.get(name)?.as_str());
    Some(Origin {
        exchange: field(["Exchange", "exchange"])?.to_owned(),
        routing_key: field(["RoutingKey", "routingKey"])?.to_owned(),
        witness: Witness::EasyNetQ,
    })
}

fn by_masstransit(message: &Message) -> Option<Origin> {
    let address = text(message, "MT-Fault-InputAddress")?;
    let path = address.split(['?', '#']).next()?;
    let (before, name) = path.rsplit_once('/')?;
    if name.is_empty() || !before.contains("://") {
        return None;
    }
    Some(Origin { exchange: name.to_owned(), routing_key: String::new(), witness: Witness::MassTransit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::message::{Properties, Table};

    fn message(headers: impl IntoIterator<Item = (&'static str, Value)>) -> Message {
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Message {
            properties: Properties { headers: Some(headers), ..Properties::default() },
            ..Message::default()
        }
    }

    fn list(key: &str) -> Value {
        Value::Array(vec![Value::from(key)])
    }

    fn found(message: &Message) -> Option<(String, String, Witness)> {
        origin(message).map(|origin| (origin.exchange, origin.routing_key, origin.witness))
    }

    fn expected(exchange: &str, key: &str, witness: Witness) -> Option<(String, String, Witness)> {
        Some((exchange.to_owned(), key.to_owned(), witness))
    }

    #[test]
    fn the_first_witness_wins() {
        let death = Value::Table(Table::from([
            ("exchange".to_owned(), Value::from("by-broker")),
            ("routing-keys".to_owned(), list("b")),
        ]));
        let mut headers = vec![
            (header::EXCHANGE, Value::from("by-redrive")),
            (header::KEYS, list("r")),
            ("x-death", Value::Array(vec![death])),
            ("x-rabbitkit-original-exchange", Value::from("by-kit")),
            ("x-rabbitkit-original-routing-key", Value::from("k")),
            ("x-original-exchange", Value::from("by-spring")),
            ("x-original-routingKey", Value::from("s")),
            ("MT-Fault-InputAddress", Value::from("rabbitmq://host:5672/vhost/by-mt?durable=true")),
        ];
        let order = [
            (2, expected("by-redrive", "r", Witness::Redrive)),
            (1, expected("by-broker", "b", Witness::Broker)),
            (2, expected("by-kit", "k", Witness::Rabbitkit)),
            (2, expected("by-spring", "s", Witness::Spring)),
            (1, expected("by-mt", "", Witness::MassTransit)),
        ];
        for (used, expected) in order {
            assert_eq!(found(&message(headers.clone())), expected);
            headers.drain(..used);
        }
        assert_eq!(found(&message(headers)), None);
    }

    #[test]
    fn an_envelope_names_its_origin_but_is_not_the_message() {
        let mut message = message([]);
        message.properties.kind = Some("EasyNetQ.SystemMessages.Error, EasyNetQ".to_owned());
        message.body = br#"{"RoutingKey":"k","Exchange":"e","Message":"{}"}"#.to_vec();
        let found = origin(&message);
        assert!(found.as_ref().is_some_and(|origin| !origin.is_direct()));
        assert_eq!(found.map(|origin| origin.exchange).as_deref(), Some("e"));
        for body in ["", "{", "[]", r#"{"Exchange":1}"#] {
            message.body = body.as_bytes().to_vec();
            assert_eq!(origin(&message), None, "{body}");
        }
    }

    #[test]
    fn half_an_origin_is_none() {
        for name in [header::EXCHANGE, "x-rabbitkit-original-exchange", "x-original-routingKey"] {
            assert_eq!(found(&message([(name, Value::from("x"))])), None, "{name}");
        }
        for address in ["", "queue", "/queue", "rabbitmq://host/", "a/b"] {
            assert_eq!(found(&message([("MT-Fault-InputAddress", Value::from(address))])), None, "{address}");
        }
    }
}
