//! What a scrape shows: the numbers of docs/metrics.md, all of them, and nothing of a resource that
//! is gone.

use std::collections::BTreeSet;

use redrive::ops::metrics::Format;
use serde_json::json;

use crate::support::eventually;
use crate::support::promtool;
use crate::support::proxy::Action;
use crate::support::replays::DLQ;
use crate::support::world::{SECRET, World};

/// What a histogram and a counter add to their names.
const SUFFIXES: [&str; 4] = ["_total", "_bucket", "_sum", "_count"];

/// Numbers of the API server's calls are counted by the client, which is the test's own here.
const COUNTED_ELSEWHERE: [&str; 2] = ["rest_client_requests_total", "leader_election_master_status"];

impl World {
    fn scrape(&self) -> String {
        self.metrics.written(Format::OpenMetrics).unwrap()
    }

    async fn until_scraped(&self, what: &str) -> String {
        eventually(&format!("a scrape shows {what}"), async || {
            let text = self.scrape();
            if text.lines().any(|line| line.starts_with(what)) { Ok(text) } else { Err(text) }
        })
        .await
    }
}

/// The names of all families that a text holds, counters with `_total`.
fn scraped(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let name = |line: &str| {
        let (name, kind) = line.split_once(' ').unwrap();
        if kind == "counter" { format!("{name}_total") } else { name.to_owned() }
    };
    types.map(name).collect()
}

/// The names in the first columns of the page, but for RabbitMQ's and those of rules.
fn documented() -> BTreeSet<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split_once('`')).map(|(name, _)| name.to_owned());
    let prefixes = ["redrive_", "controller_runtime_", "leader_election_", "rest_client_"];
    names.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))).collect()
}

#[tokio::test]
async fn each_number_of_the_documentation_is_there_until_its_resource_goes() {
    let mut world = World::for_replays("metrics").await;
    world.settings.events.secrets = vec![(world.namespace.clone(), SECRET.to_owned())];
    world.broker.grant("/", &world.namespace, ".*").await;
    world.start();
    let spec = json!({
        "owner": {"team": "checkout"},
        "retry": {"delays": ["5s"]},
        "deadLetter": {"maxLength": 1_000},
        "deletionPolicy": "Delete",
    });
    world.create_ready("orders", spec).await;
    world.broker.fill(&world.vhost, DLQ, 50).await;
    world
        .replay("slow", json!({"pace": {"messagesPerSecond": 1, "batch": 1, "pauseBetweenBatches": "10s"}}))
        .await;
    world.until_phase("slow", "Running").await;

    let here = format!("resource_namespace=\"{}\",pipeline=\"orders\",owner=\"checkout\"", world.namespace);
    let dlq = format!("{here},vhost=\"{}\",queue=\"orders.queue.dlq\",role=\"dlq\"", world.vhost);
    world.until_scraped(&format!("redrive_queue_max_messages{{{dlq}}} 1000")).await;
    world.until_scraped(&format!("redrive_queue_nonempty_since_timestamp_seconds{{{dlq}}}")).await;
    world.until_scraped(&format!("redrive_queue_consumers{{{dlq}}}")).await;
    world.until_scraped("redrive_broker_events_connected{").await;
    let replay = format!(
        "resource_namespace=\"{}\",replay=\"slow\",pipeline=\"orders\",owner=\"checkout\"",
        world.namespace
    );
    world.until_scraped(&format!("redrive_replay_phase{{{replay},phase=\"Running\"}} 1")).await;
    world.until_scraped(&format!("redrive_replay_breaker_state{{{replay},state=\"closed\"}} 1")).await;
    let text = world.until_scraped(&format!("redrive_replay_expected_messages{{{replay}}} 50")).await;
    assert!(text.contains(&format!("redrive_pipeline_condition{{{here},type=\"Ready\",status=\"True\"")));

    shows_what_is_documented(&text);
    promtool::run(&["check", "metrics"], &world.metrics.written(Format::Prometheus).unwrap());

    world.edit_replay("slow", json!({"cancel": true})).await;
    world.until_phase("slow", "Cancelled").await;
    world.delete_replay("slow").await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    eventually("nothing is left of either", async || {
        let text = world.scrape();
        let left: Vec<&str> = text.lines().filter(|line| line.contains(&world.namespace)).collect();
        if left.iter().all(|line| line.starts_with("redrive_broker_up")) {
            Ok(())
        } else {
            Err(left.join("\n"))
        }
    })
    .await;
    world.leave().await;
}

/// All numbers of the documentation, and none that is not there.
fn shows_what_is_documented(text: &str) {
    let (found, documented) = (scraped(text), documented());
    let ours: BTreeSet<String> = found.iter().filter(|name| !name.starts_with("process_")).cloned().collect();
    let missing: Vec<_> = documented
        .iter()
        .filter(|name| !ours.contains(*name) && !COUNTED_ELSEWHERE.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "documented and not there: {missing:?}\n{text}");
    let unknown: Vec<_> = ours.difference(&documented).collect();
    assert!(unknown.is_empty(), "there and not documented: {unknown:?}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        let is_known = [name.to_owned(), family.to_owned(), format!("{family}_total")];
        assert!(is_known.iter().any(|name| found.contains(name)), "{line}");
        // Bodies and headers are nowhere.
        assert!(!line.contains("message_id") && !line.contains("x-death"), "{line}");
    }
}

#[tokio::test]
async fn a_broker_that_is_away_is_down_and_its_calls_are_counted() {
    let mut world = World::new("metrics-down").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    let place = format!("broker=\"{}\"", world.proxy.address);
    let up = |up: u8| format!("redrive_broker_up{{{place},vhost=\"{}\"}} {up}", world.vhost);
    world.until_scraped(&up(1)).await;
    world.proxy.rule(|_| Action::Cut);
    world.until_scraped(&up(0)).await;
    world
        .until_scraped(&format!("redrive_broker_requests_total{{{place},method=\"GET\",code=\"connect\"}}"))
        .await;
    world.patch("orders", json!({"metadata": {"annotations": {"redrive.dev/look": "again"}}})).await;
    eventually("the pass that fails is counted", async || {
        let text = world.scrape();
        let counted = "controller_runtime_reconcile_errors_total{controller=\"retrypipeline\"} ";
        let count = text.lines().find_map(|line| line.strip_prefix(counted)).unwrap_or_default().to_owned();
        if count.parse().is_ok_and(|count: u64| count > 0) { Ok(()) } else { Err(count) }
    })
    .await;
    world.proxy.heal();
    let text = world.until_scraped(&up(1)).await;
    assert!(text.contains(&format!("redrive_broker_requests_total{{{place},method=\"PUT\",code=\"201\"}}")));
    world.leave().await;
}
