//! A deletion among troubles: one or two things that it needs go before it, after it or around it.
//! However they come, it ends; what is left is told, and nothing goes that nobody asked to go.
//!
//! `deletion_orders` has every order of four things that go for good. Here are those that come back
//! as well, RabbitmqClusters, and whole namespaces.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use reqwest::Method;
use serde_json::{Value, json};

use crate::deletion::{deletion, nothing_is_left};
use crate::support::clusters::{CLUSTER, Owner};
use crate::support::proxy::Action;
use crate::support::world::{SECRET, World, message};
use crate::support::{eventually, full};
use crate::tenants::{account_with, forget_roles};

/// Worlds at a time.
const AT_ONCE: usize = 4;

const ROLES: [&str; 2] = ["redrive-operator", "redrive-operator-clusters"];

/// What a deletion needs, and what ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The Secret with the credentials, of the pipeline or of its cluster.
    Secret,
    /// The rights of the operator's user in the vhost.
    BrokerRights,
    Vhost,
    /// The broker answers nobody.
    BrokerDown,
    /// The operator may read Secrets no more.
    KubernetesRights,
    /// The RabbitmqCluster.
    Cluster,
    Pipeline,
    /// The namespace, with the pipeline and its Secret.
    Namespace,
}
use Step::{
    BrokerDown, BrokerRights, Cluster, KubernetesRights, Namespace as WholeNamespace, Pipeline,
    Secret as TheSecret, Vhost,
};

const WITH_A_SECRET: [Step; 5] = [TheSecret, BrokerRights, Vhost, BrokerDown, KubernetesRights];
const WITH_A_CLUSTER: [Step; 5] = [TheSecret, Vhost, BrokerDown, KubernetesRights, Cluster];

/// Each trouble before and after the end.
fn singles(troubles: &[Step], end: Step) -> Vec<Vec<Step>> {
    troubles.iter().flat_map(|trouble| [vec![*trouble, end], vec![end, *trouble]]).collect()
}

/// Each two troubles in every order with the end.
fn pairs(troubles: &[Step], end: Step) -> Vec<Vec<Step>> {
    let mut orders = Vec::new();
    for (index, one) in troubles.iter().copied().enumerate() {
        for other in troubles[index + 1..].iter().copied() {
            orders.extend([[one, other, end], [one, end, other], [end, one, other]].map(Vec::from));
            orders.extend([[other, one, end], [other, end, one], [end, other, one]].map(Vec::from));
        }
    }
    orders
}

/// A world with the pipeline `orders`, and what the troubles need.
struct Case {
    world: World,
    owner: Option<Owner>,
    order: Vec<Step>,
    policy: &'static str,
}

impl Case {
    async fn start(policy: &'static str, order: Vec<Step>, on_cluster: bool) -> Self {
        let mut world = World::new("trouble").await;
        if order.contains(&KubernetesRights) {
            account_with(&mut world, &ROLES, |role| {
                let is_secrets = |resource: &String| resource == "secrets";
                for rule in role.rules.iter_mut().flatten() {
                    rule.resources.iter_mut().for_each(|resources| resources.retain(|one| !is_secrets(one)));
                }
                role.rules.iter_mut().for_each(|rules| {
                    rules.retain(|rule| {
                        rule.resources.as_ref().is_some_and(|resources| !resources.is_empty())
                    });
                });
            })
            .await;
            let role = json!({
                "metadata": {"name": secrets_role(&world)},
                "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
            });
            let roles = Api::<ClusterRole>::all(world.client.clone());
            roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
            give_rights(&world).await;
        }
        world.start();
        let owner = if on_cluster {
            let owner = world.owner_here().await;
            owner.create(CLUSTER, &world.broker, world.addresses()).await;
            world.create(world.on_cluster(&owner, "orders", deletion(policy))).await;
            Some(owner)
        } else {
            world.create(world.manifest("orders", deletion(policy))).await;
            None
        };
        world.ready("orders").await;
        Self { world, owner, order, policy }
    }

    async fn take(&self, step: Step) {
        let world = &self.world;
        match (step, &self.owner) {
            (TheSecret, Some(_)) => delete_secret(world, "rmq-default-user").await,
            (TheSecret, None) => delete_secret(world, SECRET).await,
            (BrokerRights, _) => {
                let path = ["permissions", &world.vhost, &world.namespace];
                world.broker.call(Method::DELETE, &path, Value::Null).await;
            }
            (Vhost, _) => world.broker.delete(&["vhosts", &world.vhost]).await,
            (BrokerDown, _) => world.proxy.rule(|_| Action::Cut),
            (KubernetesRights, _) => take_rights(world).await,
            (Cluster, Some(owner)) => owner.delete_if_there(CLUSTER).await,
            (Cluster, None) => unreachable!("only where there is one"),
            (Pipeline, _) => world.delete("orders").await,
            (WholeNamespace, _) => {
                let namespaces = Api::<Namespace>::all(world.client.clone());
                namespaces.delete(&world.namespace, &DeleteParams::default()).await.unwrap();
            }
        }
    }

    /// Runs the whole of it.
    async fn ends(self) {
        let before = self.contents().await;
        for step in &self.order {
            self.take(*step).await;
        }
        let what = format!("{} {:?}", self.policy, self.order);
        if self.order.contains(&KubernetesRights) {
            // Whether they were needed by then or not.
            give_rights(&self.world).await;
        }
        self.world.until_gone("orders").await;
        let after = self.contents().await;
        if self.policy == "Retain" && !self.order.contains(&Vhost) {
            assert_eq!(after, before, "{what}: nobody asked for a deletion");
        }
        self.assert_told(&after, &what).await;
        if self.order.contains(&KubernetesRights) {
            forget_roles(&self.world, &ROLES).await;
            forget_roles(&self.world, &["secrets"]).await;
        }
        self.world.leave().await;
    }

    /// What stays is told, and goes on working.
    async fn assert_told(&self, after: &[String], what: &str) {
        let stays = after.iter().any(|line| line.starts_with("queue \"orders.queue\" "));
        // Where the cluster is gone, nobody cleans up after it; events of a namespace go with it.
        let nobody_listens = self.order.contains(&WholeNamespace) || self.order.contains(&Cluster);
        if !stays || nobody_listens {
            return;
        }
        let event = self.world.until_event("orders", "Orphaned").await;
        assert!(event.contains("queue orders.queue"), "{what}: {event}");
        let bound = after.iter().any(|line| line.starts_with("binding orders.exchange -> orders.queue "));
        assert!(bound || event.contains("could not be put back"), "{what}: {event}\n{after:#?}");
    }

    /// What the vhost holds; nothing where it is gone.
    async fn contents(&self) -> Vec<String> {
        let (status, _) =
            self.world.broker.call(Method::GET, &["vhosts", &self.world.vhost], Value::Null).await;
        if status.is_success() { self.world.broker.contents(&self.world.vhost).await } else { Vec::new() }
    }
}

async fn delete_secret(world: &World, name: &str) {
    let secrets = Api::<Secret>::namespaced(world.client.clone(), &world.namespace);
    let _ = secrets.delete(name, &DeleteParams::default()).await;
}

fn secrets_role(world: &World) -> String {
    format!("{}-secrets", world.namespace)
}

/// Lets the operator read Secrets.
async fn give_rights(world: &World) {
    let binding = json!({
        "metadata": {"name": secrets_role(world)},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": secrets_role(world)},
        "subjects": [{"kind": "ServiceAccount", "name": "redrive", "namespace": world.namespace}],
    });
    let bindings = Api::<ClusterRoleBinding>::all(world.client.clone());
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    until_secrets_answer(world, false).await;
}

/// Withdraws that right.
async fn take_rights(world: &World) {
    let bindings = Api::<ClusterRoleBinding>::all(world.client.clone());
    bindings.delete(&secrets_role(world), &DeleteParams::default()).await.unwrap();
    until_secrets_answer(world, true).await;
}

/// The API server takes a moment to work by a change of rights.
async fn until_secrets_answer(world: &World, refused: bool) {
    let client = world.operators_client.clone().unwrap();
    let secrets = Api::<Secret>::namespaced(client, &world.namespace);
    eventually("the rights count", async || {
        let answer = secrets.get_opt(SECRET).await;
        let is_refused = match &answer {
            Err(kube::Error::Api(status)) => match status.code {
                403 => true,
                // The account went with its namespace.
                401 => return Ok(()),
                _ => false,
            },
            _ => false,
        };
        if is_refused == refused { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
}

async fn all_end(policy: &'static str, orders: Vec<Vec<Step>>, on_cluster: bool) {
    let runs = orders
        .into_iter()
        .map(|order| async move { Case::start(policy, order, on_cluster).await.ends().await });
    futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

/// Every order where there is time, and each fourth where not.
fn all_or_some(orders: Vec<Vec<Step>>) -> Vec<Vec<Step>> {
    let step = if full("three of four orders of two troubles") { 1 } else { 4 };
    orders.into_iter().step_by(step).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_troubles_in_every_order_stop_no_deletion() {
    let orders = pairs(&WITH_A_SECRET, Pipeline);
    assert_eq!(orders.len(), 60);
    all_end("Delete", all_or_some(orders), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_troubles_in_every_order_stop_no_deletion_on_a_cluster() {
    let orders = pairs(&WITH_A_CLUSTER, Pipeline);
    assert_eq!(orders.len(), 60);
    all_end("Delete", all_or_some(orders), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_trouble_stops_one_that_waits_for_empty_queues() {
    all_end("DeleteIfEmpty", singles(&WITH_A_SECRET, Pipeline), false).await;
    all_end("DeleteIfEmpty", singles(&WITH_A_CLUSTER, Pipeline), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_trouble_makes_retain_delete_anything() {
    all_end("Retain", singles(&WITH_A_SECRET, Pipeline), false).await;
    all_end("Retain", singles(&WITH_A_CLUSTER, Pipeline), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_namespace_goes_among_troubles() {
    // The operator's account is in it, so that its rights go anyway.
    let with_secret = [TheSecret, BrokerRights, Vhost, BrokerDown];
    let with_cluster = [TheSecret, Vhost, BrokerDown, Cluster];
    for policy in ["Retain", "DeleteIfEmpty", "Delete"] {
        all_end(policy, singles(&with_secret, WholeNamespace), false).await;
        all_end(policy, singles(&with_cluster, WholeNamespace), true).await;
    }
}

/// An operator that was restarted knows no password, and may not read it: that is no reason to let go.
#[tokio::test]
async fn a_right_that_is_missing_keeps_the_finalizer_until_it_is_back() {
    for policy in ["Delete", "DeleteIfEmpty"] {
        let mut case = Case::start(policy, vec![KubernetesRights], false).await;
        case.world.stop().await;
        case.take(KubernetesRights).await;
        case.world.delete("orders").await;
        case.world.start();
        let why =
            "the operator may not read the Secret \"rabbit-connection\": bind the role redrive-operator";
        case.world
            .until("orders", "says what it lacks", |told| message(told, "Ready").starts_with(why))
            .await;
        // Longer than it waits for what is gone.
        tokio::time::sleep(case.world.settings.release_after + Duration::from_secs(2)).await;
        assert!(case.world.get("orders").await.metadata.finalizers.is_some(), "{policy}");
        give_rights(&case.world).await;
        case.world.until_gone("orders").await;
        nothing_is_left(&case.world).await;
        forget_roles(&case.world, &ROLES).await;
        forget_roles(&case.world, &["secrets"]).await;
        case.world.leave().await;
    }
}
