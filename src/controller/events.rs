//! Kubernetes Events: one per transition or finding, never one per pass.
//!
//! They are written directly and not through kube's recorder, which merges events
//! that differ in their text alone and keeps the first one's: each drift finding
//! must show its own object.

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::Semaphore;

use super::api_server::written;

/// The longest note that the API server takes.
const MAX_NOTE: usize = 1_000;

/// One is written at a time: no resource's status is late because of the news about
/// others.
const IN_FLIGHT: usize = 1;

/// Who events come from.
const REPORTER: &str = "redrive.dev/operator";

/// Whether an event is good or bad news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Warning,
}

/// Writes events.
pub(crate) struct Events {
    client: Client,
    instance: String,
    places: Semaphore,
}

impl Events {
    pub(crate) fn new(client: Client) -> Self {
        let instance = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
        let instance = instance.unwrap_or_else(|| "redrive".to_owned());
        Self { client, instance, places: Semaphore::new(IN_FLIGHT) }
    }

    /// Publishes an event about a resource. A failure is logged and forgotten:
    /// events are news, and the state is in the status.
    pub(crate) async fn publish(
        &self,
        about: &impl Resource<DynamicType = ()>,
        kind: Kind,
        reason: &str,
        action: &str,
        note: &str,
    ) {
        let namespace = about.namespace().unwrap_or_default();
        let event = Event {
            action: Some(action.to_owned()),
            event_time: Some(MicroTime(Timestamp::now())),
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", about.name_any())),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            note: Some(shortened(note)),
            reason: Some(reason.to_owned()),
            regarding: Some(about.object_ref(&())),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(match kind {
                Kind::Normal => "Normal".to_owned(),
                Kind::Warning => "Warning".to_owned(),
            }),
            ..Event::default()
        };
        // Never closed, and without a place it would only be less polite.
        let _place = self.places.acquire().await;
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let params = PostParams::default();
        if let Err(error) = written(events.create(&params, &event)).await {
            tracing::warn!(%error, reason, "an event can't be written");
        }
    }
}

fn shortened(note: &str) -> String {
    let end =
        note.char_indices().map(|(index, c)| index + c.len_utf8()).take_while(|end| *end <= MAX_NOTE).last();
    note[..end.unwrap_or(0)].to_owned()
}
