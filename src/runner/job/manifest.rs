//! What a worker's Job says: its pod, and the files of the run's Secret in it.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::super::INTERRUPTED;
use super::super::audit::Stream;
use crate::api::DlqReplay;

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

/// How Jobs are made.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) namespace: String,
    pub(crate) image: String,
    pub(crate) service_account: String,
    pub(crate) host_network: bool,
    pub(crate) allow_local_brokers: bool,
}

/// The name of a replay's Job and Secret.
pub(crate) fn name(replay: &DlqReplay) -> String {
    format!("redrive-replay-{}", replay.uid().unwrap_or_default())
}

/// The key in the run's Secret of a file in one of its directories.
pub(super) fn key_of(directory: &str, file: &str) -> String {
    format!("{directory}.{file}")
}

pub(super) fn manifest(shape: &Shape, replay: &DlqReplay, stream: Option<&Stream>) -> Value {
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::Job;

    use super::super::stream;
    use super::*;
    use crate::broker::Endpoint;

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
}
