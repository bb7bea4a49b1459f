//! What people write into Secrets and annotations by mistake: each is told in a sentence that says
//! what to write instead, and everything goes on once it is.

use serde_json::{Value, json};

use crate::deletion::deletion;
use crate::support::clusters::CLUSTER;
use crate::support::world::{World, condition, describe, message};

/// Waits until the pipeline says so, for this reason.
async fn told(world: &World, reason: &str, text: &str) {
    world
        .until("orders", &format!("{reason}: {text}"), |pipeline| {
            condition(pipeline, "Ready")["reason"] == reason && message(pipeline, "Ready").contains(text)
        })
        .await;
}

#[tokio::test]
async fn a_secret_that_can_not_be_used_is_told_key_by_key() {
    let mut world = World::new("badsecret").await;
    let right = world.secret();
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    world.ready("orders").await;
    let cases = [
        ("uri", "http://", "the key uri is not a URL: write the management API's address"),
        ("uri", "", "the key uri "),
        ("uri", "amqp://rabbit:5672", "uri is an AMQP address"),
        ("amqpUri", "rabbit:5672", "amqpUri"),
        ("ca.crt", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t", "ca.crt holds no certificate: write PEM"),
        ("tls.crt", "no certificate", "tls.key"),
        ("username", "a:b", "username"),
        ("password", "secret\n", "password ends with a line break"),
    ];
    for (key, value, text) in cases {
        let mut wrong = right.clone();
        wrong.insert(key, value.to_owned());
        world.write_secret(&wrong).await;
        told(&world, "SecretNotFound", text).await;
        let pipeline = world.get("orders").await;
        let said = message(&pipeline, "Ready");
        assert!(said.starts_with("the Secret \"rabbit-connection\" can't be used: "), "{said}");
        assert!(!said.contains("secret\n"), "no value is repeated: {said}");
    }
    world.write_secret(&right).await;
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn annotations_of_a_cluster_that_can_not_be_read_are_named() {
    let mut world = World::new("badcluster").await;
    let owner = world.owner().await;
    let right = json!({
        "rabbitmq.com/topology-allowed-namespaces": world.namespace,
        "redrive.dev/grants": format!("{}={}", world.namespace, world.vhost),
    });
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    owner.annotate(CLUSTER, right.clone()).await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    world.ready("orders").await;
    let (uri, amqp) = ("rabbitmq.com/operator-connection-uri", "redrive.dev/amqp-uri");
    let (list, grants) = ("rabbitmq.com/topology-allowed-namespaces", "redrive.dev/grants");
    let without_prefix = format!("{}={}:", world.namespace, world.vhost);
    let cases: [(&str, Value, &str, &str); 8] = [
        (uri, json!("http://"), "BrokerUnreachable", uri),
        (uri, json!("amqp://rabbit"), "BrokerUnreachable", "is an AMQP address"),
        (amqp, json!("http://rabbit"), "BrokerUnreachable", amqp),
        (amqp, json!("rabbit:5672"), "BrokerUnreachable", amqp),
        (list, json!("shop;billing"), "NamespaceNotAllowed", "adds it to the annotation"),
        (list, json!(""), "NamespaceNotAllowed", "adds it to the annotation"),
        (grants, json!("everything"), "NamespaceNotAllowed", "its entry 1 names no vhost"),
        (grants, json!(without_prefix), "NamespaceNotAllowed", "its entry 1 holds an empty vhost or prefix"),
    ];
    for (annotation, value, reason, text) in cases {
        let mut all = world.addresses();
        crate::support::world::merge(&mut all, right.clone());
        all[annotation] = value;
        owner.annotate(CLUSTER, all).await;
        told(&world, reason, text).await;
    }
    let mut all = world.addresses();
    crate::support::world::merge(&mut all, right);
    owner.annotate(CLUSTER, all).await;
    world.ready("orders").await;
    owner.leave().await;
    world.leave().await;
}

#[tokio::test]
async fn a_cluster_without_its_pieces_is_told_piece_by_piece() {
    let mut world = World::new("pieces").await;
    let owner = world.owner_here().await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    world.ready("orders").await;
    // Neither a binding nor a default user.
    owner.set_status(CLUSTER, json!({"binding": null, "defaultUser": null})).await;
    told(&world, "SecretNotFound", "the cluster operator sets status.binding").await;
    owner.set_status(CLUSTER, json!({"binding": {"name": "gone"}})).await;
    told(&world, "SecretNotFound", "the Secret \"gone\" of the RabbitmqCluster").await;
    owner.write_secret("half", json!({"username": "u"})).await;
    owner.set_status(CLUSTER, json!({"binding": {"name": "half"}})).await;
    told(&world, "SecretNotFound", "password is missing").await;
    // An authority that is none.
    owner.write_secret("authority", json!({"ca.crt": "not PEM"})).await;
    owner.set_status(CLUSTER, json!({"binding": {"name": "rmq-default-user"}})).await;
    let tls = json!({"spec": {"tls": {"secretName": "certificate", "caSecretName": "authority"}}});
    owner.patch(CLUSTER, tls).await;
    told(&world, "SecretNotFound", "ca.crt holds no certificate: write PEM").await;
    owner.write_secret("empty", json!({"other": "x"})).await;
    owner.patch(CLUSTER, json!({"spec": {"tls": {"caSecretName": "empty"}}})).await;
    told(&world, "SecretNotFound", "has no key ca.crt: write the authority's certificate there").await;
    owner.patch(CLUSTER, json!({"spec": {"tls": null}})).await;
    let pipeline = world.ready("orders").await;
    assert_eq!(condition(&pipeline, "Stalled")["status"], "False", "{}", describe(&pipeline));
    world.leave().await;
}

#[tokio::test]
async fn a_release_that_is_written_otherwise_is_told() {
    let mut world = World::new("release").await;
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    world.broker.fill(&world.vhost, "orders.queue.dlq", 1).await;
    world.patch("orders", json!({"metadata": {"annotations": {"redrive.dev/release": "yes"}}})).await;
    world.delete("orders").await;
    let text = "redrive.dev/release is \"yes\", which does nothing: write \"true\"";
    world.until("orders", text, |pipeline| message(pipeline, "Ready").contains(text)).await;
    world.patch("orders", json!({"metadata": {"annotations": {"redrive.dev/release": "true"}}})).await;
    world.until_gone("orders").await;
    world.leave().await;
}
