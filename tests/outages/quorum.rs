//! Queues of a real cluster that lose the nodes that they are on, for good.
//!
//! The broker leaves such a queue out of the list that has the counts, and says zero of it where
//! it is asked for alone. It is neither lost nor empty.

use std::time::Duration;

use redrive::api::CleanupStage;
use serde_json::json;

use crate::parts::alone;
use crate::support::broker::Broker;
use crate::support::world::{World, describe, inventory, message, verdict};
use crate::support::{full, steadily};
use crate::trio::Trio;

/// The source and its tiers are on all nodes, the DLQ on the third one alone.
fn lonely(policy: &str) -> serde_json::Value {
    json!({
        "source": {"queue": {"groupSize": 3}},
        "retry": {"delays": ["1s"], "groupSize": 3},
        "deadLetter": {"groupSize": 1},
        "deletionPolicy": policy,
    })
}

/// What the operator must do with a queue that is down: nothing, and say so. `proof` is for how
/// many seconds the deletion must not go on after nodes have started again.
async fn check_left_alone(version: &str, proof: u64) {
    let _alone = alone().await;
    let trio = Trio::start("outage", version).await;
    let nodes: Vec<Broker> = trio.uris.iter().map(|(http, amqp)| Broker::at(http, amqp)).collect();
    let mut world = World::at(nodes[2].clone(), &format!("quorum{version}")).await;
    world.settings.release_after = Duration::from_secs(600);
    world.start();
    for (name, policy) in [("orders", "DeleteIfEmpty"), ("carts", "Delete")] {
        world.create_ready(name, lonely(policy)).await;
    }
    world.broker.fill(&world.vhost, "orders.queue.dlq", 3).await;
    let recorded = inventory(&world.get("orders").await, "Created");

    // From now on through the first node, which belongs to the same cluster.
    world.proxy.lead_to(&nodes[0].address);
    world.broker = nodes[0].clone();
    world.write_secret(&world.secret()).await;
    trio.kill(3).await;
    let pipeline = world.until_reason("orders", "Blocked").await;
    let text = message(&pipeline, "Ready");
    assert!(text.contains("queue orders.queue.dlq") && text.contains("nodes"), "{}", describe(&pipeline));
    world.proxy.forget();
    steadily("the queue is left alone", Duration::from_secs(4), async || {
        let writes = world.proxy.writes();
        if writes.is_empty() { Ok(()) } else { Err(format!("{writes:#?}")) }
    })
    .await;
    let pipeline = world.get("orders").await;
    assert_eq!(inventory(&pipeline, "Created"), recorded);
    assert!(pipeline.status.as_ref().unwrap().drift.is_none(), "it is not lost: {}", describe(&pipeline));

    // Nobody knows what it holds, so it does not count as empty; and no deletion hangs in silence.
    world.delete("orders").await;
    let pipeline = world.until_reason_of_deletion("QueueNotEmpty").await;
    let text = message(&pipeline, "Ready");
    assert!(text.contains("orders.queue.dlq can't be proven empty"), "{}", describe(&pipeline));
    assert_eq!(verdict(&pipeline, "Reconciling"), "True QueueNotEmpty");
    // Where the user said so, it goes with what it may hold.
    world.delete("carts").await;
    world.until_gone("carts").await;

    // Without a majority of the whole cluster every call still ends. 4.0 pauses its last node.
    trio.kill(2).await;
    world
        .until("orders", "tells what is out of reach", |pipeline| {
            let text = message(pipeline, "Ready");
            text.contains("can't be reached") || text.contains("orders.queue can't be proven empty")
        })
        .await;
    trio.start_again(2).await;
    // Nodes that have started without the third one may not even show that the DLQ is ours.
    steadily("it waits for the DLQ", Duration::from_secs(proof), async || {
        let found = world.pipelines().get("orders").await.map_err(|error| error.to_string())?;
        let stage = found.status.as_ref().and_then(|status| status.cleanup.as_ref());
        match stage.map(|cleanup| cleanup.stage) {
            Some(CleanupStage::Proving | CleanupStage::Waiting) => Ok(()),
            _ => Err(describe(&found)),
        }
    })
    .await;

    // It was not for good: what it held is still there.
    trio.start_again(3).await;
    world
        .until("orders", "tells the messages", |pipeline| {
            message(pipeline, "Ready").contains("orders.queue.dlq holds 3 messages")
        })
        .await;
    world.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_has_lost_its_nodes_is_neither_lost_nor_empty() {
    check_left_alone("43", 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_has_lost_its_nodes_is_neither_lost_nor_empty_on_4_0() {
    if full("a cluster of 4.0 that loses nodes") {
        // Longer than two looks take that would prove all other queues empty.
        check_left_alone("40", 30).await;
    }
}
