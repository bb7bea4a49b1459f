//! Nodes of a real cluster of three are killed under load.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redrive::broker::amqp;

use crate::lab::{Act, Audit, Broker, Consumer, Lab, Publisher, Trio, Turn, eventually, full, ids};

const LADDER: &str = "
source:
  queue: {name: orders, groupSize: 3}
  exchange: {name: shop, type: topic}
  bindings: [{exchange: shop, routingKey: orders.*}]
retry: {delays: [300ms, 300ms, 300ms], groupSize: 3}
deadLetter: {groupSize: 3}
";

/// Includes the three minutes after which the broker tries again what was on its
/// way to a node that died.
const PATIENCE: Duration = Duration::from_secs(420);

/// Publishes all, through the next node after each failure, until all are confirmed.
async fn publish(nodes: &[Broker], vhost: &str, ids: &[String], confirmed: &AtomicUsize) {
    let mut left: Vec<&String> = ids.iter().collect();
    for node in nodes.iter().cycle() {
        if left.is_empty() {
            return;
        }
        let Ok(connection) = amqp::connect(&node.endpoint, &Broker::guard(), vhost, "publisher").await else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        let Ok(publisher) = Publisher::new(connection).await else { continue };
        while !left.is_empty() {
            let chunk: Vec<&String> = left.iter().take(100).copied().collect();
            let sent = chunk
                .iter()
                .map(|id| publisher.send("shop", "orders.created", id, Publisher::properties(id)));
            let sent = tokio::time::timeout(Duration::from_secs(20), futures::future::join_all(sent)).await;
            let done: BTreeSet<&String> = sent
                .unwrap_or_default()
                .into_iter()
                .zip(&chunk)
                .filter_map(|(taken, id)| matches!(taken, Ok(true)).then_some(*id))
                .collect();
            left.retain(|id| !done.contains(*id));
            confirmed.store(ids.len() - left.len(), Ordering::Relaxed);
            if done.len() < chunk.len() {
                break;
            }
        }
    }
}

/// Kills these nodes one after the other while the messages fail; each comes back
/// before the next goes.
async fn kill_under_load(version: &str, count: usize, victims: &[usize]) {
    // First of all, so that nobody else's trio goes when ours comes.
    let turn = Turn::all().await;
    let trio = Trio::start("trio", version).await;
    let nodes: Vec<Broker> = trio.uris.iter().map(|(http, amqp)| Broker::at(http, amqp)).collect();
    // Declared through the first node, which so becomes leader of all queues.
    let lab = Lab::with_turn(turn, nodes[0].clone(), "trio", LADDER).await;
    let start = Instant::now();
    let all = ids(count);
    let consumers: Vec<Consumer> = (0..3)
        .map(|first| {
            let mut nodes = nodes.clone();
            nodes.rotate_left(first);
            Consumer::on(nodes, &lab.vhost, "orders", 100, |_| Act::Reject)
        })
        .collect();
    let graves = Consumer::on(nodes.clone(), &lab.vhost, "orders.dlq", 200, |_| Act::Ack);
    let confirmed = Arc::new(AtomicUsize::new(0));
    let producer = {
        let (vhost, confirmed, all) = (lab.vhost.clone(), Arc::clone(&confirmed), all.clone());
        let mut nodes = nodes.clone();
        nodes.rotate_left(1);
        tokio::spawn(async move { publish(&nodes, &vhost, &all, &confirmed).await })
    };
    for (number, victim) in victims.iter().enumerate() {
        let share = count * (number + 1) / (victims.len() + 1);
        eventually(PATIENCE, &format!("{share} are dead"), async || {
            if graves.count() >= share { Ok(()) } else { Err(format!("{} are", graves.count())) }
        })
        .await;
        trio.kill(*victim).await;
        println!("{version}: node {victim} killed after {:.0} s", start.elapsed().as_secs_f32());
        tokio::time::sleep(Duration::from_secs(5)).await;
        trio.start_again(*victim).await;
    }
    tokio::time::timeout(PATIENCE, producer).await.expect("published in time").expect("a producer");
    eventually(PATIENCE, "every message is dead", async || {
        let dead: BTreeSet<String> = graves.seen().into_iter().map(|seen| seen.id).collect();
        if dead.len() >= count { Ok(()) } else { Err(format!("{} are", dead.len())) }
    })
    .await;
    let took = start.elapsed();
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &graves.seen());
    let doubled = audit.doubled().len();
    let deliveries: usize = consumers.iter().map(Consumer::count).sum();
    println!("{version}: {count} dead in {took:.0?}, {doubled} of them doubled, {deliveries} deliveries");
    audit.assert_at_least_once();
    let mut attempts: BTreeMap<String, usize> = BTreeMap::new();
    for seen in consumers.iter().flat_map(Consumer::seen) {
        *attempts.entry(seen.id).or_default() += 1;
    }
    assert_eq!(attempts.len(), count, "every message was delivered");
    assert!(attempts.values().all(|attempts| *attempts >= 4), "each failed at all of its four attempts");
    assert!(deliveries < count * 5, "none loops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_failing_messages_all_reach_the_dlq_though_the_leader_is_killed() {
    kill_under_load("43", 10_000, &[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_failing_messages_all_reach_the_dlq_though_every_node_is_killed_once() {
    if full("a longer series of kills, on 4.3 and 4.0") {
        kill_under_load("43", 20_000, &[1, 2, 3]).await;
        kill_under_load("40", 20_000, &[1, 2, 3]).await;
    }
}
