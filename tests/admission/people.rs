//! People and service accounts who send requests, and the answers that they get.

use std::process::Command;

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{base, cluster, merged, place::any};

pub(crate) const REQUESTER: &str = "requester@example.com";
pub(crate) const APPROVER: &str = "approver@example.com";

/// Somebody who sends requests.
pub(crate) struct Person {
    pub(crate) name: String,
    pub(crate) client: Client,
    /// For kubectl; none for a service account.
    pub(crate) kubeconfig: Option<String>,
    pub(crate) namespace: String,
    pub(crate) group: String,
}

impl Person {
    /// Objects of the kind of this one.
    fn api(&self, object: &Value) -> Api<DynamicObject> {
        any(&self.client, &self.placed(object))
    }

    /// The object as it is where this person is.
    fn placed(&self, object: &Value) -> Value {
        let place = json!({
            "apiVersion": format!("{}/v1alpha1", self.group), "metadata": {"namespace": self.namespace},
        });
        merged(object, &place)
    }

    fn replays(&self) -> Api<DynamicObject> {
        self.api(&base("replay"))
    }

    /// Creates an object; the sentence with which it is refused.
    pub(crate) async fn create(&self, object: &Value) -> Result<Value, String> {
        self.send_create(object, &PostParams::default()).await
    }

    /// The same, only to try.
    pub(crate) async fn try_create(&self, object: &Value) -> Result<Value, String> {
        self.send_create(object, &PostParams { dry_run: true, ..PostParams::default() }).await
    }

    async fn send_create(&self, object: &Value, params: &PostParams) -> Result<Value, String> {
        let parsed = serde_json::from_value(self.placed(object)).unwrap();
        answer(self.api(object).create(params, &parsed).await)
    }

    /// Changes a replay by a merge patch.
    pub(crate) async fn edit(&self, name: &str, patch: Value) -> Result<Value, String> {
        answer(self.replays().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await)
    }

    /// The same, only to try.
    pub(crate) async fn try_edit(&self, name: &str, patch: Value) -> Result<Value, String> {
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        answer(self.replays().patch(name, &params, &Patch::Merge(patch)).await)
    }

    /// Changes a replay's status by a merge patch.
    pub(crate) async fn edit_status(&self, name: &str, status: Value) -> Result<Value, String> {
        let patch = Patch::Merge(json!({"status": status}));
        answer(self.replays().patch_status(name, &PatchParams::default(), &patch).await)
    }

    /// Applies a replay's status under a field manager of its own, as workers do.
    pub(crate) async fn apply_status(&self, name: &str, status: Value) -> Result<Value, String> {
        let mut object = json!({"metadata": {"name": name}, "status": status});
        object["apiVersion"] = "redrive.dev/v1alpha1".into();
        object["kind"] = "DlqReplay".into();
        let params = PatchParams::apply("redrive-replay-worker");
        answer(self.replays().patch_status(name, &params, &Patch::Apply(object)).await)
    }

    /// Changes a pipeline by a merge patch.
    pub(crate) async fn edit_pipeline(&self, name: &str, patch: Value) -> Result<Value, String> {
        let api = self.api(&base("pipeline"));
        answer(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await)
    }

    /// Deletes a pipeline.
    pub(crate) async fn delete_pipeline(&self, name: &str) {
        self.api(&base("pipeline")).delete(name, &Default::default()).await.unwrap();
    }

    /// Consents to a replay in the person's own name.
    pub(crate) async fn approve(&self, name: &str) -> Result<Value, String> {
        self.approve_as(name, &self.name).await
    }

    /// Consents to a replay in somebody's name.
    pub(crate) async fn approve_as(&self, name: &str, approver: &str) -> Result<Value, String> {
        let approval = json!({"approvedBy": approver, "maxMessages": 500, "planHash": "abc"});
        self.edit(name, json!({"spec": {"approval": approval}})).await
    }

    /// Runs kubectl as this person, with this manifest on its standard input.
    pub(crate) fn kubectl(&self, arguments: &[&str], manifest: &Value) -> String {
        let file = std::env::temp_dir().join(format!("{}-{}.json", self.namespace, self.name));
        std::fs::write(&file, manifest.to_string()).unwrap();
        let run = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(self.kubeconfig.as_ref().unwrap())
            .args(["--namespace", &self.namespace])
            .args(arguments)
            .arg("--filename")
            .arg(&file)
            .output()
            .unwrap();
        std::fs::remove_file(&file).unwrap();
        let text = if run.status.success() { run.stdout } else { run.stderr };
        String::from_utf8(text).unwrap().trim().to_owned()
    }

    /// Whether the person holds this right here.
    pub(crate) async fn may(&self, verb: &str, resource: &str) -> bool {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = json!({
            "namespace": self.namespace, "verb": verb, "group": "redrive.dev", "resource": resource,
            "subresource": subresource,
        });
        let review = json!({"spec": {"resourceAttributes": attributes}});
        let reviews = Api::<SelfSubjectAccessReview>::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &serde_json::from_value(review).unwrap()).await;
        answer.unwrap().status.is_some_and(|status| status.allowed)
    }
}

/// The object, or the sentence with which the request was refused.
fn answer(result: Result<DynamicObject, kube::Error>) -> Result<Value, String> {
    result.map(|object| serde_json::to_value(object).unwrap()).map_err(|error| {
        let text = error.to_string();
        let sentence = text.split_once(" denied request: ").map(|(_, sentence)| sentence);
        match (&error, sentence) {
            (kube::Error::Api(status), Some(_)) => {
                status.message.split_once(" denied request: ").unwrap().1.to_owned()
            }
            _ => cluster::complaints(&error).join("; "),
        }
    })
}
