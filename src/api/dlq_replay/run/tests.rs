#![allow(clippy::unwrap_used)] // a test fails by panicking

use super::*;
use crate::api::RetryPipelineSpec;
use crate::topology::spec::Identity;
use crate::topology::validate::validate;

const NAME: RunName<'static> = RunName { namespace: "shop", name: "orders-1", uid: "uid-1" };

/// A replay of these lines, and what every replay needs.
fn replay(lines: &str) -> DlqReplaySpec {
    let needed = "pipelineRef: {name: orders}\njustification: the fix is deployed\n";
    from_yaml(&format!("{needed}{lines}"))
}

/// As the API server hands it over: YAML itself has another form for unions.
fn from_yaml<T: serde::de::DeserializeOwned>(text: &str) -> T {
    let value: serde_json::Value = serde_yaml::from_str(text).unwrap();
    serde_json::from_value(value).unwrap()
}

fn pipeline(dead_letter: &str) -> Pipeline {
    let text = format!(
        "broker: {{secretRef: {{name: rabbit}}}}
source:
  queue: {{name: orders}}
  exchange: {{name: shop, type: topic}}
  bindings: [{{exchange: shop, routingKey: orders.created}}, {{exchange: amq.topic, routingKey: x}}]
deadLetter: {dead_letter}"
    );
    let spec: RetryPipelineSpec = from_yaml(&text);
    let text = |text: &str| text.to_owned();
    let identity =
        Identity { cluster: text("c"), namespace: text("shop"), name: text("orders"), uid: text("u") };
    validate(identity, spec.to_topology()).unwrap()
}

const EVERYTHING: &str = "{parkingLot: true, quarantine: [{category: poison, reasons: [delivery_limit]}]}";

fn run(lines: &str, dead_letter: &str, policy: &str) -> Result<ReplayRun, Vec<String>> {
    let policy: ReplayPolicy = from_yaml(policy);
    let texts = |problems: Vec<Problem>| problems.iter().map(Problem::to_string).collect();
    replay(lines).to_run(NAME, &pipeline(dead_letter), &policy).map_err(texts)
}

#[test]
fn a_replay_that_names_nothing_has_the_documented_defaults() {
    let run = run("", "{}", "{}").unwrap();
    let seconds = std::time::Duration::from_secs;
    assert_eq!(run.origin, "orders.dlq");
    assert_eq!(run.target, replay::Target::Queue("orders".to_owned()));
    assert_eq!(run.criteria, Criteria::default());
    let pace = replay::Pace { per_second: 10, batch: 50, pause: seconds(0), ramp: None, window: 500 };
    assert_eq!(run.pace, pace);
    let guard = replay::Guard {
        stop_on_return_percent: 20,
        sample: 50,
        min_returns: 10,
        canary: replay::Canary { messages: 5, after: seconds(300), tries: 3 },
        pause_above_target_depth: None,
        require_consumers: true,
        max_unroutable: 1,
    };
    assert_eq!(run.guard, guard);
    assert_eq!(
        run.limits,
        replay::Limits { messages: None, scan: 1_000_000, deadline: seconds(3_600), hold: None }
    );
    let rewriting = replay::Rewriting {
        request: "shop/orders-1".to_owned(),
        run: "uid-1".to_owned(),
        on_failure: replay::OnFailure::DeadLetter,
        keep_expiration: false,
        idempotency: None,
        max_replays: 3,
        replay_limit_queue: None,
    };
    assert_eq!(run.rewriting, rewriting);
}

#[test]
fn everything_that_is_named_is_taken() {
    let lines = r##"
from: {quarantine: {category: poison}}
to: {parkingLot: {}}
select:
  headers: {x-error-type: Timeout}
  reasons: [rejected, delivery_limit]
  firstDeathQueues: [orders]
  routingKeys: ["orders.#"]
  messageIds: [a, b]
  olderThan: 10m
  newerThan: 48h
  expression: headers.a == 1
  limit: 500
  scanLimit: 1000
pace: {messagesPerSecond: 20, batch: 5, pauseBetweenBatches: 10s, ramp: {from: 1, every: 30s, factor: 2}, window: 50}
guard: {stopOnReturnPercent: 5, sample: 20, minReturns: 2, canary: {messages: 1, after: 1m, tries: 1}, pauseAboveTargetDepth: 9, requireConsumers: false, maxUnroutable: 4}
onFailure: Retry
expiration: Keep
maxReplaysPerMessage: 7
idempotency: {header: x-key, generate: true}
allowFanout: true
deadline: 2h
approval: {approvedBy: b, maxMessages: 300, planHash: h}
"##;
    let run = run(lines, EVERYTHING, "{allowBody: true, auditHeaders: [x-tenant-id]}").unwrap();
    assert_eq!(run.origin, "orders.dlq.quarantine.poison");
    assert_eq!(run.target, replay::Target::Queue("orders.dlq.parking".to_owned()));
    assert_eq!(run.criteria.reasons.iter().collect::<Vec<_>>(), ["delivery_limit", "rejected"]);
    assert_eq!(run.criteria.older_than, Some(std::time::Duration::from_secs(600)));
    assert_eq!(run.limits.messages, Some(300));
    assert_eq!((run.pace.per_second, run.pace.batch, run.pace.window), (20, 5, 50));
    assert_eq!(run.pace.ramp.map(|ramp| (ramp.from, ramp.every.as_secs(), ramp.factor)), Some((1, 30, 2)));
    assert_eq!((run.guard.sample, run.guard.pause_above_target_depth), (20, Some(9)));
    assert!(!run.guard.require_consumers && run.asked.allow_fanout && run.asked.keep_expiration);
    assert_eq!((run.rewriting.on_failure, run.rewriting.max_replays), (replay::OnFailure::Retry, 7));
    assert_eq!(run.rewriting.replay_limit_queue.as_deref(), Some("orders.dlq.quarantine.replay-limit"));
    assert!(run.allow_body);
    assert_eq!(run.audit_headers, ["x-tenant-id"]);
}

#[test]
fn what_was_replayed_too_often_is_not_sent_where_it_is() {
    let run = run("from: {quarantine: {category: replay-limit}}", EVERYTHING, "{}").unwrap();
    assert_eq!(run.origin, "orders.dlq.quarantine.replay-limit");
    assert_eq!(run.rewriting.replay_limit_queue, None);
}

#[test]
fn each_target_has_its_place() {
    let all = "{allowedTargets: [WorkQueue, Origin, Quarantine, ParkingLot, Queue, Exchange, Discard]}";
    let target = |to: &str| run(&format!("to: {to}"), EVERYTHING, all).unwrap().target;
    let queue = |name: &str| replay::Target::Queue(name.to_owned());
    assert_eq!(target("{quarantine: {category: poison}}"), queue("orders.dlq.quarantine.poison"));
    assert_eq!(target("{queue: {name: other}}"), queue("other"));
    let exchange = replay::Target::Exchange { name: "x".to_owned(), routing_key: "k".to_owned() };
    assert_eq!(target("{exchange: {name: x, routingKey: k}}"), exchange);
    assert_eq!(target("{discard: {}}"), replay::Target::Discard);
    let exchanges = vec!["amq.topic".to_owned(), "shop".to_owned()];
    assert_eq!(target("{origin: {}}"), replay::Target::Origin { exchanges });
}

#[test]
fn a_slow_pipeline_slows_the_default_down() {
    assert_eq!(run("", "{}", "{maxRate: 4}").unwrap().pace.per_second, 4);
}

/// Lines of a replay, the pipeline's policy, and how the problem begins.
const PROBLEMS: [(&str, &str, &str); 18] = [
    (
        "pace: {messagesPerSecond: 101}",
        "{}",
        "spec.pace.messagesPerSecond: 101 is above what the pipeline allows: write at most 100",
    ),
    (
        "to: {origin: {}}",
        "{}",
        "spec.to: the pipeline allows WorkQueue, Quarantine, ParkingLot and not Origin: choose",
    ),
    ("to: {workQueue: {}}", "{allowedTargets: []}", "spec.to: the pipeline allows no target at all"),
    (
        "select: {expression: size(body) < 3}",
        "{}",
        "spec.select.expression: the pipeline does not let expressions read bodies: set replayPolicy.allowBody",
    ),
    ("select: {expression: headers.}", "{}", "spec.select.expression: the expression is no CEL"),
    (
        "select: {olderThan: 2h, newerThan: 120m}",
        "{}",
        "spec.select.newerThan: nothing is older than 2h and newer than 2h",
    ),
    ("from: {parkingLot: {}}", "{}", "spec.from.parkingLot: the pipeline has no parking lot"),
    (
        "from: {quarantine: {category: a}}",
        "{}",
        "spec.from.quarantine.category: \"a\": the pipeline has no quarantine: add",
    ),
    (
        "pace: {ramp: {from: 11, every: 1s, factor: 2}}",
        "{}",
        "spec.pace.ramp.from: 11 is above the full rate of 10",
    ),
    ("pace: {ramp: {from: 1, every: 0s, factor: 2}}", "{}", "spec.pace.ramp.every: 0s is no step"),
    ("guard: {sample: 5, minReturns: 6}", "{}", "spec.guard.minReturns: 6 of the last 5 can never come back"),
    ("pace: {window: 0}", "{}", "spec.pace.window: 0 is out of range: write 1 to 10000"),
    ("maxReplaysPerMessage: -1", "{}", "spec.maxReplaysPerMessage: -1 is out of range: write 1 to 100"),
    ("select: {limit: 0}", "{}", "spec.select.limit: 0 is out of range: write 1 or more"),
    ("deadline: 0s", "{}", "spec.deadline: 0s leaves no time"),
    (
        "idempotency: {header: x-redrive-replay-id}",
        "{}",
        "spec.idempotency.header: \"x-redrive-replay-id\" is a header that a replay writes",
    ),
    (
        "to: {queue: {name: orders.dlq}}",
        "{allowedTargets: [Queue]}",
        "spec.to.queue.name: \"orders.dlq\" is the queue that is read",
    ),
    (
        "to: {queue: {name: ' a'}}",
        "{allowedTargets: [Queue]}",
        "spec.to.queue.name: the queue \" a\" begins or ends with a blank",
    ),
];

#[test]
fn each_problem_says_what_to_write_instead() {
    for (lines, policy, beginning) in PROBLEMS {
        let problems = run(lines, "{}", policy).unwrap_err();
        assert_eq!(problems.len(), 1, "{lines}: {problems:?}");
        assert!(problems[0].starts_with(beginning), "{lines}: {}", problems[0]);
    }
    let problems = run("to: {quarantine: {category: a}}", EVERYTHING, "{}").unwrap_err();
    assert_eq!(
        problems,
        [
            "spec.to.quarantine.category: \"a\": the pipeline has no such category: write one of poison, replay-limit"
        ]
    );
}

#[test]
fn all_problems_are_told_at_once() {
    let lines = "from: {parkingLot: {}}\nto: {origin: {}}\nselect: {expression: nobody}\npace: {messagesPerSecond: 500, window: 0}\nguard: {sample: 0}\ndeadline: 0s";
    let problems = run(lines, "{}", "{}").unwrap_err();
    let fields: Vec<&str> = problems.iter().map(|problem| problem.split(": ").next().unwrap()).collect();
    let expected = [
        "spec.from.parkingLot",
        "spec.to",
        "spec.select.expression",
        "spec.deadline",
        "spec.pace.messagesPerSecond",
        "spec.pace.window",
        "spec.guard.sample",
        "spec.guard.minReturns",
    ];
    assert_eq!(fields, expected);
}

#[test]
fn who_sets_messages_aside_needs_no_consumers_there() {
    let needs = |lines: &str| run(lines, "{parkingLot: true}", "{}").unwrap().guard.require_consumers;
    assert!(needs("to: {workQueue: {}}"));
    assert!(!needs("to: {parkingLot: {}}"));
    assert!(needs("to: {parkingLot: {}}\nguard: {requireConsumers: true}"));
}

#[test]
fn a_small_sample_does_not_silence_the_guard() {
    assert_eq!(run("guard: {sample: 5}", "{}", "{}").unwrap().guard.min_returns, 5);
}

#[test]
fn what_may_change_is_no_part_of_the_immutable_form() {
    let base = replay("dryRun: true").immutable();
    let may_change = "dryRun: true\nsuspend: true\ncancel: true\npace: {batch: 1}\nguard: {sample: 9}\napproval: {approvedBy: b, maxMessages: 3, planHash: h}";
    assert_eq!(replay(may_change).immutable(), base);
    for other in [
        "",
        "dryRun: true\ndeadline: 2h",
        "dryRun: true\nselect: {limit: 1}",
        "dryRun: true\nttlAfterFinished: 1h",
    ] {
        assert_ne!(replay(other).immutable(), base, "{other}");
    }
}
