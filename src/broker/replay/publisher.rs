//! The publishing connection: mandatory, confirmed, many under way at once.
//!
//! One task publishes and takes confirms, in turns: a confirm is judged only while every
//! publish before it is known (see `confirms`). What a blocked connection does not take waits
//! in the client.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::LINGER;
use super::confirms::{Confirms, Fate, Fates, REPLAY_ID};
use super::convert::{self, TooLong};
use super::largest::Largest;
use super::session::Signal;
use crate::broker::amqp;
use crate::replay::engine::Tag;
use crate::replay::message::{Outgoing, Value};

/// How long the reason of a closed channel may take to reach what was under way.
const REASON: Duration = Duration::from_secs(1);

/// Publishes that are taken over at once.
const AT_ONCE: usize = 256;
/// With so many under way, one confirm more or less waits for others.
const MANY: usize = 64;

/// A message as it goes over the wire, kept until its fate is known.
#[derive(Debug)]
pub(super) struct Parcel {
    exchange: ShortString,
    routing_key: ShortString,
    properties: BasicProperties,
    body: Vec<u8>,
    pub(super) id: String,
}

impl Parcel {
    /// Packs a message.
    ///
    /// # Errors
    /// [`TooLong`] where it fits no frame, or has no replay id to match a return by.
    pub(super) fn pack(message: Outgoing) -> Result<Self, TooLong> {
        let id = message.properties.header(REPLAY_ID).and_then(Value::as_text).ok_or(TooLong)?.to_owned();
        Ok(Self {
            exchange: convert::short(message.exchange)?,
            routing_key: convert::short(message.routing_key)?,
            properties: convert::to_properties(message.properties)?,
            body: message.body,
            id,
        })
    }
}

/// What became of publishes.
#[derive(Debug)]
pub(super) enum Published {
    Confirmed(Tag),
    Returned(Tag),
    /// With the message, to be published again.
    Refused(Tag, Arc<Parcel>),
}

/// Opens the channel and publishes what comes until `parcels` ends or the channel is gone.
pub(super) struct Publisher {
    channel: Arc<Channel>,
    confirms: Confirms,
    fates: Fates,
    parcels: HashMap<u64, (Tag, Arc<Parcel>)>,
    last: u64,
    largest: Largest,
}

impl Publisher {
    pub(super) async fn open(connection: &Connection, largest: Largest) -> lapin::Result<Self> {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self {
            channel: Arc::new(channel),
            confirms: Confirms::default(),
            fates: Fates::default(),
            parcels: HashMap::new(),
            last: 0,
            largest,
        })
    }

    /// Works until no more parcels can come.
    ///
    /// # Errors
    /// Where the channel or its connection is gone; what was under way may have arrived.
    pub(super) async fn run(
        mut self,
        parcels: mpsc::Receiver<(Tag, Arc<Parcel>)>,
        session: u32,
        signals: mpsc::Sender<(u32, Signal)>,
    ) -> lapin::Result<()> {
        let error = match self.work(parcels, session, signals).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let error = self.reason(error).await;
        self.largest.learn(&error);
        Err(error)
    }

    /// Why the channel is gone: a publish meets a closed channel only, what was under way gets
    /// the broker's own words.
    async fn reason(&mut self, error: lapin::Error) -> lapin::Error {
        let words = async {
            while !self.confirms.is_empty() {
                match self.confirms.take() {
                    Err(error) if amqp::reply(&error).is_some() => return Some(error),
                    Err(_) => {}
                    Ok(_) => self.confirms.come().await,
                }
            }
            None
        };
        match amqp::reply(&error) {
            Some(_) => error,
            None => timeout(REASON, words).await.ok().flatten().unwrap_or(error),
        }
    }

    async fn work(
        &mut self,
        mut parcels: mpsc::Receiver<(Tag, Arc<Parcel>)>,
        session: u32,
        signals: mpsc::Sender<(u32, Signal)>,
    ) -> lapin::Result<()> {
        let mut batch = Vec::with_capacity(AT_ONCE);
        loop {
            tokio::select! {
                () = self.confirms.come() => {}
                count = parcels.recv_many(&mut batch, AT_ONCE) => {
                    if count == 0 {
                        return Ok(());
                    }
                }
            }
            while let Some(parcel) = room(&batch).then(|| parcels.try_recv().ok()).flatten() {
                batch.push(parcel);
            }
            self.publish(&mut batch);
            let settled = self.settle()?;
            if !settled.is_empty() && signals.send((session, Signal::Published(settled))).await.is_err() {
                return Ok(());
            }
            if self.parcels.len() >= MANY {
                sleep(LINGER).await;
            }
        }
    }

    fn settle(&mut self) -> lapin::Result<Vec<Published>> {
        let came = self.confirms.take()?;
        let fates = if came.is_empty() { Vec::new() } else { self.fates.settle(came) };
        let settled = fates.into_iter().filter_map(|(number, fate)| {
            let (tag, parcel) = self.parcels.remove(&number)?;
            Some(match fate {
                Fate::Confirmed => Published::Confirmed(tag),
                Fate::Returned => Published::Returned(tag),
                Fate::Refused => Published::Refused(tag, parcel),
            })
        });
        Ok(settled.collect())
    }

    /// Adds publishes to those under way; the client gets them, in this order, with the next
    /// look at what came.
    fn publish(&mut self, batch: &mut Vec<(Tag, Arc<Parcel>)>) {
        for (tag, parcel) in batch.drain(..) {
            self.last += 1;
            self.fates.add(self.last, parcel.id.clone());
            self.confirms.add(self.last, publish(Arc::clone(&self.channel), Arc::clone(&parcel)));
            self.parcels.insert(self.last, (tag, parcel));
        }
    }
}

/// Publishes, and waits for the confirm.
async fn publish(channel: Arc<Channel>, parcel: Arc<Parcel>) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let (exchange, routing_key) = (parcel.exchange.clone(), parcel.routing_key.clone());
    let properties = parcel.properties.clone();
    channel.basic_publish(exchange, routing_key, options, &parcel.body, properties).await?.await
}

fn room(batch: &[(Tag, Arc<Parcel>)]) -> bool {
    batch.len() < AT_ONCE
}
