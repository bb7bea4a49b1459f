//! `kill -9` while messages are being moved.

use std::time::Duration;

use redrive::broker::moving::WINDOW;
use serde_json::json;

use crate::kill::{Process, Stage};
use crate::support::amqp::{Wire, numbered};
use crate::support::world::verdict;
use crate::support::{PATIENCE, eventually};

const MESSAGES: usize = 20_000;

/// At so many moved messages of each way the operator is killed.
const KILLS: [usize; 3] = [500, 5_000, 12_000];

/// Kills the operator once so many messages have arrived; whether it came to that.
async fn kill_at(stage: &mut Stage, wire: &Wire, queue: &str, messages: usize) -> bool {
    let wait = async {
        loop {
            let exists = stage.world.broker.exists("queues", &stage.world.vhost, queue).await;
            if exists && wire.ready(queue).await >= messages {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let met = tokio::time::timeout(PATIENCE, wait).await.is_ok();
    stage.process.kill();
    stage.process = Process::start(&stage.world, &stage.kubeconfig);
    met
}

#[tokio::test]
async fn killed_while_messages_move_none_is_lost_and_a_window_doubled_at_the_most() {
    let mut stage = Stage::new("kill-moves").await;
    stage.world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    let wire = Wire::open(&stage.world).await;
    wire.publish("", "orders.queue.dlq", numbered(0..MESSAGES)).await;
    stage.world.edit("orders", json!({"deadLetter": {"queueType": "classic"}})).await;
    let mut kills = 0;
    for messages in KILLS {
        kills += usize::from(kill_at(&mut stage, &wire, "orders.queue.dlq.moving", messages).await);
    }
    assert_eq!(kills, KILLS.len(), "all of them came while messages moved");
    eventually("nothing stands in any more", async || {
        let pipeline = stage.world.get("orders").await;
        let names = stage.world.broker.names("queues", &stage.world.vhost).await;
        let rests = verdict(&pipeline, "Ready") == "True Reconciled";
        if rests && !names.iter().any(|name| name.ends_with(".moving")) {
            Ok(())
        } else {
            Err(format!("{names:?}"))
        }
    })
    .await;
    let queue = stage.world.broker.queue(&stage.world.vhost, "orders.queue.dlq").await;
    assert_eq!(queue["type"], "classic");
    let copies = wire.copies("orders.queue.dlq").await;
    assert_eq!(copies.lost(MESSAGES), Vec::<usize>::new(), "some are lost");
    let doubled = copies.doubled();
    println!("{kills} kills doubled {doubled} messages");
    assert!(doubled <= kills * usize::from(WINDOW), "{doubled} are doubled");
    stage.leave().await;
}
