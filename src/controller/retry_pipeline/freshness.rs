//! Never to work on a status older than the one that we have written ourselves.
//!
//! The store learns of our own writes through the watch, a moment later. Whoever
//! decides by an inventory that lacks the last write would take what was just
//! removed for lost, or choose a generation that is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::{Api, ResourceExt};

use super::super::Context;
use super::super::api_server::{WriteError, written};
use super::uid;
use crate::api::RetryPipeline;

/// The version of our last status write, by UID.
#[derive(Debug, Default)]
pub(crate) struct LastWritten(Mutex<HashMap<String, u64>>);

impl LastWritten {
    pub(super) fn note(&self, object: &RetryPipeline) {
        if let Some(version) = version(object) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid(object), version);
        }
    }

    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    fn is_newer_than(&self, object: &RetryPipeline) -> bool {
        let written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (written.get(&uid(object)), version(object)) {
            (Some(written), Some(seen)) => seen < *written,
            _ => false,
        }
    }
}

/// Resource versions are increasing numbers; one that is none is not compared.
fn version(object: &RetryPipeline) -> Option<u64> {
    object.metadata.resource_version.as_deref()?.parse().ok()
}

/// The resource, asked for again where the store has not seen our last write yet.
pub(super) async fn current(
    object: Arc<RetryPipeline>,
    context: &Context,
) -> Result<Arc<RetryPipeline>, WriteError> {
    if context.last_written.is_newer_than(&object) { latest(&object, context).await } else { Ok(object) }
}

/// The resource as the API server has it now.
pub(super) async fn latest(
    object: &RetryPipeline,
    context: &Context,
) -> Result<Arc<RetryPipeline>, WriteError> {
    let api: Api<RetryPipeline> =
        Api::namespaced(context.client.clone(), &object.namespace().unwrap_or_default());
    let found = written(api.get(&object.name_any())).await?;
    if found.metadata.uid == object.metadata.uid { Ok(Arc::new(found)) } else { Err(WriteError::Gone) }
}
