//! The library rabbitkit on the topology of `examples/rabbitkit.yaml`.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::{Value, json};

use crate::lab::{Audit, Broker, Control, Lab, PATIENCE, Publisher, Python, ids};

/// The `spec` of the example, with other delays where given.
fn example(delays: Option<Value>) -> String {
    let path = format!("{}/examples/rabbitkit.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the example");
    let mut object: Value = serde_yaml::from_str(&text).expect("YAML");
    if let Some(delays) = delays {
        object["spec"]["retry"]["delays"] = delays;
    }
    object["spec"].to_string()
}

fn app(lab: &Lab, mode: &str, delays: &str, count: usize) -> Python {
    let endpoint = &lab.broker.endpoint;
    let arguments = [
        &endpoint.amqp.to_string(),
        &endpoint.credentials.username,
        &endpoint.credentials.password,
        &lab.vhost,
        "payments.queue",
        "payments.exchange",
        mode,
        delays,
        &count.to_string(),
    ];
    Python::start("rabbitkit_app.py", &arguments.map(|text| text as &str))
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitkit_starts_on_the_example_as_it_is(
    #[values("43", "40")] version: &str,
    #[values("AUTO_DECLARE", "PASSIVE_ONLY")] mode: &str,
) {
    let lab = Lab::new(Broker::of_version(version), "rabbitkit", &example(None)).await;
    let lines = app(&lab, mode, "5,30,120,600", 0).lines(PATIENCE).await;
    assert_eq!(lines, [json!({"started": true})]);
    let mut operator = lab.operator.lock().await;
    let round = operator.round(0).await.expect("a look");
    assert!(round.left.is_empty() && round.blocked.is_empty(), "rabbitkit changed nothing: {round:?}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitkit_retries_through_our_queues_and_gives_up_into_our_dlq(
    #[values("43", "40")] version: &str,
    #[values("AUTO_DECLARE", "PASSIVE_ONLY")] mode: &str,
) {
    let spec = example(Some(json!(["1s", "1s", "2s", "3s"])));
    let lab = Lab::new(Broker::of_version(version), "rabbitkit", &spec).await;
    let control = Control::start(&lab).await;
    let app = app(&lab, mode, "1,1,2,3", 50);
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    let all = ids(10);
    publisher.send_all("payments.exchange", "payments.queue", &all).await;
    let lines = app.lines(PATIENCE).await;
    let mut walks: BTreeMap<&str, Vec<(u64, f64)>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.get("id").is_some()) {
        let retries = line["retries"].as_u64().expect("a count");
        let id = line["id"].as_str().expect("an id");
        walks.entry(id).or_default().push((retries, line["at"].as_f64().expect("a time")));
    }
    assert_eq!(walks.len(), 10);
    let control = control.read();
    for (id, walk) in &walks {
        let retries: Vec<u64> = walk.iter().map(|(retries, _)| *retries).collect();
        assert_eq!(retries, [0, 1, 2, 3, 4], "{id}");
        for (pair, delay) in walk.windows(2).zip([1000, 1000, 2000, 3000]) {
            control.assert_delay_unix(pair[0].1, pair[1].1, delay, id);
        }
    }
    lab.holds("payments.queue.dlq", 10, PATIENCE).await;
    let mut audit = Audit::of(&all);
    audit.found("payments.queue.dlq", &lab.drain("payments.queue.dlq").await);
    audit.assert_exactly_once();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitkit_refuses_to_start_on_a_topology_that_differs(#[values("43", "40")] version: &str) {
    let spec = example(Some(json!(["5s", "30s", "2m", "9m"])));
    let lab = Lab::new(Broker::of_version(version), "differs", &spec).await;
    let (success, output, errors) = app(&lab, "AUTO_DECLARE", "5,30,120,600", 0).end(PATIENCE).await;
    assert!(!success && !output.contains("started"), "{output}");
    assert!(errors.contains("payments.queue.retry.4"), "it names the queue: {errors}");

    drop(lab);
    let lab = Lab::new(Broker::of_version(version), "missing", &example(None)).await;
    let queue = "payments.queue.retry.2";
    lab.management.delete_queue(&lab.vhost, queue).await.expect("deleted");
    let (success, output, errors) = app(&lab, "PASSIVE_ONLY", "5,30,120,600", 0).end(PATIENCE).await;
    assert!(!success && !output.contains("started"), "{output}");
    assert!(errors.contains(queue), "it names the queue: {errors}");
}
