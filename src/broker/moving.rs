//! Moves all messages of a queue to another: each is published, confirmed, and only then
//! acknowledged.
//!
//! Guarantees: every message is in one of the two queues at every moment; what is cut off, by a
//! crash or a lost connection, doubles at most [`WINDOW`] messages, and [`move_all`] that is told
//! to stop doubles none. The order stays. Left out: pace, audit and selection, which are a
//! replay's.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesOrdered;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Confirmation, PublisherConfirm};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::amqp;
use super::connection::Endpoint;
use super::error::BrokerError;
use super::guard::AddressGuard;
use super::replay::convert;
use crate::replay::relocate::relocate;
use crate::topology::plan::Move;

/// Messages under way at once.
pub const WINDOW: u16 = 100;

/// As many are acknowledged at once: a quorum queue's channel keeps what is above 32 commands, and
/// loses it where it is closed. One for all up to a message always arrives.
const TOGETHER: u16 = 25;

/// Whoever else consumes from the queue comes first.
const PRIORITY: i32 = -10;

/// After so long without a message the queue is asked whether it is empty.
const QUIET: Duration = Duration::from_millis(500);

/// How long the broker may take to close the connection; it goes then all the same.
const CLOSING: Duration = Duration::from_secs(5);

/// Without any progress for so long, another attempt is made on another connection.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why messages stay where they are.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The connection.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The other queue is full, or gone, or has lost too many nodes.
    #[error("the queue {to:?} does not take them")]
    NotTaken {
        /// The other queue.
        to: String,
    },
    /// Its properties don't fit into a frame.
    #[error("a message can't be published again: its headers are too long")]
    TooLong,
}

impl MoveError {
    /// Whether it fails again until somebody does something.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Broker(error) => !error.is_transient(),
            Self::NotTaken { .. } | Self::TooLong => true,
        }
    }
}

/// Moves what there is, until nothing is ready any more, and says how many.
///
/// # Errors
/// [`MoveError`]; what was moved until then is moved. Without progress it ends after a minute.
pub async fn move_all(
    endpoint: &Endpoint,
    guard: &AddressGuard,
    vhost: &str,
    Move { from, to }: &Move,
    stop: &CancellationToken,
) -> Result<u64, MoveError> {
    let connection = amqp::connect(endpoint, guard, vhost, "redrive migration").await?;
    let failed = |error| amqp::sort(endpoint, vhost, &format!("move from queue {from:?}"), error);
    let moved = async {
        let channel = connection.create_channel().await.map_err(failed)?;
        let mut moving =
            Moving { channel, to, under_way: FuturesOrdered::new(), settled: None, waiting: 0, moved: 0 };
        moving.run(from, stop).await.map_err(|fault| match fault {
            Fault::Client(error) => failed(error).into(),
            Fault::Lost => lost(endpoint).into(),
            Fault::Stalled => amqp::late(endpoint).into(),
            Fault::NotTaken => MoveError::NotTaken { to: to.clone() },
            Fault::TooLong => MoveError::TooLong,
        })
    }
    .await;
    // What is not acknowledged goes back.
    if let Ok(Err(error)) = timeout(CLOSING, connection.close(200, "done".into())).await {
        tracing::debug!(%error, "the connection was closed already");
    }
    moved
}

fn lost(endpoint: &Endpoint) -> BrokerError {
    let address = endpoint.amqp.to_string();
    BrokerError::Unreachable { address, why: "the connection was lost", source: None }
}

enum Fault {
    Client(lapin::Error),
    Lost,
    Stalled,
    NotTaken,
    TooLong,
}

impl From<lapin::Error> for Fault {
    fn from(error: lapin::Error) -> Self {
        Self::Client(error)
    }
}

type Confirmed = futures::future::BoxFuture<'static, (u64, lapin::Result<Confirmation>)>;

struct Moving<'a> {
    channel: Channel,
    to: &'a str,
    /// In the order of their deliveries.
    under_way: FuturesOrdered<Confirmed>,
    /// The last one that has arrived, with all before it, and how many since the last
    /// acknowledgement.
    settled: Option<u64>,
    waiting: u16,
    moved: u64,
}

impl Moving<'_> {
    async fn run(&mut self, from: &str, stop: &CancellationToken) -> Result<u64, Fault> {
        let name = convert::short(from.to_owned()).map_err(|_| Fault::TooLong)?;
        self.channel.confirm_select(ConfirmSelectOptions::default()).await?;
        self.channel.basic_qos(WINDOW, BasicQosOptions::default()).await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-priority".into(), AMQPValue::LongInt(PRIORITY));
        let options = BasicConsumeOptions::default();
        let mut consumer =
            self.channel.basic_consume(name.clone(), ShortString::default(), options, arguments).await?;
        let mut last = Instant::now();
        loop {
            tokio::select! {
                Some((tag, confirmed)) = self.under_way.next() => {
                    self.settle(tag, confirmed?).await?;
                    last = Instant::now();
                }
                delivery = timeout(QUIET, consumer.next()) => match delivery {
                    Ok(Some(delivery)) => self.publish(delivery?).await?,
                    Ok(None) => break,
                    Err(_) if last.elapsed() > PATIENCE => return Err(Fault::Stalled),
                    Err(_) if self.under_way.is_empty() && amqp::declare_passively(&self.channel, name.clone()).await?.ready == 0 => break,
                    Err(_) => {}
                },
                () = stop.cancelled() => break,
            }
        }
        self.settle_all().await?;
        Ok(self.moved)
    }

    /// Waits for what is under way, as long as there is a connection: the consumer ends without an
    /// error where that is lost, and confirms never come then.
    async fn settle_all(&mut self) -> Result<(), Fault> {
        while let Some((tag, confirmation)) = self.next_confirmed().await? {
            self.settle(tag, confirmation).await?;
        }
        if self.channel.status().connected() { Ok(()) } else { Err(Fault::Lost) }
    }

    async fn next_confirmed(&mut self) -> Result<Option<(u64, Confirmation)>, Fault> {
        let begun = Instant::now();
        loop {
            match timeout(QUIET, self.under_way.next()).await {
                Ok(Some((tag, confirmed))) => return Ok(Some((tag, confirmed?))),
                Ok(None) => return Ok(None),
                Err(_) if !self.channel.status().connected() => return Err(Fault::Lost),
                Err(_) if begun.elapsed() > PATIENCE => return Err(Fault::Stalled),
                Err(_) => {}
            }
        }
    }

    /// What was published behind a refused message may be taken all the same: acknowledged one by
    /// one, it is not there twice.
    async fn settle_behind_a_refusal(&mut self) -> Result<(), Fault> {
        while let Some((tag, confirmation)) = self.next_confirmed().await? {
            match confirmation {
                Confirmation::Ack(None) => {
                    self.moved += 1;
                    self.channel.basic_ack(tag, BasicAckOptions::default()).await?;
                }
                Confirmation::Nack(None) => {}
                // Nobody knows whose it is.
                _ => break,
            }
        }
        Ok(())
    }

    async fn publish(&mut self, delivery: Delivery) -> Result<(), Fault> {
        let tag = delivery.delivery_tag;
        let properties = relocate(convert::properties(&delivery.properties));
        let properties = convert::to_properties(properties).map_err(|_| Fault::TooLong)?;
        let to = convert::short(self.to.to_owned()).map_err(|_| Fault::TooLong)?;
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let confirm: PublisherConfirm = self
            .channel
            .basic_publish(ShortString::default(), to, options, &delivery.data, properties)
            .await?;
        self.under_way.push_back(Box::pin(async move { (tag, confirm.await) }));
        Ok(())
    }

    /// Acknowledges what has arrived; one that was not taken ends the whole attempt. The client may
    /// hand a returned message to the confirm of another, so that nothing behind it is settled.
    async fn settle(&mut self, tag: u64, confirmation: Confirmation) -> Result<(), Fault> {
        match confirmation {
            Confirmation::Ack(None) => {}
            Confirmation::Nack(None) => {
                self.acknowledge().await?;
                self.settle_behind_a_refusal().await?;
                return Err(Fault::NotTaken);
            }
            _ => {
                self.acknowledge().await?;
                return Err(Fault::NotTaken);
            }
        }
        (self.settled, self.waiting) = (Some(tag), self.waiting + 1);
        self.moved += 1;
        if self.waiting >= TOGETHER || self.under_way.is_empty() {
            self.acknowledge().await?;
        }
        Ok(())
    }

    async fn acknowledge(&mut self) -> lapin::Result<()> {
        self.waiting = 0;
        let Some(tag) = self.settled.take() else { return Ok(()) };
        self.channel.basic_ack(tag, BasicAckOptions { multiple: true }).await
    }
}
