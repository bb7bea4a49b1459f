//! The way to the cluster that people use: the flags that kubectl has as well, and answers of the
//! API server as the sentences that they are.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Status;
use kube::{Api, Client, Config};

use super::controller::chain;

/// How long the API server may take for one answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which cluster, and which namespace of it.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct Cluster {
    /// The namespace. Default: that of the kubeconfig's context.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(super) namespace: Option<String>,

    /// The kubeconfig's context. Default: its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// The kubeconfig. Default: $KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// A cluster that was reached, and the namespace to look into.
pub(super) struct Connected {
    pub(super) client: Client,
    pub(super) namespace: String,
}

impl Cluster {
    /// Reads the kubeconfig. Nothing is sent yet.
    pub(super) async fn connect(&self) -> Result<Connected, String> {
        let config = self.config().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| chain(&error))?;
        Ok(Connected { client, namespace })
    }

    async fn config(&self) -> Result<Config, String> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match &self.kubeconfig {
            Some(file) => {
                let read = Kubeconfig::read_from(file).map_err(|error| chain(&error))?;
                Config::from_custom_kubeconfig(read, &options).await.map_err(|error| chain(&error))
            }
            None if self.context.is_some() => {
                Config::from_kubeconfig(&options).await.map_err(|error| chain(&error))
            }
            None => Config::infer().await.map_err(|error| chain(&error)),
        }
    }
}

impl Connected {
    /// Resources of a kind in the namespace.
    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The name by which the API server knows whoever runs this.
    pub(super) async fn own_name(&self) -> Result<String, String> {
        let reviews = Api::<SelfSubjectReview>::all(self.client.clone());
        let review = answered(reviews.create(&PostParams::default(), &SelfSubjectReview::default())).await?;
        review
            .status
            .and_then(|status| status.user_info)
            .and_then(|user| user.username)
            .filter(|name| !name.is_empty())
            .ok_or_else(|| "the API server does not say who you are: log in first".to_owned())
    }
}

/// The API server's answer, or why there is none, in a sentence.
pub(super) async fn answered<T>(answer: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => answer.map_err(|error| sentence(&error)),
        Err(_) => Err(format!("the API server does not answer within {} s", PATIENCE.as_secs())),
    }
}

fn sentence(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => refusal(status),
        other => chain(other),
    }
}

/// What the API server says, without what stands before the sentence that was written for people.
pub(super) fn refusal(status: &Status) -> String {
    // Of an admission policy: `… is forbidden: ValidatingAdmissionPolicy '…' with binding '…' denied request: …`
    if let Some((_, sentence)) = status.message.split_once(" denied request: ") {
        return sentence.to_owned();
    }
    let mut causes: Vec<String> = status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        // This one only says that the others came first.
        .filter(|cause| !cause.message.contains("some validation rules were not checked"))
        .map(|cause| match without_value(&cause.message) {
            sentence if cause.field.is_empty() || cause.field == "spec" => sentence.to_owned(),
            sentence => format!("{}: {sentence}", cause.field),
        })
        .collect();
    causes.sort();
    causes.dedup();
    if !causes.is_empty() {
        return causes.join("; ");
    }
    if status.code == 404 && status.message.contains("page not found") {
        return "the cluster does not know this kind: apply the definitions, `redrive crds | kubectl apply -f -`"
            .to_owned();
    }
    // Rights are missing: `dlqreplays.redrive.dev "…" is forbidden: User "…" cannot …`
    match status.message.split_once(" is forbidden: ") {
        Some((_, sentence)) => sentence.to_owned(),
        None => status.message.clone(),
    }
}

/// `Invalid value: "…": names that …` without the value, which the user knows.
fn without_value(message: &str) -> &str {
    let Some(rest) = message.strip_prefix("Invalid value: ") else { return message };
    if rest.starts_with('"') {
        return rest.split_once("\": ").map_or(rest, |(_, sentence)| sentence);
    }
    match rest.split_once(": ") {
        Some((number, sentence)) if number.parse::<f64>().is_ok() => sentence,
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(status: serde_json::Value) -> String {
        refusal(&serde_json::from_value(status).unwrap())
    }

    #[test]
    fn a_policy_speaks_for_itself() {
        let message = "dlqreplays.redrive.dev \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' \
                       denied request: nobody approves what they asked for themselves: let a second person approve";
        let found = told(json!({"status": "Failure", "code": 422, "message": message}));
        assert_eq!(found, "nobody approves what they asked for themselves: let a second person approve");
    }

    #[test]
    fn a_schema_names_fields_and_repeats_no_value() {
        let found = told(json!({
            "status": "Failure", "code": 422, "message": "DlqReplay.redrive.dev \"a\" is invalid: […]",
            "details": {"causes": [
                {"field": "spec.pace.batch", "message": "Invalid value: 0: spec.pace.batch in body should be greater than or equal to 1"},
                {"field": "spec", "message": "Invalid value: from and to are the same queue: choose another target"},
                {"field": "<nil>", "message": "Invalid value: null: some validation rules were not checked because …"},
            ]},
        }));
        let wanted = "from and to are the same queue: choose another target; \
                      spec.pace.batch: spec.pace.batch in body should be greater than or equal to 1";
        assert_eq!(found, wanted);
    }

    #[test]
    fn missing_rights_are_named_without_the_object() {
        let message = "dlqreplays.redrive.dev is forbidden: User \"a\" cannot create resource \"dlqreplays\" in API \
                       group \"redrive.dev\" in the namespace \"shop\"";
        let found = told(json!({"status": "Failure", "code": 403, "message": message}));
        assert!(found.starts_with("User \"a\" cannot create"), "{found}");
    }

    #[test]
    fn a_cluster_without_the_definitions_is_told_apart() {
        let found = told(json!({"status": "Failure", "code": 404, "message": "404 page not found\n"}));
        assert!(found.contains("apply the definitions"), "{found}");
        let message = "dlqreplays.redrive.dev \"a\" not found";
        assert_eq!(told(json!({"status": "Failure", "code": 404, "message": message})), message);
    }
}
