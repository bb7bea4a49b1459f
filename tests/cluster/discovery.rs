//! Pipelines that refer to a RabbitmqCluster: found, parked, built again, and let go with it.

use std::time::Duration;

use redrive::api::DetectionMode;
use serde_json::{Value, json};

use crate::deletion::nothing_is_left;
use crate::support::authority::Authority;
use crate::support::broker::Broker;
use crate::support::clusters::{CLUSTER, Owner, addresses};
use crate::support::proxy::Action;
use crate::support::scene::{calm, detection};
use crate::support::tls::Terminator;
use crate::support::world::{World, condition, describe, message, verdict};
use crate::support::{at_rest, eventually, steadily};

/// A poll that never comes within a test: what is noticed then, the watch has shown.
const NEVER: Duration = Duration::from_secs(3_600);

/// A running operator and the cluster `rmq` in the same namespace.
async fn started(purpose: &str) -> (World, Owner) {
    let mut world = World::new(purpose).await;
    let owner = world.owner_here().await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    world.start();
    (world, owner)
}

async fn create_ready(world: &World, owner: &Owner, spec: Value) {
    world.create(world.on_cluster(owner, "orders", spec)).await;
    world.ready("orders").await;
}

fn cluster_uid(pipeline: &redrive::api::RetryPipeline) -> Option<String> {
    pipeline.status.as_ref().and_then(|status| status.cluster_uid.clone())
}

#[tokio::test]
async fn a_pipeline_is_built_on_the_cluster_that_it_refers_to() {
    let mut world = World::new("cl-ready").await;
    // The connection Secret of other tests is of no use here.
    world.delete_secret().await;
    let owner = world.owner_here().await;
    let cluster = owner.create(CLUSTER, &world.broker, world.addresses()).await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    let pipeline = world.ready("orders").await;
    let status = pipeline.status.as_ref().unwrap();
    assert_eq!(status.cluster_uid, cluster.metadata.uid);
    let named = format!("cluster {}/{CLUSTER}", world.namespace);
    assert_eq!(status.effective.as_ref().unwrap().broker, named);
    let queues = world.broker.names("queues", &world.vhost).await;
    assert_eq!(queues, ["orders.queue", "orders.queue.dlq", "orders.queue.retry.0", "orders.queue.retry.1"]);
    world.leave().await;
}

#[tokio::test]
async fn a_pipeline_may_come_before_its_cluster_and_each_missing_piece_is_told() {
    let mut world = World::new("cl-pieces").await;
    world.settings.poll_interval = NEVER;
    let owner = world.owner_here().await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "ClusterNotFound").await;
    assert!(
        message(&pipeline, "Ready").contains("create it, or correct spec.broker"),
        "{}",
        describe(&pipeline)
    );
    assert_eq!(verdict(&pipeline, "Stalled"), "False Progressing");

    // The cluster operator has not come to it yet.
    let nothing = json!({"binding": null, "defaultUser": null});
    owner.create_with(CLUSTER, world.addresses(), json!({}), nothing.clone()).await;
    owner.set_status(CLUSTER, nothing).await;
    let told = world.until_reason("orders", "SecretNotFound").await;
    assert!(message(&told, "Ready").contains("sets status.binding"), "{}", describe(&told));
    owner.set_status(CLUSTER, json!({"binding": {"name": "rmq-default-user"}})).await;
    world
        .until("orders", "misses the Secret", |pipeline| {
            message(pipeline, "Ready").contains("the Secret \"rmq-default-user\" of the RabbitmqCluster")
        })
        .await;
    assert!(world.proxy.seen().is_empty(), "nothing was asked of any broker");
    owner.write_user("rmq-default-user", &world.broker.user, &world.broker.password).await;
    // A Secret isn't watched.
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn an_external_secret_holds_the_user() {
    let mut world = World::new("cl-external").await;
    let owner = world.owner_here().await;
    owner.write_user("from-elsewhere", &world.broker.user, &world.broker.password).await;
    let spec = json!({"secretBackend": {"externalSecret": {"name": "from-elsewhere"}}});
    // As the cluster operator writes it, the default user's Secret is named and does not exist.
    owner.create_with(CLUSTER, world.addresses(), spec, json!({"binding": {"name": "from-elsewhere"}})).await;
    world.start();
    create_ready(&world, &owner, json!({})).await;
    world.leave().await;
}

#[tokio::test]
async fn a_new_password_in_the_clusters_secret_is_taken() {
    let mut world = World::new("cl-password").await;
    let owner = world.owner_here().await;
    let user = world.namespace.clone();
    world.broker.create_user(&user, "first", "administrator").await;
    world.broker.grant(&world.vhost, &user, ".*").await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    owner.write_user("rmq-default-user", &user, "first").await;
    world.start();
    create_ready(&world, &owner, json!({})).await;
    world.broker.create_user(&user, "second", "administrator").await;
    world.until_reason("orders", "Unauthorized").await;
    owner.write_user("rmq-default-user", &user, "second").await;
    world.ready("orders").await;
    world.leave().await;
}

/// T-15: and no other cluster is any the worse for it.
#[tokio::test]
async fn a_cluster_without_nodes_parks_its_pipelines_and_nobody_asks_its_broker() {
    let (world, owner) = started("cl-zero").await;
    create_ready(&world, &owner, json!({})).await;
    owner.create("other", &world.broker, addresses(&world.broker.address, &world.broker)).await;
    let mut other = world.manifest("stock", json!({}));
    other["spec"]["broker"] = json!({"clusterRef": {"name": "other"}});
    world.create(other).await;
    world.ready("stock").await;

    owner.patch(CLUSTER, json!({"spec": {"replicas": 0}})).await;
    let pipeline = world.until_reason("orders", "ClusterScaledToZero").await;
    assert_eq!(verdict(&pipeline, "Ready"), "False ClusterScaledToZero");
    assert_eq!(verdict(&pipeline, "Stalled"), "False Progressing");
    // A look of before may still be under way.
    quiet(&world).await;
    world.proxy.forget();
    world.broker.delete(&["queues", &world.vhost, "orders.queue.retry.0"]).await;
    world.broker.delete(&["queues", &world.vhost, "stock.queue.retry.0"]).await;
    world.until_event("stock", "queue stock.queue.retry.0 is missing").await;
    world.ready("stock").await;
    assert!(world.proxy.seen().is_empty(), "{:#?}", world.proxy.seen());

    owner.patch(CLUSTER, json!({"spec": {"replicas": 3}})).await;
    let back = world.ready("orders").await;
    assert_eq!(back.metadata.generation, pipeline.metadata.generation, "nobody had to edit it");
    assert!(world.broker.exists("queues", &world.vhost, "orders.queue.retry.0").await);
    world.leave().await;
}

/// T-17: with the other broker of the development cluster as its nodes.
#[tokio::test]
async fn a_cluster_that_is_made_again_is_built_on_again() {
    let (world, owner) = started("cl-again").await;
    create_ready(&world, &owner, json!({})).await;
    let before = world.get("orders").await;
    owner.delete(CLUSTER).await;
    let gone = world.until_reason("orders", "ClusterNotFound").await;
    assert_eq!(verdict(&gone, "Ready"), "False ClusterNotFound");

    let new = Broker::of("40");
    new.create_vhost(&world.vhost).await;
    owner.create(CLUSTER, &new, addresses(&new.address, &new)).await;
    let after = world.ready("orders").await;
    assert!(cluster_uid(&after).is_some() && cluster_uid(&after) != cluster_uid(&before));
    let broker_id = |pipeline: &redrive::api::RetryPipeline| pipeline.status.clone().unwrap().broker_id;
    assert_ne!(broker_id(&after), broker_id(&before));
    assert_eq!(new.names("queues", &world.vhost).await.len(), 4);
    let drift = after.status.as_ref().unwrap().drift.as_ref();
    assert!(drift.is_none(), "what was never there was not lost: {drift:?}");
    new.delete(&["vhosts", &world.vhost]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_cluster_that_was_made_again_while_nobody_looked_is_another_one() {
    let (mut world, owner) = started("cl-unseen").await;
    create_ready(&world, &owner, json!({})).await;
    let before = world.get("orders").await;
    world.stop().await;
    owner.delete(CLUSTER).await;
    let new = Broker::of("40");
    new.create_vhost(&world.vhost).await;
    // Of somebody else, though the pipeline's records say that it is ours.
    new.put(&["queues", &world.vhost, "orders.queue.dlq"], json!({"durable": true})).await;
    owner.create(CLUSTER, &new, addresses(&new.address, &new)).await;
    world.start();
    let pipeline = world.until("orders", "refuses what is not ours", |pipeline| {
        let reason = condition(pipeline, "Ready")["reason"].clone();
        assert_ne!(reason, "BrokerChanged", "{}", describe(pipeline));
        reason == "Conflict" || reason == "ArgumentMismatch"
    });
    let pipeline = pipeline.await;
    assert_ne!(cluster_uid(&pipeline), cluster_uid(&before));
    new.delete(&["queues", &world.vhost, "orders.queue.dlq"]).await;
    world.ready("orders").await;
    new.delete(&["vhosts", &world.vhost]).await;
    world.leave().await;
}

/// The same data under a new resource: the markers say what is ours.
#[tokio::test]
async fn a_new_cluster_with_the_data_of_the_old_one_loses_nothing() {
    let (mut world, owner) = started("cl-data").await;
    create_ready(&world, &owner, json!({"deletionPolicy": "Delete"})).await;
    world.stop().await;
    let contents = world.broker.contents(&world.vhost).await;
    owner.delete(CLUSTER).await;
    let cluster = owner.create(CLUSTER, &world.broker, world.addresses()).await;
    world.start();
    world
        .until("orders", "knows the new cluster", |pipeline| cluster_uid(pipeline) == cluster.metadata.uid)
        .await;
    world.ready("orders").await;
    assert_eq!(world.broker.contents(&world.vhost).await, contents);
    world.delete("orders").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

/// T-13: whichever goes first, nothing is left to clean then, and nobody waits for a broker.
#[tokio::test]
async fn pipelines_go_with_their_cluster() {
    let (mut world, owner) = started("cl-together").await;
    world.stop().await;
    world.settings.release_after = NEVER;
    world.start();
    let names: Vec<String> = (0..50).map(|number| format!("orders-{number}")).collect();
    for (index, name) in names.iter().enumerate() {
        let policy = if index % 2 == 0 { "Delete" } else { "DeleteIfEmpty" };
        world.create(world.on_cluster(&owner, name, json!({"deletionPolicy": policy}))).await;
    }
    for name in &names {
        world.ready(name).await;
    }
    // Its nodes answer nobody any more.
    world.proxy.rule(|_| Action::Cut);
    for name in &names[..25] {
        world.delete(name).await;
    }
    owner.delete(CLUSTER).await;
    for name in &names[25..] {
        world.delete(name).await;
    }
    for name in &names {
        world.until_gone(name).await;
    }
    world.proxy.heal();
    world.leave().await;
}

#[tokio::test]
async fn a_cluster_that_is_being_deleted_holds_no_pipeline() {
    let (world, owner) = started("cl-going").await;
    create_ready(&world, &owner, json!({"deletionPolicy": "DeleteIfEmpty"})).await;
    owner.patch(CLUSTER, json!({"metadata": {"finalizers": ["example.com/slow"]}})).await;
    world.proxy.rule(|_| Action::Cut);
    owner.delete(CLUSTER).await;
    let pipeline = world.until_reason("orders", "ClusterNotFound").await;
    assert!(message(&pipeline, "Ready").contains("is being deleted"), "{}", describe(&pipeline));
    world.delete("orders").await;
    world.until_gone("orders").await;
    owner.patch(CLUSTER, json!({"metadata": {"finalizers": null}})).await;
    world.leave().await;
}

/// The kind is unknown as far as this operator can see; the tests beside it need it. In
/// `tests/outages` it is really taken away.
#[tokio::test]
async fn without_the_cluster_operator_the_operator_runs_and_goes_on_once_it_comes() {
    let mut world = World::new("cl-absent").await;
    world.settings.poll_interval = NEVER;
    let owner = world.owner_here().await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    world.proxy_kubernetes().await;
    world.proxy.rule(|request| match request.path.starts_with("/apis/rabbitmq.com/") {
        true => Action::Answer(404, "Content-Type: text/plain", "404 page not found\n"),
        false => Action::Pass,
    });
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "ClusterNotFound").await;
    let told = message(&pipeline, "Ready");
    assert!(told.contains("does not know the kind: install the RabbitMQ cluster operator"), "{told}");
    // Whoever has a Secret is none the worse.
    world.create_ready("stock", json!({})).await;
    world.proxy.heal();
    world.ready("orders").await;
    // And the watch is there by itself.
    owner.patch(CLUSTER, json!({"spec": {"replicas": 0}})).await;
    world.until_reason("orders", "ClusterScaledToZero").await;
    world.leave().await;
}

/// What a change of the cluster costs: requests to the broker, readings of the cluster.
async fn cost(world: &World, owner: &Owner, number: usize) -> (usize, usize) {
    world.proxy.forget();
    owner.annotate(CLUSTER, json!({"redrive.dev/grants": format!("other=/{number}")})).await;
    let count = || {
        let seen = world.proxy.seen();
        let of_cluster = |request: &&crate::support::proxy::Request| {
            request.to_kubernetes && request.path.contains(&format!("/rabbitmqclusters/{CLUSTER}"))
        };
        (seen.iter().filter(|request| !request.to_kubernetes).count(), seen.iter().filter(of_cluster).count())
    };
    eventually("the change has an effect", async || {
        let (broker, cluster) = count();
        if broker > 0 && cluster > 0 { Ok(()) } else { Err(format!("{broker} {cluster}")) }
    })
    .await;
    quiet(world).await;
    count()
}

/// Waits until nobody asks the broker any more.
async fn quiet(world: &World) {
    at_rest("requests to the broker", || world.proxy.seen().len()).await;
}

/// Waits until a pipeline is told of changes, and everything was looked at because of that.
async fn hears(world: &World, name: &str) {
    let hears = |pipeline: &_| detection(pipeline) == Some((DetectionMode::Events, None));
    world.until(name, "hears", hears).await;
    quiet(world).await;
}

#[tokio::test]
async fn what_does_not_matter_in_a_cluster_wakes_nobody() {
    let _calm = calm().await;
    let mut world = World::new("cl-quiet").await;
    world.settings.poll_interval = NEVER;
    world.proxy_kubernetes().await;
    let owner = world.owner_here().await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    world.start();
    create_ready(&world, &owner, json!({})).await;
    hears(&world, "orders").await;
    // Its watch has begun once a change is seen.
    cost(&world, &owner, 0).await;
    let one = cost(&world, &owner, 1).await;
    assert_eq!(one.1, 1, "the cluster is read once for a change");

    world.proxy.forget();
    for number in 0..20 {
        let conditions =
            json!([{"type": "AllReplicasReady", "status": "False", "reason": format!("N{number}")}]);
        owner.set_status(CLUSTER, json!({"conditions": conditions, "observedGeneration": number})).await;
        let metadata = json!({"labels": {"n": number.to_string()}, "annotations": {"n": number.to_string()}});
        let image = format!("rabbitmq:4.3.{number}");
        owner.patch(CLUSTER, json!({"metadata": metadata, "spec": {"image": image}})).await;
    }
    let seen: Vec<_> = world.proxy.seen().into_iter().filter(|request| !request.to_kubernetes).collect();
    assert!(seen.is_empty(), "{seen:#?}");
    // The watch tells in order: whatever came before this was passed over.
    assert_eq!(cost(&world, &owner, 2).await, one);
    world.leave().await;
}

#[tokio::test]
async fn a_change_of_one_cluster_wakes_no_pipeline_of_another() {
    let _calm = calm().await;
    let mut world = World::new("cl-others").await;
    world.settings.poll_interval = NEVER;
    let owner = world.owner_here().await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    owner.create("other", &world.broker, addresses(&world.broker.address, &world.broker)).await;
    world.start();
    create_ready(&world, &owner, json!({})).await;
    let mut manifest = world.manifest("stock", json!({}));
    manifest["spec"]["broker"] = json!({"clusterRef": {"name": "other"}});
    world.create(manifest).await;
    world.ready("stock").await;
    hears(&world, "orders").await;
    world.proxy.forget();
    owner.patch("other", json!({"spec": {"replicas": 0}})).await;
    world.until_reason("stock", "ClusterScaledToZero").await;
    owner.patch("other", json!({"spec": {"replicas": 1}})).await;
    world.ready("stock").await;
    assert!(world.proxy.seen().is_empty(), "{:#?}", world.proxy.seen());
    world.leave().await;
}

/// A cluster whose listeners speak TLS alone, with the certificate of an authority.
struct Secured {
    world: World,
    owner: Owner,
    terminator: Terminator,
}

impl Secured {
    async fn new(purpose: &str, authority: &Authority, tls: Value) -> Self {
        let mut world = World::new(purpose).await;
        let owner = world.owner_here().await;
        let mut terminator = Terminator::new(authority);
        let management = terminator.listen(&world.proxy.address).await;
        let amqp = terminator.listen(world.broker.amqp.trim_start_matches("amqp://")).await;
        let annotations = json!({
            "rabbitmq.com/operator-connection-uri": format!("https://localhost:{management}"),
            "redrive.dev/amqp-uri": format!("amqps://localhost:{amqp}"),
        });
        owner.write_user("rmq-default-user", &world.broker.user, &world.broker.password).await;
        owner.create_with(CLUSTER, annotations, json!({"tls": tls}), json!({})).await;
        world.start();
        Self { world, owner, terminator }
    }
}

/// T-19: without `caSecretName` it is the authority beside the certificate.
#[tokio::test]
async fn the_authority_beside_the_certificate_is_trusted_and_so_is_its_successor() {
    let (first, second) = (Authority::new(), Authority::new());
    let secured = Secured::new("cl-tls", &first, json!({"secretName": "cert"})).await;
    let Secured { world, owner, terminator } = secured;
    world.create(world.on_cluster(&owner, "orders", json!({"deletionPolicy": "DeleteIfEmpty"}))).await;
    let told = world.until_reason("orders", "SecretNotFound").await;
    assert!(message(&told, "Ready").contains("the Secret \"cert\""), "{}", describe(&told));
    // Nobody vouches for a private authority.
    owner.write_secret("cert", json!({"tls.crt": "-", "tls.key": "-"})).await;
    world.until_reason("orders", "TLSVerifyFailed").await;
    owner.write_secret("cert", json!({"tls.crt": "-", "tls.key": "-", "ca.crt": first.pem()})).await;
    // What TLS refuses is a matter for people, who may wait: an edit is looked at at once.
    world.edit("orders", json!({"source": {"deliveryLimit": 7}})).await;
    world.ready("orders").await;

    terminator.replace(&second);
    world.until_reason("orders", "TLSVerifyFailed").await;
    owner.write_secret("cert", json!({"tls.crt": "-", "tls.key": "-", "ca.crt": second.pem()})).await;
    world.ready("orders").await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn the_clusters_own_authority_comes_first() {
    let (right, wrong) = (Authority::new(), Authority::new());
    let tls = json!({"secretName": "cert", "caSecretName": "ca", "disableNonTLSListeners": true});
    let Secured { world, owner, terminator: _terminator } = Secured::new("cl-ca", &right, tls).await;
    owner.write_secret("cert", json!({"ca.crt": wrong.pem()})).await;
    owner.write_secret("ca", json!({"ca.crt": right.pem()})).await;
    create_ready(&world, &owner, json!({})).await;
    // It is the only one that counts: without it nobody falls back to another.
    owner.write_secret("ca", json!({"ca.crt": wrong.pem()})).await;
    world.until_reason("orders", "TLSVerifyFailed").await;
    owner.delete_secret("ca").await;
    owner.write_secret("ca", json!({"other": "x"})).await;
    let told = world
        .until("orders", "misses the authority", |pipeline| {
            message(pipeline, "Ready").contains("has no key ca.crt")
        })
        .await;
    assert_eq!(verdict(&told, "Ready"), "False SecretNotFound");
    world.leave().await;
}

/// Whoever may write the status of a cluster could otherwise have the operator read any Secret.
#[tokio::test]
async fn a_cluster_leads_to_no_secret_of_another_namespace() {
    let mut world = World::new("cl-secret").await;
    let (owner, victim) = (world.owner_here().await, world.owner().await);
    victim.write_user("stolen", &world.broker.user, &world.broker.password).await;
    let reference = json!({"secretReference": {"name": "stolen", "namespace": victim.namespace}});
    owner.create_with(CLUSTER, world.addresses(), json!({}), json!({})).await;
    owner.set_status(CLUSTER, json!({"binding": null, "defaultUser": reference})).await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "SecretNotFound").await;
    let told = message(&pipeline, "Ready");
    assert!(told.contains("only what is in the cluster's own namespace is used"), "{told}");
    steadily("no broker is told a foreign password", Duration::from_secs(2), async || {
        if world.proxy.seen().is_empty() { Ok(()) } else { Err(format!("{:#?}", world.proxy.seen())) }
    })
    .await;
    victim.leave().await;
    world.leave().await;
}
