//! The broker under test: one vhost with an origin queue and a target, filled and emptied, and
//! the broker's own shovel between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions};
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use lapin::{BasicProperties, Channel, Connection};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use redrive::broker::{AddressGuard, Endpoint, amqp};
use reqwest::{Client, Method, StatusCode, Url};
use serde_json::{Value, json};

use crate::Result;

/// The vhost of these figures.
pub(crate) const VHOST: &str = "redrive-bench-replay";
/// Where messages come from.
pub(crate) const ORIGIN: &str = "work.dlq";
/// Where they go to.
pub(crate) const TARGET: &str = "work";

/// Bytes in each message.
const BODY: usize = 1_024;
/// Publishes whose confirms are awaited together.
const PORTION: usize = 1_000;
/// One message in so many has the header that a selection may ask for.
pub(crate) const ONE_IN: u64 = 1_000;

/// A connection to the broker, and its management API.
pub(crate) struct Lab {
    pub(crate) endpoint: Arc<Endpoint>,
    uri: Url,
    client: Client,
    connection: Connection,
    channel: Channel,
    shovels: AtomicU32,
}

/// How a shovel reaches its two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Inside the broker, without a connection: only the broker itself can.
    Inside,
    /// Over two connections, as every other client.
    Network,
}

/// Where the broker is, by the variables of `hack/dev`.
pub(crate) fn endpoint() -> Result<Endpoint> {
    let named =
        |key: &str| std::env::var(key).map_err(|_| format!("{key} names no broker: see hack/README.md"));
    let uri = Url::parse(&named("REDRIVE_BROKER_43_URI")?)?;
    let mut bare = uri.clone();
    let user = uri.username().to_owned();
    let password = uri.password().unwrap_or_default().to_owned();
    let mut amqp = Url::parse(&named("REDRIVE_BROKER_43_AMQP_URI")?)?;
    for uri in [&mut bare, &mut amqp] {
        let cleared = uri.set_username("").and_then(|()| uri.set_password(None));
        cleared.map_err(|()| "the broker's address takes no user")?;
    }
    let data = [
        ("uri", bare.to_string()),
        ("amqpUri", amqp.to_string()),
        ("username", user),
        ("password", password),
    ];
    let data: BTreeMap<String, Vec<u8>> =
        data.into_iter().map(|(key, value)| (key.to_owned(), value.into_bytes())).collect();
    Ok(Endpoint::from_secret(&data)?)
}

impl Lab {
    /// Makes the vhost anew.
    pub(crate) async fn start() -> Result<Self> {
        let endpoint = Arc::new(endpoint()?);
        let uri = Url::parse(&std::env::var("REDRIVE_BROKER_43_URI")?)?;
        let client = Client::builder().no_proxy().build()?;
        let http =
            |method: Method, path: String| client.request(method, uri.join(&path).unwrap_or(uri.clone()));
        let user = encoded(&endpoint.credentials.username);
        let _ = http(Method::DELETE, format!("/api/vhosts/{VHOST}")).send().await?;
        let made = http(Method::PUT, format!("/api/vhosts/{VHOST}")).json(&json!({})).send().await?;
        made.error_for_status()?;
        let rights = json!({"configure": ".*", "write": ".*", "read": ".*"});
        let path = format!("/api/permissions/{VHOST}/{user}");
        http(Method::PUT, path).json(&rights).send().await?.error_for_status()?;
        let guard = AddressGuard::new(true, []);
        let connection = amqp::connect(&endpoint, &guard, VHOST, "redrive bench").await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        for queue in [ORIGIN, TARGET] {
            let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            let mut arguments = FieldTable::default();
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(-1));
            channel.queue_declare(queue.into(), durable, arguments).await?;
        }
        Ok(Self { endpoint, uri, client, connection, channel, shovels: AtomicU32::default() })
    }

    /// Empties both queues, and puts so many dead letters into the origin queue.
    pub(crate) async fn fill(&self, count: u64) -> Result<()> {
        for queue in [ORIGIN, TARGET] {
            self.channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await?;
        }
        let body = vec![b'x'; BODY];
        let mut confirms = Vec::with_capacity(PORTION);
        for number in 0..count {
            let options = BasicPublishOptions::default();
            let published = self
                .channel
                .basic_publish("".into(), ORIGIN.into(), options, &body, dead_letter(number))
                .await?;
            confirms.push(published);
            if confirms.len() == PORTION || number + 1 == count {
                for confirm in confirms.drain(..) {
                    confirm.await?;
                }
            }
        }
        Ok(())
    }

    /// How many messages of a queue are ready.
    pub(crate) async fn ready(&self, queue: &str) -> Result<u64> {
        let ready = amqp::ready_count(&self.connection, &self.endpoint, VHOST, queue).await?;
        Ok(ready.unwrap_or_default().into())
    }

    /// Moves everything with the broker's shovel, and says how long that takes.
    pub(crate) async fn shovel(&self, count: u64, link: Link) -> Result<Duration> {
        let uri = match link {
            Link::Inside => format!("amqp:///{VHOST}"),
            Link::Network => format!("{}/{VHOST}", std::env::var("REDRIVE_BROKER_43_AMQP_URI")?),
        };
        // A broker starts no second shovel of a name that has ended.
        let number = self.shovels.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench-{}-{number}", std::process::id());
        let path = format!("/api/parameters/shovel/{VHOST}/{name}");
        let definition = json!({"value": {
            "src-protocol": "amqp091", "src-uri": uri, "src-queue": ORIGIN,
            "src-prefetch-count": 1_000, "src-delete-after": "queue-length",
            "dest-protocol": "amqp091", "dest-uri": uri, "dest-queue": TARGET,
            "ack-mode": "on-confirm",
        }});
        let began = Instant::now();
        self.call(Method::PUT, &path, &definition).await?;
        while self.ready(TARGET).await? < count {
            if began.elapsed() > Duration::from_secs(120) {
                return Err(format!("the shovel moved {} of {count}", self.ready(TARGET).await?).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = began.elapsed();
        while self.client.get(self.uri.join(&path)?).send().await?.status() != StatusCode::NOT_FOUND {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(took)
    }

    async fn call(&self, method: Method, path: &str, body: &Value) -> Result<()> {
        self.client.request(method, self.uri.join(path)?).json(body).send().await?.error_for_status()?;
        Ok(())
    }

    /// Takes everything away again.
    pub(crate) async fn clean(self) -> Result<()> {
        self.call(Method::DELETE, &format!("/api/vhosts/{VHOST}"), &Value::Null).await
    }
}

fn encoded(segment: &str) -> String {
    utf8_percent_encode(segment, NON_ALPHANUMERIC).to_string()
}

/// What the broker makes of a message that was rejected once.
fn dead_letter(number: u64) -> BasicProperties {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut death = FieldTable::default();
    death.insert("count".into(), AMQPValue::LongLongInt(1));
    death.insert("exchange".into(), text("work.exchange"));
    death.insert("queue".into(), text(TARGET));
    death.insert("reason".into(), text("rejected"));
    death.insert("routing-keys".into(), AMQPValue::FieldArray(FieldArray::from(vec![text("work.created")])));
    death.insert("time".into(), AMQPValue::Timestamp(1_700_000_000));
    let mut headers = FieldTable::default();
    headers.insert(
        "x-death".into(),
        AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)])),
    );
    for (header, value) in [
        ("x-first-death-exchange", "work.exchange"),
        ("x-first-death-queue", TARGET),
        ("x-first-death-reason", "rejected"),
        ("x-last-death-exchange", "work.exchange"),
        ("x-last-death-queue", TARGET),
        ("x-last-death-reason", "rejected"),
    ] {
        headers.insert(header.into(), text(value));
    }
    let rare = if number.is_multiple_of(ONE_IN) { "yes" } else { "no" };
    headers.insert("x-rare".into(), text(rare));
    BasicProperties::default()
        .with_delivery_mode(2)
        .with_content_type("application/json".into())
        .with_message_id(format!("message-{number}").into())
        .with_headers(headers)
}
