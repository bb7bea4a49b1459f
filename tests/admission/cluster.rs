//! The API server under test, and what it complains about.

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
    core::GroupVersionKind,
};
use redrive::api::crds;
use serde_json::{Value, json};

use crate::{kubernetes, merged};

/// A cluster with our definitions, and a namespace of this test's own in it.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Cluster {
    /// Fails, never skips, where no cluster is named.
    pub(crate) async fn connect(purpose: &str) -> Self {
        let client = kubernetes::client().await;
        kubernetes::with_definitions(&client).await;
        let namespace = format!("redrive-{purpose}-{}", std::process::id());
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        let namespaces = Api::<Namespace>::all(client.clone());
        namespaces.create(&PostParams::default(), &object).await.unwrap();
        Self { client, namespace }
    }

    /// The objects of the same kind in this test's namespace.
    fn api(&self, object: &Value) -> Api<DynamicObject> {
        let kind = object["kind"].as_str().unwrap();
        let definitions = crds::all();
        let definition = definitions.iter().find(|crd| crd.spec.names.kind == kind).unwrap();
        let version = &definition.spec.versions[0].name;
        let kind = GroupVersionKind::gvk(&definition.spec.group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &definition.spec.names.plural);
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// What the API server complains about when this object is created, only to try.
    pub(crate) async fn complaints_on_create(&self, object: &Value) -> Vec<String> {
        let parsed = serde_json::from_value(object.clone()).unwrap();
        let result = self.api(object).create(&dry_run(), &parsed).await;
        result.map_or_else(|error| complaints(&error), |_| Vec::new())
    }

    /// What the API server complains about when this object is created and then takes these
    /// updates; only the last may be refused.
    pub(crate) async fn complaints_on_update(&self, object: &Value, updates: &[Value]) -> Vec<String> {
        let api = self.api(object);
        let name = object["metadata"]["name"].as_str().unwrap();
        let result = self.update(&api, name, object, updates).await;
        api.delete(name, &Default::default()).await.unwrap();
        result.map_or_else(|error| complaints(&error), |()| Vec::new())
    }

    async fn update(
        &self,
        api: &Api<DynamicObject>,
        name: &str,
        object: &Value,
        updates: &[Value],
    ) -> Result<(), kube::Error> {
        let parsed = serde_json::from_value(object.clone()).unwrap();
        let mut found = api.create(&PostParams::default(), &parsed).await.unwrap();
        let mut object = object.clone();
        for (step, update) in updates.iter().enumerate() {
            let version = json!({"metadata": {"resourceVersion": found.metadata.resource_version}});
            object = merged(&merged(&object, update), &version);
            let parsed = serde_json::from_value(object.clone()).unwrap();
            if step + 1 == updates.len() {
                api.replace(name, &dry_run(), &parsed).await?;
            } else {
                found = api.replace(name, &PostParams::default(), &parsed).await.unwrap();
            }
        }
        Ok(())
    }

    /// Removes the namespace with all that is in it.
    pub(crate) async fn leave(self) {
        let namespaces = Api::<Namespace>::all(self.client);
        namespaces.delete(&self.namespace, &Default::default()).await.unwrap();
    }
}

fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

/// Each complaint as `field: message`, without the value that the server repeats.
pub(crate) fn complaints(error: &kube::Error) -> Vec<String> {
    let kube::Error::Api(status) = error else {
        return vec![error.to_string()];
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut found: Vec<String> = causes
        // This one only says that the others came first.
        .filter(|cause| !cause.message.contains("some validation rules were not checked"))
        .map(|cause| format!("{}: {}", cause.field, without_value(&cause.message)))
        .collect();
    if found.is_empty() {
        found.push(status.message.clone());
    }
    found.sort();
    found.dedup();
    found
}

/// `Invalid value: "amq.x": names that …` without what stands before the sentence.
fn without_value(message: &str) -> &str {
    let Some(rest) = message.strip_prefix("Invalid value: ") else {
        return message;
    };
    if rest.starts_with('"') {
        return rest.split_once("\": ").map_or(rest, |(_, sentence)| sentence);
    }
    match rest.split_once(": ") {
        Some((number, sentence)) if number.parse::<f64>().is_ok() => sentence,
        _ => rest,
    }
}
