//! Who takes part: people with client certificates, and the operator's service account.

use std::process::Command;

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use redrive::api::DlqReplay;
use serde_json::{Value, json};

use crate::support::world::World;
use crate::support::{eventually, kubernetes};

pub(crate) const REQUESTER: &str = "requester@example.com";
pub(crate) const APPROVER: &str = "approver@example.com";

const RBAC: &str = "rbac.authorization.k8s.io";

/// Somebody with a certificate.
pub(crate) struct Person {
    namespace: String,
    client: Client,
    kubeconfig: String,
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) errors: String,
    pub(crate) output: String,
}

impl Person {
    /// A person who holds these roles in the world's namespace.
    pub(crate) async fn new(world: &World, name: &str, roles: &[&str]) -> Self {
        let (client, kubeconfig) = kubernetes::client_of(name).await;
        let kubeconfig = kubeconfig.expect("a cluster of hack/dev, which makes users");
        let subject = json!({"kind": "User", "name": name, "apiGroup": RBAC});
        for role in roles {
            bind(world, &format!("{}-{role}", name.replace('@', "-")), role, &subject).await;
        }
        let person = Self { namespace: world.namespace.clone(), client, kubeconfig };
        until_may(&person.client, &person.namespace, "dlqreplays", "update").await;
        person
    }

    /// Runs our command as this person.
    pub(crate) fn redrive(&self, arguments: &[&str]) -> Said {
        let output = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(arguments)
            .args(["--namespace", &self.namespace, "--kubeconfig", &self.kubeconfig])
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap(), errors: text(output.stderr), output: text(output.stdout) }
    }

    /// Approves in a name, without our command.
    pub(crate) async fn set_approval(&self, replay: &str, name: &str, hash: &str) -> Result<(), String> {
        let approval = json!({"approvedBy": name, "maxMessages": 6, "planHash": hash});
        let patch = Patch::Merge(json!({"spec": {"approval": approval}}));
        let api: Api<DlqReplay> = Api::namespaced(self.client.clone(), &self.namespace);
        let answer = api.patch(replay, &PatchParams::default(), &patch).await;
        answer.map(|_| ()).map_err(|error| error.to_string())
    }
}

/// A client of the operator's service account, with the roles that docs/permissions.md binds.
pub(crate) async fn operator(world: &World) -> Client {
    let accounts = Api::<ServiceAccount>::namespaced(world.client.clone(), &world.namespace);
    let account = serde_json::from_value(json!({"metadata": {"name": "redrive"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let subject = json!({"kind": "ServiceAccount", "name": "redrive", "namespace": world.namespace});
    bind(world, "workers", "redrive-operator-workers", &subject).await;
    let everywhere = json!({
        "metadata": {"name": world.namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "redrive-operator"},
        "subjects": [subject],
    });
    let bindings = Api::<ClusterRoleBinding>::all(world.client.clone());
    bindings.create(&PostParams::default(), &serde_json::from_value(everywhere).unwrap()).await.unwrap();
    let client = kubernetes::client_of_account(&world.client, &world.namespace, "redrive").await;
    until_may(&client, &world.namespace, "retrypipelines/status", "patch").await;
    client
}

/// Takes the operator's rights in the whole cluster away again.
pub(crate) async fn dismiss_operator(world: &World) {
    let bindings = Api::<ClusterRoleBinding>::all(world.client.clone());
    bindings.delete(&world.namespace, &DeleteParams::default()).await.unwrap();
}

async fn bind(world: &World, name: &str, role: &str, subject: &Value) {
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    });
    let bindings = Api::<RoleBinding>::namespaced(world.client.clone(), &world.namespace);
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
}

/// The API server learns of a binding a moment later.
async fn until_may(client: &Client, namespace: &str, resource: &str, verb: &str) {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = json!({
        "namespace": namespace, "verb": verb, "group": "redrive.dev", "resource": resource,
        "subresource": subresource,
    });
    let review: SelfSubjectAccessReview =
        serde_json::from_value(json!({"spec": {"resourceAttributes": attributes}})).unwrap();
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    eventually("the role is in effect", async || {
        let answer =
            reviews.create(&PostParams::default(), &review).await.map_err(|error| error.to_string())?;
        let status = answer.status.unwrap_or_default();
        if status.allowed { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}
