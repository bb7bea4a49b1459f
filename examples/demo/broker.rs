//! The producer, and what is asked of the broker beside it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use reqwest::Url;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::Result;
use crate::orders::{Ends, Order};
use crate::topology::Topology;
use crate::workers;

/// How long a message that is in a queue may take to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Messages ready in each queue; `None` for a queue that is not there.
pub(crate) type Counts = BTreeMap<String, Option<u32>>;

/// A connection to the broker and a client of its management API.
pub(crate) struct Broker {
    connection: Connection,
    producer: Channel,
    http: reqwest::Client,
    management: Url,
}

impl Broker {
    pub(crate) async fn connect(amqp: &str, management: &str, topology: &Topology) -> Result<Self> {
        let name = format!("producer of {}", topology.exchange);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connection = Connection::connect(amqp, properties).await?;
        let producer = connection.create_channel().await?;
        producer.confirm_select(ConfirmSelectOptions::default()).await?;
        let http = reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?;
        Ok(Self { connection, producer, http, management: management.parse()? })
    }

    /// Publishes an order; an error unless the broker has it in a queue.
    pub(crate) async fn publish(&self, order: &Order, topology: &Topology) -> Result<()> {
        self.publish_with(order, topology, FieldTable::default()).await
    }

    /// The same for an order that goes to the dead-letter queue as soon as it fails.
    pub(crate) async fn publish_without_retries(&self, order: &Order, topology: &Topology) -> Result<()> {
        let mut headers = FieldTable::default();
        headers.insert("x-redrive-on-failure".into(), AMQPValue::LongString("dead-letter".into()));
        self.publish_with(order, topology, headers).await
    }

    async fn publish_with(&self, order: &Order, topology: &Topology, headers: FieldTable) -> Result<()> {
        let body = json!({"order": order.name, "payment": order.kind.word()});
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(order.name.as_str().into())
            .with_content_type("application/json".into())
            .with_headers(headers);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, key) = (topology.exchange.as_str(), topology.routing_key.as_str());
        let body = body.to_string();
        let confirmation = self
            .producer
            .basic_publish(exchange.into(), key.into(), options, body.as_bytes(), properties)
            .await?
            .await?;
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            _ => Err(format!("the broker did not take {} from {exchange} into a queue", order.name).into()),
        }
    }

    /// Counts every queue. Exact, unlike the management API, which is seconds behind.
    pub(crate) async fn counts(&self, topology: &Topology) -> Result<Counts> {
        let mut channel = self.connection.create_channel().await?;
        let mut counts = Counts::new();
        for queue in &topology.queues {
            let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let found = channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await;
            if found.is_err() {
                // A missing queue closes the channel, any other trouble the connection.
                channel = self.connection.create_channel().await?;
            }
            counts.insert(queue.clone(), found.ok().map(|found| found.message_count()));
        }
        channel.close(200, "OK".into()).await?;
        Ok(counts)
    }

    /// How many consumers a queue has.
    pub(crate) async fn consumers(&self, queue: &str) -> Result<u32> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let channel = self.connection.create_channel().await?;
        let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
        channel.close(200, "OK".into()).await?;
        Ok(found.consumer_count())
    }

    /// Removes what an earlier run left: its consumers and its messages.
    pub(crate) async fn clean(&self, topology: &Topology) -> Result<()> {
        self.wait_for_queues(topology).await?;
        self.close_consumers().await?;
        let mut removed = 0;
        // What is on its way between two queues is caught by the next round.
        for _ in 0..50 {
            let found: u32 = self.counts(topology).await?.values().flatten().sum();
            if found == 0 {
                if removed > 0 {
                    println!("removed {removed} messages of an earlier run");
                }
                return Ok(());
            }
            for queue in &topology.queues {
                let options = QueuePurgeOptions::default();
                removed += self.producer.queue_purge(queue.as_str().into(), options).await?;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let source = &topology.source;
        Err(format!("somebody else publishes to {source}: end that, the demo counts messages").into())
    }

    async fn wait_for_queues(&self, topology: &Topology) -> Result<()> {
        let mut missing = String::new();
        for _ in 0..100 {
            let counts = self.counts(topology).await?;
            let Some((name, _)) = counts.iter().find(|(_, count)| count.is_none()) else { return Ok(()) };
            missing.clone_from(name);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Err(format!("the queue {missing} is missing and was not repaired: see the operator's log").into())
    }

    /// Closes connections of consumers whose demo was killed. They end then.
    async fn close_consumers(&self) -> Result<()> {
        let connections: Vec<ConnectionRow> =
            self.http.get(self.url(&[])?).send().await?.error_for_status()?.json().await?;
        let left = connections.into_iter().filter(|row| {
            let name = row.client_properties["connection_name"].as_str();
            name.is_some_and(|name| workers::NAMES.iter().any(|ours| name == format!("consumer {ours}")))
        });
        for row in left {
            println!("closing {}, which an earlier run left", row.name);
            self.http.delete(self.url(&[&row.name])?).send().await?;
        }
        Ok(())
    }

    fn url(&self, connection: &[&str]) -> Result<Url> {
        self.api(&[&["connections"], connection].concat())
    }

    /// An address of the management API; each part is escaped.
    fn api(&self, parts: &[&str]) -> Result<Url> {
        let mut url = self.management.clone();
        url.path_segments_mut()
            .map_err(|()| "the management URI has no host")?
            .pop_if_empty()
            .push("api")
            .extend(parts);
        Ok(url)
    }

    /// Deletes a queue as a person would, behind the operator's back. Returns the
    /// request, without credentials.
    pub(crate) async fn delete_by_hand(&self, queue: &str) -> Result<String> {
        let url = self.api(&["queues", "/", queue])?;
        let request = format!("DELETE {}", url.path());
        self.http.delete(url).send().await?.error_for_status()?;
        Ok(request)
    }

    /// The broker's version, such as 4.3.6.
    pub(crate) async fn version(&self) -> Result<String> {
        let overview: Value =
            self.http.get(self.api(&["overview"])?).send().await?.error_for_status()?.json().await?;
        Ok(overview["rabbitmq_version"].as_str().unwrap_or("unknown").to_owned())
    }

    /// Reads the queues in which messages end, and leaves them as they are.
    pub(crate) async fn ends(&self, topology: &Topology) -> Result<Ends> {
        Ok(Ends { dead: self.peek(&topology.dead).await?, poison: self.peek(&topology.poison).await? })
    }

    /// The orders in a queue, the oldest first, which stay as they are.
    pub(crate) async fn peek(&self, queue: &str) -> Result<Vec<String>> {
        let channel = self.connection.create_channel().await?;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let count =
            channel.queue_declare(queue.into(), passive, FieldTable::default()).await?.message_count();
        // One consumer for all: what is got one by one comes back in any order.
        let options = BasicConsumeOptions::default();
        let messages = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
        let mut messages = messages.take(count as usize);
        let mut names = Vec::new();
        while let Some(message) = timeout(PATIENCE, messages.next()).await? {
            let body: Value = serde_json::from_slice(&message?.data)?;
            names.push(body["order"].as_str().unwrap_or("a message without order").to_owned());
        }
        // Nothing was acknowledged: closing the channel puts all of it back.
        channel.close(200, "OK".into()).await?;
        Ok(names)
    }
}

#[derive(Deserialize)]
struct ConnectionRow {
    name: String,
    #[serde(default)]
    client_properties: Value,
}
