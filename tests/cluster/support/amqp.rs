//! Messages of a world's vhost as an application sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, BasicRejectOptions, ConfirmSelectOptions,
    QueueBindOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use redrive::broker::connection::Parts;
use redrive::broker::{AddressGuard, Endpoint, amqp};

use super::world::World;

/// Messages that are sent before the first confirm is waited for.
const AT_ONCE: usize = 1_000;

/// A connection to a vhost.
pub(crate) struct Wire {
    endpoint: Endpoint,
    vhost: String,
    connection: Connection,
    channel: Channel,
}

/// A consumer that rejects whatever it gets, until it is stopped or the test ends.
pub(crate) struct Failing {
    rejected: Arc<AtomicUsize>,
    connection: Connection,
}

impl Failing {
    /// Messages that it has rejected.
    pub(crate) fn rejected(&self) -> usize {
        self.rejected.load(Ordering::SeqCst)
    }

    /// Closes its connection.
    pub(crate) async fn stop(self) {
        self.connection.close(200, "done".into()).await.unwrap();
    }
}

impl Wire {
    pub(crate) async fn open(world: &World) -> Self {
        let (broker, vhost) = (&world.broker, world.vhost.clone());
        let uri = format!("http://{}", broker.address);
        let parts = Parts {
            uri: &uri,
            amqp_uri: Some(&broker.amqp),
            username: &broker.user,
            password: &broker.password,
            ..Parts::default()
        };
        let endpoint = Endpoint::new(parts).unwrap();
        let connection = connect(&endpoint, &vhost).await;
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Self { endpoint, vhost, connection, channel }
    }

    /// Publishes messages, all of which must find a queue.
    pub(crate) async fn publish(&self, exchange: &str, key: &str, messages: Vec<BasicProperties>) {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let body = [b'x'; 1_024];
        for chunk in messages.chunks(AT_ONCE) {
            let sent = chunk.iter().map(|properties| {
                self.channel.basic_publish(exchange.into(), key.into(), options, &body, properties.clone())
            });
            for confirm in futures::future::join_all(sent).await {
                assert_eq!(confirm.unwrap().await.unwrap(), Confirmation::Ack(None), "{exchange} {key}");
            }
        }
    }

    /// Binds what is bound already so many times more, as applications do when they start.
    pub(crate) async fn bind_again(&self, exchange: &str, queue: &str, key: &str, times: usize) {
        for _ in 0..times {
            let options = QueueBindOptions::default();
            let bound = self.channel.queue_bind(
                queue.into(),
                exchange.into(),
                key.into(),
                options,
                FieldTable::default(),
            );
            bound.await.unwrap();
        }
    }

    /// Messages that are ready at this moment.
    pub(crate) async fn ready(&self, queue: &str) -> usize {
        let count = amqp::ready_count(&self.connection, &self.endpoint, &self.vhost, queue).await;
        usize::try_from(count.unwrap().unwrap()).unwrap()
    }

    /// Takes away what is ready.
    pub(crate) async fn drain(&self, queue: &str) -> Vec<Delivery> {
        let count = self.ready(queue).await;
        let channel = self.connection.create_channel().await.unwrap();
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
        let taken: Vec<_> = consumer.await.unwrap().take(count).collect().await;
        channel.close(200, "OK".into()).await.unwrap();
        taken.into_iter().map(|delivery| delivery.unwrap()).collect()
    }

    /// Takes away what is ready, and counts it by the messages' numbers.
    pub(crate) async fn copies(&self, queue: &str) -> Copies {
        let mut copies: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
        for delivery in self.drain(queue).await {
            copies.entry(id(&delivery)).or_default().push(header(&delivery, "x-redrive-replay-id"));
        }
        Copies(copies)
    }

    /// Consumes over a connection of its own, and handles whatever it gets, until that is closed.
    pub(crate) async fn succeed(&self, queue: &str) -> Connection {
        let connection = connect(&self.endpoint, &self.vhost).await;
        let channel = connection.create_channel().await.unwrap();
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
        let mut deliveries = consumer.await.unwrap();
        tokio::spawn(async move {
            let _channel = channel;
            while let Some(Ok(_)) = deliveries.next().await {}
        });
        connection
    }

    /// Consumes over a connection of its own, and fails.
    pub(crate) async fn fail(&self, queue: &str) -> Failing {
        let connection = connect(&self.endpoint, &self.vhost).await;
        let channel = connection.create_channel().await.unwrap();
        channel.basic_qos(100, BasicQosOptions::default()).await.unwrap();
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
        let mut deliveries = consumer.await.unwrap();
        let rejected = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&rejected);
        tokio::spawn(async move {
            let _channel = channel;
            while let Some(Ok(delivery)) = deliveries.next().await {
                if delivery.acker.reject(BasicRejectOptions { requeue: false }).await.is_err() {
                    return;
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Failing { rejected, connection }
    }
}

/// The replay ids of all copies of each message, by its number.
pub(crate) struct Copies(BTreeMap<String, Vec<Option<String>>>);

impl Copies {
    /// The messages that are there.
    pub(crate) fn ids(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// Those of so many that are not.
    pub(crate) fn lost(&self, messages: usize) -> Vec<usize> {
        (0..messages).filter(|number| !self.0.contains_key(&number.to_string())).collect()
    }

    /// Copies that are too many.
    pub(crate) fn doubled(&self) -> usize {
        self.0.values().map(|copies| copies.len() - 1).sum()
    }

    /// Each has a replay id, and all copies of a message have the same.
    pub(crate) fn assert_alike(&self) {
        for (message, copies) in &self.0 {
            let alike = copies.iter().all(|id| id.is_some() && *id == copies[0]);
            assert!(alike, "copies of {message}: {copies:?}");
        }
    }
}

async fn connect(endpoint: &Endpoint, vhost: &str) -> Connection {
    amqp::connect(endpoint, &AddressGuard::new(true, []), vhost, "test").await.unwrap()
}

/// The properties of persistent messages with numbers as their ids.
pub(crate) fn numbered(numbers: std::ops::Range<usize>) -> Vec<BasicProperties> {
    let one = |number: usize| {
        BasicProperties::default().with_delivery_mode(2).with_message_id(number.to_string().into())
    };
    numbers.map(one).collect()
}

/// The id of a message.
pub(crate) fn id(delivery: &Delivery) -> String {
    delivery.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default()
}

/// A header's text.
pub(crate) fn header(delivery: &Delivery, name: &str) -> Option<String> {
    match delivery.properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        other => Some(format!("{other:?}")),
    }
}
