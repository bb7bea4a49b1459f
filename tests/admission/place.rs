//! A namespace in which our policies hold, and people and service accounts who try their luck.
//!
//! Policies hold in the whole cluster, but other tests create replays in other people's names.
//! So each test installs copies under names of its own that look at its own namespaces only;
//! all else in them is as in `admission/`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use redrive::api::GROUP;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::kubernetes::{self, client_of};
use crate::people::Person;
use crate::{base, merged};

/// In the order in which they are installed: once the last one holds, all of them do, as the API
/// server learns of policies one after the other.
const MANIFESTS: [&str; 5] = [
    include_str!("../../admission/replay-requester.yaml"),
    include_str!("../../admission/pipeline-floor.yaml"),
    include_str!("../../admission/replay-worker-status.yaml"),
    include_str!("../../admission/replay-after-approval.yaml"),
    include_str!("../../admission/replay-identity.yaml"),
];
const ROLES: &str = include_str!("../../admission/roles.yaml");

/// By this label of a namespace the copies know where they hold.
const LABEL: &str = "redrive.dev/test-policies";

/// Each role with something that it allows and that none of the lesser ones does.
const ROLE_MARKS: [(&str, &str, &str); 7] = [
    ("redrive-viewer", "list", "dlqreplays"),
    ("redrive-requester", "create", "dlqreplays"),
    ("redrive-approver", "approve", "dlqreplays"),
    ("redrive-pipeline-editor", "create", "retrypipelines"),
    ("redrive-pipeline-guard", "guard", "retrypipelines"),
    ("redrive-replay-worker", "patch", "dlqreplays/status"),
    ("redrive-operator", "patch", "retrypipelines/status"),
];

/// A place where policies hold.
pub(crate) struct Place {
    pub(crate) admin: Client,
    pub(crate) namespace: String,
    /// The API group of our resources; a copy of them where it isn't ours.
    group: String,
    manifests: Vec<Value>,
}

impl Place {
    /// A namespace without any policy yet.
    pub(crate) async fn bare(purpose: &str) -> Self {
        let admin = kubernetes::client().await;
        kubernetes::with_definitions(&admin).await;
        let namespace = format!("redrive-{purpose}-{}", std::process::id());
        let manifests = documents(&MANIFESTS, &namespace);
        let place = Self { admin, namespace, group: GROUP.to_owned(), manifests };
        place.add_namespace(&place.namespace, &json!({})).await;
        for role in ROLES.split("\n---\n") {
            place.apply(&serde_yaml::from_str(role).unwrap()).await;
        }
        place
    }

    /// A namespace in which all policies hold.
    pub(crate) async fn new(purpose: &str) -> Self {
        let place = Self::bare(purpose).await;
        place.install().await;
        place
    }

    /// The same, with something of the manifests replaced, which must be in them.
    pub(crate) async fn with(purpose: &str, from: &str, to: &str) -> Self {
        let mut place = Self::bare(purpose).await;
        let before = serde_json::to_string(&place.manifests).unwrap();
        assert!(before.contains(from), "{from} is in no manifest");
        place.manifests = serde_json::from_str(&before.replace(from, to)).unwrap();
        place.install().await;
        place
    }

    /// The same for a copy of our resources, whose schema has no rules of its own.
    pub(crate) async fn without_rules(purpose: &str) -> Self {
        let mut place = Self::bare(purpose).await;
        place.group = format!("{}.example.com", place.namespace);
        let before = serde_json::to_string(&place.manifests).unwrap();
        let groups = format!("\"apiGroups\":[\"{}\"]", place.group);
        place.manifests =
            serde_json::from_str(&before.replace("\"apiGroups\":[\"redrive.dev\"]", &groups)).unwrap();
        kubernetes::copy_definitions(&place.admin, &place.group).await;
        place.install().await;
        place
    }

    /// The same, without the policies of one kind.
    pub(crate) async fn without(purpose: &str, kind: &str) -> Self {
        let mut place = Self::bare(purpose).await;
        place.manifests.retain(|manifest| !manifest["kind"].as_str().unwrap().starts_with(kind));
        place.install().await;
        place
    }

    /// The text of the policies as they are installed here.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.manifests.iter().map(|manifest| manifest.to_string()).collect()
    }

    /// Installs the policies, and waits until they hold.
    pub(crate) async fn install(&self) {
        for manifest in &self.manifests {
            self.apply(manifest).await;
        }
        let stamps = self.manifests.iter().any(|manifest| manifest["kind"] == "MutatingAdmissionPolicy");
        let admin = Person {
            name: "admin".to_owned(),
            client: self.admin.clone(),
            kubeconfig: None,
            namespace: self.namespace.clone(),
            group: self.group.clone(),
        };
        let probe = replay("probe", json!({"requestedBy": "nobody"}));
        until("the policies hold", || async { admin.try_create(&probe).await.is_err() }).await;
        let probe = replay("probe", json!({"requestedBy": null}));
        until("the requester is stamped", || async { !stamps || admin.try_create(&probe).await.is_ok() })
            .await;
    }

    /// A further namespace in which the policies hold.
    pub(crate) async fn add_namespace(&self, name: &str, annotations: &Value) {
        let labels = json!({LABEL: self.namespace});
        let object = json!({"metadata": {"name": name, "labels": labels, "annotations": annotations}});
        let namespaces = Api::<Namespace>::all(self.admin.clone());
        namespaces.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    /// A user with a client certificate, who holds these roles here.
    pub(crate) async fn person(&self, name: &str, roles: &[&str]) -> Person {
        self.person_in(&self.namespace, name, roles).await
    }

    /// The same in another namespace.
    pub(crate) async fn person_in(&self, namespace: &str, name: &str, roles: &[&str]) -> Person {
        let (client, kubeconfig) = client_of(name).await;
        let subject = json!({"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"});
        let person = Person {
            name: name.to_owned(),
            client,
            kubeconfig,
            namespace: namespace.to_owned(),
            group: self.group.clone(),
        };
        self.bind(&person, &subject, roles).await;
        person
    }

    /// A service account of this namespace, who holds these roles in it.
    pub(crate) async fn account(&self, name: &str, roles: &[&str]) -> Person {
        let accounts = Api::<ServiceAccount>::namespaced(self.admin.clone(), &self.namespace);
        let object = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        accounts.create(&PostParams::default(), &object).await.unwrap();
        let person = Person {
            name: format!("system:serviceaccount:{}:{name}", self.namespace),
            client: kubernetes::client_of_account(&self.admin, &self.namespace, name).await,
            kubeconfig: None,
            namespace: self.namespace.clone(),
            group: self.group.clone(),
        };
        let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": self.namespace});
        self.bind(&person, &subject, roles).await;
        person
    }

    async fn bind(&self, person: &Person, subject: &Value, roles: &[&str]) {
        for role in roles {
            let name = format!("{}-{role}", person.name.replace([':', '@'], "-"));
            self.apply(&json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": {"name": name, "namespace": person.namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [subject],
            }))
            .await;
            let (_, verb, resource) = ROLE_MARKS.iter().find(|(name, ..)| name == role).unwrap();
            until("the role is in effect", || person.may(verb, resource)).await;
        }
    }

    /// Rights on the copy of our resources, which no role of ours names.
    pub(crate) async fn allow_copies(&self) {
        let verbs = ["get", "create", "update", "patch"];
        self.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "copies", "namespace": self.namespace},
            "rules": [{"apiGroups": [self.group], "resources": ["dlqreplays"], "verbs": verbs}],
        }))
        .await;
        self.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "copies", "namespace": self.namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "copies"},
            "subjects": [{"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}],
        }))
        .await;
    }

    /// Applies one object, whatever it is.
    pub(crate) async fn apply(&self, object: &Value) {
        let params = PatchParams::apply("redrive-tests").force();
        let name = object["metadata"]["name"].as_str().unwrap();
        let api = any(&self.admin, object);
        api.patch(name, &params, &Patch::Apply(object))
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// The installed policy or binding whose manifest has this kind and begins with this name.
    pub(crate) fn installed(&self, kind: &str, name: &str) -> Value {
        let is_it = |manifest: &&Value| {
            manifest["kind"] == kind && manifest["metadata"]["name"].as_str().unwrap().starts_with(name)
        };
        self.manifests.iter().find(is_it).unwrap().clone()
    }

    /// Deletes an object.
    pub(crate) async fn delete(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        any(&self.admin, object).delete(name, &Default::default()).await.unwrap();
    }

    /// Removes the policies, and the namespaces with all that is in them.
    pub(crate) async fn leave(self) {
        for manifest in self.manifests.iter().rev() {
            let name = manifest["metadata"]["name"].as_str().unwrap();
            // A test may have removed one itself.
            let _ = any(&self.admin, manifest).delete(name, &Default::default()).await;
        }
        if self.group != GROUP {
            kubernetes::remove_definitions(&self.admin, &self.group).await;
        }
        let namespaces = Api::<Namespace>::all(self.admin.clone());
        let ours = kube::api::ListParams::default().labels(&format!("{LABEL}={}", self.namespace));
        for namespace in namespaces.list_metadata(&ours).await.unwrap() {
            namespaces.delete(&namespace.metadata.name.unwrap(), &Default::default()).await.unwrap();
        }
    }
}

/// A replay of this name; `null` removes what the base manifest has.
pub(crate) fn replay(name: &str, spec: Value) -> Value {
    merged(&base("replay"), &json!({"metadata": {"name": name}, "spec": spec}))
}

/// A pipeline with these guardrails.
pub(crate) fn pipeline(name: &str, policy: &Value) -> Value {
    let change = json!({"metadata": {"name": name}, "spec": {"replayPolicy": policy}});
    merged(&base("pipeline"), &change)
}

/// Waits until a condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut look: impl FnMut() -> F) {
    let waited = async {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited)
        .await
        .unwrap_or_else(|_| panic!("not within a minute: {what}"));
}

/// The manifests, under names of this namespace, and for nothing but namespaces with its label.
fn documents(texts: &[&str], namespace: &str) -> Vec<Value> {
    let documents = texts.iter().flat_map(|text| serde_yaml::Deserializer::from_str(text));
    let mut documents: Vec<Value> = documents.map(|text| Value::deserialize(text).unwrap()).collect();
    for document in &mut documents {
        let name = |name: &Value| Value::from(format!("{}.{namespace}", name.as_str().unwrap()));
        document["metadata"]["name"] = name(&document["metadata"]["name"]);
        if document["spec"]["policyName"].is_string() {
            document["spec"]["policyName"] = name(&document["spec"]["policyName"]);
        } else {
            let ours = json!({"matchLabels": {LABEL: namespace}});
            document["spec"]["matchConstraints"]["namespaceSelector"] = ours;
        }
    }
    documents
}

/// The API of an object, by what it says of itself.
pub(crate) fn any(client: &Client, object: &Value) -> Api<DynamicObject> {
    let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let (group, version) = version.split_once('/').unwrap();
    let kind = GroupVersionKind::gvk(group, version, kind);
    let lower = kind.kind.to_lowercase();
    let plural =
        lower.strip_suffix("policy").map_or_else(|| format!("{lower}s"), |stem| format!("{stem}policies"));
    let resource = ApiResource::from_gvk_with_plural(&kind, &plural);
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}
