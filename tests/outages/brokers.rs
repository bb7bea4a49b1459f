//! A broker that stops and comes back.

use std::time::Duration;

use serde_json::json;

use crate::parts::{Part, alone, check_whole, in_the_middle_of_an_apply};
use crate::support::world::{World, verdict};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stops_while_pipelines_are_applied_is_gone_on_with() {
    let _alone = alone().await;
    let mut world = World::new("brokerstop").await;
    let names = in_the_middle_of_an_apply(&mut world).await;
    let broker = Part::BROKER_43;
    broker.stop();
    world.proxy.release();
    for name in &names {
        world.until_reason(name, "BrokerUnreachable").await;
    }
    world.proxy.heal();
    broker.start();
    check_whole(&world, &names).await;
    world.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_down_when_the_operator_starts_is_waited_for() {
    let _alone = alone().await;
    let mut world = World::on("40", "brokerkill").await;
    world.settings.release_after = Duration::from_secs(600);
    // Straight to the broker, whose own port is closed then.
    let mut secret = world.secret();
    secret.insert("uri", format!("http://{}", world.broker.address));
    world.write_secret(&secret).await;
    world.start();
    world.create_ready("old", json!({})).await;
    world.create_ready("obsolete", json!({"deletionPolicy": "Delete"})).await;
    world.stop().await;
    let broker = Part::BROKER_40;
    broker.kill();
    world.delete("obsolete").await;
    world.create(world.manifest("new", json!({}))).await;
    world.start();
    for name in ["old", "new"] {
        let pipeline = world.until_reason(name, "BrokerUnreachable").await;
        assert_eq!(verdict(&pipeline, "Stalled"), "False Progressing");
    }
    world
        .until("obsolete", "waits for the broker", |pipeline| {
            verdict(pipeline, "Ready") == "False BrokerUnreachable"
        })
        .await;
    broker.start();
    world.ready("new").await;
    let old = world.ready("old").await;
    assert!(old.status.unwrap().drift.is_none(), "a restart loses nothing");
    world.until_gone("obsolete").await;
    let queues = world.broker.names("queues", &world.vhost).await;
    assert!(!queues.iter().any(|queue| queue.starts_with("obsolete")), "{queues:#?}");
    world.leave().await;
}

/// Whatever a deletion was to do: it is waited for as long as the operator is told, then let go, and
/// what stays is told and works on when the broker is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelines_that_are_deleted_while_their_broker_is_down_are_let_go() {
    let _alone = alone().await;
    let mut world = World::on("40", "brokergone").await;
    world.settings.release_after = Duration::from_secs(6);
    let mut secret = world.secret();
    secret.insert("uri", format!("http://{}", world.broker.address));
    world.write_secret(&secret).await;
    world.start();
    let policies = [("keep", "Retain"), ("careful", "DeleteIfEmpty"), ("whole", "Delete")];
    for (name, policy) in policies {
        world.create_ready(name, json!({"deletionPolicy": policy})).await;
    }
    let before = world.broker.contents(&world.vhost).await;
    let broker = Part::BROKER_40;
    broker.kill();
    for (name, _) in policies {
        world.delete(name).await;
    }
    for (name, _) in policies {
        world.until_gone(name).await;
        let event = world.until_event(name, "Orphaned").await;
        assert!(event.contains(&format!("queue {name}.queue")), "{event}");
    }
    broker.start();
    assert_eq!(world.broker.contents(&world.vhost).await, before, "nothing goes when it is back");
    // A queue that goes in the moment in which it gets its leader takes the worker of its dead letters
    // with it, and a few of these their supervisor (4.0.5): the node then takes no queue any more
    // that dead-letters at least once, until it is started again.
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.leave().await;
}
