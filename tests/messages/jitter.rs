//! Jitter: a tier's messages spread over its shards, and each waits within the percentage.

use std::collections::BTreeMap;
use std::time::Duration;

use rstest::rstest;

use crate::lab::{Act, Audit, Broker, Consumer, Control, Lab, PATIENCE, Publisher, ids};

const LADDER: &str = "
source:
  queue: {name: orders}
  exchange: {name: shop, type: topic}
  bindings: [{exchange: shop, routingKey: orders.*}]
retry: {delays: [800ms, 800ms], jitter: {percent: 50, shards: 4}}
";

/// 800 ms ± 50 percent over four shards.
const DELAYS: [u64; 4] = [400, 666, 933, 1200];

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_spreads_over_the_shards_and_waits_within_the_percentage(
    #[values("43", "40")] version: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "jitter", LADDER).await;
    let control = Control::start(&lab).await;
    let consumer = Consumer::start(&lab, "orders", 100, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(200);
    for some in all.chunks(10) {
        publisher.send_all("shop", "orders.created", some).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    consumer.sees(600).await;
    lab.holds("orders.dlq", 200, PATIENCE).await;

    let mut shares: BTreeMap<String, usize> = BTreeMap::new();
    let (walks, control) = (consumer.by_id(), control.read());
    assert_eq!(walks.len(), 200, "every message was delivered");
    for walk in walks.values() {
        assert_eq!(walk.len(), 3);
        for (tier, pair) in walk.windows(2).enumerate() {
            let queue = pair[1].header("x-last-death-queue").expect("where it waited");
            let shard = queue.strip_prefix(&format!("orders.retry.{tier}.s")).expect("a shard of its tier");
            let delay = DELAYS[shard.parse::<usize>().expect("a number")];
            control.assert_delay(pair[0].at, pair[1].at, delay, &queue);
            *shares.entry(queue).or_default() += 1;
        }
    }
    println!("{version}: {shares:?}");
    assert_eq!(shares.len(), 8, "every shard of both tiers is used");
    assert!(shares.values().all(|share| (20..=90).contains(share)), "evenly: {shares:?}");
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tier_that_lost_all_its_shards_ends_in_the_dlq(#[values("43", "40")] version: &str) {
    let lab = Lab::new(Broker::of_version(version), "shards", LADDER).await;
    for shard in 0..4 {
        let queue = format!("orders.retry.1.s{shard}");
        lab.management.delete_queue(&lab.vhost, &queue).await.expect("deleted");
    }
    let consumer = Consumer::start(&lab, "orders", 100, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    publisher.send_all("shop", "orders.created", &ids(20)).await;
    lab.holds("orders.dlq", 20, PATIENCE).await;
    assert_eq!(consumer.count(), 40);
    // A lost shard alone costs nothing but evenness.
    lab.converge().await;
    lab.management.delete_queue(&lab.vhost, "orders.retry.0.s2").await.expect("deleted");
    publisher.send_all("shop", "orders.created", &ids(20)).await;
    lab.holds("orders.dlq", 40, PATIENCE).await;
    assert_eq!(consumer.count(), 40 + 60);
}
