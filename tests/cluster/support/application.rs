//! An application that consumes from the work queue of `orders`: broken at first, repaired later.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::eventually;
use super::replays::{DLQ, SOURCE};
use super::world::World;

/// It rejects whatever it gets until it is repaired, and takes everything from then on.
pub(crate) struct Application {
    is_repaired: Arc<AtomicBool>,
    taken: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Application {
    /// Consumes from now on, broken.
    pub(crate) async fn start(world: &World) -> Self {
        let broker = &world.broker;
        let address = broker.amqp.strip_prefix("amqp://").unwrap();
        let uri = format!("amqp://{}:{}@{address}/{}", broker.user, broker.password, world.vhost);
        let connection = Connection::connect(&uri, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.basic_qos(100, BasicQosOptions::default()).await.unwrap();
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let mut deliveries =
            channel.basic_consume(SOURCE.into(), "".into(), options, arguments).await.unwrap();
        let is_repaired = Arc::new(AtomicBool::new(false));
        let taken: Arc<Mutex<Vec<String>>> = Arc::default();
        let (works, record) = (Arc::clone(&is_repaired), Arc::clone(&taken));
        let task = tokio::spawn(async move {
            // It lives as long as its consumer.
            let _connection = connection;
            while let Some(Ok(delivery)) = deliveries.next().await {
                let id = delivery.properties.message_id().as_ref().map(ToString::to_string);
                if works.load(Ordering::Relaxed) {
                    record.lock().unwrap().push(id.unwrap_or_default());
                    delivery.ack(BasicAckOptions::default()).await.unwrap();
                } else {
                    delivery.reject(BasicRejectOptions { requeue: false }).await.unwrap();
                }
            }
        });
        Self { is_repaired, taken, task }
    }

    /// The fix is deployed.
    pub(crate) fn repair(&self) {
        self.is_repaired.store(true, Ordering::Relaxed);
    }

    /// Waits until it has taken so many messages, and says which, sorted; one that came twice
    /// stands there twice.
    pub(crate) async fn took(&self, messages: usize) -> Vec<String> {
        eventually(&format!("{messages} messages are taken"), async || {
            let mut taken = self.taken.lock().unwrap().clone();
            taken.sort();
            if taken.len() >= messages { Ok(taken) } else { Err(format!("{taken:?}")) }
        })
        .await
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl World {
    /// Publishes a message with this id as producers do, into the exchange of `orders`.
    pub(crate) async fn publish(&self, id: &str, properties: Value) {
        self.send("orders.exchange", "orders.created", id, properties).await;
    }

    /// Puts a message with this id straight into the dead-letter queue.
    pub(crate) async fn bury(&self, id: &str, properties: Value) {
        self.send("amq.default", DLQ, id, properties).await;
    }

    async fn send(&self, exchange: &str, key: &str, id: &str, properties: Value) {
        let mut all = json!({"delivery_mode": 2, "message_id": id});
        super::world::merge(&mut all, properties);
        let body = json!({
            "properties": all, "routing_key": key, "payload": "{}", "payload_encoding": "string",
        });
        let answer = self.broker.post(&["exchanges", &self.vhost, exchange, "publish"], body).await;
        assert_eq!(answer["routed"], true, "{id}");
    }

    /// Takes all that lies in a queue, and says which messages: sorted, as a quorum queue's order
    /// after a read of this kind is nobody's promise.
    pub(crate) async fn emptied(&self, queue: &str) -> Vec<String> {
        let get = json!({"count": 10_000, "ackmode": "ack_requeue_false", "encoding": "auto"});
        let found = self.broker.post(&["queues", &self.vhost, queue, "get"], get).await;
        let id = |one: &Value| one["properties"]["message_id"].as_str().unwrap_or_default().to_owned();
        let mut ids: Vec<String> = found.as_array().unwrap().iter().map(id).collect();
        ids.sort();
        ids
    }
}

/// `PREFIX-01` to so many.
pub(crate) fn ids(prefix: &str, count: usize) -> BTreeSet<String> {
    (1..=count).map(|number| format!("{prefix}-{number:02}")).collect()
}
