//! What the design takes for granted of exchanges: the slots decide by the first
//! that is bound, and a rule that leads nowhere holds messages back.

use std::collections::BTreeSet;
use std::time::Duration;

use redrive::topology::desired::Slots;
use redrive::topology::model::{Args, Binding, Destination};
use rstest::rstest;

use crate::lab::{
    Act, Audit, Broker, Consumer, DEAD_LETTER_PATIENCE, Lab, PATIENCE, Publisher, full, id, ids,
};

const LADDER: &str = "
source:
  queue: {name: orders}
  exchange: {name: shop, type: topic}
  bindings: [{exchange: shop, routingKey: orders.*}]
retry: {delays: [300ms, 300ms]}
";

fn to_queue(exchange: &str, queue: &str) -> Binding {
    Binding {
        source: exchange.to_owned(),
        destination: Destination::Queue(queue.to_owned()),
        routing_key: String::new(),
        arguments: Args::new(),
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_leads_to_an_exchange_without_a_queue_holds_and_starts_nothing_over(
    #[values("43", "40")] version: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "guard", LADDER).await;
    // The rule from the first tier to the second is gone, and so is what the guard leads to.
    lab.management.delete_queue(&lab.vhost, "orders.retry.1").await.expect("deleted");
    lab.unbind(&to_queue("orders.dlx.rest", "orders.dlq")).await;
    let consumer = Consumer::start(&lab, "orders", 50, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(20);
    publisher.send_all("shop", "orders.created", &all).await;
    consumer.sees(40).await;
    lab.keeps("orders", 20).await;
    assert_eq!(lab.ready("orders.retry.0").await + lab.ready("orders.dlq").await, 0);
    assert_eq!(consumer.count(), 40, "no message starts over");
    lab.converge().await;
    if full("waiting up to 400 s for what the guard held") {
        // They had failed in the first tier; the second is back, so there they go.
        consumer.sees_within(60, DEAD_LETTER_PATIENCE).await;
        lab.holds("orders.dlq", 20, PATIENCE).await;
        let mut audit = Audit::of(&all);
        audit.found("orders.dlq", &lab.drain("orders.dlq").await);
        audit.assert_exactly_once();
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_slots_the_first_that_is_bound_decides_also_while_it_flips(
    #[values("43", "40")] version: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "slots", LADDER).await;
    lab.other_queue("probe", "shop", "never").await;
    let head = Slots::binding("orders.dlx", "orders.dlx.dead");
    let alternate = to_queue("orders.dlx.alt", "probe");
    let consumer = Consumer::start(&lab, "orders", 100, |_| Act::Reject);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");

    // The head alone, then both.
    lab.management.bind(&lab.vhost, &alternate).await.expect("bound");
    publisher.send_all("shop", "orders.created", &ids(20)).await;
    lab.holds("orders.dlq", 20, PATIENCE).await;
    assert_eq!(lab.ready("probe").await, 0, "the head wins");
    // The alternate alone.
    lab.unbind(&head).await;
    publisher.send_all("shop", "orders.created", &ids(20)).await;
    lab.holds("probe", 20, PATIENCE).await;
    assert_eq!(lab.ready("orders.dlq").await, 20);
    // Neither: the end of the chain.
    lab.unbind(&alternate).await;
    publisher.send_all("shop", "orders.created", &ids(20)).await;
    lab.holds("orders.dlq", 40, PATIENCE).await;
    assert_eq!(consumer.count(), 60 + 20 + 20);
    lab.drain("orders.dlq").await;
    lab.drain("probe").await;

    // Flips under load: each message takes one way at each of its deaths.
    lab.management.bind(&lab.vhost, &alternate).await.expect("bound");
    let all: Vec<String> = (100..500).map(id).collect();
    let flip = async {
        loop {
            lab.management.bind(&lab.vhost, &head).await.expect("bound");
            tokio::time::sleep(Duration::from_millis(60)).await;
            lab.unbind(&head).await;
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    };
    let load = async {
        for batch in all.chunks(10) {
            publisher.send_all("shop", "orders.created", batch).await;
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    };
    let ended = crate::lab::eventually(PATIENCE, "all 400 end", async || {
        let ended = lab.ready("orders.dlq").await + lab.ready("probe").await;
        if ended == 400 { Ok(()) } else { Err(format!("{ended} did")) }
    });
    tokio::select! {
        () = flip => {}
        () = async { load.await; ended.await } => {}
    }
    let mut audit = Audit::of(&all);
    let probe = lab.drain("probe").await;
    println!("{version}: {} of 400 took the alternate slot at some death", probe.len());
    assert!(!probe.is_empty() && probe.len() < 400);
    audit.found("probe", &probe);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
    let walks: BTreeSet<usize> = consumer.by_id().values().map(Vec::len).collect();
    assert!(walks.iter().all(|deliveries| *deliveries <= 9), "{walks:?}");
}
