//! The kind RabbitmqCluster itself: absent, installed while the operator runs, and taken away.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DeleteParams;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::parts::alone;
use crate::support::PATIENCE;
use crate::support::clusters::{CLUSTER, definition, install_definition};
use crate::support::world::{World, message, verdict};

/// Takes the kind away, and with it every cluster.
async fn remove_definition(world: &World) {
    let api = Api::<CustomResourceDefinition>::all(world.client.clone());
    let name = definition().name_any();
    let Some(found) = api.get_opt(&name).await.unwrap() else { return };
    let uid = found.uid().unwrap();
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    let gone = await_condition(api, &name, conditions::is_deleted(&uid));
    tokio::time::timeout(PATIENCE, gone).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_operator_runs_without_the_kind_and_begins_by_itself_when_it_comes() {
    let _alone = alone().await;
    let mut world = World::new("nokind").await;
    // No poll comes within the test.
    world.settings.poll_interval = Duration::from_secs(3_600);
    let owner = world.owner_here().await;
    remove_definition(&world).await;
    world.start();
    let manifest = world.on_cluster(&owner, "orders", json!({"deletionPolicy": "Delete"}));
    world.create(manifest.clone()).await;
    let told = world.until_reason("orders", "ClusterNotFound").await;
    assert!(message(&told, "Ready").contains("does not know the kind"), "{}", message(&told, "Ready"));
    world.create_ready("stock", json!({})).await;

    install_definition(&world.client).await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    world.ready("orders").await;
    // The watch has begun as well: nothing else would notice this.
    owner.patch(CLUSTER, json!({"spec": {"replicas": 0}})).await;
    world.until_reason("orders", "ClusterScaledToZero").await;
    owner.patch(CLUSTER, json!({"spec": {"replicas": 1}})).await;
    world.ready("orders").await;

    // With the kind all clusters go, and no finalizer waits for what can't come back.
    remove_definition(&world).await;
    let gone = world.until_reason("orders", "ClusterNotFound").await;
    assert_eq!(verdict(&gone, "Ready"), "False ClusterNotFound");
    world.delete("orders").await;
    world.until_gone("orders").await;

    // And again.
    install_definition(&world.client).await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    world.create(manifest).await;
    world.ready("orders").await;
    world.leave().await;
}
