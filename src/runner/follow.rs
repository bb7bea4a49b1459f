//! Follows one object by its name, with the rights to get and to watch it and no others.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::WatchParams;
use kube::core::WatchEvent;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// How long one watch lasts, in seconds; below the 295 that the client library allows.
const WATCH_SECONDS: u32 = 240;

/// Longer than that no watch lasts, whatever became of its connection.
const WATCH_LIMIT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 30);

/// How long to wait before the next look where the API server failed.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// The newest state of an object; nothing where it is gone, or another one has its name.
pub(super) type Newest<K> = Option<Arc<K>>;

/// Keeps `newest` up to date until nobody listens any more. While the API server is away, the
/// last state counts.
pub(super) async fn follow<K>(
    api: Api<K>,
    name: String,
    uid: Option<String>,
    newest: watch::Sender<Newest<K>>,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let keep_up = async {
        loop {
            if let Err(error) = look(&api, &name, uid.as_deref(), &newest).await {
                tracing::warn!(%error, name, "can't be followed for a moment");
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    };
    tokio::select! {
        () = keep_up => {}
        () = newest.closed() => {}
    }
}

/// One reading, and one watch from there on.
async fn look<K>(
    api: &Api<K>,
    name: &str,
    uid: Option<&str>,
    newest: &watch::Sender<Newest<K>>,
) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let is_it = |object: &K| uid.is_none() || object.meta().uid.as_deref() == uid;
    let found = api.get_opt(name).await?;
    // A watch needs a version to begin with; of an object that is gone there is none.
    let Some(object) = found.filter(|object| is_it(object)) else {
        newest.send_replace(None);
        tokio::time::sleep(AFTER_FAILURE).await;
        return Ok(());
    };
    let version = object.resource_version().unwrap_or_default();
    newest.send_replace(Some(Arc::new(object)));
    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
    let mut events = Box::pin(api.watch(&params, &version).await?);
    let watch = async {
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) if is_it(&object) => {
                    newest.send_replace(Some(Arc::new(object)));
                }
                WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_) => {
                    newest.send_replace(None);
                    break;
                }
                WatchEvent::Bookmark(_) => {}
                // The version is too old: the next reading gives a new one.
                WatchEvent::Error(_) => break,
            }
        }
        Ok(())
    };
    tokio::time::timeout(WATCH_LIMIT, watch).await.unwrap_or(Ok(()))
}
