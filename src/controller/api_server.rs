//! Calls of the API server: bounded in time, and those that write with their answers told apart.

use std::time::Duration;

use kube::core::Status;
use tokio::sync::Semaphore;

use super::Error;

/// How many writes may be under way at the same time. More would not be faster, and
/// a thousand pipelines that become ready together would all hold their requests.
pub(crate) const IN_FLIGHT: usize = 16;

static PLACES: Semaphore = Semaphore::const_new(IN_FLIGHT);

/// How long the API server may take for one answer. The client itself would wait
/// for minutes and repeat.
pub(crate) const API_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout(limit, work).await.map_err(|_| Error::Timeout(limit))
}

/// Why a write to the API server came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// Somebody else wrote in between; look again.
    #[error("the resource was changed meanwhile")]
    Conflict,
    /// The resource is gone.
    #[error("the resource is gone")]
    Gone,
    /// The API server refused or failed.
    #[error("the API server did not take the write: {0}")]
    Refused(#[source] Box<kube::Error>),
    /// The API server did not answer.
    #[error("the API server did not answer within {0:?}")]
    Timeout(Duration),
}

/// Waits for a write, at most as long as the API server may take.
pub(crate) async fn written<T>(write: impl Future<Output = Result<T, kube::Error>>) -> Result<T, WriteError> {
    // Never closed, and without a place it would only be less polite.
    let _place = PLACES.acquire().await;
    match tokio::time::timeout(API_TIMEOUT, write).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) if is_conflict(&status) => Err(WriteError::Conflict),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Err(WriteError::Gone),
        Ok(Err(error)) => Err(WriteError::Refused(Box::new(error))),
        Err(_) => Err(WriteError::Timeout(API_TIMEOUT)),
    }
}

/// Whether the resource is not as the write expects it. Of a JSON patch whose test fails the
/// API server says 422 without a cause; a resource that would be invalid has causes.
fn is_conflict(status: &Status) -> bool {
    let has_causes = status.details.as_ref().is_some_and(|details| !details.causes.is_empty());
    status.code == 409 || (status.code == 422 && !has_causes)
}
