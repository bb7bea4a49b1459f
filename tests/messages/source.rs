//! Somebody deletes the source queue while messages wait in the tiers: they come back to
//! the queue that takes its place. What lay in the deleted one is gone, and nothing else.

use std::time::Duration;

use rstest::rstest;

use crate::lab::{
    Act, Audit, Broker, Consumer, DEAD_LETTER_PATIENCE, Lab, PATIENCE, Publisher, full, id, ids,
};

fn ladder(first: &str) -> String {
    format!(
        "
source:
  queue: {{name: orders}}
  exchange: {{name: shop, type: topic}}
  bindings: [{{exchange: shop, routingKey: orders.*}}]
  deliveryLimit: 5
retry: {{delays: [{first}, 200ms]}}
"
    )
}

/// Thirty messages wait in the first tier, ten lie in the source, which is deleted then.
async fn delete(lab: &Lab, publisher: &Publisher) {
    let consumer = Consumer::start(lab, "orders", 50, |_| Act::Reject);
    publisher.send_all("shop", "orders.created", &ids(30)).await;
    lab.holds("orders.retry.0", 30, PATIENCE).await;
    drop(consumer);
    // Once it is really gone, they stay.
    let inside: Vec<String> = (100..110).map(id).collect();
    publisher.send_all("shop", "orders.created", &inside).await;
    lab.holds("orders", 10, PATIENCE).await;
    lab.management.delete_queue(&lab.vhost, "orders").await.expect("deleted");
    let lost = publisher.send("shop", "orders.created", &id(200), Publisher::properties(&id(200))).await;
    assert!(!lost.expect("an answer"), "a producer is told that nobody takes its message");
}

/// All that waited walks on from where it was, and what is new the whole way.
async fn assert_walks(lab: &Lab, publisher: &Publisher, patience: Duration) {
    let consumer = Consumer::start(lab, "orders", 50, |_| Act::Reject);
    let new: Vec<String> = (300..305).map(id).collect();
    publisher.send_all("shop", "orders.created", &new).await;
    lab.holds("orders.dlq", 35, patience).await;
    let walks = consumer.by_id();
    for (id, walk) in &walks {
        let ways: Vec<&str> = walk.iter().map(|seen| seen.exchange.as_str()).collect();
        let whole = ["shop", "orders.return.0", "orders.return.1"];
        assert_eq!(ways, if new.contains(id) { &whole[..] } else { &whole[1..] }, "{id}");
    }
    let mut audit = Audit::of(&[ids(30), new].concat());
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_in_the_tiers_come_back_to_a_source_that_was_deleted_and_only_its_own_are_gone(
    #[values("43", "40")] version: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "deleted", &ladder("30s")).await;
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    delete(&lab, &publisher).await;
    let round = lab.operator.lock().await.round(usize::MAX).await.expect("a look");
    assert!(round.missing.contains(&"queue orders".to_owned()), "the look tells what was lost: {round:?}");
    lab.converge().await;
    assert_walks(&lab, &publisher, PATIENCE).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_whose_delay_ends_while_there_is_no_source_are_held_in_their_tier(
    #[values("43", "40")] version: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "held", &ladder("30s")).await;
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    delete(&lab, &publisher).await;
    // None is ready any more, and none has gone.
    lab.holds("orders.retry.0", 0, PATIENCE).await;
    lab.keeps("orders.retry.0", 30).await;
    lab.converge().await;
    if full("waiting up to 400 s for what came back while there was no source") {
        assert_walks(&lab, &publisher, DEAD_LETTER_PATIENCE).await;
    }
}
