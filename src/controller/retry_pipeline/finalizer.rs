//! The finalizer, present exactly where a deletion has work to do on the broker.
//!
//! It is set before the first write on the broker, so that no object can be
//! deleted without its cleanup.

use std::sync::Arc;

use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::super::Context;
use super::super::api_server::{WriteError, written};
use super::freshness;
use crate::api::RetryPipeline;
use crate::api::annotations::CLEANUP_FINALIZER;

/// How often a release is tried before it waits like any failure.
const ATTEMPTS: usize = 3;

/// Adds or removes the finalizer as the deletion policy wants it.
pub(super) async fn ensure(
    object: Arc<RetryPipeline>,
    context: &Context,
) -> Result<Arc<RetryPipeline>, WriteError> {
    let wanted = object.spec.cleans_up();
    if wanted == has(&object) {
        return Ok(object);
    }
    let mut finalizers = object.finalizers().to_vec();
    if wanted {
        finalizers.push(CLEANUP_FINALIZER.to_owned());
    } else {
        finalizers.retain(|finalizer| finalizer != CLEANUP_FINALIZER);
    }
    Ok(Arc::new(write(&object, context, finalizers).await?))
}

/// Lets a deletion go on. Our own status writes have moved the version, so a
/// conflict is looked at again at once.
pub(super) async fn release(object: &RetryPipeline, context: &Context) -> Result<(), WriteError> {
    let mut object = Arc::new(object.clone());
    for _ in 0..ATTEMPTS {
        let mut finalizers = object.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != CLEANUP_FINALIZER);
        match write(&object, context, finalizers).await {
            Ok(_) | Err(WriteError::Gone) => return Ok(()),
            Err(WriteError::Conflict) => {}
            Err(error) => return Err(error),
        }
        object = match freshness::latest(&object, context).await {
            Ok(object) => object,
            Err(WriteError::Gone) => return Ok(()),
            Err(error) => return Err(error),
        };
    }
    Err(WriteError::Conflict)
}

pub(super) fn has(object: &RetryPipeline) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == CLEANUP_FINALIZER)
}

async fn write(
    object: &RetryPipeline,
    context: &Context,
    finalizers: Vec<String>,
) -> Result<RetryPipeline, WriteError> {
    let api: Api<RetryPipeline> =
        Api::namespaced(context.client.clone(), &object.namespace().unwrap_or_default());
    // The list is replaced whole, so another writer's finalizer must not be lost:
    // the resource version makes that a conflict.
    let patch = json!({"metadata": {
        "uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version, "finalizers": finalizers,
    }});
    written(api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(&patch))).await
}
