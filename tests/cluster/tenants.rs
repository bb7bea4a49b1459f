//! Namespaces that share a cluster's user reach nothing but what its owner grants them.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::deletion::nothing_is_left;
use crate::support::clusters::{CLUSTER, Owner};
use crate::support::replays::{DLQ, SOURCE, moved, text_of};
use crate::support::world::{SECRET, World, describe, merge, message, verdict};
use crate::support::{eventually, kubernetes, variable};

const ALLOWED: &str = "rabbitmq.com/topology-allowed-namespaces";
const GRANTS: &str = "redrive.dev/grants";

/// A cluster in another namespace, with these annotations beside its addresses.
async fn shared(world: &World, annotations: Value) -> Owner {
    let owner = world.owner().await;
    let mut all = world.addresses();
    merge(&mut all, annotations);
    owner.create(CLUSTER, &world.broker, all).await;
    owner
}

/// What lets the test's namespace use names on its vhost that begin so; all with nothing.
fn granted(world: &World, prefixes: &str) -> Value {
    let prefixes = if prefixes.is_empty() { String::new() } else { format!(":{prefixes}") };
    json!({ALLOWED: world.namespace, GRANTS: format!("{}={}{prefixes}", world.namespace, world.vhost)})
}

async fn leave(world: World, owner: Owner) {
    owner.leave().await;
    world.leave().await;
}

/// T-21: absent, another, listed with a blank, `*`; then withdrawn and deleted.
#[tokio::test]
async fn another_namespace_takes_the_word_of_the_clusters_owner() {
    let mut world = World::new("tn-list").await;
    let owner = shared(&world, json!({GRANTS: format!("{}={}", world.namespace, world.vhost)})).await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({"deletionPolicy": "Delete"}))).await;
    let refused = world.until_reason("orders", "NamespaceNotAllowed").await;
    let told = message(&refused, "Ready");
    let wanted = format!(
        "does not allow the namespace {:?}: its owner adds it to the annotation {ALLOWED}",
        world.namespace
    );
    assert!(told.contains(&wanted), "{told}");
    assert_eq!(verdict(&refused, "Stalled"), "True NamespaceNotAllowed");
    owner.annotate(CLUSTER, json!({ALLOWED: "somebody-else"})).await;
    assert!(world.proxy.seen().is_empty(), "nothing was asked of the broker");

    for list in [world.namespace.clone(), format!("somebody-else, {} ,x", world.namespace), "*".to_owned()] {
        owner.annotate(CLUSTER, json!({ALLOWED: list})).await;
        world.ready("orders").await;
        owner.annotate(CLUSTER, json!({ALLOWED: null})).await;
        world.until_reason("orders", "NamespaceNotAllowed").await;
    }
    // What was made with the owner's leave goes without it.
    world.delete("orders").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    leave(world, owner).await;
}

#[tokio::test]
async fn a_grant_that_is_withdrawn_stops_everything_and_one_that_returns_goes_on() {
    let mut world = World::new("tn-withdrawn").await;
    let owner = shared(&world, granted(&world, "orders.")).await;
    world.start();
    let spec = json!({"deletionPolicy": "Delete"});
    world.create(world.on_cluster(&owner, "orders", spec)).await;
    world.ready("orders").await;

    owner.annotate(CLUSTER, json!({GRANTS: null})).await;
    let refused = world.until_reason("orders", "NamespaceNotAllowed").await;
    let told = message(&refused, "Ready");
    let remedy = format!("{}={}:orders.exchange+orders.queue", world.namespace, world.vhost);
    assert!(told.contains(&format!("its owner adds {remedy:?} to the annotation {GRANTS}")), "{told}");
    world.proxy.forget();
    world.broker.delete(&["queues", &world.vhost, "orders.queue.retry.0"]).await;
    world.writes_nothing("without a grant nothing is repaired", Duration::from_secs(4)).await;

    // One malformed entry grants nothing, and nobody learns what it says.
    let malformed = format!("rival=/hidden:; {remedy}");
    owner.annotate(CLUSTER, json!({GRANTS: malformed})).await;
    let told = world
        .until("orders", "knows that the grants are malformed", |pipeline| {
            message(pipeline, "Ready").contains("grants nobody anything, since its entry 1")
        })
        .await;
    assert!(!message(&told, "Ready").contains("hidden"), "{}", describe(&told));
    assert!(world.proxy.writes().is_empty());

    // What the sentence said is enough.
    owner.annotate(CLUSTER, json!({GRANTS: remedy})).await;
    world.ready("orders").await;
    assert!(world.broker.exists("queues", &world.vhost, "orders.queue.retry.0").await);
    leave(world, owner).await;
}

/// What belongs to another tenant of the same vhost.
async fn rivals(world: &World) -> Vec<String> {
    let vhost = &world.vhost;
    let quorum = json!({"durable": true, "arguments": {"x-queue-type": "quorum"}});
    world.broker.put(&["queues", vhost, "bills.queue"], quorum).await;
    world
        .broker
        .put(&["exchanges", vhost, "bills.exchange"], json!({"type": "topic", "durable": true}))
        .await;
    world.broker.bind(vhost, "bills.exchange", "q", "bills.queue", "paid").await;
    world.broker.fill(vhost, "bills.queue", 3).await;
    world.broker.contents(vhost).await
}

/// Every field by which a pipeline could name what belongs to somebody else.
#[tokio::test]
async fn no_field_of_a_pipeline_reaches_another_tenants_names() {
    let mut world = World::new("tn-fields").await;
    let owner = shared(&world, granted(&world, "orders.")).await;
    let before = rivals(&world).await;
    world.start();
    let bills = json!({"exchange": "bills.exchange", "routingKey": "#"});
    let attempts = [
        (
            "source",
            json!({"source": {"queue": {"name": "bills.queue"}}}),
            "queue \"bills.queue\" (source.queue.name)",
        ),
        (
            "adopted",
            json!({"source": {"queue": {"name": "bills.queue"}}, "adopt": true}),
            "queue \"bills.queue\"",
        ),
        (
            "external",
            json!({
                "source": {"ownership": "External", "queue": {"name": "bills.queue"}, "bindings": []},
                "mergePolicy": true,
            }),
            "queue \"bills.queue\" (source.queue.name)",
        ),
        (
            "exchange",
            json!({"source": {"exchange": {"name": "bills.exchange"}}}),
            "exchange \"bills.exchange\"",
        ),
        ("bound", json!({"source": {"bindings": [bills]}}), "(source.bindings[0].exchange)"),
        ("tapped", json!({"source": {"bindings": [{"exchange": "amq.topic"}]}}), "exchange \"amq.topic\""),
        ("retry", json!({"retry": {"naming": {"template": "bills.{attempt}"}}}), "(retry.naming.template)"),
        ("dlq", json!({"deadLetter": {"name": "bills.queue"}}), "queue \"bills.queue\" (deadLetter.name)"),
        ("vhost", json!({"vhost": "/"}), "nothing on the vhost \"/\""),
    ];
    for (name, spec, _) in &attempts {
        let mut manifest = world.on_cluster(&owner, name, json!({}));
        // Whatever is not tried stays within the grant.
        manifest["spec"]["source"] = json!({
            "queue": {"name": format!("orders.{name}")},
            "exchange": {"name": format!("orders.{name}.exchange"), "type": "topic"},
            "bindings": [{"exchange": format!("orders.{name}.exchange"), "routingKey": "created"}],
        });
        if *name == "external" {
            manifest["spec"]["source"].as_object_mut().unwrap().remove("exchange");
        }
        merge(&mut manifest["spec"], spec.clone());
        world.create(manifest).await;
    }
    for (name, _, text) in &attempts {
        let refused = world.until_reason(name, "NamespaceNotAllowed").await;
        let told = message(&refused, "Ready");
        assert!(told.contains(text) && told.contains(GRANTS), "{name}: {told}");
        assert!(refused.status.unwrap().inventory.is_empty(), "{name}");
    }
    assert!(world.proxy.seen().is_empty(), "the broker is not even asked: {:#?}", world.proxy.seen());
    assert_eq!(world.broker.contents(&world.vhost).await, before);
    leave(world, owner).await;
}

/// An edit is looked at as a whole: nothing of it is done, and a deletion takes what was ours.
#[tokio::test]
async fn an_edit_that_reaches_out_changes_nothing_and_a_deletion_takes_ours_alone() {
    let mut world = World::new("tn-edit").await;
    let owner = shared(&world, granted(&world, "orders.")).await;
    let before = rivals(&world).await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({"deletionPolicy": "DeleteIfEmpty"}))).await;
    world.ready("orders").await;
    world.proxy.forget();
    let bindings = json!([
        {"exchange": "orders.exchange", "routingKey": "created"}, {"exchange": "bills.exchange", "routingKey": "#"},
    ]);
    let edit = json!({"source": {"bindings": bindings}, "deadLetter": {"name": "bills.queue"}});
    world.edit("orders", edit).await;
    let refused = world.until_reason("orders", "NamespaceNotAllowed").await;
    assert!(message(&refused, "Ready").contains("exchange \"bills.exchange\""), "{}", describe(&refused));
    assert!(world.proxy.writes().is_empty(), "{:#?}", world.proxy.writes());

    // Its queues hold something: the bindings are put back, and no others.
    world.broker.fill(&world.vhost, DLQ, 1).await;
    world.delete("orders").await;
    world.until_reason_of_deletion("QueueNotEmpty").await;
    let bound = world.broker.bindings(&world.vhost).await;
    assert!(!bound.iter().any(|line| line.starts_with("binding bills.exchange -> orders")), "{bound:#?}");
    world.broker.purge(&world.vhost, DLQ).await;
    world.until_gone("orders").await;
    let mut left = world.broker.contents(&world.vhost).await;
    left.retain(|line| !line.starts_with("exchange redrive.owner "));
    assert_eq!(left, before);
    leave(world, owner).await;
}

#[tokio::test]
async fn with_cluster_wide_rights_the_list_of_namespaces_decides_alone() {
    let mut world = World::new("tn-wide").await;
    world.settings.cluster_wide_rights = true;
    let owner = shared(&world, json!({ALLOWED: world.namespace})).await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    world.ready("orders").await;
    owner.annotate(CLUSTER, json!({ALLOWED: "somebody-else"})).await;
    world.until_reason("orders", "NamespaceNotAllowed").await;
    leave(world, owner).await;
}

/// A world with replays, dead letters and a grant of `orders.`.
async fn with_replays(purpose: &str, messages: usize) -> (World, Owner) {
    let mut world = World::for_replays(purpose).await;
    let owner = shared(&world, granted(&world, "orders.")).await;
    world.delete_secret().await;
    world.start();
    let policy = json!({"allowedTargets": ["WorkQueue", "Queue", "Exchange", "Origin"]});
    world.create(world.on_cluster(&owner, "orders", json!({"replayPolicy": policy}))).await;
    world.ready("orders").await;
    world.broker.fill(&world.vhost, DLQ, messages).await;
    (world, owner)
}

#[tokio::test]
async fn a_replay_works_with_the_clusters_user_and_within_the_grant() {
    let (world, owner) = with_replays("tn-replay", 4).await;
    rivals(&world).await;
    let attempts = [
        ("queue", json!({"to": {"queue": {"name": "bills.queue"}}}), "queue \"bills.queue\" (to.queue.name)"),
        (
            "exchange",
            json!({"to": {"exchange": {"name": "bills.exchange", "routingKey": "paid"}}}),
            "exchange \"bills.exchange\" (to.exchange.name)",
        ),
        (
            "topic",
            json!({"to": {"exchange": {"name": "amq.topic", "routingKey": "paid"}}}),
            "exchange \"amq.topic\" (to.exchange.name)",
        ),
    ];
    for (name, spec, text) in attempts {
        world.replay(name, spec).await;
        let refused = world.until_phase(name, "PreflightFailed").await;
        let told = text_of(&refused, "Succeeded");
        assert!(told.contains(text) && told.contains(GRANTS), "{name}: {told}");
        assert!(refused.status.unwrap().plan.is_none(), "{name}: nothing is read for it");
    }
    world.until_messages(&[(DLQ, 4), (SOURCE, 0), ("bills.queue", 3)]).await;
    world.replay("r", json!({"pace": {"messagesPerSecond": 100}})).await;
    world.until_phase("r", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 4), ("bills.queue", 3)]).await;
    leave(world, owner).await;
}

/// The header names an exchange of another tenant, which anybody who publishes may write.
#[tokio::test]
async fn a_forged_origin_leads_to_no_other_tenant() {
    let (world, owner) = with_replays("tn-origin", 0).await;
    rivals(&world).await;
    for exchange in ["bills.exchange", "amq.topic", ""] {
        let key = if exchange.is_empty() { "bills.queue" } else { "paid" };
        let headers = json!({"x-original-exchange": exchange, "x-original-routingKey": key});
        let body = json!({
            "properties": {"delivery_mode": 2, "headers": headers}, "routing_key": DLQ, "payload": "forged",
            "payload_encoding": "string",
        });
        world.broker.post(&["exchanges", &world.vhost, "amq.default", "publish"], body).await;
    }
    world.replay("r", json!({"to": {"origin": {}}, "allowFanout": true})).await;
    world
        .until_replay("r", "has ended", |replay| {
            replay.status.as_ref().is_some_and(|one| one.summary.is_some())
        })
        .await;
    world.until_messages(&[(DLQ, 3), ("bills.queue", 3)]).await;
    leave(world, owner).await;
}

#[tokio::test]
async fn a_replay_stops_once_its_rights_are_withdrawn() {
    let (world, owner) = with_replays("tn-stop", 200).await;
    let slowly = json!({"messagesPerSecond": 1, "batch": 1});
    world.replay("r", json!({"pace": slowly})).await;
    world.until_replay("r", "has moved something", |replay| moved(replay) > 0).await;
    owner.annotate(CLUSTER, json!({GRANTS: null})).await;
    let ended = world.until_phase("r", "Stopped").await;
    assert!(text_of(&ended, "Succeeded").contains("no longer grants"), "{}", text_of(&ended, "Succeeded"));
    let before = u64::try_from(moved(&ended)).unwrap();
    world.until_messages(&[(DLQ, 200 - before), (SOURCE, before)]).await;
    leave(world, owner).await;
}

#[tokio::test]
async fn a_replay_stops_once_the_grant_of_its_target_is_withdrawn() {
    let (world, owner) = with_replays("tn-target", 200).await;
    let vhost = &world.vhost;
    owner.annotate(CLUSTER, granted(&world, "orders.+spare.")).await;
    // The operator has seen it once a pipeline of that name is well, with the queue of that name.
    world.create(world.on_cluster(&owner, "spare", json!({}))).await;
    world.ready("spare").await;
    let slowly = json!({"messagesPerSecond": 1, "batch": 1});
    let target = json!({"pace": slowly, "to": {"queue": {"name": "spare.queue"}}});
    world.until("orders", "is left alone", |pipeline| verdict(pipeline, "Ready") == "True Reconciled").await;
    world.replay("r", target).await;
    world.until_replay("r", "has moved something", |replay| moved(replay) > 0).await;
    owner.annotate(CLUSTER, granted(&world, "orders.")).await;
    let ended = world.until_phase("r", "Stopped").await;
    assert!(
        text_of(&ended, "Succeeded").contains("queue \"spare.queue\""),
        "{}",
        text_of(&ended, "Succeeded")
    );
    // All is there once, and the rest where it was.
    eventually("nothing is lost", async || {
        let count = async |queue: &str| world.broker.totals(vhost, queue).await["messages"].as_u64();
        let (left, there) = (count(DLQ).await, count("spare.queue").await);
        let sum = left.zip(there).map(|(left, there)| left + there);
        if sum == Some(200) && there < Some(200) { Ok(()) } else { Err(format!("{left:?} {there:?}")) }
    })
    .await;
    leave(world, owner).await;
}

/// The roles of `admission/roles.yaml` by these names, with a change, bound to an account in this
/// world, which the operator uses from now on.
pub(crate) async fn account_with(world: &mut World, wanted: &[&str], change: impl Fn(&mut ClusterRole)) {
    let account = json!({"metadata": {"name": "redrive", "namespace": world.namespace}});
    let accounts = Api::<ServiceAccount>::namespaced(world.client.clone(), &world.namespace);
    accounts.create(&PostParams::default(), &serde_json::from_value(account).unwrap()).await.unwrap();
    let (roles, bindings) =
        (Api::<ClusterRole>::all(world.client.clone()), Api::<ClusterRoleBinding>::all(world.client.clone()));
    let file = std::fs::read_to_string("admission/roles.yaml").unwrap();
    let mut granted = Vec::new();
    for document in serde_yaml::Deserializer::from_str(&file) {
        let mut role: ClusterRole = serde::Deserialize::deserialize(document).unwrap();
        if !wanted.contains(&role.name_any().as_str()) {
            continue;
        }
        let name = format!("{}-{}", world.namespace, role.name_any());
        role.metadata.name = Some(name.clone());
        role.metadata.labels = None;
        change(&mut role);
        granted.push(roles.create(&PostParams::default(), &role).await.unwrap());
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "redrive", "namespace": world.namespace}],
        });
        let binding = serde_json::from_value(binding).unwrap();
        bindings.create(&PostParams::default(), &binding).await.unwrap();
    }
    let client = kubernetes::client_of_account(&world.client, &world.namespace, "redrive").await;
    until_granted(&client, granted).await;
    world.operators_client = Some(client);
}

/// Waits until the API server works by these roles, which it does a moment later.
async fn until_granted(client: &Client, roles: Vec<ClusterRole>) {
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    for rule in roles.into_iter().flat_map(|role| role.rules.unwrap_or_default()) {
        let name = rule.resource_names.and_then(|names| names.into_iter().next());
        let resource = rule.resources.unwrap_or_default().remove(0);
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource.as_str(), ""));
        let review = json!({"spec": {"resourceAttributes": {
            "group": rule.api_groups.unwrap_or_default()[0], "resource": resource, "subresource": subresource,
            "verb": rule.verbs[0], "name": name,
        }}});
        let review: SelfSubjectAccessReview = serde_json::from_value(review).unwrap();
        eventually("the account has its rights", async || {
            let answer = reviews.create(&PostParams::default(), &review).await.map_err(|e| e.to_string())?;
            if answer.status.unwrap().allowed { Ok(()) } else { Err(format!("{review:?}")) }
        })
        .await;
    }
}

pub(crate) async fn forget_roles(world: &World, names: &[&str]) {
    for name in names {
        let name = format!("{}-{name}", world.namespace);
        let params = DeleteParams::default();
        let _ = Api::<ClusterRoleBinding>::all(world.client.clone()).delete(&name, &params).await;
        let _ = Api::<ClusterRole>::all(world.client.clone()).delete(&name, &params).await;
    }
}

/// What the API server has recorded of this account's calls about a resource.
fn audited(world: &World, resource: &str) -> Vec<(String, String)> {
    let account = format!("system:serviceaccount:{}:redrive", world.namespace);
    let log = std::fs::read_to_string(variable("REDRIVE_AUDIT_LOG")).unwrap();
    let calls = log.lines().filter(|line| line.contains(&account)).filter_map(|line| {
        let call: Value = serde_json::from_str(line).ok()?;
        let is_it = call["user"]["username"] == account.as_str() && call["objectRef"]["resource"] == resource;
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        is_it.then(|| (word(&call["verb"]), word(&call["objectRef"]["name"])))
    });
    calls.collect()
}

#[tokio::test]
async fn the_roles_are_enough_and_secrets_are_read_by_name_alone() {
    let mut world = World::new("tn-roles").await;
    let owner = shared(&world, granted(&world, "")).await;
    let roles = ["redrive-operator", "redrive-operator-clusters"];
    account_with(&mut world, &roles, |_| {}).await;
    // What is noticed, the watch has shown.
    world.settings.poll_interval = Duration::from_secs(3_600);
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({"deletionPolicy": "Delete"}))).await;
    world.ready("orders").await;
    world.create_ready("stock", json!({"deletionPolicy": "Delete"})).await;
    owner.patch(CLUSTER, json!({"spec": {"replicas": 0}})).await;
    world.until_reason("orders", "ClusterScaledToZero").await;
    owner.patch(CLUSTER, json!({"spec": {"replicas": 1}})).await;
    world.ready("orders").await;
    // By the Service too, which leads nowhere here.
    let service = json!({"metadata": {"annotations": {"redrive.dev/amqp-uri": null}}});
    owner.patch(CLUSTER, service).await;
    let told = world.until_reason("orders", "BrokerUnreachable").await;
    assert!(message(&told, "Ready").contains("the Service \"rmq\""), "{}", describe(&told));
    owner.annotate(CLUSTER, world.addresses()).await;
    world.ready("orders").await;
    for name in ["orders", "stock"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    nothing_is_left(&world).await;

    let calls = audited(&world, "secrets");
    let read = |secret: &str| calls.iter().any(|(_, name)| name == secret);
    assert!(read("rmq-default-user") && read(SECRET), "both were read: {calls:?}");
    assert!(calls.iter().all(|(verb, _)| verb == "get"), "none was listed or watched: {calls:?}");
    forget_roles(&world, &roles).await;
    leave(world, owner).await;
}

#[tokio::test]
async fn an_operator_without_the_role_for_clusters_says_which_one_it_lacks() {
    let mut world = World::new("tn-norole").await;
    let owner = world.owner_here().await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    let roles = ["redrive-operator"];
    account_with(&mut world, &roles, |_| {}).await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    let told = world
        .until("orders", "misses the role", |pipeline| {
            message(pipeline, "Ready").contains("bind the role redrive-operator-clusters")
        })
        .await;
    assert_eq!(verdict(&told, "Stalled"), "False Progressing");
    // Secrets of their own are none the worse for it.
    world.create_ready("stock", json!({})).await;
    forget_roles(&world, &roles).await;
    world.leave().await;
}

/// Where the role is bound in the cluster's namespace alone, there is no watch.
#[tokio::test]
async fn an_operator_that_may_not_watch_clusters_notices_changes_by_its_polls() {
    let mut world = World::new("tn-nowatch").await;
    let owner = shared(&world, granted(&world, "orders.")).await;
    let roles = ["redrive-operator", "redrive-operator-clusters"];
    account_with(&mut world, &roles, |role| {
        for rule in role.rules.iter_mut().flatten() {
            let is_it = rule.resources.iter().flatten().any(|resource| resource == "rabbitmqclusters");
            rule.verbs.retain(|verb| !is_it || verb == "get");
        }
    })
    .await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    world.ready("orders").await;
    owner.annotate(CLUSTER, granted(&world, "carts.")).await;
    world.until_reason("orders", "NamespaceNotAllowed").await;
    forget_roles(&world, &roles).await;
    leave(world, owner).await;
}
