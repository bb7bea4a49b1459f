//! `redrive inspect` on real dead letters, with and without rights on the Secret.

use std::process::Command;

use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use redrive::api::DlqReplay;
use serde_json::{Value, json};

use crate::support::clusters::CLUSTER;
use crate::support::eventually;
use crate::support::world::World;

/// How it ended, with standard output and standard error.
async fn inspect(world: &World, arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.args(["inspect", "orders", "--namespace", &world.namespace]).args(arguments);
    command.envs(variables.iter().copied());
    // The operator and the proxy of this test go on meanwhile.
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

async fn publish(world: &World, queue: &str, id: usize, tenant: &str) {
    let path = ["exchanges", &world.vhost, "amq.default", "publish"];
    let headers = json!({"x-tenant-id": tenant, "x-token": "secret"});
    let message = json!({
        "properties": {"message_id": format!("m-{id}"), "headers": headers}, "routing_key": queue,
        "payload": format!("{{\"order\": {id}}}"), "payload_encoding": "string",
    });
    assert_eq!(world.broker.post(&path, message).await["routed"], true);
}

/// All messages in their order, by their ids; they go back.
async fn ids(world: &World, queue: &str) -> Vec<Value> {
    let path = ["queues", &world.vhost, queue, "get"];
    let get = json!({"count": 100, "ackmode": "ack_requeue_true", "encoding": "auto"});
    let found = world.broker.post(&path, get).await;
    found.as_array().unwrap().iter().map(|one| one["properties"]["message_id"].clone()).collect()
}

/// A world with five dead letters of two tenants.
async fn with_dead_letters(purpose: &str, policy: Value) -> World {
    let mut world = World::new(purpose).await;
    world.start();
    let dead_letter =
        json!({"parkingLot": true, "quarantine": [{"category": "poison", "reasons": ["delivery_limit"]}]});
    world.create_ready("orders", json!({"replayPolicy": policy, "deadLetter": dead_letter})).await;
    for id in 0..5 {
        publish(&world, "orders.queue.dlq", id, if id < 4 { "a" } else { "b\u{1b}[2J" }).await;
    }
    world
}

#[tokio::test]
async fn dead_letters_are_shown_and_stay_in_their_order() {
    let world = with_dead_letters("inspect", json!({"auditHeaders": ["x-tenant-id"]})).await;
    let (code, out, err) = inspect(&world, &["--samples", "2"], &[]).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("orders.queue.dlq: 5 messages, 5 of them read\n"), "{out}");
    assert!(out.contains("By header x-tenant-id\n  4  a\n  1  b\\u{1b}[2J\n"), "{out}");
    assert!(out.contains("  1. m-0\n") && out.contains("  2. m-1\n") && !out.contains("m-2"), "{out}");
    assert!(!out.contains("secret") && !out.contains("order\""), "{out}");
    assert_eq!(ids(&world, "orders.queue.dlq").await, ["m-0", "m-1", "m-2", "m-3", "m-4"]);

    let (code, _, err) = inspect(&world, &["--show-bodies"], &[]).await;
    assert_eq!(code, 1);
    assert!(err.contains("replayPolicy.allowBody is false"), "{err}");
    let (code, out, _) = inspect(&world, &["--parking-lot"], &[]).await;
    assert_eq!((code, out.as_str()), (0, "orders.queue.dlq.parking: 0 messages, 0 of them read\n"));
    let (code, _, err) = inspect(&world, &["--quarantine", "other"], &[]).await;
    let wanted = "error: --quarantine other: the pipeline has poison, replay-limit\n";
    assert_eq!((code, err.as_str()), (1, wanted));
    world.leave().await;
}

#[tokio::test]
async fn whoever_may_read_a_clusters_secrets_looks_with_its_user() {
    let mut world = World::new("inspect-cluster").await;
    let owner = world.owner_here().await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    world.ready("orders").await;
    for id in 0..3 {
        publish(&world, "orders.queue.dlq", id, "a").await;
    }
    let (code, out, err) = inspect(&world, &[], &[]).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("orders.queue.dlq: 3 messages, 3 of them read\n"), "{out}");
    owner.delete(CLUSTER).await;
    let (code, _, err) = inspect(&world, &[], &[]).await;
    assert_eq!(code, 1);
    assert!(err.contains("does not exist") && err.contains("use --broker-uri with a broker user"), "{err}");
    world.leave().await;
}

#[tokio::test]
async fn two_readers_do_not_take_messages_from_each_other() {
    let mut world = with_dead_letters("inspect-running", json!({})).await;
    // It would say itself how far this replay is.
    world.stop().await;
    let replay = json!({
        "apiVersion": "redrive.dev/v1alpha1", "kind": "DlqReplay", "metadata": {"name": "orders-1"},
        "spec": {"pipelineRef": {"name": "orders"}, "justification": "the fix is deployed"},
    });
    let replays = Api::<DlqReplay>::namespaced(world.client.clone(), &world.namespace);
    replays.create(&PostParams::default(), &serde_json::from_value(replay).unwrap()).await.unwrap();
    let condition = json!([{
        "type": "Succeeded", "status": "Unknown", "reason": "Running", "message": "messages move",
        "lastTransitionTime": "2026-11-29T22:00:00Z",
    }]);
    let status = Patch::Merge(json!({"status": {"conditions": condition}}));
    replays.patch_status("orders-1", &PatchParams::default(), &status).await.unwrap();
    let (code, _, err) = inspect(&world, &[], &[]).await;
    assert_eq!(code, 1);
    assert!(
        err.starts_with("error: the replay orders-1 reads the dead letters of orders at present"),
        "{err}"
    );
    world.leave().await;
}

#[tokio::test]
async fn who_has_a_broker_user_needs_no_secret() {
    let world = with_dead_letters("inspect-user", json!({"allowBody": true})).await;
    world.delete_secret().await;
    let (code, _, err) = inspect(&world, &[], &[]).await;
    assert_eq!((code, err.as_str()), (1, "error: secrets \"rabbit-connection\" not found\n"));
    let uri = format!("http://{}", world.proxy.address);
    // Who may read this queue and nothing else.
    let reader = format!("{}-reader", world.namespace);
    world.broker.create_user(&reader, "pass word", "policymaker").await;
    let rights = json!({"configure": "^$", "write": "^$", "read": "^orders\\.queue\\.dlq$"});
    world.broker.put(&["permissions", &world.vhost, &reader], rights).await;
    let user = ["--broker-uri", &uri, "--amqp-uri", &world.broker.amqp, "--username", &reader];
    let (code, _, err) = inspect(&world, &user, &[]).await;
    assert_eq!(code, 1);
    assert!(err.contains("use --password-file, or set REDRIVE_BROKER_PASSWORD"), "{err}");
    let password = [("REDRIVE_BROKER_PASSWORD", "pass word")];
    let arguments = [&user[..], &["--samples", "1", "--show-bodies"]].concat();
    let (code, out, err) = inspect(&world, &arguments, &password).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("body         {\"order\": 0}\n"), "{out}");
    let file = std::env::temp_dir().join(&reader);
    std::fs::write(&file, "pass word\n").unwrap();
    let arguments = [&user[..], &["--password-file", file.to_str().unwrap()]].concat();
    let (code, out, err) = inspect(&world, &arguments, &[]).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    std::fs::remove_file(file).unwrap();
    world.broker.delete(&["users", &reader]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_stream_is_read_from_its_beginning() {
    let mut world = World::new("inspect-stream").await;
    let stream = json!({"durable": true, "arguments": {"x-queue-type": "stream"}});
    world.broker.put(&["queues", &world.vhost, "orders.queue.dlq"], stream).await;
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    for id in 0..3 {
        publish(&world, "orders.queue.dlq", id, "a").await;
    }
    for _ in 0..2 {
        // It takes a silence for the end, and a busy broker may be silent before that.
        let out = eventually("all three are read", async || {
            let (code, out, err) = inspect(&world, &["--samples", "1"], &[]).await;
            assert_eq!((code, err.as_str()), (0, ""), "{out}");
            let reads_all = out.starts_with("orders.queue.dlq: a stream, 3 messages read\n");
            if reads_all { Ok(out) } else { Err(out) }
        })
        .await;
        assert!(out.contains("  1. m-0\n"), "{out}");
    }
    world.leave().await;
}
