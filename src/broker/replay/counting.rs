//! How many messages are ready, in the origin queue and in the target.

use std::sync::Arc;
use std::time::Duration;

use lapin::{Channel, Connection, ErrorKind};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::reader::Channels;
use super::session::{Plan, ask};
use super::{Site, convert};
use crate::broker::BrokerError;
use crate::broker::amqp::{self, Declared};
use crate::replay::engine::TargetLook;

/// How long the broker may take to put back what a lost connection held.
const PUT_BACK: Duration = Duration::from_secs(10);
/// How often it is asked for that.
const ASK_EACH: Duration = Duration::from_millis(10);
const NOT_FOUND: u16 = 404;

/// Counts by passive declarations, on a channel of its own: a missing queue closes it.
pub(super) struct Counting {
    connection: Arc<Connection>,
    channel: Mutex<Option<Channel>>,
    site: Site,
    target: Option<String>,
}

impl Counting {
    pub(super) fn new(connection: Arc<Connection>, plan: &Plan) -> Self {
        let (site, target) = (plan.site.clone(), plan.target.clone());
        Self { connection, channel: Mutex::new(None), site, target }
    }

    /// Messages ready in the origin queue, once at least so many are there, or after ten
    /// seconds: the broker may take a moment to put back what was held.
    ///
    /// # Errors
    /// [`BrokerError::NotFound`] where there is no such queue, and every error of a
    /// connection.
    pub(super) async fn settled(&self, expected: u64) -> Result<u64, BrokerError> {
        let until = Instant::now() + PUT_BACK;
        loop {
            let ready = self.origin().await?;
            if ready >= expected || Instant::now() >= until {
                return Ok(ready);
            }
            sleep(ASK_EACH).await;
        }
    }

    /// Returns channels one after the other: the next only once the broker shows what the one
    /// before held, so that they come to stand in this order.
    ///
    /// # Errors
    /// As above.
    pub(super) async fn give_back(
        &self,
        channels: &Channels,
        returns: Vec<(u16, u64)>,
    ) -> Result<(), BrokerError> {
        for (channel, messages) in returns {
            let before = self.origin().await?;
            ask(&self.site, "return messages", channels.close(channel)).await?;
            self.settled(before + messages).await?;
        }
        Ok(())
    }

    /// Messages ready in the origin queue, and what the target looks like, where it is known.
    ///
    /// # Errors
    /// As above.
    pub(super) async fn look(&self) -> Result<(u64, Option<TargetLook>), BrokerError> {
        let ready = self.origin().await?;
        let Some(target) = &self.target else { return Ok((ready, None)) };
        let (ready_there, consumers) = self.count(target).await?.unwrap_or_default();
        Ok((ready, Some(TargetLook { ready: ready_there, consumers })))
    }

    async fn origin(&self) -> Result<u64, BrokerError> {
        let queue = &self.site.queue;
        let found = self.count(queue).await?;
        let missing = || BrokerError::NotFound {
            action: format!("count the queue {queue:?}"),
            reason: format!("there is no queue {queue:?} in vhost {:?}", self.site.vhost),
        };
        found.map(|(ready, _)| ready).ok_or_else(missing)
    }

    async fn count(&self, queue: &str) -> Result<Option<(u64, u64)>, BrokerError> {
        let Ok(name) = convert::short(queue.to_owned()) else { return Ok(None) };
        let mut kept = self.channel.lock().await;
        let verb = format!("count the queue {queue:?}");
        let counted = ask(&self.site, &verb, async {
            let channel = match kept.take() {
                Some(channel) => channel,
                None => self.connection.create_channel().await?,
            };
            match amqp::declare_passively(&channel, name).await {
                Ok(Declared { ready, consumers }) => {
                    *kept = Some(channel);
                    Ok(Some((ready.into(), consumers.into())))
                }
                Err(error) if is_missing(&error) => Ok(None),
                Err(error) => Err(error),
            }
        });
        counted.await
    }
}

fn is_missing(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(reply) if reply.get_id() == NOT_FOUND)
}
