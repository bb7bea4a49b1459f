//! Mode Native: the work queue itself delays what is rejected with requeue.

use std::time::Duration;

use redrive::topology::validate::{Unsupported, check_broker};

use crate::lab::{Act, Broker, Consumer, Lab, PATIENCE, Publisher, Seen, assert_delay, ids, pipeline};

const NATIVE: &str = "
source:
  queue: {name: orders}
  exchange: {name: shop, type: topic}
  bindings: [{exchange: shop, routingKey: orders.*}]
retry: {mode: Native, native: {min: 500ms, max: 1600ms, attempts: 5}}
";

async fn lab(purpose: &str) -> (Lab, Publisher) {
    let lab = Lab::new(Broker::of_version("43"), purpose, NATIVE).await;
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    (lab, publisher)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requeued_rejections_wait_longer_each_time_up_to_the_maximum_and_end_in_the_dlq() {
    let (lab, publisher) = lab("native").await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Requeue);
    publisher.send_all("shop", "orders.created", &ids(30)).await;
    lab.holds("orders.dlq", 30, PATIENCE).await;
    for walk in consumer.by_id().values() {
        assert_eq!(walk.len(), 6, "the first delivery and five retries");
        for (retry, pair) in walk.windows(2).enumerate() {
            let delay = [500, 1000, 1500, 1600, 1600][retry];
            assert_delay(pair[1].at - pair[0].at, delay, &format!("{} at retry {retry}", walk[0].id));
        }
    }
    let dead = lab.drain("orders.dlq").await;
    assert!(dead.iter().all(|dead| dead.header("x-last-death-reason").as_deref() == Some("delivery_limit")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requeued_nacks_come_back_at_once_and_are_not_counted() {
    let (lab, publisher) = lab("nacks").await;
    let script = |seen: &Seen| if seen.before < 40 { Act::NackRequeue } else { Act::Ack };
    let consumer = Consumer::start(&lab, "orders", 1, script);
    publisher.send_all("shop", "orders.created", &ids(1)).await;
    consumer.sees(41).await;
    let seen = consumer.seen();
    let longest = seen.windows(2).map(|pair| pair[1].at - pair[0].at).max();
    assert!(longest < Some(Duration::from_millis(400)), "{longest:?}");
    assert_eq!(lab.ready("orders.dlq").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejection_without_requeue_is_dead_at_once() {
    let (lab, publisher) = lab("dead").await;
    let consumer = Consumer::start(&lab, "orders", 1, |_| Act::Reject);
    publisher.send_all("shop", "orders.created", &ids(3)).await;
    lab.holds("orders.dlq", 3, PATIENCE).await;
    assert_eq!(consumer.count(), 3);
}

#[tokio::test]
async fn a_broker_that_can_not_delay_is_refused() {
    let facts = Broker::of_version("40").management().overview().await.expect("a broker").facts;
    let refusals = check_broker(&pipeline(NATIVE), &facts);
    assert!(matches!(&refusals[..], [Unsupported::Version(why)] if why.contains("4.3.1")), "{refusals:?}");
}
