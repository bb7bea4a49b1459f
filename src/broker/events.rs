//! What a broker tells of its changes: the events of the plugin `rabbitmq_event_exchange`.
//!
//! Guarantees: a storm costs bounded memory on both sides. The broker keeps the newest
//! [`KEPT`] events, in a queue that goes with the connection, and no more than [`PREFETCH`] are
//! under way. Where events may have been dropped, [`Heard::complete`] says so.
//!
//! Left out: what an event means for whom (`topology::news`), and all events but those of
//! queues, exchanges, bindings, policies and vhosts. The exchange shows all vhosts to whoever may
//! read it, so that whose credentials these are is for the caller to see to.

use std::time::Duration;

use futures::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, Consumer, ExchangeKind};
use tokio::time::timeout;

use super::amqp::{self, code, late, reply, sort};
use super::connection::Endpoint;
use super::error::BrokerError;
use super::guard::AddressGuard;
use super::http::REQUEST_TIMEOUT;
use crate::topology::model::{Args, Binding, Destination};
use crate::topology::news::{Change, News};

/// The exchange that tells.
pub const EXCHANGE: &str = "amq.rabbitmq.event";

/// No more events wait at the broker; older ones are dropped.
pub const KEPT: u32 = 5_000;

/// No more events are under way to us.
pub const PREFETCH: u16 = 256;

/// What is told of. An operator policy is set as any policy and cleared as an operator's.
const KEYS: [&str; 6] =
    ["queue.*", "exchange.*", "binding.*", "policy.*", "operator.policy.cleared", "vhost.*"];

/// After so many events it is asked how many wait: a queue that was full still holds more than half
/// then.
const ASKED: u32 = KEPT / 4;

/// Nothing waits at the broker where nothing comes for so long.
const PAUSE: Duration = Duration::from_millis(200);

/// Who did what the broker did by itself.
const NOBODY: &str = "rmq-internal";

/// Why nothing is heard of a broker.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Deaf {
    /// The plugin is not enabled, or has its exchange in another vhost.
    #[error(
        "the broker has no exchange amq.rabbitmq.event in the vhost {vhost:?}: enable the plugin rabbitmq_event_exchange"
    )]
    NoExchange {
        /// Where it was looked for.
        vhost: String,
    },
    /// The user may not consume events.
    #[error(
        "the user {user:?} may not consume the broker's events: give it configure and write on ^amq\\.gen- and read on ^amq\\.(gen-|rabbitmq\\.event$) in the vhost {vhost:?}"
    )]
    Forbidden {
        /// The user.
        user: String,
        /// Where it needs the rights.
        vhost: String,
    },
    /// There is no connection.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Some changes, in their order.
#[derive(Clone, Debug)]
pub struct Heard {
    /// What was done.
    pub news: Vec<News>,
    /// `false` where older changes than these may have been dropped.
    pub complete: bool,
}

/// A consumer of a broker's events.
pub struct Events {
    channel: Channel,
    consumer: Consumer,
    queue: ShortString,
    /// Events since it was last asked how many wait.
    unasked: u32,
    /// Whether so many waited that some may have been dropped.
    was_full: bool,
    endpoint: Endpoint,
    vhost: String,
    /// Ends when it is dropped.
    _connection: Connection,
}

impl Events {
    /// Connects and begins to consume. Whatever is changed from then on is heard.
    ///
    /// # Errors
    /// [`Deaf`]; each question may take 30 seconds.
    pub async fn open(endpoint: &Endpoint, guard: &AddressGuard, vhost: &str) -> Result<Self, Deaf> {
        let explained = |error: BrokerError| match error {
            BrokerError::Forbidden { .. } => forbidden(endpoint, vhost),
            error => Deaf::Broker(error),
        };
        let connection = amqp::connect(endpoint, guard, vhost, "redrive events").await.map_err(explained)?;
        let begin = async {
            let channel = connection.create_channel().await?;
            has_exchange(&channel).await?;
            let queue = declare(&channel).await?;
            bind(&channel, &queue).await?;
            channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
            let options = BasicConsumeOptions { exclusive: true, ..BasicConsumeOptions::default() };
            let consumer =
                channel.basic_consume(queue.clone(), "".into(), options, FieldTable::default()).await?;
            Ok((channel, consumer, queue))
        };
        let (channel, consumer, queue) = answered(endpoint, vhost, begin).await?;
        Ok(Self {
            channel,
            consumer,
            queue,
            unasked: 0,
            was_full: false,
            endpoint: endpoint.clone(),
            vhost: vhost.to_owned(),
            _connection: connection,
        })
    }

    /// Waits for the next changes, and takes along what is there already. Nothing is lost where
    /// this is dropped unfinished.
    ///
    /// # Errors
    /// [`Deaf::Broker`] once the connection is gone.
    pub async fn next(&mut self) -> Result<Heard, Deaf> {
        if self.unasked >= ASKED {
            self.was_full |= self.waiting().await? >= KEPT / 2;
            self.unasked = 0;
        }
        let first = match timeout(PAUSE, self.consumer.next()).await {
            Ok(next) => next,
            Err(_) if std::mem::take(&mut self.was_full) => {
                return Ok(Heard { news: Vec::new(), complete: false });
            }
            Err(_) => self.consumer.next().await,
        };
        let mut delivery = self.delivered(first)?;
        let mut heard = Heard { news: Vec::new(), complete: true };
        let mut taken = 1_u16;
        heard.news.extend(read(&delivery));
        while taken < PREFETCH / 2
            && let Some(next) = self.consumer.next().now_or_never()
        {
            delivery = self.delivered(next)?;
            heard.news.extend(read(&delivery));
            taken += 1;
        }
        self.unasked += u32::from(taken);
        // One for all of them; whether it arrives, the next delivery shows.
        let all = BasicAckOptions { multiple: true };
        let _ = self.channel.basic_ack(delivery.delivery_tag, all).now_or_never();
        Ok(heard)
    }

    /// Makes sure that events still come: where the plugin was disabled the exchange is gone, and
    /// with it our bindings, and nobody says so.
    ///
    /// # Errors
    /// [`Deaf`], where none come any more.
    pub async fn check(&self) -> Result<(), Deaf> {
        answered(&self.endpoint, &self.vhost, bind(&self.channel, &self.queue)).await
    }

    /// How many events wait at the broker.
    async fn waiting(&self) -> Result<u32, Deaf> {
        let ask = amqp::declare_passively(&self.channel, self.queue.clone());
        Ok(answered(&self.endpoint, &self.vhost, ask).await?.ready)
    }

    fn delivered(&self, next: Option<lapin::Result<Delivery>>) -> Result<Delivery, Deaf> {
        match next {
            Some(Ok(delivery)) => Ok(delivery),
            Some(Err(error)) => Err(sort(&self.endpoint, &self.vhost, "consume events", error).into()),
            // The queue was deleted, or the node that it was on has stopped.
            None => Err(Deaf::Broker(BrokerError::Unreachable {
                address: self.endpoint.amqp.to_string(),
                why: "the consumer of events has ended",
                source: None,
            })),
        }
    }
}

fn forbidden(endpoint: &Endpoint, vhost: &str) -> Deaf {
    Deaf::Forbidden { user: endpoint.credentials.username.clone(), vhost: vhost.to_owned() }
}

async fn answered<T>(
    endpoint: &Endpoint,
    vhost: &str,
    work: impl Future<Output = lapin::Result<T>>,
) -> Result<T, Deaf> {
    match timeout(REQUEST_TIMEOUT, work).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => match reply(&error) {
            Some((code::NOT_FOUND, _)) => Err(Deaf::NoExchange { vhost: vhost.to_owned() }),
            Some((code::ACCESS_REFUSED, _)) => Err(forbidden(endpoint, vhost)),
            _ => Err(sort(endpoint, vhost, "consume events", error).into()),
        },
        Err(_) => Err(late(endpoint).into()),
    }
}

async fn has_exchange(channel: &Channel) -> lapin::Result<()> {
    let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, passive, FieldTable::default()).await
}

/// A queue that only this connection sees, and that goes with it. What it has no room for is
/// dropped at its head.
async fn declare(channel: &Channel) -> lapin::Result<ShortString> {
    let options =
        QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(KEPT.into()));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("drop-head".into()));
    Ok(channel.queue_declare("".into(), options, arguments).await?.name().clone())
}

async fn bind(channel: &Channel, queue: &ShortString) -> lapin::Result<()> {
    for key in KEYS {
        let options = QueueBindOptions::default();
        channel
            .queue_bind(queue.clone(), EXCHANGE.into(), key.into(), options, FieldTable::default())
            .await?;
    }
    Ok(())
}

fn read(delivery: &Delivery) -> Option<News> {
    let headers = delivery.properties.headers().as_ref()?;
    news(delivery.routing_key.as_str(), headers)
}

/// What an event says; nothing where it says what nobody asked for.
fn news(key: &str, headers: &FieldTable) -> Option<News> {
    let change = match key {
        "queue.created" => Change::Declared(Destination::Queue(text(headers, "name")?)),
        "queue.deleted" => Change::Deleted(Destination::Queue(text(headers, "name")?)),
        "exchange.created" => Change::Declared(Destination::Exchange(text(headers, "name")?)),
        "exchange.deleted" => Change::Deleted(Destination::Exchange(text(headers, "name")?)),
        "binding.created" => Change::Bound(binding(headers)?),
        "binding.deleted" => Change::Unbound(binding(headers)?),
        "policy.set" => Change::PolicySet(text(headers, "name")?),
        "policy.cleared" | "operator.policy.cleared" => Change::PolicyCleared(text(headers, "name")?),
        "vhost.created" | "vhost.deleted" | "vhost.up" | "vhost.down" => Change::Vhost,
        _ => return None,
    };
    let place = if change == Change::Vhost { "name" } else { "vhost" };
    let by = text(headers, "user_who_performed_action").filter(|user| user != NOBODY);
    Some(News { vhost: text(headers, place)?, change, by })
}

/// The arguments are told in a way that depends on version and settings, and left out.
fn binding(headers: &FieldTable) -> Option<Binding> {
    let name = text(headers, "destination_name")?;
    let destination = match text(headers, "destination_kind")?.as_str() {
        "queue" => Destination::Queue(name),
        _ => Destination::Exchange(name),
    };
    Some(Binding {
        source: text(headers, "source_name")?,
        destination,
        routing_key: text(headers, "routing_key")?,
        arguments: Args::new(),
    })
}

/// A field's text. With `event_exchange.protocol = amqp_1_0` fields have other names.
fn text(headers: &FieldTable, field: &str) -> Option<String> {
    let fields = headers.inner();
    let value = fields.get(field).or_else(|| {
        let annotation = format!("x-opt-{}", field.replace('_', "-"));
        fields.get(annotation.as_str())
    })?;
    match value {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> FieldTable {
        let mut headers = FieldTable::default();
        for (field, value) in fields {
            headers.insert((*field).into(), AMQPValue::LongString((*value).into()));
        }
        headers.insert("timestamp_in_ms".into(), AMQPValue::LongLongInt(1));
        headers
    }

    #[test]
    fn both_spellings_of_an_event_say_the_same() {
        let classic = headers(&[("name", "q"), ("vhost", "/"), ("user_who_performed_action", "eve")]);
        let modern =
            headers(&[("x-opt-name", "q"), ("x-opt-vhost", "/"), ("x-opt-user-who-performed-action", "eve")]);
        let told = news("queue.deleted", &classic).unwrap();
        assert_eq!(Some(&told), news("queue.deleted", &modern).as_ref());
        let change = Change::Deleted(Destination::Queue("q".to_owned()));
        assert_eq!(told, News { vhost: "/".to_owned(), change, by: Some("eve".to_owned()) });
    }

    #[test]
    fn a_vhost_is_told_by_its_name_and_the_broker_itself_is_nobody() {
        let fields = headers(&[("name", "shop"), ("user_who_performed_action", NOBODY)]);
        let told = news("vhost.down", &fields).unwrap();
        assert_eq!(told, News { vhost: "shop".to_owned(), change: Change::Vhost, by: None });
    }

    #[test]
    fn what_is_not_asked_for_or_lacks_a_field_is_passed_over() {
        let fields = headers(&[("name", "q"), ("vhost", "/")]);
        assert_eq!(news("queue.policy.updated", &fields), None);
        assert_eq!(news("binding.created", &fields), None);
        assert_eq!(news("queue.deleted", &FieldTable::default()), None);
    }
}
