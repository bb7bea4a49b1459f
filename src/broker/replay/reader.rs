//! The reading connection: consumers under manual acknowledgement.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, ChannelFlowOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, Consumer};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::LINGER;
use super::judging::Case;
use crate::replay::engine::Tag;
use crate::replay::run::Fence;

/// How long a quorum queue may take to carry out single acknowledgements. Its channel answers
/// before that is so, and keeps what is above its limit of commands until then.
const CARRIED_OUT: Duration = Duration::from_millis(20);

/// Deliveries that go to the judge at once.
const AT_ONCE: usize = 128;

/// What the reading task is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Consume with this number, after cancelling the consumer before.
    Consume { pass: u32, channel: u16, prefetch: u16, fence: Fence },
    /// Cancel the consumer.
    Cancel,
}

/// What the reading task brings.
#[derive(Debug)]
pub(super) enum Brought {
    /// Messages of one consumer, ascending.
    Messages(Vec<(Tag, Delivery)>),
    /// The consumer is cancelled, and everything that it brought came before this.
    Cancelled,
}

/// The channels of one session, each with one consumer. Cloning shares them.
#[derive(Clone, Default)]
pub(super) struct Channels(Arc<Mutex<Vec<Open>>>);

struct Open {
    channel: Channel,
    /// Whether something was acknowledged since the last flush.
    acked: bool,
    /// Whether messages were acknowledged one by one since then.
    singly: bool,
}

impl Channels {
    fn lock(&self) -> MutexGuard<'_, Vec<Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, number: u16) -> Option<Channel> {
        self.lock().get(usize::from(number)).map(|open| open.channel.clone())
    }

    /// Forgets those of an earlier pass.
    fn begin_pass(&self) {
        self.lock().clear();
    }

    fn push(&self, channel: Channel) {
        self.lock().push(Open { channel, acked: false, singly: false });
    }

    /// Queues an acknowledgement. Whether it arrived is known after [`Channels::flush`].
    pub(super) fn ack(&self, number: u16, delivery: u64, multiple: bool) {
        if let Some(open) = self.lock().get_mut(usize::from(number)) {
            open.acked = true;
            open.singly |= !multiple;
            let _ = open.channel.basic_ack(delivery, BasicAckOptions { multiple }).now_or_never();
        }
    }

    /// Waits until the broker has handled what was acknowledged before: a channel answers in
    /// order.
    pub(super) async fn flush(&self) -> lapin::Result<()> {
        let acked: Vec<(Channel, bool)> = {
            let mut open = self.lock();
            let acked = open.iter_mut().filter_map(|open| {
                let singly = std::mem::take(&mut open.singly);
                std::mem::take(&mut open.acked).then(|| (open.channel.clone(), singly))
            });
            acked.collect()
        };
        let singly = acked.iter().any(|(_, singly)| *singly);
        for (channel, _) in &acked {
            channel.channel_flow(ChannelFlowOptions { active: true }).await?;
        }
        if singly {
            sleep(CARRIED_OUT).await;
            for (channel, _) in acked.iter().filter(|(_, singly)| *singly) {
                channel.channel_flow(ChannelFlowOptions { active: true }).await?;
            }
        }
        Ok(())
    }

    /// Returns what a channel holds by closing it. A `basic.nack` would do so too, but a quorum
    /// queue without a delivery limit puts what is nacked at its end, and what a closed
    /// channel held at its front, ascending.
    pub(super) async fn close(&self, number: u16) -> lapin::Result<()> {
        match self.get(number) {
            Some(channel) => channel.close(200, "OK".into()).await,
            None => Ok(()),
        }
    }
}

/// The task that consumes.
pub(super) struct Reader {
    pub(super) connection: Arc<Connection>,
    pub(super) channels: Channels,
    pub(super) queue: ShortString,
    /// Milliseconds that the broker may wait for an acknowledgement, where it can be told.
    pub(super) consumer_timeout: Option<u64>,
    pub(super) session: u32,
    pub(super) cases: mpsc::Sender<Case>,
}

struct Active {
    consumer: Consumer,
    channel: u16,
    pass: u32,
    fence: Fence,
    /// The client tells the end of a consumer only once.
    ended: bool,
}

impl Active {
    /// The next message; none once the consumer has ended.
    ///
    /// # Errors
    /// Where it did not end, but broke.
    async fn next(&mut self) -> Result<Option<Delivery>, Gone> {
        if self.ended {
            return Ok(None);
        }
        let next = self.consumer.next().await.transpose();
        self.ended = !matches!(next, Ok(Some(_)));
        Ok(next?)
    }

    fn tag(&self, delivery: &Delivery) -> Tag {
        Tag { pass: self.pass, channel: self.channel, number: delivery.delivery_tag }
    }

    /// Takes what is there already, up to what goes to the judge at once.
    fn take_what_came(&mut self, messages: &mut Vec<(Tag, Delivery)>) {
        while messages.len() < AT_ONCE {
            let Some(Ok(Some(delivery))) = self.next().now_or_never() else { return };
            messages.push((self.tag(&delivery), delivery));
        }
    }
}

/// Why reading ended.
#[derive(Debug)]
pub(super) enum Gone {
    /// The driver does not want more.
    Unwanted,
    /// The consumer, its channel or the connection is gone.
    Lost,
}

impl From<lapin::Error> for Gone {
    fn from(_: lapin::Error) -> Self {
        Self::Lost
    }
}

impl Reader {
    /// Reads as told until the orders end or something is lost.
    pub(super) async fn run(self, mut orders: mpsc::Receiver<Order>) -> Gone {
        let mut active: Option<Active> = None;
        loop {
            let done = tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(order) => self.obey(order, &mut active).await,
                    None => Err(Gone::Unwanted),
                },
                next = next(&mut active) => match (next, &mut active) {
                    (Ok(Some(delivery)), Some(active)) => self.bring(delivery, active).await,
                    // Cancelled by the broker, or worse.
                    _ => Err(Gone::Lost),
                },
            };
            if let Err(gone) = done {
                return gone;
            }
        }
    }

    async fn obey(&self, order: Order, active: &mut Option<Active>) -> Result<(), Gone> {
        let fence = match active.take() {
            Some(before) => Some(self.cancel(before).await?),
            None => None,
        };
        match order {
            Order::Cancel => match fence {
                Some(fence) => self.send(fence, Brought::Cancelled).await,
                None => Ok(()),
            },
            Order::Consume { pass, channel, prefetch, fence } => {
                let consumer = self.consume(channel, pass, prefetch).await?;
                *active = Some(Active { consumer, channel, pass, fence, ended: false });
                Ok(())
            }
        }
    }

    /// Cancels a consumer and brings what it still got.
    async fn cancel(&self, mut active: Active) -> Result<Fence, Gone> {
        let channel = self.channels.get(active.channel).ok_or(Gone::Lost)?;
        channel.basic_cancel(active.consumer.tag(), BasicCancelOptions::default()).await?;
        while let Some(delivery) = active.next().await? {
            self.bring(delivery, &mut active).await?;
        }
        Ok(active.fence)
    }

    async fn consume(&self, number: u16, pass: u32, prefetch: u16) -> Result<Consumer, Gone> {
        if number == 0 {
            self.channels.begin_pass();
        }
        let channel = self.connection.create_channel().await?;
        self.channels.push(channel.clone());
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let mut arguments = FieldTable::default();
        if let Some(millis) = self.consumer_timeout {
            let millis = i64::try_from(millis).unwrap_or(i64::MAX);
            arguments.insert("x-consumer-timeout".into(), AMQPValue::LongLongInt(millis));
        }
        let tag = format!("redrive.{pass}.{number}");
        let options = BasicConsumeOptions::default();
        Ok(channel.basic_consume(self.queue.clone(), tag.into(), options, arguments).await?)
    }

    /// Brings a delivery, and what else comes within a moment: nobody is woken for each.
    async fn bring(&self, first: Delivery, active: &mut Active) -> Result<(), Gone> {
        let mut messages = Vec::with_capacity(AT_ONCE);
        messages.push((active.tag(&first), first));
        active.take_what_came(&mut messages);
        if messages.len() < AT_ONCE {
            sleep(LINGER).await;
            active.take_what_came(&mut messages);
        }
        self.send(active.fence, Brought::Messages(messages)).await
    }

    async fn send(&self, fence: Fence, brought: Brought) -> Result<(), Gone> {
        let case = Case { session: self.session, fence, brought };
        self.cases.send(case).await.map_err(|_| Gone::Unwanted)
    }
}

async fn next(active: &mut Option<Active>) -> Result<Option<Delivery>, Gone> {
    match active {
        Some(active) => active.next().await,
        None => std::future::pending().await,
    }
}
