//! Reads a stream from its beginning to its present end, which nothing marks.

use std::time::Duration;

use futures::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, Consumer};
use tokio::time::timeout;

use super::amqp::declare_passively;
use super::http::REQUEST_TIMEOUT;

/// Messages that are under way at once.
const PREFETCH: u16 = 500;

/// A stream that is silent for so long is asked whether that is its end.
const SILENCE: Duration = Duration::from_secs(2);

/// How long a message may come after the answer to that.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// Hands at most so many messages of a stream to `each`, the oldest first. With a `filter`, the
/// broker leaves out what can't match it; what it does not leave out need not match.
///
/// # Errors
/// A sentence, where there is no such stream or it can't be read.
pub(crate) async fn read(
    connection: &Connection,
    stream: &str,
    filter: Option<String>,
    most: u64,
    mut each: impl FnMut(Delivery),
) -> Result<(), String> {
    let unread = |error: lapin::Error| format!("the stream {stream:?} can't be read: {error}");
    let name = ShortString::try_new(stream).map_err(|_| format!("{stream:?} is no name of a queue"))?;
    let channel = connection.create_channel().await.map_err(unread)?;
    let mut consumer = consume(&channel, name.clone(), filter).await.map_err(unread)?;
    for _ in 0..most {
        let Some(delivery) = next(&channel, &name, &mut consumer).await? else { break };
        let delivery = delivery.map_err(unread)?;
        let tag = delivery.delivery_tag;
        each(delivery);
        // It removes nothing: it only asks for more.
        channel.basic_ack(tag, BasicAckOptions::default()).await.map_err(unread)?;
    }
    channel.close(200, "OK".into()).await.map_err(unread)
}

async fn consume(channel: &Channel, name: ShortString, filter: Option<String>) -> lapin::Result<Consumer> {
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), AMQPValue::LongString("first".into()));
    if let Some(filter) = filter {
        arguments.insert("x-stream-filter".into(), AMQPValue::LongString(filter.into()));
    }
    channel.basic_consume(name, "".into(), BasicConsumeOptions::default(), arguments).await
}

/// The next message; none at the end. A busy broker is silent too, but then it is as late with the
/// answer to a question on the same channel, whose process reads the stream (`rabbit_stream_queue`).
async fn next(
    channel: &Channel,
    stream: &ShortString,
    consumer: &mut Consumer,
) -> Result<Option<lapin::Result<Delivery>>, String> {
    let ended = || format!("the stream {:?} ended the read", stream.as_str());
    if let Ok(next) = timeout(SILENCE, consumer.next()).await {
        return next.ok_or_else(ended).map(Some);
    }
    match timeout(REQUEST_TIMEOUT, declare_passively(channel, stream.clone())).await {
        Ok(answer) => drop(answer.map_err(|error| format!("{}: {error}", ended()))?),
        Err(_) => return Err(format!("the broker does not answer within {REQUEST_TIMEOUT:?}")),
    }
    match timeout(AFTERWARDS, consumer.next()).await {
        Ok(next) => next.ok_or_else(ended).map(Some),
        Err(_) => Ok(None),
    }
}
