//! Reads the records of a replay back.

use std::time::Duration;

use futures::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};

use super::record::Record;
use super::trail::{STREAM, Stream};
use crate::broker::{AddressGuard, amqp};

/// How many records may be on their way to us.
const AHEAD: u16 = 1_000;

/// Without a record for so long, the stream has been read to its end.
const QUIET: Duration = Duration::from_secs(3);

/// Hands each record of a replay to `see`, the oldest first, and says how many there were.
///
/// # Errors
/// A sentence, where the stream does not exist or can't be read.
pub(crate) async fn read(
    stream: &Stream,
    guard: &AddressGuard,
    (namespace, name): (&str, &str),
    mut see: impl FnMut(&Record),
) -> Result<usize, String> {
    let connection = amqp::connect(&stream.endpoint, guard, &stream.vhost, "redrive audit reader").await;
    let connection = connection.map_err(|error| error.to_string())?;
    let unread = |error: lapin::Error| format!("the stream {STREAM:?} can't be read: {error}");
    let channel = connection.create_channel().await.map_err(unread)?;
    amqp::declare_passively(&channel, STREAM.into())
        .await
        .map_err(|_| format!("there is no stream {STREAM:?} in the vhost {:?}", stream.vhost))?;
    channel.basic_qos(AHEAD, BasicQosOptions::default()).await.map_err(unread)?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), AMQPValue::LongString("first".into()));
    // The broker leaves out what can't match; what it does not leave out is looked at below.
    arguments.insert("x-stream-filter".into(), AMQPValue::LongString(format!("{namespace}/{name}").into()));
    let mut deliveries = channel
        .basic_consume(STREAM.into(), "".into(), BasicConsumeOptions::default(), arguments)
        .await
        .map_err(unread)?;
    let mut found = 0;
    while let Ok(Some(delivery)) = tokio::time::timeout(QUIET, deliveries.next()).await {
        let delivery = delivery.map_err(unread)?;
        if let Ok(record) = serde_json::from_slice::<Record>(&delivery.data)
            && record.is_about(namespace, name)
        {
            found += 1;
            see(&record);
        }
        delivery.ack(BasicAckOptions::default()).await.map_err(unread)?;
    }
    Ok(found)
}
