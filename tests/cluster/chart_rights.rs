//! The rights that the chart gives, against all that the operator and its workers ask the API
//! server for: nothing is refused, and nothing is given in vain.

use std::collections::BTreeSet;

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Api;
use kube::api::PostParams;
use redrive::controller::RunnerKind;
use serde_json::{Value, json};

use crate::replay_job::{IMAGE, make_image, until_nothing_is_left};
use crate::support::clusters::{CLUSTER, Owner};
use crate::support::helm::{Helm, objects};
use crate::support::kubectl;
use crate::support::kubernetes;
use crate::support::replays::DLQ;
use crate::support::rights::{Rights, granted};
use crate::support::world::World;
use crate::support::{eventually, variable};

const WORKER: &str = "redrive-replay-worker";

/// Rights that no call in the log shows, and why they are needed.
const UNSEEN: &[(&str, &str)] = &[
    ("/secrets/* create", "a patch that applies what isn't there yet needs it, and is logged as a patch"),
    (
        "batch/jobs/finalizers/* update",
        "asked for where OwnerReferencesPermissionEnforcement is on, as on OpenShift",
    ),
];

/// The accounts and rights of a release in this world's namespace, which the operator uses from
/// now on.
fn install(world: &World, values: &[String]) -> Vec<Value> {
    let namespace = &world.namespace;
    let (name, place) = (format!("--set=fullnameOverride={namespace}"), format!("--namespace={namespace}"));
    let off = "--set=crds.enabled=false,people.create=false,admission.mode=Off";
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let mut rendered = objects(&Helm::Four.template(&[&[off, &name, &place], &values[..]].concat()));
    let kinds = ["ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"];
    rendered.retain(|object| kinds.contains(&object["kind"].as_str().unwrap()));
    kubectl::say_to(&["apply", "--filename=-"], &list(&rendered));
    rendered
}

/// Waits until the API server works by these rights, which it does a moment later.
async fn until_granted(world: &World, rendered: &[Value]) {
    let reviews = Api::<SubjectAccessReview>::all(world.client.clone());
    for ((account, namespace), rights) in granted(rendered) {
        let (object, verb) = rights.first().unwrap().rsplit_once(' ').unwrap();
        let mut parts = object.split('/');
        let (group, resource) = (parts.next(), parts.next());
        let review = json!({"spec": {
            "user": format!("system:serviceaccount:{}:{account}", world.namespace),
            "resourceAttributes": {
                "namespace": namespace, "group": group, "resource": resource, "verb": verb,
                "subresource": parts.clone().nth(1).and_then(|_| parts.next()),
                "name": parts.next().filter(|name| *name != "*"),
            },
        }});
        let review: SubjectAccessReview = serde_json::from_value(review).unwrap();
        eventually(&format!("{account} may {verb} {object}"), async || {
            let answer = reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap();
            if answer.allowed { Ok(()) } else { Err(format!("{:?}", answer.reason)) }
        })
        .await;
    }
}

fn list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

/// A call as a right: its namespace, and `group/resource/name verb`.
type Call = (String, String);

/// What an account has asked for, and what of it was refused.
fn calls(world: &World, account: &str) -> (BTreeSet<Call>, BTreeSet<String>) {
    let user = format!("system:serviceaccount:{}:{account}", world.namespace);
    let log = std::fs::read_to_string(variable("REDRIVE_AUDIT_LOG")).unwrap();
    let (mut made, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for line in log.lines().filter(|line| line.contains(&user)) {
        let Ok(call) = serde_json::from_str::<Value>(line) else { continue };
        if call["user"]["username"] != user.as_str() {
            continue;
        }
        let about = &call["objectRef"];
        let word = |key: &str| about[key].as_str().unwrap_or_default().to_owned();
        let part = about["subresource"].as_str().map(|part| format!("/{part}")).unwrap_or_default();
        let verb = call["verb"].as_str().unwrap_or_default();
        let resource = format!("{}/{}{part}", word("apiGroup"), word("resource"));
        if call["responseStatus"]["code"] == 403 {
            let name = if word("name").is_empty() { "*".to_owned() } else { word("name") };
            refused.insert(format!("{resource}/{name} {verb}"));
        } else {
            made.insert((word("namespace"), format!("{resource}/{} {verb}", word("name"))));
        }
    }
    (made, refused)
}

/// Whether a call uses a right that holds in a namespace, or in all where it is empty.
fn uses((called_in, call): &Call, namespace: &str, right: &str) -> bool {
    let split = |text: &str| -> (String, String, String) {
        let (object, verb) = text.rsplit_once(' ').unwrap();
        let (resource, name) = object.rsplit_once('/').unwrap();
        (resource.to_owned(), name.to_owned(), verb.to_owned())
    };
    let ((resource, name, verb), (called, of, by)) = (split(right), split(call));
    resource == called
        && verb == by
        && (name == "*" || name == of)
        && (namespace.is_empty() || namespace == called_in)
}

fn unused(rights: &Rights, namespace: &str, calls: &BTreeSet<Call>) -> Vec<String> {
    let is_seen = |right: &&String| !calls.iter().any(|call| uses(call, namespace, right));
    let is_known = |right: &&String| !UNSEEN.iter().any(|(unseen, _)| *unseen == right.as_str());
    rights.iter().filter(is_seen).filter(is_known).cloned().collect()
}

/// A replay in pods that goes on for longer than its Lease waits to be renewed, and is deleted
/// when its time is over.
async fn replay_in_a_pod(world: &World) {
    world.broker.fill(&world.vhost, DLQ, 40).await;
    let spec = json!({"pace": {"messagesPerSecond": 5, "batch": 5}, "ttlAfterFinished": "1s"});
    world.replay("in-a-pod", spec).await;
    world.until_replay_is_gone("in-a-pod").await;
    until_nothing_is_left(world).await;
}

async fn replay_in_process(world: &mut World) {
    world.stop().await;
    world.settings.replays.runner = RunnerKind::InProcess;
    world.start();
    world.broker.fill(&world.vhost, DLQ, 40).await;
    world.replay("in-process", json!({"pace": {"messagesPerSecond": 5, "batch": 5}})).await;
    world.until_phase("in-process", "Completed").await;
}

/// One that asks for an approval has the policies looked at, which aren't there.
async fn ask_for_approval(world: &World) {
    let policy = json!({"requireApproval": true, "messagesWithoutApproval": 0});
    world.edit("orders", json!({"replayPolicy": policy})).await;
    world.ready("orders").await;
    world.broker.fill(&world.vhost, DLQ, 1).await;
    world.replay("asked", json!({})).await;
    world.until_phase("asked", "ApprovalUnverifiable").await;
}

/// A pipeline on a cluster whose addresses stand in its Service at first.
async fn use_a_cluster(world: &World, owner: &Owner) {
    let mut annotations = world.addresses();
    annotations["rabbitmq.com/topology-allowed-namespaces"] = json!(world.namespace);
    annotations["redrive.dev/grants"] = json!(format!("{}={}:carts.", world.namespace, world.vhost));
    let amqp = annotations.as_object_mut().unwrap().remove("redrive.dev/amqp-uri").unwrap();
    owner.create(CLUSTER, &world.broker, annotations).await;
    world.create(world.on_cluster(owner, "carts", json!({"deletionPolicy": "Delete"}))).await;
    world.until_reason("carts", "BrokerUnreachable").await;
    owner.annotate(CLUSTER, json!({"redrive.dev/amqp-uri": amqp})).await;
    world.ready("carts").await;
}

/// Does all that an operator does, with the rights that the chart gives with these values.
/// Returns what is wrong with them.
async fn work_with(mut world: World, owner: Owner, values: &[String]) -> Vec<String> {
    make_image();
    let rendered = install(&world, values);
    until_granted(&world, &rendered).await;
    let account = world.namespace.clone();
    let client = kubernetes::client_of_account(&world.client, &world.namespace, &account).await;
    world.operators_client = Some(client);
    let replays = &mut world.settings.replays;
    replays.runner = RunnerKind::Job;
    replays.image = IMAGE.to_owned();
    replays.host_network = true;
    replays.allow_unverified_approval = false;
    world.start();
    world.create_ready("orders", json!({"deletionPolicy": "Delete"})).await;
    use_a_cluster(&world, &owner).await;
    replay_in_a_pod(&world).await;
    replay_in_process(&mut world).await;
    ask_for_approval(&world).await;
    for name in ["orders", "carts"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    world.stop().await;

    let granted = granted(&rendered);
    assert!(granted.keys().any(|(account, _)| account == WORKER), "{granted:?}");
    let mut wrong = BTreeSet::new();
    for ((account, namespace), rights) in granted {
        let (made, refused) = calls(&world, &account);
        assert!(!made.is_empty(), "the log has no call of {account}");
        let account = if account == WORKER { "a worker" } else { "the operator" };
        wrong.extend(refused.into_iter().map(|call| format!("{account} may not: {call}")));
        let unused = unused(&rights, &namespace, &made);
        wrong.extend(
            unused.into_iter().map(|right| format!("{account} never uses in {namespace:?}: {right}")),
        );
    }
    kubectl::say_to(&["delete", "--ignore-not-found", "--wait=false", "--filename=-"], &list(&rendered));
    owner.leave().await;
    world.leave().await;
    wrong.into_iter().collect()
}

#[tokio::test]
async fn every_right_is_used_and_none_is_missing() {
    let world = World::for_replays("chart-rights").await;
    let owner = world.owner().await;
    assert_eq!(work_with(world, owner, &[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn with_a_list_of_namespaces_as_well() {
    let world = World::for_replays("chart-scoped").await;
    let owner = world.owner().await;
    let values = [
        format!("--set=watchNamespaces={{{}}}", world.namespace),
        format!("--set=rabbitmqClusters.namespaces={{{}}}", owner.namespace),
        "--set=rbac.readPolicies=true".to_owned(),
    ];
    // Whether it may watch clusters beside its pipelines, it finds out by asking.
    let asked = "the operator may not: rabbitmq.com/rabbitmqclusters/* list";
    assert_eq!(work_with(world, owner, &values).await, [asked]);
}
