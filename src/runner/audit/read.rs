//! Reads the records of a replay back.

use super::record::Record;
use super::trail::{STREAM, Stream};
use crate::broker::{AddressGuard, amqp, stream};

/// Hands each record of a replay to `see`, the oldest first, and says how many there were.
///
/// # Errors
/// A sentence, where the stream does not exist or can't be read.
pub(crate) async fn read(
    trail: &Stream,
    guard: &AddressGuard,
    (namespace, name): (&str, &str),
    mut see: impl FnMut(&Record),
) -> Result<usize, String> {
    let connection = amqp::connect(&trail.endpoint, guard, &trail.vhost, "redrive audit reader").await;
    let connection = connection.map_err(|error| error.to_string())?;
    amqp::declared(&connection, &trail.endpoint, &trail.vhost, STREAM)
        .await
        .map_err(|error| error.to_string())?
        .ok_or_else(|| format!("there is no stream {STREAM:?} in the vhost {:?}", trail.vhost))?;
    let mut found = 0;
    let filter = Some(format!("{namespace}/{name}"));
    stream::read(&connection, STREAM, filter, u64::MAX, |delivery| {
        if let Ok(record) = serde_json::from_slice::<Record>(&delivery.data)
            && record.is_about(namespace, name)
        {
            found += 1;
            see(&record);
        }
    })
    .await?;
    Ok(found)
}
