//! Who listens to a broker's events, when nobody does, and what a gap leads to.

use serde_json::json;

use rstest::rstest;

use crate::support::authority::Authority;
use crate::support::clusters::{CLUSTER, addresses};
use crate::support::eventually;
use crate::support::scene::{PASSWORD, Scene, detection};
use crate::support::tls::Terminator;
use crate::support::world::{POLL, verdict};

#[rstest]
#[case("43")]
#[case("40")]
#[tokio::test]
async fn what_changes_while_nothing_is_heard_is_found_once_something_is_again(#[case] version: &str) {
    let scene = Scene::settled(version, "ev-gap", json!({})).await;
    let (alice, vhost) = (scene.alice.clone(), scene.world.vhost.clone());
    // Without rights it can't come back at once.
    scene.world.broker.delete(&["permissions", "/", &scene.listener]).await;
    scene.cut().await;
    let pipeline = scene.is_deaf("orders", "may not consume the broker's events").await;
    let (_, why) = detection(&pipeline).unwrap();
    assert!(why.unwrap().contains(&format!("the user {:?}", scene.listener)));
    assert_eq!(verdict(&pipeline, "Ready"), "True Reconciled", "nothing is lost by that");
    scene.is_quiet().await;

    alice.delete(&["queues", &vhost, "orders.queue.dlq"]).await;
    scene.world.broker.grant("/", &scene.listener, ".*").await;
    let event = scene.world.until_event("orders", "queue orders.queue.dlq is missing").await;
    assert!(!event.contains("by the user"), "nobody has told who it was: {event}");
    scene.hears("orders").await;
    // And from here on all is heard again.
    alice.delete(&["queues", &vhost, "orders.queue.retry.0"]).await;
    scene.repairs("queue orders.queue.retry.0 is missing").await;
    scene.leave().await;
}

#[tokio::test]
async fn a_connection_that_comes_back_at_once_is_no_news() {
    let scene = Scene::settled("43", "ev-cut", json!({})).await;
    let (alice, vhost) = (scene.alice.clone(), scene.world.vhost.clone());
    let version = scene.world.get("orders").await.metadata.resource_version;
    let looks = scene.looks();
    scene.cut().await;
    eventually(
        "a full check",
        async || {
            if scene.looks() > looks { Ok(()) } else { Err("no look".to_owned()) }
        },
    )
    .await;
    scene.is_quiet().await;
    assert_eq!(scene.world.get("orders").await.metadata.resource_version, version, "nothing is written");
    alice.delete(&["queues", &vhost, "orders.queue.dlq"]).await;
    scene.repairs("queue orders.queue.dlq is missing").await;
    scene.leave().await;
}

/// The exchange of events shows all vhosts: what a tenant's user could read does not matter.
#[tokio::test]
async fn nobody_listens_with_the_credentials_of_a_tenant() {
    let mut scene = Scene::new("43", "ev-tenant").await;
    let tenant = scene.world.namespace.clone();
    scene.admit(&tenant).await;
    scene.world.start();
    scene.world.create_ready("orders", json!({})).await;
    let pipeline = scene.is_deaf("orders", "never with a pipeline's own Secret").await;
    assert_eq!(verdict(&pipeline, "Ready"), "True Reconciled");

    // Once a cluster's own user listens there, the tenant's lane is told when to look.
    scene.cluster(json!({})).await;
    let stock = scene.world.on_cluster(&scene.owner, "stock", json!({"deletionPolicy": "Delete"}));
    scene.world.create(stock).await;
    scene.hears("stock").await;
    scene.hears("orders").await;
    scene.alice.delete(&["queues", &scene.world.vhost, "orders.queue.dlq"]).await;
    scene.repairs("queue orders.queue.dlq is missing").await;
    scene.listens(&scene.listener, 1).await;
    assert_eq!(scene.connections(&tenant).await, [""; 0], "the list has the other's connection by now");
    // When the cluster's last pipeline goes, so does its connection.
    scene.world.delete("stock").await;
    scene.world.until_gone("stock").await;
    scene.listens(&scene.listener, 0).await;
    scene.is_deaf("orders", "never with a pipeline's own Secret").await;
    assert_eq!(scene.connections(&tenant).await, [""; 0]);
    scene.leave().await;
}

/// A world in which the operator has a Secret of its own for events, as a user; no cluster.
async fn with_own_secret(purpose: &str) -> Scene {
    let mut scene = Scene::new("43", purpose).await;
    scene.world.settings.events.secrets = vec![(scene.world.namespace.clone(), "events".to_owned())];
    write_secret(&scene, &scene.listener).await;
    scene
}

async fn write_secret(scene: &Scene, user: &str) {
    let uri = format!("http://{}", scene.world.proxy.address);
    let secret =
        json!({"uri": uri, "amqpUri": scene.world.broker.amqp, "username": user, "password": PASSWORD});
    scene.owner.write_secret("events", secret).await;
}

/// For brokers that are no RabbitmqCluster.
#[tokio::test]
async fn the_operators_own_secret_tells_of_changes_to_pipelines_with_theirs() {
    let mut scene = with_own_secret("ev-secret").await;
    scene.world.start();
    scene.world.create_ready("orders", json!({})).await;
    scene.hears("orders").await;
    scene.listens(&scene.listener, 1).await;
    assert_eq!(scene.connections(&scene.world.namespace).await, [""; 0], "the pipeline's user");
    scene.alice.delete(&["queues", &scene.world.vhost, "orders.queue.dlq"]).await;
    scene.repairs("queue orders.queue.dlq is missing").await;
    scene.leave().await;
}

#[tokio::test]
async fn another_user_in_the_operators_own_secret_takes_over() {
    let mut scene = with_own_secret("ev-another").await;
    scene.world.settings.poll_interval = POLL;
    scene.world.start();
    scene.world.create_ready("orders", json!({})).await;
    scene.hears("orders").await;
    let other = format!("{}-2", scene.listener);
    scene.admit(&other).await;
    write_secret(&scene, &other).await;
    scene.listens(&other, 1).await;
    scene.listens(&scene.listener, 0).await;
    scene.hears("orders").await;
    // Without it nobody listens, until it is there again.
    scene.owner.delete_secret("events").await;
    scene.is_deaf("orders", "--events-secret names").await;
    scene.listens(&other, 0).await;
    write_secret(&scene, &scene.listener).await;
    scene.hears("orders").await;
    scene.listens(&scene.listener, 1).await;
    scene.world.broker.delete(&["users", &other]).await;
    scene.leave().await;
}

/// As without the plugin: there is no exchange of events in the vhost where it is configured to be.
#[tokio::test]
async fn without_the_exchange_polls_find_everything_and_it_is_said_what_is_missing() {
    let mut scene = Scene::new("43", "ev-absent").await;
    scene.world.settings.poll_interval = POLL;
    let config = format!("event_exchange.vhost = {}", scene.world.vhost);
    scene.cluster(json!({"rabbitmq": {"additionalConfig": config}})).await;
    scene.world.start();
    scene.world.create(scene.world.on_cluster(&scene.owner, "orders", json!({}))).await;
    let pipeline = scene.is_deaf("orders", "enable the plugin rabbitmq_event_exchange").await;
    let (_, why) = detection(&pipeline).unwrap();
    assert!(why.unwrap().contains(&format!("in the vhost {:?}", scene.world.vhost)));
    scene.world.ready("orders").await;
    scene.alice.delete(&["queues", &scene.world.vhost, "orders.queue.dlq"]).await;
    let event = scene.world.until_event("orders", "queue orders.queue.dlq is missing").await;
    assert!(event.ends_with("; repaired"), "{event}");
    scene.leave().await;
}

#[tokio::test]
async fn nobody_listens_to_a_cluster_that_is_parked_or_gone() {
    let scene = Scene::settled("43", "ev-parked", json!({})).await;
    scene.listens(&scene.listener, 1).await;
    scene.owner.patch(CLUSTER, json!({"spec": {"replicas": 0}})).await;
    scene.world.until_reason("orders", "ClusterScaledToZero").await;
    scene.listens(&scene.listener, 0).await;
    scene.owner.patch(CLUSTER, json!({"spec": {"replicas": 1}})).await;
    scene.hears("orders").await;
    scene.listens(&scene.listener, 1).await;
    scene.alice.delete(&["queues", &scene.world.vhost, "orders.queue.dlq"]).await;
    scene.repairs("queue orders.queue.dlq is missing").await;
    scene.owner.delete(CLUSTER).await;
    scene.world.until_reason("orders", "ClusterNotFound").await;
    scene.listens(&scene.listener, 0).await;
    scene.leave().await;
}

#[tokio::test]
async fn another_user_of_the_cluster_takes_over_listening() {
    let mut scene = Scene::new("43", "ev-rotated").await;
    scene.world.settings.poll_interval = POLL;
    scene.cluster(json!({})).await;
    scene.world.start();
    scene.world.create(scene.world.on_cluster(&scene.owner, "orders", json!({}))).await;
    scene.hears("orders").await;
    scene.listens(&scene.listener, 1).await;
    let other = format!("{}-2", scene.listener);
    scene.admit(&other).await;
    scene.owner.write_user("rmq-default-user", &other, PASSWORD).await;
    scene.listens(&other, 1).await;
    scene.listens(&scene.listener, 0).await;
    scene.alice.delete(&["queues", &scene.world.vhost, "orders.queue.dlq"]).await;
    scene.world.until_event("orders", "queue orders.queue.dlq is missing").await;
    scene.hears("orders").await;
    scene.world.broker.delete(&["users", &other]).await;
    scene.leave().await;
}

#[tokio::test]
async fn events_are_read_over_tls_with_the_clusters_authority() {
    let mut scene = Scene::new("43", "ev-tls").await;
    let authority = Authority::new();
    let mut terminator = Terminator::new(&authority);
    let amqp = terminator.listen(scene.world.broker.amqp.trim_start_matches("amqp://")).await;
    let management = terminator.listen(&scene.world.proxy.address).await;
    let mut annotations = addresses("", &scene.world.broker);
    annotations["rabbitmq.com/operator-connection-uri"] = json!(format!("https://localhost:{management}"));
    annotations["redrive.dev/amqp-uri"] = json!(format!("amqps://localhost:{amqp}"));
    scene.owner.write_user("rmq-default-user", &scene.listener, PASSWORD).await;
    scene.owner.write_secret("cert", json!({"ca.crt": authority.pem()})).await;
    scene.owner.create_with(CLUSTER, annotations, json!({"tls": {"secretName": "cert"}}), json!({})).await;
    scene.world.start();
    scene.world.create(scene.world.on_cluster(&scene.owner, "orders", json!({}))).await;
    scene.hears("orders").await;
    scene.alice.delete(&["queues", &scene.world.vhost, "orders.queue.dlq"]).await;
    scene.repairs("queue orders.queue.dlq is missing").await;
    scene.leave().await;
}
