//! Writes parts of a status, of this very resource and of no other, and leaves alone what
//! others write.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::api_server::{WriteError, written};

/// The steps from one status to another, by top-level keys; those of `others` stay as they are.
pub(super) fn steps(before: &impl Serialize, after: &impl Serialize, others: &[&str]) -> Vec<Value> {
    let (before, after) = (as_map(before), as_map(after));
    let ours = |key: &&String| !others.contains(&key.as_str());
    let gone = before.keys().filter(ours).filter(|key| !after.contains_key(*key));
    let changed = after.iter().filter(|(key, value)| ours(key) && before.get(*key) != Some(*value));
    gone.map(|key| json!({"op": "remove", "path": format!("/status/{key}")}))
        .chain(changed.map(|(key, value)| set(key, value)))
        .collect()
}

/// Replaces one value whole: merged into what is there, an optional part of it would never go.
pub(super) fn set(key: &str, value: &Value) -> Value {
    json!({"op": "add", "path": format!("/status/{key}"), "value": value})
}

/// Carries out the steps of a JSON patch below the status of this resource and of no other.
/// `seen` tells whether the resource was seen with a status; where it was not, `exists` is a
/// guess whether it has one by now.
///
/// # Errors
/// [`WriteError::Conflict`] where another resource has the name by now.
pub(super) async fn patch_status<K>(
    client: &Client,
    object: &K,
    seen: bool,
    steps: Vec<Value>,
    exists: bool,
) -> Result<K, WriteError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    match try_patch(client, object, &steps, exists).await {
        Err(WriteError::Conflict) if !seen => try_patch(client, object, &steps, !exists).await,
        result => result,
    }
}

async fn try_patch<K>(client: &Client, object: &K, steps: &[Value], exists: bool) -> Result<K, WriteError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let test = |path: &str, value: Value| json!({"op": "test", "path": path, "value": value});
    // So that a recreated resource never gets the old one's status. In a merge patch of a
    // status the API server passes over the UID.
    let mut patch = vec![test("/metadata/uid", json!(object.meta().uid))];
    if !exists {
        patch.extend([test("/status", Value::Null), json!({"op": "add", "path": "/status", "value": {}})]);
    }
    patch.extend_from_slice(steps);
    let patch = serde_json::from_value(Value::Array(patch))
        .map_err(|error| WriteError::Refused(Box::new(kube::Error::SerdeError(error))))?;
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let patch = Patch::Json::<()>(patch);
    written(api.patch_status(&object.name_any(), &PatchParams::default(), &patch)).await
}

fn as_map(status: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}
