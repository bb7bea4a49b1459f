//! RabbitmqClusters as the cluster operator leaves them. That operator does not run here: what it
//! writes is written by the tests, and the nodes are the development cluster's brokers.

use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::broker::Broker;
use super::world::{World, merge};
use super::{PATIENCE, eventually, variable};

/// The name of the cluster in most tests.
pub(crate) const CLUSTER: &str = "rmq";

fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("rabbitmq.com", "v1beta1", "RabbitmqCluster");
    ApiResource::from_gvk_with_plural(&kind, "rabbitmqclusters")
}

/// The cluster operator's own definition.
pub(crate) fn definition() -> CustomResourceDefinition {
    let path = format!("{}/rabbitmq.com_rabbitmqclusters.yaml", variable("REDRIVE_DEFINITIONS"));
    serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Installs it, and waits until the API server works by it.
pub(crate) async fn install_definition(client: &Client) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let definition = definition();
    let name = definition.name_any();
    let params = PatchParams::apply("redrive-tests").force();
    api.patch(&name, &params, &Patch::Apply(&definition)).await.unwrap();
    let established = await_condition(api, &name, conditions::is_crd_established());
    tokio::time::timeout(PATIENCE, established).await.unwrap().unwrap();
    let clusters = Api::<DynamicObject>::all_with(client.clone(), &resource());
    eventually("RabbitmqClusters are served", async || {
        clusters.list(&ListParams::default()).await.map_err(|error| error.to_string())
    })
    .await;
}

/// A namespace with RabbitmqClusters, and whoever owns them.
pub(crate) struct Owner {
    client: Client,
    pub(crate) namespace: String,
}

impl World {
    /// An owner in a namespace of its own, once for each test.
    pub(crate) async fn owner(&self) -> Owner {
        let namespace = format!("{}-mq", self.namespace);
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &object).await.unwrap();
        self.owner_in(&namespace).await
    }

    /// An owner in the namespace of the pipelines.
    pub(crate) async fn owner_here(&self) -> Owner {
        self.owner_in(&self.namespace.clone()).await
    }

    async fn owner_in(&self, namespace: &str) -> Owner {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        INSTALLED.get_or_init(|| install_definition(&self.client)).await;
        Owner { client: self.client.clone(), namespace: namespace.to_owned() }
    }

    /// Annotations that lead to this world's broker, by its proxy.
    pub(crate) fn addresses(&self) -> Value {
        addresses(&self.proxy.address, &self.broker)
    }

    /// A pipeline on a cluster.
    pub(crate) fn on_cluster(&self, owner: &Owner, name: &str, spec: Value) -> Value {
        let mut manifest = self.manifest(name, spec);
        manifest["spec"]["broker"] = json!({"clusterRef": {"name": CLUSTER, "namespace": owner.namespace}});
        manifest
    }
}

/// Annotations that lead to a broker, by an address of its management API.
pub(crate) fn addresses(management: &str, broker: &Broker) -> Value {
    json!({
        "rabbitmq.com/operator-connection-uri": format!("http://{management}"),
        "redrive.dev/amqp-uri": broker.amqp,
    })
}

impl Owner {
    fn clusters(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource())
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes a cluster with the user of a broker, as its operator leaves it.
    pub(crate) async fn create(&self, name: &str, broker: &Broker, annotations: Value) -> DynamicObject {
        self.write_user(&format!("{name}-default-user"), &broker.user, &broker.password).await;
        self.create_with(name, annotations, json!({}), json!({})).await
    }

    /// Makes a cluster with more of a specification and a status merged in.
    pub(crate) async fn create_with(
        &self,
        name: &str,
        annotations: Value,
        spec: Value,
        status: Value,
    ) -> DynamicObject {
        let mut object = json!({
            "apiVersion": "rabbitmq.com/v1beta1", "kind": "RabbitmqCluster",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"replicas": 1, "image": "rabbitmq:4.3-management"},
        });
        merge(&mut object["spec"], spec);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.clusters().create(&PostParams::default(), &object).await.unwrap();
        let mut written = json!({
            "binding": {"name": format!("{name}-default-user")},
            "conditions": [{"type": "AllReplicasReady", "status": "True", "reason": "AllPodsAreReady"}],
            "defaultUser": {
                "secretReference": {
                    "name": format!("{name}-default-user"), "namespace": self.namespace,
                    "keys": {"username": "username", "password": "password"},
                },
                "serviceReference": {"name": name, "namespace": self.namespace},
            },
            "observedGeneration": 1,
        });
        merge(&mut written, status);
        self.set_status(name, written).await
    }

    /// Writes the Secret of a user.
    pub(crate) async fn write_user(&self, name: &str, user: &str, password: &str) {
        let data = json!({
            "username": user, "password": password, "host": format!("rmq.{}.svc", self.namespace), "port": "5672",
        });
        self.write_secret(name, data).await;
    }

    pub(crate) async fn write_secret(&self, name: &str, data: Value) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data,
        });
        let params = PatchParams::apply("redrive-tests").force();
        self.secrets().patch(name, &params, &Patch::Apply(&secret)).await.unwrap();
    }

    pub(crate) async fn delete_secret(&self, name: &str) {
        self.secrets().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Changes a cluster by a merge patch.
    pub(crate) async fn patch(&self, name: &str, patch: Value) -> DynamicObject {
        self.clusters().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap()
    }

    pub(crate) async fn annotate(&self, name: &str, annotations: Value) {
        self.patch(name, json!({"metadata": {"annotations": annotations}})).await;
    }

    /// Changes a cluster's status.
    pub(crate) async fn set_status(&self, name: &str, status: Value) -> DynamicObject {
        let patch = Patch::Merge(json!({"status": status}));
        self.clusters().patch_status(name, &PatchParams::default(), &patch).await.unwrap()
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.clusters().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Deletes a cluster that may be gone with its namespace.
    pub(crate) async fn delete_if_there(&self, name: &str) {
        let _ = self.clusters().delete(name, &DeleteParams::default()).await;
    }

    /// Removes the namespace.
    pub(crate) async fn leave(self) {
        let namespaces = Api::<Namespace>::all(self.client);
        let _ = namespaces.delete(&self.namespace, &DeleteParams::default()).await;
    }
}
