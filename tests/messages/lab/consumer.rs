//! Consumers that behave as a script says, and what they saw.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as Lock};
use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions, BasicPublishOptions,
    BasicQosOptions, BasicRejectOptions, ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use redrive::broker::amqp;
use tokio::time::timeout;

use super::{Background, Broker, Lab, PATIENCE, eventually};

/// How long a node may take to begin or end a consumer.
const SETUP: Duration = Duration::from_secs(10);

/// What a consumer does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Ack,
    /// `basic.reject` without requeue.
    Reject,
    /// `basic.nack` without requeue.
    Nack,
    /// `basic.reject` with requeue.
    Requeue,
    /// `basic.nack` with requeue.
    NackRequeue,
    /// Closes the connection with the message unsettled, and comes back.
    Crash,
    /// Publishes it to the tier of this number, and acknowledges it: what a client library does
    /// in mode Application.
    Retry(usize),
    /// Keeps it.
    Hold,
}

/// One delivery.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) id: String,
    /// How many deliveries of this message the same recorder saw before.
    pub(crate) before: usize,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Vec<u8>,
    /// What was done.
    pub(crate) act: Act,
}

impl Seen {
    fn new(exchange: &str, routing_key: &str, properties: BasicProperties, body: Vec<u8>) -> Self {
        let id = properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        Self {
            at: Instant::now(),
            id,
            before: 0,
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            properties,
            body,
            act: Act::Ack,
        }
    }

    /// A header as text, if there is one.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        match self.properties.headers().as_ref()?.inner().get(name)? {
            AMQPValue::LongString(text) => Some(text.to_string()),
            other => Some(format!("{other:?}")),
        }
    }

    /// Headers but those that the broker stamps itself.
    pub(crate) fn own_headers(&self) -> BTreeMap<String, AMQPValue> {
        own_headers(&self.properties)
    }
}

/// Headers but those that the broker stamps itself.
pub(crate) fn own_headers(properties: &BasicProperties) -> BTreeMap<String, AMQPValue> {
    let stamped = |name: &str| {
        ["x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    let headers = properties.headers().clone().unwrap_or_default();
    headers
        .inner()
        .iter()
        .filter(|(name, _)| !stamped(name.as_str()))
        .map(|(name, value)| (name.to_string(), value.clone()))
        .collect()
}

type Script = dyn Fn(&Seen) -> Act + Send + Sync;

/// A consumer in the background. It comes back after every end of its connection
/// or its queue, until it is dropped.
pub(crate) struct Consumer {
    seen: Arc<Lock<Vec<Seen>>>,
    _task: Background,
}

impl Consumer {
    /// Consumes from a queue of the lab.
    pub(crate) fn start(
        lab: &Lab,
        queue: &str,
        prefetch: u16,
        script: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        Self::on(vec![lab.broker.clone()], &lab.vhost, queue, prefetch, script)
    }

    /// Consumes through one of several nodes, the next after each failure.
    pub(crate) fn on(
        brokers: Vec<Broker>,
        vhost: &str,
        queue: &str,
        prefetch: u16,
        script: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let seen: Arc<Lock<Vec<Seen>>> = Arc::default();
        let (record, vhost, queue) = (Arc::clone(&seen), vhost.to_owned(), queue.to_owned());
        let task = tokio::spawn(async move {
            let mut deliveries = BTreeMap::new();
            for broker in brokers.iter().cycle() {
                let connected = amqp::connect(&broker.endpoint, &Broker::guard(), &vhost, "consumer").await;
                if let Ok(connection) = connected {
                    let _ = consume(&connection, &queue, prefetch, &script, &record, &mut deliveries).await;
                    // A node that died answers nothing, and neither does one without a quorum.
                    let _ = timeout(SETUP, connection.close(200, "gone".into())).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self { seen, _task: Background(task) }
    }

    /// All deliveries until now.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no panic").clone()
    }

    /// How many deliveries there were until now.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().expect("no panic").len()
    }

    /// The deliveries of one message.
    pub(crate) fn of(&self, id: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.id == id).collect()
    }

    /// The deliveries by message.
    pub(crate) fn by_id(&self) -> BTreeMap<String, Vec<Seen>> {
        let mut by_id: BTreeMap<String, Vec<Seen>> = BTreeMap::new();
        for seen in self.seen() {
            by_id.entry(seen.id.clone()).or_default().push(seen);
        }
        by_id
    }

    /// The messages that were acknowledged, each as often as it was.
    pub(crate) fn acknowledged(&self) -> Vec<String> {
        self.seen().into_iter().filter(|seen| seen.act == Act::Ack).map(|seen| seen.id).collect()
    }

    /// Waits for so many deliveries.
    pub(crate) async fn sees(&self, deliveries: usize) {
        self.sees_within(deliveries, PATIENCE).await;
    }

    pub(crate) async fn sees_within(&self, deliveries: usize, patience: Duration) {
        eventually(patience, &format!("{deliveries} deliveries were seen"), async || {
            let count = self.count();
            if count >= deliveries { Ok(()) } else { Err(format!("{count} were")) }
        })
        .await;
    }
}

async fn consume(
    connection: &Connection,
    queue: &str,
    prefetch: u16,
    script: &Script,
    record: &Lock<Vec<Seen>>,
    deliveries: &mut BTreeMap<String, usize>,
) -> lapin::Result<()> {
    let setup = async {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
        Ok::<_, lapin::Error>((channel, consumer))
    };
    let Ok(ready) = timeout(SETUP, setup).await else { return Ok(()) };
    let (channel, mut consumer) = ready?;
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        let mut seen = Seen::new(
            delivery.exchange.as_str(),
            delivery.routing_key.as_str(),
            delivery.properties.clone(),
            delivery.data.clone(),
        );
        let count = deliveries.entry(seen.id.clone()).or_default();
        seen.before = *count;
        *count += 1;
        seen.act = script(&seen);
        let act = seen.act;
        record.lock().expect("no panic").push(seen);
        match act {
            Act::Crash => return Ok(()),
            // Beside the others, as the confirmation takes its time. What fails stays unsettled.
            Act::Retry(tier) => {
                drop(tokio::spawn(retry(channel.clone(), format!("{queue}.retry.{tier}"), delivery)));
            }
            other => settle(delivery, other).await?,
        }
    }
    Ok(())
}

async fn settle(delivery: Delivery, act: Act) -> lapin::Result<()> {
    let nack = |requeue| BasicNackOptions { requeue, ..BasicNackOptions::default() };
    match act {
        Act::Ack => delivery.ack(BasicAckOptions::default()).await.map(|_| ()),
        Act::Reject => delivery.reject(BasicRejectOptions { requeue: false }).await.map(|_| ()),
        Act::Requeue => delivery.reject(BasicRejectOptions { requeue: true }).await.map(|_| ()),
        Act::Nack => delivery.nack(nack(false)).await.map(|_| ()),
        Act::NackRequeue => delivery.nack(nack(true)).await.map(|_| ()),
        Act::Crash | Act::Hold | Act::Retry(_) => Ok(()),
    }
}

/// Lets go of a message only once the broker has it in its next queue.
async fn retry(channel: Channel, tier: String, delivery: Delivery) -> lapin::Result<()> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let (body, properties) = (&delivery.data, delivery.properties.clone());
    let confirm =
        channel.basic_publish("".into(), tier.as_str().into(), options, body, properties).await?.await?;
    assert!(matches!(confirm, Confirmation::Ack(None)), "the broker took it into {tier}");
    settle(delivery, Act::Ack).await
}

/// Takes and acknowledges all that is ready.
pub(super) async fn drain(connection: &Connection, queue: &str) -> Vec<Seen> {
    let channel = connection.create_channel().await.expect("a channel");
    let mut found = Vec::new();
    while let Some(message) =
        channel.basic_get(queue.into(), BasicGetOptions::default()).await.expect("a queue")
    {
        let delivery = message.delivery;
        found.push(Seen::new(
            delivery.exchange.as_str(),
            delivery.routing_key.as_str(),
            delivery.properties.clone(),
            delivery.data.clone(),
        ));
        settle(delivery, Act::Ack).await.expect("acknowledged");
    }
    found
}
