//! Reads a queue and returns everything: order, bodies and depth are the same afterwards.
//!
//! It consumes without acknowledging, a portion at a time, each under a consumer of its own on
//! a channel of its own; the consumer is cancelled when its portion is there. Only when all is
//! read the channels are closed, the first one first, each when the messages of the one before
//! are back: what comes back with its channel goes to the front of the queue, in order. Of a
//! message that was looked at nothing is kept but the count.
//!
//! Returns by `basic.nack` don't keep the order: 4.0.5 puts messages behind all others or
//! before them, by how many returns are under way, and 4.3.6 mixes the returns of several
//! consumers once more than a few thousand are (both seen).
//!
//! Guarantees: nothing is acknowledged, whatever happens; what is held when an error ends the
//! read comes back with the channel. The broker's counters of deliveries rise, which is why a
//! queue with a delivery limit must not be read: the plan's findings say so beforehand.
//!
//! Left out: streams, which have their own way of being read.

use std::time::Duration;

use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, Consumer};
use tokio::time::{Instant, timeout};

use super::super::http::REQUEST_TIMEOUT;
use super::super::{BrokerError, Endpoint, amqp};
use super::convert;
use crate::replay::message::Message;

/// The first portion; the next ones follow from the size of the bodies.
const FIRST_PORTION: u64 = 100;

/// The largest portion.
const MAX_PORTION: u64 = 10_000;

/// Channels that a read takes at most; a connection has 2,047.
const MAX_CHANNELS: u64 = 1_000;

/// Bytes of bodies that a portion may have in memory, by the average so far.
const PORTION_BYTES: u64 = 16 << 20;

/// How long nothing may come before it asks whether there is anything left.
const SILENCE: Duration = Duration::from_secs(2);

/// How long nothing may come although messages are ready.
const STALLED: Duration = Duration::from_secs(30);

/// How long returned messages may take until they are counted as ready.
const RETURN: Duration = Duration::from_secs(10);

/// What to read.
#[derive(Clone, Copy)]
pub struct Examination<'a> {
    /// A connection into the vhost that nothing else uses for publishing.
    pub connection: &'a Connection,
    /// Where it leads.
    pub endpoint: &'a Endpoint,
    /// The vhost.
    pub vhost: &'a str,
    /// The queue.
    pub queue: &'a str,
    /// The most messages to read.
    pub most: u64,
    /// How long the broker lets the consumer hold messages, where it takes such a wish (see
    /// `Facts::takes_timeout`).
    pub hold: Option<Duration>,
}

/// Why a queue can't be examined.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExamineError {
    /// The queue went away, or its node did.
    #[error("the queue {queue:?} ended the read: it was deleted, or its node went away")]
    Ended {
        /// The queue.
        queue: String,
    },
    /// Somebody else consumes exclusively.
    #[error("somebody else consumes from {queue:?} exclusively: stop that consumer first")]
    Exclusive {
        /// The queue.
        queue: String,
    },
    /// Messages are ready, but none come.
    #[error(
        "the queue {queue:?} has messages and sends none: look for a single active consumer, or an overloaded broker"
    )]
    Stalled {
        /// The queue.
        queue: String,
    },
    /// Everything else that a broker may say.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// A channel, with how many messages it holds.
struct Held {
    channel: Channel,
    messages: u64,
}

impl Examination<'_> {
    /// Hands each message to `each`, in the queue's order, and returns them all. Says how many
    /// there were: as many as were ready at the start, at most `most`, or fewer where somebody
    /// else took some.
    ///
    /// # Errors
    /// [`ExamineError`]; `each` may have seen a part of the messages by then.
    pub async fn run(&self, mut each: impl FnMut(Message)) -> Result<u64, ExamineError> {
        let before = self.ready().await?;
        let wanted = u64::from(before).min(self.most);
        let mut held = Vec::new();
        let read = self.read(wanted, &mut held, &mut each).await;
        let count = held.iter().map(|held| held.messages).sum();
        let returned = self.give_back(held).await;
        read?;
        returned?;
        self.wait_until_ready(before).await?;
        Ok(count)
    }

    async fn read(
        &self,
        wanted: u64,
        held: &mut Vec<Held>,
        each: &mut impl FnMut(Message),
    ) -> Result<(), ExamineError> {
        let (mut read, mut bytes) = (0, 0);
        let mut portion = FIRST_PORTION;
        // Where each portion takes a channel, huge bodies must not use them up.
        let least = wanted.div_ceil(MAX_CHANNELS).min(MAX_PORTION);
        while read < wanted {
            let channel = self.limited(self.connection.create_channel()).await?;
            let most = portion.min(wanted - read);
            held.push(Held { channel, messages: 0 });
            let Some(Held { channel, messages }) = held.last_mut() else { return Ok(()) };
            self.portion(channel, most, |delivery| {
                *messages += 1;
                bytes += delivery.data.len() as u64;
                each(convert::message(delivery));
            })
            .await?;
            read += *messages;
            if *messages < most {
                // Somebody else took the rest.
                return Ok(());
            }
            portion = (PORTION_BYTES / (bytes / read).max(1)).clamp(least, MAX_PORTION);
        }
        Ok(())
    }

    /// Reads up to `most` messages under one consumer, whose prefetch keeps it from more.
    async fn portion(
        &self,
        channel: &Channel,
        most: u64,
        mut each: impl FnMut(Delivery),
    ) -> Result<(), ExamineError> {
        let prefetch = u16::try_from(most).unwrap_or(u16::MAX);
        let mut consumer = self.consume(channel, prefetch).await?;
        for _ in 0..prefetch {
            match self.next(&mut consumer).await? {
                Some(delivery) => each(delivery),
                None => break,
            }
        }
        let tag = consumer.tag();
        let cancel = channel.basic_cancel(tag, BasicCancelOptions::default());
        self.limited(cancel).await?;
        // What came between the last look and the cancellation.
        while let Some(delivery) = consumer.next().await {
            each(delivery.map_err(|error| self.sort(error))?);
        }
        Ok(())
    }

    async fn consume(&self, channel: &Channel, prefetch: u16) -> Result<Consumer, ExamineError> {
        self.limited(channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let mut arguments = FieldTable::default();
        if let Some(hold) = self.hold {
            let millis = i64::try_from(hold.as_millis()).unwrap_or(i64::MAX);
            arguments.insert("x-consumer-timeout".into(), AMQPValue::LongLongInt(millis));
        }
        // lapin makes up a tag, a new one for each consumer.
        let tag = ShortString::default();
        let queue = ShortString::try_new(self.queue).map_err(|_| self.ended())?;
        let consume = channel.basic_consume(queue, tag, BasicConsumeOptions::default(), arguments);
        self.limited(consume).await
    }

    /// The next message; none where nothing is ready any more.
    async fn next(&self, consumer: &mut Consumer) -> Result<Option<Delivery>, ExamineError> {
        let start = Instant::now();
        loop {
            match timeout(SILENCE, consumer.next()).await {
                Ok(Some(delivery)) => return delivery.map(Some).map_err(|error| self.sort(error)),
                Ok(None) => return Err(self.ended()),
                Err(_) if self.ready().await? == 0 => return Ok(None),
                Err(_) if start.elapsed() > STALLED => {
                    return Err(ExamineError::Stalled { queue: self.queue.to_owned() });
                }
                Err(_) => {}
            }
        }
    }

    /// Each channel's messages are back before the next ones are returned.
    async fn give_back(&self, held: Vec<Held>) -> Result<(), ExamineError> {
        for Held { channel, messages } in held {
            let more = u32::try_from(messages).unwrap_or(u32::MAX);
            let expected = self.ready().await?.saturating_add(more);
            self.limited(channel.close(200, "OK".into())).await?;
            self.wait_until_ready(expected).await?;
        }
        Ok(())
    }

    /// Waits until returned messages count as ready again, as far as nobody else takes them.
    async fn wait_until_ready(&self, before: u32) -> Result<(), ExamineError> {
        let start = Instant::now();
        while self.ready().await? < before && start.elapsed() < RETURN {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn ready(&self) -> Result<u32, ExamineError> {
        let ready = amqp::ready_count(self.connection, self.endpoint, self.vhost, self.queue).await?;
        ready.ok_or_else(|| self.ended())
    }

    async fn limited<T>(&self, call: impl Future<Output = lapin::Result<T>>) -> Result<T, ExamineError> {
        match timeout(REQUEST_TIMEOUT, call).await {
            Ok(answer) => answer.map_err(|error| self.sort(error)),
            Err(_) => Err(amqp::late(self.endpoint).into()),
        }
    }

    fn ended(&self) -> ExamineError {
        ExamineError::Ended { queue: self.queue.to_owned() }
    }

    fn sort(&self, error: lapin::Error) -> ExamineError {
        match amqp::reply(&error) {
            Some((_, text)) if text.contains("exclusive use") => {
                ExamineError::Exclusive { queue: self.queue.to_owned() }
            }
            _ => amqp::sort(self.endpoint, self.vhost, &format!("read queue {:?}", self.queue), error).into(),
        }
    }
}
