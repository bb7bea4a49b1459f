//! A worker that really runs in a pod, on the development cluster's own node.

use std::process::Command;
use std::sync::OnceLock;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{EvictParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use redrive::controller::{AuditStream, RunnerKind};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::replay_audit::records;
use crate::support::application::ids;
use crate::support::clusters::CLUSTER;
use crate::support::replays::{DLQ, SOURCE, moved, phase_of};
use crate::support::world::{SECRET, World};
use crate::support::{eventually, variable};

pub(crate) const IMAGE: &str = "localhost/redrive:dev";

/// The broker's password in this test, which stands in no other text.
const PASSWORD: &str = "geheim-7f3a91";

/// The command of this build as an image on the node.
pub(crate) fn make_image() {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| {
        let output = Command::new(variable("REDRIVE_DEV"))
            .args(["image", env!("CARGO_BIN_EXE_redrive")])
            .env("REDRIVE_DEV_NAME", variable("REDRIVE_DEV_NAME"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}

async fn create<K>(world: &World, object: Value)
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + serde::Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    Api::<K>::namespaced(world.client.clone(), &world.namespace)
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
}

/// A worker's account, with no more rights than it needs; none of them on Secrets.
async fn make_account(world: &World) {
    let name = json!({"name": "redrive-replay-worker"});
    create::<ServiceAccount>(world, json!({"metadata": name})).await;
    let rules = json!([
        {"apiGroups": ["redrive.dev"], "resources": ["dlqreplays", "retrypipelines"], "verbs": ["get", "watch"]},
        {"apiGroups": ["redrive.dev"], "resources": ["dlqreplays/status"], "verbs": ["patch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update", "delete"]},
    ]);
    create::<Role>(world, json!({"metadata": name, "rules": rules})).await;
    let binding = json!({
        "metadata": name,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "redrive-replay-worker"},
        "subjects": [{"kind": "ServiceAccount", "name": "redrive-replay-worker", "namespace": world.namespace}],
    });
    create::<RoleBinding>(world, binding).await;
}

/// The pod that works at present.
async fn running_pod(world: &World, not: Option<&str>) -> Pod {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &world.namespace);
    eventually("a pod runs", async || {
        let found = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let phase =
            |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let seen: Vec<String> =
            found.iter().map(|pod| format!("{} {}", pod.name_any(), phase(pod))).collect();
        let it =
            found.into_iter().find(|pod| phase(pod) == "Running" && Some(pod.name_any().as_str()) != not);
        it.ok_or_else(|| format!("{seen:?}"))
    })
    .await
}

/// Nothing that is secret is in a pod's description, and it runs with no rights on the node.
fn check_pod(pod: &Pod) {
    let spec = serde_json::to_value(&pod.spec).unwrap();
    assert!(!spec.to_string().contains(PASSWORD), "{spec}");
    let container = &spec["containers"][0];
    assert!(container["env"].is_null() && container["envFrom"].is_null(), "{container}");
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    let security = &container["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
}

/// The node, on which nothing new starts as long as this lives.
struct Cordoned(String);

impl Cordoned {
    async fn new(world: &World) -> Self {
        let nodes: Api<Node> = Api::all(world.client.clone());
        let node = nodes.list(&ListParams::default()).await.unwrap().items.remove(0).name_any();
        nodes.cordon(&node).await.unwrap();
        Self(node)
    }
}

impl Drop for Cordoned {
    fn drop(&mut self) {
        let uncordoned = Command::new("kubectl").args(["uncordon", &self.0]).output().unwrap();
        assert!(uncordoned.status.success(), "{}", String::from_utf8_lossy(&uncordoned.stderr));
    }
}

/// A worker that can do its work only in a pod, with a durable trail that it can't do without.
async fn with_pods(purpose: &str) -> World {
    make_image();
    let mut world = World::for_replays(purpose).await;
    make_account(&world).await;
    world.as_user(PASSWORD, "administrator", ".*").await;
    let audit = AuditStream { vhost: world.vhost.clone(), secret: SECRET.to_owned() };
    let replays = &mut world.settings.replays;
    replays.runner = RunnerKind::Job;
    replays.image = IMAGE.to_owned();
    replays.host_network = true;
    replays.audit = Some(audit);
    world.start();
    world.create_ready("orders", json!({"replayPolicy": {"audit": "Required"}})).await;
    world
}

/// What was made for a run goes with it.
pub(crate) async fn until_nothing_is_left(world: &World) {
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), &world.namespace);
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &world.namespace);
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), &world.namespace);
    eventually("Job, pods and Secret of the run are gone", async || {
        let jobs: Vec<_> =
            jobs.list(&ListParams::default()).await.unwrap().iter().map(Job::name_any).collect();
        let pods: Vec<_> =
            pods.list(&ListParams::default()).await.unwrap().iter().map(Pod::name_any).collect();
        let secrets = secrets.list(&ListParams::default()).await.unwrap();
        let secrets: Vec<_> =
            secrets.iter().map(Secret::name_any).filter(|name| name.starts_with("redrive-replay-")).collect();
        if jobs.is_empty() && pods.is_empty() && secrets.is_empty() {
            return Ok(());
        }
        Err(format!("{jobs:?} {pods:?} {secrets:?}"))
    })
    .await;
}

/// At two a second they take longer than anything that happens to their worker.
const LETTERS: u64 = 200;

#[tokio::test]
async fn a_worker_in_a_pod_whose_node_is_drained_is_followed_by_one_that_goes_on() {
    let mut world = with_pods("rj-pod").await;
    let letters = Vec::from_iter(ids("m", usize::try_from(LETTERS).unwrap()));
    for id in &letters {
        world.bury(id, json!({})).await;
    }
    world.replay("r", json!({"pace": {"messagesPerSecond": 2, "batch": 2, "window": 4}})).await;
    let first = running_pod(&world, None).await;
    check_pod(&first);
    world.until_replay("r", "has moved something", |replay| moved(replay) >= 8).await;
    // As `kubectl drain` does it: nothing new comes to the node, and what is there has to go.
    let node = Cordoned::new(&world).await;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &world.namespace);
    pods.evict(&first.name_any(), &EvictParams::default()).await.unwrap();
    eventually("another pod waits for a node", async || {
        let found = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let seen: Vec<_> = found.iter().map(|pod| (pod.name_any(), pod.status.clone())).collect();
        let waits = |(name, status): &(String, Option<PodStatus>)| {
            *name != first.name_any()
                && status.as_ref().is_some_and(|one| one.phase.as_deref() == Some("Pending"))
        };
        if seen.len() == 1 && seen.iter().all(waits) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    // Meanwhile nothing is held, and nothing is lost.
    let held = world.replays().get("r").await.unwrap();
    let gone = u64::try_from(moved(&held)).unwrap();
    assert!(gone < LETTERS, "{gone}");
    world.until_messages(&[(DLQ, LETTERS - gone), (SOURCE, gone)]).await;
    drop(node);
    world.edit_replay("r", json!({"pace": {"messagesPerSecond": 100}})).await;
    running_pod(&world, Some(&first.name_any())).await;
    let replay = world.until_phase("r", "Completed").await;
    let summary = replay.status.unwrap().summary.unwrap();
    assert_eq!(
        (u64::try_from(summary.replayed).unwrap(), summary.duplicates_possible),
        (LETTERS, 0),
        "{summary:?}"
    );
    world.until_messages(&[(DLQ, 0), (SOURCE, LETTERS)]).await;
    assert_eq!(world.emptied(SOURCE).await, letters);
    // Both workers wrote into the trail, each message once.
    let (success, records, errors) = records(&world, "r");
    let mut recorded: Vec<_> = records.iter().map(|record| record["messageId"].as_str().unwrap()).collect();
    recorded.sort_unstable();
    assert!(success && recorded == letters, "{errors} {recorded:?}");
    until_nothing_is_left(&world).await;
    // Whatever restarts, it does not.
    world.stop().await;
    world.start();
    world.looked_at(2).await;
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), &world.namespace);
    assert!(jobs.list(&ListParams::default()).await.unwrap().items.is_empty());
    assert_eq!(phase_of(&world.replays().get("r").await.unwrap()), "Completed");
    world.leave().await;
}

/// With credentials that nothing in the pipeline's namespace holds.
#[tokio::test]
async fn a_worker_in_a_pod_comes_as_the_user_of_a_cluster() {
    make_image();
    let mut world = World::for_replays("rj-cluster").await;
    make_account(&world).await;
    world.delete_secret().await;
    let owner = world.owner().await;
    let mut annotations = world.addresses();
    annotations["rabbitmq.com/topology-allowed-namespaces"] = json!(world.namespace);
    annotations["redrive.dev/grants"] = json!(format!("{}={}:orders.", world.namespace, world.vhost));
    owner.create(CLUSTER, &world.broker, annotations).await;
    let replays = &mut world.settings.replays;
    replays.runner = RunnerKind::Job;
    replays.image = IMAGE.to_owned();
    replays.host_network = true;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    world.ready("orders").await;
    world.broker.fill(&world.vhost, DLQ, 10).await;
    world.replay("r", json!({"pace": {"messagesPerSecond": 100}})).await;
    world.until_phase("r", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 10)]).await;
    until_nothing_is_left(&world).await;
    owner.leave().await;
    world.leave().await;
}
