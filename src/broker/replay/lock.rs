//! The lock on an origin queue: an exclusive queue that lives as long as our connection.
//!
//! It stops a second replay of the same queue from whatever cluster it comes, and it tells
//! that what a dead worker held is back, since both end with the dead worker's connection.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ErrorKind};
use sha2::{Digest, Sha256};

/// The broker's reply where another connection has the queue to itself.
const RESOURCE_LOCKED: u16 = 405;

/// Who has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// This connection, until it closes.
    Ours,
    /// Another one.
    Taken,
}

/// The name of the lock on a queue of the same vhost.
pub(super) fn name(queue: &str) -> String {
    let digest = Sha256::digest(queue.as_bytes());
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("redrive.lock.{hex}")
}

/// Takes the lock for this connection. Taking it again is no change.
///
/// # Errors
/// Whatever else the broker answers, such as missing rights.
pub(super) async fn take(connection: &Connection, queue: &str) -> lapin::Result<Lock> {
    let channel = connection.create_channel().await?;
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    match channel.queue_declare(name(queue).into(), options, FieldTable::default()).await {
        Ok(_) => {
            channel.close(200, "OK".into()).await?;
            Ok(Lock::Ours)
        }
        Err(error) if is_locked(&error) => Ok(Lock::Taken),
        Err(error) => Err(error),
    }
}

/// Gives the lock back before its connection closes: the broker removes it a moment after.
///
/// # Errors
/// Whatever the broker answers.
pub(super) async fn release(connection: &Connection, queue: &str) -> lapin::Result<()> {
    let channel = connection.create_channel().await?;
    channel.queue_delete(name(queue).into(), QueueDeleteOptions::default()).await?;
    Ok(())
}

fn is_locked(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(reply) if reply.get_id() == RESOURCE_LOCKED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_named_after_its_queue_and_fits_every_name() {
        assert_eq!(name("orders.dlq"), name("orders.dlq"));
        assert_ne!(name("orders.dlq"), name("orders.dlq2"));
        assert_eq!(name(&"x".repeat(255)).len(), "redrive.lock.".len() + 32);
    }
}
