//! A vhost of its own on a real broker, for tests.
//!
//! The brokers' addresses come from the environment; a test without them fails
//! and says what to do, since a skipped contract is no contract.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicNackOptions, BasicPublishOptions, BasicRejectOptions,
    ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use redrive::broker::connection::Parts;
use redrive::broker::{AddressGuard, Endpoint, Management, amqp};
use redrive::topology::model::{
    ApplyTo, Arg, Args, Binding, Destination, Exchange, Policy, Queue, QueueType,
};
use reqwest::Url;
use serde_json::{Value, json};

/// The brokers of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// The oldest supported series.
    V40,
    /// The series with delayed retry and carried delivery counts.
    V43,
}

impl Version {
    /// As `hack/dev` calls it.
    pub fn series(self) -> &'static str {
        match self {
            Self::V40 => "40",
            Self::V43 => "43",
        }
    }

    fn variable(self, suffix: &str) -> String {
        let name = format!("REDRIVE_BROKER_{}_{suffix}", self.series());
        std::env::var(&name).unwrap_or_else(|_| {
            panic!("{name} is not set: start the brokers with `hack/dev up brokers`, then eval \"$(hack/dev env)\"")
        })
    }

    /// The endpoint of the broker, with the administrator's credentials.
    pub fn endpoint(self) -> Endpoint {
        let uri = Url::parse(&self.variable("URI")).unwrap();
        self.endpoint_as(uri.username(), uri.password().unwrap())
    }

    /// The endpoint with somebody else's credentials.
    pub fn endpoint_as(self, username: &str, password: &str) -> Endpoint {
        let mut uri = Url::parse(&self.variable("URI")).unwrap();
        let mut amqp = Url::parse(&self.variable("AMQP_URI")).unwrap();
        for url in [&mut uri, &mut amqp] {
            url.set_username("").unwrap();
            url.set_password(None).unwrap();
        }
        Endpoint::new(Parts {
            uri: uri.as_str(),
            amqp_uri: Some(amqp.as_str()),
            username,
            password,
            ..Parts::default()
        })
        .unwrap()
    }

    /// A client with the administrator's credentials.
    pub fn management(self) -> Management {
        Management::new(&self.endpoint(), guard()).unwrap()
    }
}

/// Development brokers listen on loopback.
pub fn guard() -> AddressGuard {
    AddressGuard::new(true, [])
}

/// Typed arguments.
pub fn args<const N: usize>(pairs: [(&str, Arg); N]) -> Args {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// What became of a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    Routed,
    Unroutable,
    Nacked,
}

/// A vhost that one test has to itself.
pub struct Vhost {
    pub version: Version,
    pub name: String,
    pub management: Management,
    pub connection: Connection,
    pub channel: Channel,
    client: reqwest::Client,
}

/// Runs a test in a new vhost, and deletes it whatever the test's outcome.
pub async fn in_vhost<F: Future<Output = ()>>(version: Version, name: &str, test: impl FnOnce(Vhost) -> F) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{name}-{}-{count}", std::process::id());
    // A kept connection may be closed by the broker in the moment in which it is used again.
    let client = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
    let (status, _) =
        raw(&client, version, "PUT", &format!("/api/vhosts/{}", encode(&name)), Some(json!({}))).await;
    assert_eq!(status, 201, "can't create the vhost {name}");
    let outcome = AssertUnwindSafe(async {
        let endpoint = version.endpoint();
        let connection = amqp::connect(&endpoint, &guard(), &name, "contract test").await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let management = version.management();
        let vhost =
            Vhost { version, name: name.clone(), management, connection, channel, client: client.clone() };
        test(vhost).await;
    })
    .catch_unwind()
    .await;
    raw(&client, version, "DELETE", &format!("/api/vhosts/{}", encode(&name)), None).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Encodes one path segment.
pub fn encode(segment: &str) -> String {
    percent_encoding::utf8_percent_encode(segment, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// One request that does not pass through the code under test.
async fn raw(
    client: &reqwest::Client,
    version: Version,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> (u16, String) {
    let endpoint = version.endpoint();
    let credentials = &endpoint.credentials;
    let mut request = client
        .request(method.parse().unwrap(), format!("{}{path}", endpoint.base_url()))
        .basic_auth(&credentials.username, Some(&credentials.password));
    if let Some(body) = body {
        request = request.json(&body);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Polls until the condition holds, or fails when patience ends.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Polls for a while and fails if the condition is ever broken.
pub async fn throughout(seconds: f64, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        assert!(condition().await, "broken after {:?}: {what}", start.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Vhost {
    /// One raw request; `path` comes after `/api`.
    pub async fn raw(&self, method: &str, path: &str, body: Option<Value>) -> (u16, String) {
        raw(&self.client, self.version, method, &format!("/api{path}"), body).await
    }

    /// Reads one queue raw, with a query.
    pub async fn raw_queue(&self, name: &str, query: &str) -> Value {
        let path = format!("/queues/{}/{}{query}", encode(&self.name), encode(name));
        let (status, body) = self.raw("GET", &path, None).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Declares a queue, which must succeed.
    pub async fn queue<const N: usize>(&self, name: &str, kind: QueueType, arguments: [(&str, Arg); N]) {
        let queue = Queue { name: name.to_owned(), kind, arguments: args(arguments) };
        self.management.put_queue(&self.name, &queue).await.unwrap();
    }

    /// Declares a quorum queue that dead-letters at least once.
    pub async fn safe_queue<const N: usize>(&self, name: &str, exchange: &str, extra: [(&str, Arg); N]) {
        let mut arguments = args(extra);
        arguments.extend(args([
            ("x-dead-letter-exchange", exchange.into()),
            ("x-dead-letter-strategy", "at-least-once".into()),
            ("x-overflow", "reject-publish".into()),
        ]));
        let queue = Queue { name: name.to_owned(), kind: QueueType::Quorum, arguments };
        self.management.put_queue(&self.name, &queue).await.unwrap();
    }

    /// Declares an exchange that clients can publish to.
    pub async fn exchange<const N: usize>(&self, name: &str, kind: &str, arguments: [(&str, Arg); N]) {
        self.any_exchange(name, kind, false, arguments).await;
    }

    /// Declares an exchange that only the broker routes through.
    pub async fn internal_exchange<const N: usize>(
        &self,
        name: &str,
        kind: &str,
        arguments: [(&str, Arg); N],
    ) {
        self.any_exchange(name, kind, true, arguments).await;
    }

    async fn any_exchange<const N: usize>(
        &self,
        name: &str,
        kind: &str,
        internal: bool,
        arguments: [(&str, Arg); N],
    ) {
        let exchange =
            Exchange { name: name.to_owned(), kind: kind.to_owned(), internal, arguments: args(arguments) };
        self.management.put_exchange(&self.name, &exchange).await.unwrap();
    }

    /// Binds a queue.
    pub async fn bind<const N: usize>(
        &self,
        source: &str,
        queue: &str,
        key: &str,
        arguments: [(&str, Arg); N],
    ) {
        self.bind_to(source, Destination::Queue(queue.to_owned()), key, arguments).await;
    }

    /// Binds an exchange to another.
    pub async fn bind_exchange<const N: usize>(
        &self,
        source: &str,
        exchange: &str,
        key: &str,
        arguments: [(&str, Arg); N],
    ) {
        self.bind_to(source, Destination::Exchange(exchange.to_owned()), key, arguments).await;
    }

    async fn bind_to<const N: usize>(
        &self,
        source: &str,
        destination: Destination,
        key: &str,
        arguments: [(&str, Arg); N],
    ) {
        let binding = Binding {
            source: source.to_owned(),
            destination,
            routing_key: key.to_owned(),
            arguments: args(arguments),
        };
        self.management.bind(&self.name, &binding).await.unwrap();
    }

    /// Writes a policy of priority 10.
    pub async fn policy<const N: usize>(
        &self,
        name: &str,
        pattern: &str,
        apply_to: ApplyTo,
        definition: [(&str, Arg); N],
    ) {
        let policy = Policy {
            name: name.to_owned(),
            pattern: pattern.to_owned(),
            apply_to,
            priority: 10,
            definition: args(definition),
        };
        self.management.put_policy(&self.name, &policy).await.unwrap();
    }

    /// Publishes a persistent message, mandatory and confirmed.
    pub async fn publish(&self, exchange: &str, key: &str) -> Published {
        self.publish_with(exchange, key, FieldTable::default()).await
    }

    /// Like `publish`, with headers.
    pub async fn publish_with(&self, exchange: &str, key: &str, headers: FieldTable) -> Published {
        let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let confirm =
            self.channel.basic_publish(exchange.into(), key.into(), options, b"body", properties).await;
        match confirm.unwrap().await.unwrap() {
            Confirmation::Ack(None) => Published::Routed,
            Confirmation::Ack(Some(_)) => Published::Unroutable,
            Confirmation::Nack(_) | Confirmation::NotRequested => Published::Nacked,
        }
    }

    /// Takes a message if there is one; the caller settles it.
    pub async fn take(&self, queue: &str) -> Option<Delivery> {
        let options = BasicGetOptions { no_ack: false };
        self.channel.basic_get(queue.into(), options).await.unwrap().map(|message| message.delivery)
    }

    /// Waits for a message; the caller settles it.
    pub async fn wait(&self, queue: &str) -> Delivery {
        let start = Instant::now();
        loop {
            if let Some(delivery) = self.take(queue).await {
                return delivery;
            }
            assert!(start.elapsed() < PATIENCE, "nothing came into {queue}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits for a message and rejects it for good.
    pub async fn reject(&self, queue: &str) {
        let delivery = self.wait(queue).await;
        delivery.acker.reject(BasicRejectOptions { requeue: false }).await.unwrap();
    }

    /// How many messages are ready, by the code under test.
    pub async fn ready(&self, queue: &str) -> u32 {
        amqp::ready_count(&self.connection, &self.version.endpoint(), &self.name, queue)
            .await
            .unwrap()
            .unwrap()
    }

    /// Waits up to 20 s until so many messages are ready.
    pub async fn wait_ready(&self, queue: &str, count: u32) {
        eventually(&format!("{count} ready in {queue}"), async || self.ready(queue).await == count).await;
    }
}

/// Settles a delivery.
pub async fn ack(delivery: Delivery) {
    delivery.acker.ack(BasicAckOptions::default()).await.unwrap();
}

/// Returns a delivery with `basic.reject`.
pub async fn requeue_by_reject(delivery: Delivery) {
    delivery.acker.reject(BasicRejectOptions { requeue: true }).await.unwrap();
}

/// Returns a delivery with `basic.nack`.
pub async fn requeue_by_nack(delivery: Delivery) {
    delivery.acker.nack(BasicNackOptions { requeue: true, multiple: false }).await.unwrap();
}

/// A header's text.
pub fn header(delivery: &Delivery, name: &str) -> Option<String> {
    match delivery.properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        other => Some(format!("{other:?}")),
    }
}

/// A header's number.
pub fn number(delivery: &Delivery, name: &str) -> Option<i64> {
    match delivery.properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongLongInt(number) => Some(*number),
        AMQPValue::LongInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortShortInt(number) => Some(i64::from(*number)),
        AMQPValue::LongUInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortUInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortShortUInt(number) => Some(i64::from(*number)),
        other => panic!("{name} is {other:?}"),
    }
}
