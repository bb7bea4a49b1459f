//! Wakes the pipelines of a cluster that has changed in what matters, and no others.
//!
//! Of each change only the facts are compared; conditions and whatever else the cluster operator
//! writes wake nobody. The watch is news and no more: a cluster is read again before anything is
//! done. Without it, where the kind or the right to watch it is missing, pipelines still look
//! again after their wait; it begins by itself once it can.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::{Stream, StreamExt};
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::facts::{self, Facts, Key};
use super::{Clusters, resource_of};
use crate::api::RetryPipeline;
use crate::controller::api_server::{API_TIMEOUT, within};
use crate::controller::backoff::jittered;
use crate::controller::{Guarded, reference};

/// Who is woken, and how.
pub(crate) struct Wake {
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) store: Store<Guarded>,
    pub(crate) triggers: mpsc::Sender<ObjectRef<Guarded>>,
}

/// How soon it is tried again to watch; the wait doubles up to the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// Watches all clusters until the shutdown, or those of some namespaces where it may see no others.
pub(crate) async fn run(client: Client, namespaces: &[String], wake: Wake, shutdown: CancellationToken) {
    let watching = async {
        let places = match is_forbidden(&client).await && !namespaces.is_empty() {
            // One watch of a cluster and no more: of two, one tells what the other has overtaken.
            true => namespaces.iter().cloned().map(Some).collect(),
            false => vec![None],
        };
        join_all(places.into_iter().map(|namespace| watch(&client, namespace, &wake))).await;
    };
    tokio::select! {
        () = watching => {}
        () = shutdown.cancelled() => {}
    }
}

/// Whether the clusters of all namespaces may not be listed.
async fn is_forbidden(client: &Client) -> bool {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &facts::resource());
    let asked = within(API_TIMEOUT, api.list_metadata(&ListParams::default().limit(1))).await;
    matches!(asked, Ok(Err(kube::Error::Api(status))) if status.code == 403)
}

/// Watches the clusters of a namespace, or all.
async fn watch(client: &Client, namespace: Option<String>, wake: &Wake) {
    let api: Api<DynamicObject> = match &namespace {
        None => Api::all_with(client.clone(), &facts::resource()),
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &facts::resource()),
    };
    loop {
        possible(&api).await;
        tracing::info!(namespace, "watching RabbitmqClusters");
        let events = watcher(api.clone(), watcher::Config::default().any_semantic()).default_backoff();
        follow(events, namespace.as_deref(), wake).await;
    }
}

/// Waits until the kind is there and may be listed. A watch would find that out as well, and warn
/// about it each time.
async fn possible(api: &Api<DynamicObject>) {
    let (mut wait, mut is_told) = (FIRST, false);
    loop {
        let asked = within(API_TIMEOUT, api.list_metadata(&ListParams::default().limit(1))).await;
        let why = match asked {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut is_told, true) {
            tracing::info!(
                why,
                "RabbitmqClusters can't be watched: whoever refers to one looks from time to time"
            );
        }
        tokio::time::sleep(jittered(wait)).await;
        wait = (wait * 2).min(LONGEST);
    }
}

/// Passes on what is watched, until the kind is gone or may no longer be watched.
async fn follow(
    events: impl Stream<Item = Result<Event<DynamicObject>, watcher::Error>>,
    namespace: Option<&str>,
    wake: &Wake,
) {
    let mut events = pin!(events);
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                for key in wake.news(event, namespace, &mut listed) {
                    wake.pipelines_of(&key).await;
                }
            }
            Err(error) if is_impossible(&error) => return,
            Err(error) => tracing::debug!(%error, "the watch of RabbitmqClusters is tried again"),
        }
    }
}

/// Whether a watch fails because the kind or the right is missing.
fn is_impossible(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let code = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => status.code,
        _ => return false,
    };
    matches!(code, 403 | 404)
}

impl Wake {
    /// The clusters that an event says something new of. `listed` is what a list has shown so
    /// far.
    fn news(
        &self,
        event: Event<DynamicObject>,
        namespace: Option<&str>,
        listed: &mut BTreeSet<Key>,
    ) -> Vec<Key> {
        match event {
            Event::Init => {
                listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                listed.insert(facts::key_of(&object.metadata));
                self.shown(&object).into_iter().collect()
            }
            Event::Apply(object) => self.shown(&object).into_iter().collect(),
            Event::Delete(object) => {
                let key = facts::key_of(&object.metadata);
                self.clusters.note(&key, None).then_some(key).into_iter().collect()
            }
            Event::InitDone => {
                let is_watched = |key: &Key| namespace.is_none_or(|namespace| namespace == key.namespace);
                let known = self.clusters.asked_for().into_iter().filter(is_watched);
                let gone = known.filter(|key| !listed.contains(key));
                gone.filter(|key| self.clusters.note(key, None)).collect()
            }
        }
    }

    fn shown(&self, object: &DynamicObject) -> Option<Key> {
        let key = facts::key_of(&object.metadata);
        match Facts::read(object) {
            Ok(facts) => self.clusters.note(&key, Some(&facts)).then_some(key),
            Err(error) => {
                tracing::warn!(cluster = %key, %error, uid = object.uid(), "a RabbitmqCluster can't be read");
                None
            }
        }
    }

    async fn pipelines_of(&self, key: &Key) {
        let refers = |pipeline: &RetryPipeline| resource_of(pipeline).as_ref() == Some(key);
        let pipelines = self.store.state();
        let theirs =
            pipelines.iter().filter_map(|object| object.0.as_ref().ok()).filter(|object| refers(object));
        let mut woken = 0;
        for pipeline in theirs {
            woken += 1;
            // Only fails when the operator stops.
            let _ = self.triggers.send(reference(pipeline)).await;
        }
        tracing::debug!(cluster = %key, woken, "a RabbitmqCluster has changed");
    }
}
