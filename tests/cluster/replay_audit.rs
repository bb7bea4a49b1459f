//! The durable audit trail: a record for each message, before it leaves its queue.

use std::process::Command;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use redrive::controller::AuditStream;
use serde_json::{Value, json};

use crate::support::replays::{DLQ, SOURCE, text_of};
use crate::support::world::{SECRET, World};

/// A world whose operator has an audit stream in the same vhost, with so many dead letters.
async fn audited(purpose: &str, messages: usize) -> World {
    let mut world = World::for_replays(purpose).await;
    let stream = AuditStream { vhost: world.vhost.clone(), secret: SECRET.to_owned() };
    world.settings.replays.audit = Some(stream);
    world.start();
    let policy = json!({"audit": "Required", "auditHeaders": ["x-tenant-id"]});
    world.create_ready("orders", json!({"replayPolicy": policy})).await;
    for number in 0..messages {
        let body = json!({
            "properties": {
                "delivery_mode": 2, "message_id": format!("m-{number}"),
                "headers": {"x-tenant-id": "42", "x-card": "4111"},
            },
            "routing_key": DLQ, "payload": "a secret body", "payload_encoding": "string",
        });
        world.broker.post(&["exchanges", &world.vhost, "amq.default", "publish"], body).await;
    }
    world
}

/// What `redrive audit` prints of a replay, after whether it succeeded; then its complaints.
pub(crate) fn records(world: &World, name: &str) -> (bool, Vec<Value>, String) {
    let broker = &world.broker;
    let output = Command::new(env!("CARGO_BIN_EXE_redrive"))
        .args(["audit", name, "-n", &world.namespace])
        .args(["--broker", &format!("http://{}@{}", broker.user, broker.address), "--amqp", &broker.amqp])
        .args(["--audit-vhost", &world.vhost])
        .env("REDRIVE_BROKER_PASSWORD", &broker.password)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.success(), lines, String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn each_moved_message_has_a_record_without_body_and_foreign_headers() {
    let world = audited("ra-records", 3).await;
    world.replay("r", json!({"requestedBy": "requester@example.com", "select": {"limit": 2}})).await;
    world.until_phase("r", "Completed").await;
    world.replay("other", json!({})).await;
    world.until_phase("other", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 3)]).await;
    let (success, found, errors) = records(&world, "r");
    assert!(success, "{errors}");
    assert_eq!(found.len(), 2, "{found:#?}");
    for (number, record) in found.iter().enumerate() {
        assert_eq!(record["version"], 1);
        assert_eq!(record["messageId"], format!("m-{number}"));
        assert_eq!(record["run"]["name"], "r");
        assert_eq!(record["pipeline"]["name"], "orders");
        assert_eq!(record["requestedBy"], "requester@example.com");
        assert_eq!(record["justification"], "the fix is deployed");
        assert_eq!((&record["queue"], &record["outcome"]), (&json!(DLQ), &json!("Replayed")));
        assert_eq!(record["target"], json!({"exchange": "", "routingKey": SOURCE}));
        assert_eq!(record["headers"], json!({"x-tenant-id": "42"}));
        assert!(record["replayId"].as_str().is_some_and(|id| !id.is_empty()), "{record}");
        let text = record.to_string();
        assert!(!text.contains("a secret body") && !text.contains("4111"), "{text}");
    }
    let (success, _, errors) = records(&world, "never");
    assert!(!success && errors.contains("no records of the replay \"never\""), "{errors}");
    world.leave().await;
}

#[tokio::test]
async fn nothing_moves_while_a_required_stream_takes_no_records() {
    let mut world = audited("ra-away", 2).await;
    world.stop().await;
    // Its Secret leads to a port where nobody listens.
    let mut values = world.secret();
    values.insert("amqpUri", "amqp://127.0.0.1:1".to_owned());
    let secret = json!({"metadata": {"name": "audit"}, "stringData": values});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let api: Api<Secret> = Api::namespaced(world.client.clone(), &world.namespace);
    api.create(&PostParams::default(), &secret).await.unwrap();
    world.settings.replays.audit =
        Some(AuditStream { vhost: world.vhost.clone(), secret: "audit".to_owned() });
    world.start();
    world.replay("r", json!({})).await;
    let held = world.until_phase("r", "Paused").await;
    assert!(text_of(&held, "Succeeded").contains("the audit stream takes no records"), "{held:?}");
    world.until_messages(&[(DLQ, 2), (SOURCE, 0)]).await;
    world.edit_replay("r", json!({"cancel": true})).await;
    world.until_phase("r", "Cancelled").await;
    world.until_messages(&[(DLQ, 2), (SOURCE, 0)]).await;
    world.leave().await;
}
