//! Plans of replays as text, one file per scenario in `tests/golden/replay`, and what their
//! hash covers.
//!
//! `UPDATE_GOLDEN=1 cargo test --test replay_golden` writes them anew; read the difference
//! before you commit it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use redrive::replay::judge::RunJudge;
use redrive::replay::message::{Message, Properties, Table, Value};
use redrive::replay::plan::facts::{ExchangeFacts, Facts, Kind, QueueFacts, Routes, TargetFacts};
use redrive::replay::plan::hash::hash;
use redrive::replay::plan::preflight::{Asked, Finding, Severity};
use redrive::replay::plan::survey::Survey;
use redrive::replay::plan::{Plan, Request};
use redrive::replay::rewrite::{Wire, header};
use redrive::replay::run::{Canary, Fence, Guard, OnFailure, Pace, Ramp, Rewriting, Target};
use redrive::replay::selection::{Criteria, Selection};

const FENCE: Fence = Fence { count: 1_000, time: 1_764_460_800_000 };

#[track_caller]
fn golden(name: &str, text: &str) {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/replay").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be made");
        std::fs::write(&path, text).expect("the file can be written");
        return;
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        wanted == text,
        "{} differs; UPDATE_GOLDEN=1 writes it anew.\n--- wanted\n{wanted}\n--- found\n{text}",
        path.display()
    );
}

fn pace() -> Pace {
    let ramp = Ramp { from: 1, every: Duration::from_secs(30), factor: 2 };
    Pace { per_second: 20, batch: 50, pause: Duration::from_secs(10), ramp: Some(ramp), window: 500 }
}

fn guard() -> Guard {
    Guard {
        stop_on_return_percent: 20,
        sample: 50,
        min_returns: 10,
        canary: Canary { messages: 5, after: Duration::from_secs(300), tries: 3 },
        pause_above_target_depth: None,
        require_consumers: true,
        max_unroutable: 1,
    }
}

fn asked() -> Asked {
    Asked { allow_fanout: false, keep_expiration: false, deadline: Duration::from_secs(3_600) }
}

fn queue(name: &str) -> QueueFacts {
    QueueFacts {
        name: name.into(),
        kind: Kind::Quorum,
        available: true,
        exclusive: false,
        single_active_consumer: false,
        delivery_limit: Some(-1),
        consumers: Some(0),
        ready: Some(120),
        max_length: None,
        max_length_bytes: None,
        rejects: false,
        message_ttl: None,
        consumer_timeout: None,
    }
}

fn facts() -> Facts {
    let work = QueueFacts { consumers: Some(2), ..queue("orders") };
    Facts {
        origin: "orders.dlq".into(),
        origin_queue: Some(queue("orders.dlq")),
        target: TargetFacts::Queue("orders".into(), Some(work)),
        limit_queue: None,
        alarms: Vec::new(),
        own_timeout: true,
        frame_max: 131_072,
    }
}

/// A dead letter of an order: every third timed out, every fifth was expired.
fn dead_letter(number: u64) -> Message {
    let reason = if number.is_multiple_of(5) { "expired" } else { "rejected" };
    let key = if number.is_multiple_of(2) { "orders.created" } else { "orders.paid" };
    let death = Table::from([
        ("queue".into(), Value::from("orders")),
        ("reason".into(), Value::from(reason)),
        ("exchange".into(), Value::from("shop")),
        ("routing-keys".into(), Value::Array(vec![Value::from(key)])),
        ("time".into(), Value::Timestamp(FENCE.time / 1_000 - number * 60)),
    ]);
    let mut headers = Table::from([
        ("x-death".into(), Value::Array(vec![Value::Table(death)])),
        ("x-tenant-id".into(), Value::I32(i32::try_from(number % 30).expect("small"))),
    ]);
    if number.is_multiple_of(3) {
        headers.insert("x-error-type".into(), Value::from("HandlerTimeoutError"));
    }
    let message_id = Some(format!("m-{number}"));
    Message {
        exchange: "orders.dlx".into(),
        routing_key: key.into(),
        properties: Properties { headers: Some(headers), message_id, ..Properties::default() },
        body: number.to_string().into_bytes(),
        ..Message::default()
    }
}

fn survey(criteria: Criteria, target: Target) -> Survey {
    let rewriting = Rewriting {
        request: "shop/orders-1".into(),
        run: "uid-1".into(),
        on_failure: OnFailure::DeadLetter,
        keep_expiration: false,
        idempotency: None,
        max_replays: 3,
        replay_limit_queue: None,
    };
    let selection = Selection::new(criteria, false).expect("an expression");
    let wire = Wire { frame_max: 131_072, max_body: Some(1_000) };
    let judge = RunJudge::new(selection, target, rewriting, wire, Box::new(|| FENCE.time));
    Survey::new(judge, "uid-1", FENCE, &["x-tenant-id".into()])
}

fn plan(facts: &Facts, survey: Option<&Survey>) -> Plan {
    let (pace, guard) = (pace(), guard());
    let request =
        Request { spec: "{}", pace: &pace, guard: &guard, asked: asked(), limit: None, scan: 1_000_000 };
    Plan::new(&request, facts, survey.map(Survey::summary))
}

fn to_work() -> Target {
    Target::Queue("orders".into())
}

#[test]
fn everything_goes_back_to_the_work_queue() {
    let mut survey = survey(Criteria::default(), to_work());
    (0..120).for_each(|number| survey.observe(dead_letter(number)));
    golden("work-queue", &plan(&facts(), Some(&survey)).to_string());
}

#[test]
fn one_error_type_of_the_last_hour_is_selected() {
    let criteria = Criteria {
        headers: BTreeMap::from([("x-error-type".into(), "HandlerTimeoutError".into())]),
        reasons: BTreeSet::from(["rejected".into()]),
        newer_than: Some(Duration::from_secs(3_600)),
        expression: Some("headers[\"x-tenant-id\"] < 10".into()),
        ..Criteria::default()
    };
    let mut survey = survey(criteria, to_work());
    (0..120).for_each(|number| survey.observe(dead_letter(number)));
    golden("selected", &plan(&facts(), Some(&survey)).to_string());
}

#[test]
fn odd_messages_are_told_one_kind_by_another() {
    let mut survey = survey(Criteria::default(), Target::Origin { exchanges: vec!["shop".into()] });
    let with = |name: &str, value: Value| {
        let mut message = dead_letter(1);
        message.properties.headers.get_or_insert_default().insert(name.into(), value);
        message
    };
    let large = Message { body: vec![0; 1_001], ..dead_letter(2) };
    let mut expiring = dead_letter(3);
    expiring.properties.expiration = Some("300".into());
    let odd = [
        dead_letter(0),
        dead_letter(0),
        Message::default(),
        with("x-death", Value::from("a text")),
        with(header::COUNT, Value::I64(3)),
        large,
        expiring,
    ];
    odd.into_iter().for_each(|message| survey.observe(message));
    let shop = ExchangeFacts { name: "shop".into(), internal: false, alternate: Some("unrouted".into()) };
    let facts = Facts { target: TargetFacts::Origin(vec![shop]), ..facts() };
    golden("odd-messages", &plan(&facts, Some(&survey)).to_string());
}

#[test]
fn a_queue_that_reading_would_destroy_is_not_read() {
    let origin = QueueFacts {
        delivery_limit: None,
        max_length: Some(1_000),
        message_ttl: Some(1_209_600_000),
        consumers: Some(1),
        ..queue("orders.dlq")
    };
    let shop = ExchangeFacts { name: "shop".into(), internal: false, alternate: None };
    let copy = QueueFacts { max_length: Some(5), ..queue("copy") };
    let queues = [copy, queue("orders")].map(|queue| (queue.name.clone(), Some(queue))).into();
    let target = TargetFacts::Exchange("shop".into(), Some(shop), Routes { queues, unknown: None });
    let alarms = vec!["memory on rabbit@a".into()];
    let facts = Facts { origin_queue: Some(origin), target, alarms, own_timeout: false, ..facts() };
    let plan = plan(&facts, None);
    assert!(plan.is_refused());
    golden("refused", &plan.to_string());
}

fn finding(severity: Severity, check: &'static str, message: &str) -> Finding {
    Finding { severity, check, message: message.into() }
}

fn routes(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Something that changes a plan's parts.
type Change = fn(&mut String, &mut Pace, &mut Guard, &mut Vec<String>, &mut Vec<Finding>);

fn hash_after(change: Change) -> String {
    let (mut spec, mut pace, mut guard) = ("{\"a\":1}".to_owned(), pace(), guard());
    let mut routes = routes(&["a", "b"]);
    let mut findings = vec![
        finding(Severity::Warning, "TargetDropsHead", "5 messages"),
        finding(Severity::Info, "OriginEmpty", "nothing"),
    ];
    change(&mut spec, &mut pace, &mut guard, &mut routes, &mut findings);
    hash(&spec, &pace, &guard, &routes, &findings)
}

#[test]
fn the_hash_covers_what_a_person_consents_to() {
    let changes: [Change; 22] = [
        |_, _, _, _, _| {},
        |spec, _, _, _, _| spec.push(' '),
        |_, pace, _, _, _| pace.per_second += 1,
        |_, pace, _, _, _| pace.batch += 1,
        |_, pace, _, _, _| pace.pause += Duration::from_millis(1),
        |_, pace, _, _, _| pace.window += 1,
        |_, pace, _, _, _| pace.ramp = None,
        |_, pace, _, _, _| pace.ramp.iter_mut().for_each(|ramp| ramp.from += 1),
        |_, pace, _, _, _| pace.ramp.iter_mut().for_each(|ramp| ramp.factor += 1),
        |_, pace, _, _, _| pace.ramp.iter_mut().for_each(|ramp| ramp.every *= 2),
        |_, _, guard, _, _| guard.stop_on_return_percent += 1,
        |_, _, guard, _, _| guard.sample += 1,
        |_, _, guard, _, _| guard.min_returns += 1,
        |_, _, guard, _, _| guard.canary.messages += 1,
        |_, _, guard, _, _| guard.canary.tries += 1,
        |_, _, guard, _, _| guard.canary.after *= 2,
        |_, _, guard, _, _| guard.pause_above_target_depth = Some(0),
        |_, _, guard, _, _| guard.require_consumers = false,
        |_, _, guard, _, _| guard.max_unroutable += 1,
        |_, _, _, routes, _| routes.push("c".into()),
        |_, _, _, _, findings| findings.truncate(1),
        |_, _, _, _, findings| findings[0].severity = Severity::Error,
    ];
    let hashes: BTreeSet<String> = changes.into_iter().map(hash_after).collect();
    assert_eq!(hashes.len(), changes.len(), "each change changes the hash");
    assert!(hashes.iter().all(|hash| hash.len() == 64));
}

#[test]
fn the_hash_ignores_what_changes_by_itself() {
    let same: [Change; 4] = [
        |_, _, _, routes, _| routes.reverse(),
        |_, _, _, _, findings| findings.reverse(),
        |_, _, _, _, findings| findings[0].message = "6 messages".into(),
        |_, _, _, _, findings| {
            let other = finding(Severity::Warning, "TargetDropsHead", "of another queue");
            findings.push(other);
        },
    ];
    for change in same {
        assert_eq!(hash_after(change), hash_after(|_, _, _, _, _| {}));
    }
}

#[test]
fn counts_ages_and_histogram_are_no_part_of_a_plans_hash() {
    let mut few = survey(Criteria::default(), to_work());
    few.observe(dead_letter(3));
    let mut many = survey(Criteria::default(), to_work());
    (0..90).for_each(|number| many.observe(dead_letter(number)));
    let fuller = QueueFacts { ready: Some(9_999), ..queue("orders.dlq") };
    let first = plan(&facts(), Some(&few));
    let second = plan(&Facts { origin_queue: Some(fuller), ..facts() }, Some(&many));
    assert_ne!((first.in_source, &first.summary), (second.in_source, &second.summary));
    assert_eq!(first.hash, second.hash);
}
