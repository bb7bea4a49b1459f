//! A publisher that believes nothing but the broker's confirmation.

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection};

/// The name of the n-th message.
pub(crate) fn id(number: usize) -> String {
    format!("m-{number:06}")
}

/// The names of the first messages.
pub(crate) fn ids(count: usize) -> Vec<String> {
    (0..count).map(id).collect()
}

/// Each message has a body of its own, with a word that no output may hold.
pub(crate) fn body_of(id: &str) -> Vec<u8> {
    format!("{{\"order\": \"{id}\", \"note\": \"unveränderlich 9c2e41\"}}").into_bytes()
}

/// Publishes persistent, mandatory messages.
pub(crate) struct Publisher {
    channel: Channel,
    _connection: Connection,
}

impl Publisher {
    pub(crate) async fn new(connection: Connection) -> lapin::Result<Self> {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { channel, _connection: connection })
    }

    /// What every message carries.
    pub(crate) fn properties(id: &str) -> BasicProperties {
        BasicProperties::default().with_message_id(id.into()).with_delivery_mode(2)
    }

    /// Publishes one message; `false` where the broker refused it.
    pub(crate) async fn send(
        &self,
        exchange: &str,
        key: &str,
        id: &str,
        properties: BasicProperties,
    ) -> lapin::Result<bool> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let body = body_of(id);
        let confirm =
            self.channel.basic_publish(exchange.into(), key.into(), options, &body, properties).await?;
        Ok(matches!(confirm.await?, Confirmation::Ack(None)))
    }

    /// Publishes messages side by side and waits for all confirmations.
    ///
    /// # Panics
    /// If one is refused or can't be routed.
    pub(crate) async fn send_all(&self, exchange: &str, key: &str, ids: &[String]) {
        for chunk in ids.chunks(200) {
            let sent = chunk.iter().map(|id| self.send(exchange, key, id, Self::properties(id)));
            let confirmed = futures::future::try_join_all(sent).await.expect("confirmations");
            assert!(confirmed.iter().all(|confirmed| *confirmed), "the broker took all messages");
        }
    }
}
