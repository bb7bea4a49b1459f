//! The worker as a `batch/v1` Job in the operator's namespace.
//!
//! The Job is named from the replay's UID, so that no run ever has two. An owner reference can't
//! cross namespaces: labels lead back to the replay, and its finalizer ends the Job. A pod that
//! is evicted, drained or dies is followed by another one, which goes on from the checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use super::audit::Stream;
use super::{INTERRUPTED, State, files};
use crate::api::DlqReplay;
use crate::broker::Endpoint;

/// Which labels every Job of ours has.
pub(crate) const SELECTOR: &str = "app.kubernetes.io/name=redrive,app.kubernetes.io/component=replay-worker";

/// The labels that lead back to a replay.
pub(crate) const LABEL_NAMESPACE: &str = "redrive.dev/replay-namespace";
/// The replay's name.
pub(crate) const LABEL_NAME: &str = "redrive.dev/replay-name";
/// The replay's UID.
const LABEL_UID: &str = "redrive.dev/replay-uid";

/// Where the connections are mounted.
const MOUNT: &str = "/etc/redrive";

/// Failures of pods until a run is given up.
const BACKOFF_LIMIT: i32 = 6;

/// How long a run may take beyond its deadline: to wait for its turn, and to settle.
const BEYOND_DEADLINE: i64 = 600;

/// How long a pod may take to settle once it is told to stop.
const GRACE: i64 = 30;

/// The user that the image runs as.
const USER: i64 = 65_532;

/// How long the API server may take.
const API_TIMEOUT: Duration = Duration::from_secs(30);

/// The field manager of the operator.
const MANAGER: &str = "redrive-operator";

/// How Jobs are made.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) namespace: String,
    pub(crate) image: String,
    pub(crate) service_account: String,
    pub(crate) host_network: bool,
    pub(crate) allow_local_brokers: bool,
}

/// Runs workers as Jobs.
pub(crate) struct Jobs {
    client: Client,
    shape: Shape,
}

/// What a Job could not be made, read or ended for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API server refused or failed.
    #[error("the worker's {what} can't be {verb}: {source}")]
    Refused {
        /// What it was about.
        what: &'static str,
        /// What was tried.
        verb: &'static str,
        /// What the API server said.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("the worker's {what} can't be {verb}: the API server does not answer")]
    Timeout {
        /// What it was about.
        what: &'static str,
        /// What was tried.
        verb: &'static str,
    },
}

impl Jobs {
    pub(crate) fn new(client: Client, shape: Shape) -> Self {
        Self { client, shape }
    }

    /// Sees to it that a Job is there, and says how it is.
    pub(crate) async fn ensure(
        &self,
        replay: &DlqReplay,
        endpoint: &Endpoint,
        stream: Option<&Stream>,
    ) -> Result<State, Error> {
        let name = name(replay);
        let found = call("Job", "read", self.jobs().get_opt(&name)).await?;
        let (job, is_new) = match found {
            Some(job) => (job, false),
            None => (self.create(replay, stream).await?, true),
        };
        let state = state(&job);
        let failed = job.status.as_ref().and_then(|status| status.failed).unwrap_or(0);
        // Once more after a failure: the password may have been replaced.
        if state == State::Working && (is_new || failed > 0 || !self.has_secret(&name).await?) {
            self.write_secret(&job, endpoint, stream).await?;
        }
        Ok(state)
    }

    /// Whether there is a Job that has not ended.
    pub(crate) async fn is_at_work(&self, replay: &DlqReplay) -> Result<bool, Error> {
        let job = call("Job", "read", self.jobs().get_opt(&name(replay))).await?;
        let ends = |job: &Job| job.metadata.deletion_timestamp.is_some() || state(job) != State::Working;
        Ok(job.is_some_and(|job| !ends(&job)))
    }

    /// Ends a Job and says whether it and its pods are gone.
    pub(crate) async fn stop(&self, replay: &DlqReplay) -> Result<bool, Error> {
        let name = name(replay);
        match call("Job", "read", self.jobs().get_opt(&name)).await? {
            None => return Ok(true),
            Some(job) if job.metadata.deletion_timestamp.is_some() => return Ok(false),
            Some(_) => {}
        }
        // The Job stays until its pods have settled.
        match call("Job", "deleted", self.jobs().delete(&name, &DeleteParams::foreground())).await {
            Err(Error::Refused { source, .. }) if is(&source, 404) => Ok(true),
            Err(error) => Err(error),
            Ok(_) => Ok(false),
        }
    }

    fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), &self.shape.namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.shape.namespace)
    }

    async fn create(&self, replay: &DlqReplay, stream: Option<&Stream>) -> Result<Job, Error> {
        let job = serde_json::from_value(manifest(&self.shape, replay, stream));
        let job: Job = job.map_err(|error| Error::Refused {
            what: "Job",
            verb: "described",
            source: Box::new(kube::Error::SerdeError(error)),
        })?;
        match call("Job", "created", self.jobs().create(&PostParams::default(), &job)).await {
            Err(Error::Refused { source, .. }) if is(&source, 409) => {
                call("Job", "read", self.jobs().get(&name(replay))).await
            }
            result => result,
        }
    }

    async fn has_secret(&self, name: &str) -> Result<bool, Error> {
        Ok(call("Secret", "read", self.secrets().get_metadata_opt(name)).await?.is_some())
    }

    /// The run's own Secret, which goes with the Job. Pods wait until it is there.
    async fn write_secret(
        &self,
        job: &Job,
        endpoint: &Endpoint,
        stream: Option<&Stream>,
    ) -> Result<(), Error> {
        let mut secret = Secret::default();
        secret.metadata.name = Some(job.name_any());
        secret.metadata.labels = job.metadata.labels.clone();
        secret.metadata.owner_references = job.controller_owner_ref(&()).map(|owner| vec![owner]);
        let mut data: BTreeMap<String, ByteString> = BTreeMap::new();
        let mut add = |directory: &str, endpoint: &Endpoint| {
            data.extend(
                files::data(endpoint)
                    .into_iter()
                    .map(|(key, bytes)| (key_of(directory, key), ByteString(bytes))),
            );
        };
        add("connection", endpoint);
        if let Some(stream) = stream {
            add("audit", &stream.endpoint);
        }
        secret.data = Some(data);
        let params = PatchParams::apply(MANAGER).force();
        let secrets = self.secrets();
        call("Secret", "written", secrets.patch(&job.name_any(), &params, &Patch::Apply(&secret))).await?;
        Ok(())
    }
}

/// The name of a replay's Job and Secret.
pub(crate) fn name(replay: &DlqReplay) -> String {
    format!("redrive-replay-{}", replay.uid().unwrap_or_default())
}

/// How a Job is.
fn state(job: &Job) -> State {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let failed = conditions.into_iter().find(|one| one.type_ == "Failed" && one.status == "True");
    match failed {
        Some(failed) if failed.reason.as_deref() == Some("DeadlineExceeded") => State::Overdue,
        Some(failed) => {
            let reason = failed.reason.as_deref().unwrap_or("no reason given");
            State::Failed(format!("its Job failed ({reason}): look at the logs of its pods"))
        }
        None => State::Working,
    }
}

/// The key in the run's Secret of a file in one of its directories.
fn key_of(directory: &str, file: &str) -> String {
    format!("{directory}.{file}")
}

fn manifest(shape: &Shape, replay: &DlqReplay, stream: Option<&Stream>) -> Value {
    let name = name(replay);
    let deadline = replay.spec.deadline.map_or(3_600, |deadline| deadline.to_std().as_secs());
    let labels = json!({
        "app.kubernetes.io/name": "redrive",
        "app.kubernetes.io/component": "replay-worker",
        LABEL_NAMESPACE: replay.namespace(),
        LABEL_NAME: replay.name_any(),
        LABEL_UID: replay.uid(),
    });
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": shape.namespace, "labels": labels},
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": BACKOFF_LIMIT,
            "activeDeadlineSeconds": i64::try_from(deadline).unwrap_or(i64::MAX).saturating_add(BEYOND_DEADLINE),
            // Never two at a time: the second would only wait for the lock.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "Ignore", "onExitCodes": {"containerName": "worker", "operator": "In", "values": [INTERRUPTED]}},
            ]},
            "template": {
                "metadata": {"labels": labels},
                "spec": pod(shape, replay, stream, &name),
            },
        },
    })
}

fn pod(shape: &Shape, replay: &DlqReplay, stream: Option<&Stream>, secret: &str) -> Value {
    let mut arguments = vec![
        "replay-worker".to_owned(),
        format!("--namespace={}", replay.namespace().unwrap_or_default()),
        format!("--name={}", replay.name_any()),
        format!("--uid={}", replay.uid().unwrap_or_default()),
        format!("--connection={MOUNT}/connection"),
        format!("--lease-namespace={}", shape.namespace),
    ];
    if shape.allow_local_brokers {
        arguments.push("--allow-local-brokers".to_owned());
    }
    if let Some(stream) = stream {
        arguments.push(format!("--audit={MOUNT}/audit"));
        arguments.push(format!("--audit-vhost={}", stream.vhost));
    }
    let directories = if stream.is_some() { &["connection", "audit"][..] } else { &["connection"][..] };
    let volumes: Vec<Value> = directories.iter().map(|directory| volume(directory, secret)).collect();
    let mounts = directories.iter().map(
        |directory| json!({"name": directory, "mountPath": format!("{MOUNT}/{directory}"), "readOnly": true}),
    );
    json!({
        "restartPolicy": "Never",
        "serviceAccountName": shape.service_account,
        "terminationGracePeriodSeconds": GRACE,
        "hostNetwork": shape.host_network,
        "enableServiceLinks": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{
            "name": "worker",
            "image": shape.image,
            "imagePullPolicy": "IfNotPresent",
            "args": arguments,
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            },
            "resources": {
                "requests": {"cpu": "100m", "memory": "64Mi"},
                "limits": {"memory": "256Mi"},
            },
            "volumeMounts": mounts.collect::<Vec<_>>(),
        }],
        "volumes": volumes,
    })
}

/// One directory of the run's Secret. All keys are optional, since not every broker has them all,
/// but the user's name: pods wait until the Secret is there.
fn volume(directory: &str, secret: &str) -> Value {
    json!({
        "name": directory,
        "projected": {
            "defaultMode": 0o440,
            "sources": [
                source(directory, secret, &["uri", "amqpUri", "username", "password"], false),
                source(directory, secret, &["ca.crt"], true),
                source(directory, secret, &["tls.crt", "tls.key"], true),
            ],
        },
    })
}

fn source(directory: &str, secret: &str, files: &[&str], optional: bool) -> Value {
    let items: Vec<Value> =
        files.iter().map(|file| json!({"key": key_of(directory, file), "path": file})).collect();
    json!({"secret": {"name": secret, "items": items, "optional": optional}})
}

async fn call<T>(
    what: &'static str,
    verb: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(API_TIMEOUT, call).await {
        Ok(result) => result.map_err(|source| Error::Refused { what, verb, source: Box::new(source) }),
        Err(_) => Err(Error::Timeout { what, verb }),
    }
}

fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The stream with its endpoint, as a Job's Secret and arguments describe it.
pub(crate) fn stream(endpoint: Endpoint, vhost: String) -> Stream {
    Stream { endpoint: Arc::new(endpoint), vhost }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay() -> DlqReplay {
        serde_json::from_value(json!({
            "apiVersion": "redrive.dev/v1alpha1", "kind": "DlqReplay",
            "metadata": {"name": "r", "namespace": "shop", "uid": "dcb4e07b-1e86-4c1f-8d55-9ab2a4a6d3e1"},
            "spec": {"pipelineRef": {"name": "orders"}, "justification": "the fix is deployed", "deadline": "2h"},
        }))
        .unwrap()
    }

    fn shape() -> Shape {
        Shape {
            namespace: "redrive-system".to_owned(),
            image: "redrive:1".to_owned(),
            service_account: "redrive-replay-worker".to_owned(),
            host_network: false,
            allow_local_brokers: false,
        }
    }

    fn endpoint() -> Endpoint {
        let secret =
            [("uri", "http://rabbit:15672"), ("username", "geheim-user"), ("password", "geheim-password")];
        let secret = secret.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        Endpoint::from_secret(&secret.into()).unwrap()
    }

    #[test]
    fn a_job_is_what_kubernetes_reads_and_runs_a_little_longer_than_the_replay_may() {
        let job: Job = serde_json::from_value(manifest(&shape(), &replay(), None)).unwrap();
        assert_eq!(job.metadata.name.as_deref(), Some("redrive-replay-dcb4e07b-1e86-4c1f-8d55-9ab2a4a6d3e1"));
        assert_eq!(job.spec.unwrap().active_deadline_seconds, Some(7_200 + 600));
    }

    #[test]
    fn no_credential_is_in_the_job() {
        let stream = stream(endpoint(), "audit".to_owned());
        let text = manifest(&shape(), &replay(), Some(&stream)).to_string();
        assert!(text.contains("--audit-vhost=audit"), "{text}");
        assert!(!text.contains("geheim"), "{text}");
        assert!(!text.contains("\"env\""), "{text}");
    }

    #[test]
    fn every_file_of_a_connection_is_mounted() {
        let text = volume("audit", "s").to_string();
        for key in ["uri", "amqpUri", "username", "password", "ca.crt", "tls.crt", "tls.key"] {
            assert!(text.contains(&format!("\"audit.{key}\"")), "{key}: {text}");
        }
    }

    #[test]
    fn a_job_that_failed_says_why() {
        let job = |reason: &str| -> Job {
            serde_json::from_value(json!({
                "status": {"conditions": [{"type": "Failed", "status": "True", "reason": reason}]},
            }))
            .unwrap()
        };
        assert_eq!(state(&job("DeadlineExceeded")), State::Overdue);
        assert!(
            matches!(state(&job("BackoffLimitExceeded")), State::Failed(why) if why.contains("BackoffLimit"))
        );
        assert_eq!(state(&Job::default()), State::Working);
    }
}
