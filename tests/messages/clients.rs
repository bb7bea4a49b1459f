//! Consumers in other languages and protocols: pika over AMQP 0-9-1, Qpid Proton
//! over AMQP 1.0.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::Value;

use crate::lab::{Audit, Broker, Control, Lab, PATIENCE, Publisher, Python, ids};

const LADDER: &str = "
source:
  queue: {name: orders}
  exchange: {name: shop, type: topic}
  bindings: [{exchange: shop, routingKey: orders.*}]
retry: {delays: [300ms, 500ms]}
deadLetter:
  quarantine:
    - {category: poison, reasons: [delivery_limit]}
    - {category: schema, headers: {x-opt-category: schema}}
";

fn text<'a>(line: &'a Value, key: &str) -> &'a str {
    line[key].as_str().expect("text")
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pika_consumer_that_only_rejects_gets_the_whole_ladder(#[values("43", "40")] version: &str) {
    let lab = Lab::new(Broker::of_version(version), "pika", LADDER).await;
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(30);
    publisher.send_all("shop", "orders.created", &all).await;
    let uri = lab.broker.amqp_uri(&lab.vhost);
    let lines = Python::start("reject_only.py", &[&uri, "orders", "90"]).lines(PATIENCE).await;
    let mut walks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in &lines {
        walks.entry(text(line, "id")).or_default().push(text(line, "exchange"));
    }
    assert_eq!(walks.len(), 30);
    assert!(walks.values().all(|walk| walk == &["shop", "orders.return.0", "orders.return.1"]), "{walks:?}");
    lab.holds("orders.dlq", 30, PATIENCE).await;
    let mut audit = Audit::of(&all);
    audit.found("orders.dlq", &lab.drain("orders.dlq").await);
    audit.assert_exactly_once();
}

/// Each outcome of a first delivery, how often the message is delivered in all,
/// and where it ends.
const OUTCOMES: [(&str, usize, &str); 6] = [
    ("accepted", 1, ""),
    ("rejected", 3, "orders.dlq"),
    ("released", 4, "orders.dlq"),
    ("modified-failed", 4, "orders.dlq"),
    ("modified-dead", 1, "orders.dlq"),
    ("modified-schema", 1, "orders.dlq.quarantine.schema"),
];

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_outcome_of_amqp_1_0_leads_where_it_says(#[values("43", "40")] version: &str) {
    let lab = Lab::new(Broker::of_version(version), "amqp10", LADDER).await;
    let control = Control::start(&lab).await;
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    for (outcome, _, _) in OUTCOMES {
        let properties = Publisher::properties(outcome).with_type(outcome.into());
        let taken = publisher.send("shop", "orders.created", outcome, properties).await;
        assert!(taken.expect("a confirmation"));
    }
    let deliveries: usize = OUTCOMES.iter().map(|(_, deliveries, _)| deliveries).sum();
    let credentials = &lab.broker.endpoint.credentials;
    let arguments = [
        &lab.broker.endpoint.amqp.to_string(),
        &credentials.username,
        &credentials.password,
        &lab.vhost,
        "orders",
        &deliveries.to_string(),
    ];
    let lines =
        Python::start("amqp10_outcomes.py", &arguments.map(|text| text as &str)).lines(PATIENCE).await;
    let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for line in &lines {
        times.entry(text(line, "id")).or_default().push(line["at"].as_f64().expect("a time"));
    }
    let control = control.read();
    for (outcome, times) in times.iter().filter(|(_, times)| times.len() > 1) {
        // What was released comes back at once before it is rejected for the first time.
        let rejections = &times[times.len() - 3..];
        for (pair, delay) in rejections.windows(2).zip([300, 500]) {
            control.assert_delay_unix(pair[0], pair[1], delay, outcome);
        }
    }
    let counts: BTreeMap<&str, usize> = times.iter().map(|(id, times)| (*id, times.len())).collect();
    let expected = OUTCOMES.iter().map(|(outcome, deliveries, _)| (*outcome, *deliveries)).collect();
    assert_eq!(counts, expected);
    for queue in ["orders.dlq", "orders.dlq.quarantine.schema", "orders.dlq.quarantine.poison"] {
        let mut wanted: Vec<&str> =
            OUTCOMES.iter().filter(|(_, _, end)| *end == queue).map(|(outcome, _, _)| *outcome).collect();
        lab.holds(queue, wanted.len(), PATIENCE).await;
        let mut found: Vec<String> = lab.drain(queue).await.into_iter().map(|seen| seen.id).collect();
        wanted.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, wanted, "in {queue}");
    }
}
