//! The lock on an origin queue for those who only look: a plan reads everything, and nobody else
//! may read meanwhile.

use lapin::Connection;
use tokio::time::timeout;

use super::lock::{self, Lock};
use crate::broker::http::REQUEST_TIMEOUT;
use crate::broker::{BrokerError, Endpoint, amqp};

/// Takes the lock on a queue; it is held until the connection closes.
///
/// # Errors
/// [`BrokerError::InUse`] where another replay has it, from whatever cluster, and every error of a
/// connection.
pub async fn lock(
    connection: &Connection,
    endpoint: &Endpoint,
    vhost: &str,
    queue: &str,
) -> Result<(), BrokerError> {
    match timeout(REQUEST_TIMEOUT, lock::take(connection, queue)).await {
        Ok(Ok(Lock::Ours)) => Ok(()),
        Ok(Ok(Lock::Taken)) => {
            Err(BrokerError::InUse { action: format!("read the queue {queue:?}: another replay is at it") })
        }
        Ok(Err(error)) => Err(amqp::sort(endpoint, vhost, &format!("lock queue {queue:?}"), error)),
        Err(_) => Err(amqp::late(endpoint)),
    }
}

/// Gives the lock back at once: with the connection it would go a moment later. A failure is no
/// news, since the connection is about to close anyway.
pub async fn unlock(connection: &Connection, queue: &str) {
    let _ = timeout(REQUEST_TIMEOUT, lock::release(connection, queue)).await;
}
