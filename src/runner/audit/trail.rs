//! Where records go: to standard output, and to a stream where there is one.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use tokio::sync::Mutex;

use super::record::{About, Record};
use crate::broker::replay::Entry;
use crate::broker::{AddressGuard, Endpoint, amqp};

/// The stream's name in its vhost.
pub(super) const STREAM: &str = "redrive.audit";

/// By what the stream can be filtered at the broker.
pub(super) const FILTER: &str = "x-stream-filter-value";

/// How long a batch of records may take to be confirmed.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// Where the stream of all records is.
#[derive(Clone)]
pub(crate) struct Stream {
    /// Its broker, and the user who may write there.
    pub(crate) endpoint: Arc<Endpoint>,
    /// Its vhost, which must exist.
    pub(crate) vhost: String,
}

/// The trail of one run.
pub(crate) struct Trail {
    about: About,
    stream: Option<Stream>,
    guard: AddressGuard,
    /// Whether nothing moves without a record in the stream.
    required: bool,
    print: bool,
    open: Mutex<Option<Open>>,
}

/// A connection to the stream.
struct Open {
    channel: Channel,
    _connection: Connection,
}

impl Trail {
    pub(crate) fn new(
        about: About,
        stream: Option<Stream>,
        guard: AddressGuard,
        required: bool,
        print: bool,
    ) -> Self {
        Self { about, stream, guard, required, print, open: Mutex::default() }
    }

    /// Whether records can be kept as they must be.
    pub(crate) async fn check(&self) -> Result<(), String> {
        self.kept(&[]).await
    }

    /// Records messages; an error means that they must not leave their queue.
    pub(crate) async fn record(&self, entries: &[Entry]) -> Result<(), String> {
        let records: Vec<Record> = entries.iter().map(|entry| Record::new(&self.about, entry)).collect();
        // The durable copy first: a line about what then stays would tell of a move that never was.
        self.kept(&records).await?;
        if self.print { print(&records) } else { Ok(()) }
    }

    async fn kept(&self, records: &[Record]) -> Result<(), String> {
        let Some(stream) = &self.stream else {
            let missing = "the pipeline requires an audit stream, and the operator has none";
            return if self.required { Err(missing.to_owned()) } else { Ok(()) };
        };
        match tokio::time::timeout(CONFIRMED_WITHIN, self.publish(stream, records)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => self.failed(why).await,
            Err(_) => self.failed("it did not confirm in time".to_owned()).await,
        }
    }

    async fn failed(&self, why: String) -> Result<(), String> {
        *self.open.lock().await = None;
        if self.required {
            return Err(format!("the audit stream takes no records: {why}"));
        }
        tracing::warn!(why, "the audit stream takes no records; they stand on standard output only");
        Ok(())
    }

    async fn publish(&self, stream: &Stream, records: &[Record]) -> Result<(), String> {
        let channel = self.channel(stream).await?;
        let sent = records.iter().map(|record| send(&channel, record));
        let confirmed = try_join_all(sent).await.map_err(|error| error.to_string())?;
        if confirmed.iter().all(|confirmed| *confirmed) {
            return Ok(());
        }
        Err("it refused a record".to_owned())
    }

    async fn channel(&self, stream: &Stream) -> Result<Channel, String> {
        let mut open = self.open.lock().await;
        if let Some(open) = open.as_ref().filter(|open| open.channel.status().connected()) {
            return Ok(open.channel.clone());
        }
        let Stream { endpoint, vhost } = stream;
        let connection = amqp::connect(endpoint, &self.guard, vhost, "redrive audit").await;
        let connection = connection.map_err(|error| error.to_string())?;
        let channel = writable(&connection).await.map_err(|error| error.to_string())?;
        *open = Some(Open { channel: channel.clone(), _connection: connection });
        Ok(channel)
    }
}

/// A channel with confirms, with the stream declared.
async fn writable(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("stream".into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(STREAM.into(), options, arguments).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

async fn send(channel: &Channel, record: &Record) -> lapin::Result<bool> {
    let mut headers = FieldTable::default();
    let run = &record.about.run;
    headers.insert(FILTER.into(), AMQPValue::LongString(format!("{}/{}", run.namespace, run.name).into()));
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(2)
        .with_headers(headers);
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let body = serde_json::to_vec(record).unwrap_or_default();
    let confirm = channel.basic_publish("".into(), STREAM.into(), options, &body, properties).await?;
    Ok(matches!(confirm.await?, Confirmation::Ack(None)))
}

/// One JSON object a line.
fn print(records: &[Record]) -> Result<(), String> {
    let mut lines = Vec::new();
    for record in records {
        serde_json::to_writer(&mut lines, record).map_err(|error| error.to_string())?;
        lines.push(b'\n');
    }
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(&lines).and_then(|()| out.flush()) {
        // Nobody reads, and nobody asked for more than the best effort.
        tracing::warn!(%error, "audit records can't be printed");
    }
    Ok(())
}
