//! The finalizer, present from before the first look until the run is remembered and its worker
//! is gone.

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::api::DlqReplay;
use crate::api::annotations::REPLAY_FINALIZER;
use crate::controller::api_server::{WriteError, written};

pub(super) fn has(object: &DlqReplay) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == REPLAY_FINALIZER)
}

/// Adds it.
pub(super) async fn add(client: &Client, object: &DlqReplay) -> Result<DlqReplay, WriteError> {
    let mut finalizers = object.finalizers().to_vec();
    finalizers.push(REPLAY_FINALIZER.to_owned());
    write(client, object, finalizers).await
}

/// Removes it; a resource that is gone by now needs none.
pub(super) async fn remove(client: &Client, object: &DlqReplay) -> Result<(), WriteError> {
    let mut finalizers = object.finalizers().to_vec();
    finalizers.retain(|finalizer| finalizer != REPLAY_FINALIZER);
    match write(client, object, finalizers).await {
        Ok(_) | Err(WriteError::Gone) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes a replay whose time after its end is over.
pub(super) async fn delete(client: &Client, object: &DlqReplay) -> Result<(), WriteError> {
    let only_this = Preconditions { uid: object.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
    match written(api(client, object).delete(&object.name_any(), &params)).await {
        Ok(_) | Err(WriteError::Gone) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn write(
    client: &Client,
    object: &DlqReplay,
    finalizers: Vec<String>,
) -> Result<DlqReplay, WriteError> {
    // The list is replaced whole: the version makes another writer's finalizer a conflict.
    let patch = json!({"metadata": {
        "uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version, "finalizers": finalizers,
    }});
    written(api(client, object).patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(&patch)))
        .await
}

fn api(client: &Client, object: &DlqReplay) -> Api<DlqReplay> {
    Api::namespaced(client.clone(), &object.namespace().unwrap_or_default())
}
