//! Mode Native: the work queue itself delays what is rejected with requeue.

use std::time::Duration;

use redrive::topology::validate::{Unsupported, check_broker};
use rstest::rstest;

use crate::lab::{Act, Audit, Broker, Consumer, Control, Lab, PATIENCE, Publisher, Seen, ids, pipeline};

const NATIVE: &str = "
source:
  queue: {name: orders}
  exchange: {name: shop, type: topic}
  bindings: [{exchange: shop, routingKey: orders.*}]
retry: {mode: Native, native: {min: 500ms, max: 1600ms, attempts: 5}}
";

async fn lab(purpose: &str, settings: &str) -> (Lab, Publisher) {
    let spec = format!("{NATIVE}settings: {settings}\n");
    let lab = Lab::new(Broker::of_version("43"), purpose, &spec).await;
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    (lab, publisher)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requeued_rejections_wait_longer_each_time_up_to_the_maximum_and_end_in_the_dlq(
    #[values("{policy: {}}", "{arguments: {}}")] settings: &str,
) {
    let (lab, publisher) = lab("native", settings).await;
    lab.other_queue("audit", "shop", "orders.*").await;
    let control = Control::start(&lab).await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Requeue);
    let all = ids(30);
    publisher.send_all("shop", "orders.created", &all).await;
    lab.holds("orders.dlq", 30, PATIENCE).await;
    let (walks, control) = (consumer.by_id(), control.read());
    assert_eq!(walks.len(), 30, "every message was delivered");
    for walk in walks.values() {
        assert!(walk.iter().all(|seen| (&*seen.exchange, &*seen.routing_key) == ("shop", "orders.created")));
        assert_eq!(walk.len(), 6, "the first delivery and five retries");
        for (retry, pair) in walk.windows(2).enumerate() {
            let delay = [500, 1000, 1500, 1600, 1600][retry];
            control.assert_delay(pair[0].at, pair[1].at, delay, &format!("{} at retry {retry}", walk[0].id));
        }
    }
    let dead = lab.drain("orders.dlq").await;
    assert!(dead.iter().all(|dead| dead.header("x-last-death-reason").as_deref() == Some("delivery_limit")));
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &dead);
    audit.assert_exactly_once();
    let mut subscriber = Audit::of(&all);
    subscriber.found("audit", &lab.drain("audit").await);
    subscriber.assert_exactly_once();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requeued_nacks_come_back_at_once_and_are_not_counted() {
    let (lab, publisher) = lab("nacks", "{policy: {}}").await;
    let script = |seen: &Seen| if seen.before < 40 { Act::NackRequeue } else { Act::Ack };
    let consumer = Consumer::start(&lab, "orders", 1, script);
    publisher.send_all("shop", "orders.created", &ids(1)).await;
    consumer.sees(41).await;
    let seen = consumer.seen();
    // Delayed, they would take forty times the shortest delay and more.
    let took = seen[40].at - seen[0].at;
    assert!(took < Duration::from_millis(500) * 40, "{took:?}");
    assert_eq!(lab.ready("orders.dlq").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejection_without_requeue_is_dead_at_once() {
    let (lab, publisher) = lab("dead", "{policy: {}}").await;
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
