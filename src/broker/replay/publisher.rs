//! The publishing connection: mandatory, confirmed, many under way at once.
//!
//! One task publishes and takes confirms, in turns: a confirm is judged only while every
//! publish before it is known (see `confirms`). A blocked connection holds this task up, and
//! nothing else.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Connection};
use tokio::sync::mpsc;
use tokio::time::timeout;

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
const AT_ONCE: usize = 64;

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
    Refused(Tag, Box<Parcel>),
}

/// Opens the channel and publishes what comes until `parcels` ends or the channel is gone.
pub(super) struct Publisher {
    channel: Channel,
    confirms: Confirms,
    fates: Fates,
    parcels: HashMap<u64, (Tag, Box<Parcel>)>,
    last: u64,
    largest: Largest,
}

impl Publisher {
    pub(super) async fn open(connection: &Connection, largest: Largest) -> lapin::Result<Self> {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self {
            channel,
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
        parcels: mpsc::Receiver<(Tag, Box<Parcel>)>,
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
            loop {
                if let Err(error) = self.confirms.take() {
                    return error;
                }
                self.confirms.come().await;
            }
        };
        match amqp::reply(&error) {
            Some(_) => error,
            None => timeout(REASON, words).await.unwrap_or(error),
        }
    }

    async fn work(
        &mut self,
        mut parcels: mpsc::Receiver<(Tag, Box<Parcel>)>,
        session: u32,
        signals: mpsc::Sender<(u32, Signal)>,
    ) -> lapin::Result<()> {
        let mut batch = Vec::with_capacity(AT_ONCE);
        loop {
            tokio::select! {
                biased;
                () = self.confirms.come() => {
                    let settled = self.settle()?;
                    let news = (session, Signal::Published(settled));
                    if signals.send(news).await.is_err() {
                        return Ok(());
                    }
                }
                count = parcels.recv_many(&mut batch, AT_ONCE) => {
                    if count == 0 {
                        return Ok(());
                    }
                    self.publish(&mut batch).await?;
                }
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

    async fn publish(&mut self, batch: &mut Vec<(Tag, Box<Parcel>)>) -> lapin::Result<()> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let channel = &self.channel;
        // Each is queued when it is polled for the first time, so they go in this order.
        let sent = join_all(batch.iter().map(|(_, parcel)| {
            channel.basic_publish(
                parcel.exchange.clone(),
                parcel.routing_key.clone(),
                options,
                &parcel.body,
                parcel.properties.clone(),
            )
        }))
        .await;
        for (confirm, (tag, parcel)) in sent.into_iter().zip(batch.drain(..)) {
            self.last += 1;
            self.fates.add(self.last, parcel.id.clone());
            self.confirms.add(self.last, confirm?);
            self.parcels.insert(self.last, (tag, parcel));
        }
        Ok(())
    }
}
