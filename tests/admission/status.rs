//! A status comes back from the API server as it was written, and shows in the printed columns.

use http::Request;
use k8s_openapi::ByteString;
use kube::{
    Api, Resource,
    api::{Patch, PatchParams, PostParams},
};
use redrive::api::{DlqReplay, DlqReplayStatus, RetryPipeline, RetryPipelineStatus};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{base, cluster::Cluster};

const NOW: &str = "2026-11-29T22:00:00Z";

fn conditions(kind: &str, reason: &str) -> Value {
    json!([{
        "type": kind, "status": "True", "reason": reason, "message": "",
        "observedGeneration": 1, "lastTransitionTime": NOW,
    }])
}

fn pipeline_status() -> RetryPipelineStatus {
    let status = json!({
        "observedGeneration": 1,
        "conditions": conditions("Ready", "Reconciled"),
        "brokerId": "rabbitmq-cluster-id-Zk3",
        "effective": {
            "broker": "secret rabbit-connection", "vhost": "/", "ownership": "Managed",
            "sourceType": "quorum", "deliveryLimit": 20, "mode": "Broker", "steps": 2,
            "delays": ["5s", "30s"], "jitterPercent": 0, "shards": 1, "retryType": "quorum",
            "deadLetter": {"name": "orders.queue.dlq", "type": "quorum", "retention": "14d"},
            "settings": {"policy": {"priority": 10}},
            "replayPolicy": {
                "requireApproval": false, "maxRate": 100, "allowBody": false,
                "allowedTargets": ["WorkQueue"], "audit": "BestEffort",
            },
            "driftPolicy": "Correct", "deletionPolicy": "Retain",
        },
        "inventory": [
            {"kind": "Queue", "state": "Created", "generation": 2, "names": ["orders.queue.retry.0"]},
            {"kind": "Binding", "state": "Adopted", "exchange": "orders", "routingKeys": ["", "created"]},
        ],
        "clientContract": [{
            "name": "orders.queue", "type": "quorum",
            "arguments": {"x-queue-type": "quorum", "x-delivery-limit": -1, "x-single-active-consumer": true},
        }],
        "queues": [{"role": "DeadLetter", "name": "orders.queue.dlq", "ready": 7}],
        "drift": {"count": 1, "last": {
            "time": NOW, "object": "queue orders.queue.dlq", "what": "missing", "by": "guest",
            "action": "Repaired",
        }},
        "replays": [{
            "name": "orders-after-fix", "specHash": "abc", "result": "Completed", "finished": NOW,
            "moved": 7, "approved": true,
        }],
        "pendingPlan": {"hash": "abc", "why": "the delay of a retry queue changes"},
        "cleanup": {"stage": "Draining", "since": NOW},
    });
    let mut status: RetryPipelineStatus = serde_json::from_value(status).unwrap();
    // The most that it may hold: 1,000 hashes of 8 bytes.
    status.earlier_replays = Some(ByteString(vec![7; 8_000]));
    status
}

fn replay_status() -> DlqReplayStatus {
    let status = json!({
        "observedGeneration": 1,
        "conditions": conditions("Succeeded", "Completed"),
        "plan": {
            "hash": "abc", "made": NOW, "inSource": 9, "matching": 7, "routes": ["orders.queue"],
            "routeCount": 1, "collidingIds": 0, "expectedDuration": "0s",
            "histogram": {
                "reasons": [{"value": "rejected", "count": 7}],
                "headers": [{"name": "x-tenant-id", "values": [{"value": "42", "count": 7}]}],
            },
            "findings": [{"severity": "Warning", "check": "NoConsumer", "message": "none yet"}],
        },
        "progress": {
            "fence": {"count": 9, "time": NOW}, "examined": 9, "matched": 7, "replayed": 7,
            "failed": 0, "unroutable": 0, "nacked": 0, "quarantined": 0, "unmovable": 0,
            "skipped": 0, "duplicatesPossible": 0, "beyondFence": 0, "underWay": 0, "inFlight": 0, "rate": "19.8", "eta": "0s",
            "lastCheckpoint": NOW,
        },
        "summary": {
            "result": "Completed", "message": "7 of 7 moved", "started": NOW, "finished": NOW,
            "matched": 7, "replayed": 7, "failed": 0, "skipped": 0, "duplicatesPossible": 0,
        },
    });
    serde_json::from_value(status).unwrap()
}

/// Creates the base object, writes this status, and returns it as it was stored.
async fn stored<K>(cluster: &Cluster, base_name: &str, status: &impl Serialize) -> K
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let api = Api::<K>::namespaced(cluster.client.clone(), &cluster.namespace);
    let object: K = serde_json::from_value(base(base_name)).unwrap();
    let name = object.meta().name.clone().unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
    api.get(&name).await.unwrap()
}

#[tokio::test]
async fn a_status_is_stored_as_it_was_written() {
    let cluster = Cluster::connect("status").await;
    let pipeline: RetryPipeline = stored(&cluster, "pipeline", &pipeline_status()).await;
    let replay: DlqReplay = stored(&cluster, "replay", &replay_status()).await;
    let printed = printed(&cluster).await;
    cluster.leave().await;
    assert_eq!(pipeline.status, Some(pipeline_status()));
    assert_eq!(replay.status, Some(replay_status()));
    assert_eq!(
        printed,
        [
            "orders True Reconciled Broker 2 7",
            "orders-after-fix Completed orders 7 7 0 0s requester@example.com"
        ]
    );
}

/// What `kubectl get` shows of each object, without the age and what only stands in the wide form.
async fn printed(cluster: &Cluster) -> Vec<String> {
    let mut rows = Vec::new();
    for (plural, columns) in [("retrypipelines", 6), ("dlqreplays", 8)] {
        let path = format!("/apis/redrive.dev/v1alpha1/namespaces/{}/{plural}", cluster.namespace);
        let request = Request::get(path)
            .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(Vec::new())
            .unwrap();
        let table: Value = cluster.client.request(request).await.unwrap();
        for row in table["rows"].as_array().unwrap() {
            let cells = row["cells"].as_array().unwrap().iter().take(columns);
            let cells: Vec<String> =
                cells.map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned)).collect();
            rows.push(cells.join(" "));
        }
    }
    rows
}
