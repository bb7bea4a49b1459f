//! The largest status that a pipeline can have: as the controller writes it, for the largest
//! specification that the checks let through, in the middle of a change, with the longest messages.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::super::conditions::{MAX_MESSAGE, now};
use super::super::prepare;
use super::maintained;
use crate::api::conditions::PipelineCondition;
use crate::api::{
    Cleanup, CleanupStage, Condition, Drift, DriftAction, DriftFinding, PendingPlan, ReplayRecord,
    RetryPipeline, RetryPipelineStatus,
};
use crate::controller::broker_events::Detection;
use crate::controller::lane::{Maintain, Maintained};
use crate::topology::desired::{self, Desired};
use crate::topology::diff::client_contract;
use crate::topology::generations::Generations;
use crate::topology::model::ObjectKey;
use crate::topology::observed::BrokerFacts;
use crate::topology::ownership::{Inventory, Record, State};

/// What a status may take in JSON, without replays.
const MOST: usize = 64 << 10;

/// What it may take with all the replays that it remembers.
const MOST_WITH_REPLAYS: usize = 100_000;

/// Which names are as long as they can be: all alike up to a length, but for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Longest {
    None,
    Bindings,
    DeadLetters,
    Retries,
}

const SHAPES: [Longest; 4] = [Longest::None, Longest::Bindings, Longest::DeadLetters, Longest::Retries];

/// A name that begins like this and has so many bytes, or the fewest that it takes.
fn long(start: &str, bytes: usize) -> String {
    format!("{start}{}", "n".repeat(bytes.saturating_sub(start.len())))
}

/// As much of everything as the schema takes, with names of about this length.
fn specification(mode: &str, ownership: &str, longest: Longest, length: usize) -> Value {
    let of = |part: Longest, most: usize| if longest == part { most } else { length.min(most) };
    let bound = of(Longest::Bindings, 255);
    let queue = if mode == "Application" { length.min(225) } else { length.min(220) };
    // A pipeline without a ladder has no retry queues to name.
    let ladder = matches!(mode, "Broker" | "Application").then(|| {
        json!({
            "delays": (1..=32).map(|seconds| format!("{seconds}s")).collect::<Vec<_>>(),
            "jitter": {"percent": 10, "shards": 2},
            "naming": {"template": long("r{attempt}", of(Longest::Retries, 235))},
            "groupSize": 15,
        })
    });
    let mut retry = ladder.unwrap_or_else(|| json!({}));
    retry["mode"] = mode.into();
    if mode == "Native" {
        retry["native"] = json!({"min": "1s", "max": "3649d", "attempts": 10_000});
    }
    let binding = |number: usize| json!({"exchange": long(&format!("{number:02}"), bound), "routingKey": long("", bound)});
    let category = |number: usize| json!({"category": long(&format!("c{number:02}"), length.min(40)), "reasons": ["expired"]});
    let mut queue = json!({"name": long("q", queue), "maxLength": i64::MAX, "messageTTL": "3649d"});
    if ownership == "Managed" {
        queue["singleActiveConsumer"] = true.into();
        queue["groupSize"] = 15.into();
    }
    let mut spec = json!({
        "broker": {"secretRef": {"name": long("s", 253)}},
        "vhost": long("v", 255),
        "source": {
            "ownership": ownership,
            "queue": queue,
            "exchange": {"name": long("e", length.min(255)), "type": "topic"},
            "bindings": (0..64).map(binding).collect::<Vec<_>>(),
            "deliveryLimit": 10_000,
        },
        "retry": retry,
        "deadLetter": {
            "name": long("d", of(Longest::DeadLetters, 203)), "parkingLot": true, "retention": "3649d",
            "maxLength": i64::MAX, "groupSize": 15, "quarantine": (0..16).map(category).collect::<Vec<_>>(),
        },
        "settings": if ownership == "Managed" { json!({"arguments": {}}) } else { json!({"policy": {"priority": 1_000_000}}) },
        "replayPolicy": {
            "requireApproval": true, "messagesWithoutApproval": 1_000_000_000, "maxRate": 100_000,
            "allowedTargets": ["WorkQueue", "Origin", "Quarantine", "ParkingLot", "Queue", "Exchange", "Discard"],
            "allowBody": true,
        },
        "deletionPolicy": "DeleteIfEmpty",
    });
    if mode == "Native" {
        spec["source"]["deliveryLimit"].take();
    }
    spec
}

fn task(mode: &str, ownership: &str, longest: Longest, length: usize) -> Option<Maintain> {
    let object: RetryPipeline = serde_json::from_value(json!({
        "apiVersion": "redrive.dev/v1alpha1", "kind": "RetryPipeline",
        "metadata": {
            "name": long("p", 63), "namespace": long("s", 63), "generation": i64::MAX,
            "uid": "dcb4e07b-1e86-4c1f-8d55-9ab2a4a6d3e1",
        },
        "spec": specification(mode, ownership, longest, length),
    }))
    .unwrap();
    prepare(Arc::new(object), "5c7f0d8e-2f0e-4a44-9a30-3f1f6f0a5b11").ok()
}

/// The longest names that the checks let through; what refuses a name refuses longer ones too.
fn largest(mode: &str, ownership: &str, longest: Longest) -> Option<(usize, Maintain)> {
    let lengths: Vec<usize> = (1..=255).collect();
    let allowed = lengths.partition_point(|length| task(mode, ownership, longest, *length).is_some());
    let length = *lengths[..allowed].last()?;
    Some((length, task(mode, ownership, longest, length)?))
}

fn wanted(task: &Maintain, generation: u32) -> Desired {
    let types = ["direct", "fanout", "headers", "topic", "x-random"];
    let facts =
        BrokerFacts { version: (4, 3, 6), exchange_types: types.into_iter().map(str::to_owned).collect() };
    let tiers = task.pipeline.tiers.iter().map(|tier| (tier.number, generation)).collect();
    desired::build(
        &task.pipeline,
        &facts,
        &Generations { tiers, chain: generation, retired: BTreeSet::new(), ..Generations::default() },
    )
}

/// Everything in two generations, as while a change drains.
fn inventory(parts: [&Desired; 2]) -> Inventory {
    let mut all = Inventory::new();
    let mut add = |key, state, generation| {
        all.insert(key, Record { state, generation });
    };
    for desired in parts {
        for wanted in desired.queues.iter().filter(|wanted| wanted.declared) {
            add(ObjectKey::Queue(wanted.queue.name.clone()), State::Created, wanted.generation);
        }
        for wanted in &desired.exchanges {
            add(ObjectKey::Exchange(wanted.exchange.name.clone()), State::Created, wanted.generation);
        }
        for wanted in &desired.policies {
            add(ObjectKey::Policy(wanted.policy.name.clone()), State::Created, 1);
        }
        for wanted in desired.bindings.iter().filter(|wanted| wanted.user) {
            let binding = &wanted.binding;
            let (exchange, routing_key) = (binding.source.clone(), binding.routing_key.clone());
            add(ObjectKey::Binding { exchange, routing_key }, State::Created, 1);
        }
    }
    all
}

/// The status that the controller makes, with every part that comes from elsewhere at its longest.
fn status(task: &Maintain) -> RetryPipelineStatus {
    let (before, desired) = (wanted(task, 1), wanted(task, 99));
    let depth = |role: &desired::QueueRole, name: &str| (role.clone(), name.to_owned(), Some(i64::MAX));
    let found = Maintained {
        broker_id: Some(long("b", 255)),
        inventory: inventory([&before, &desired]),
        complete: true,
        blocked: Vec::new(),
        unsupported: Vec::new(),
        draining: Vec::new(),
        moves: Vec::new(),
        recreates: false,
        pending: None,
        findings: Vec::new(),
        depths: desired.queues.iter().map(|wanted| depth(&wanted.role, &wanted.queue.name)).collect(),
        contract: client_contract(&task.pipeline, &desired),
        at_most_once: Vec::new(),
        detection: Some(Detection::Polling(long("", MAX_MESSAGE))),
    };
    let mut status = maintained(&task.object, task, &found);
    let message = long("", MAX_MESSAGE);
    let condition = |kind: &PipelineCondition| Condition {
        type_: kind.to_string(),
        status: "Unknown".to_owned(),
        reason: "ClusterScaledToZero".to_owned(),
        message: message.clone(),
        observed_generation: Some(i64::MAX),
        last_transition_time: now(),
    };
    status.conditions = PipelineCondition::ALL.iter().map(condition).collect();
    let finding = DriftFinding {
        time: now(),
        object: message.clone(),
        what: message.clone(),
        by: Some(long("u", 255)),
        action: DriftAction::Repaired,
    };
    status.drift = Some(Drift { count: i64::MAX, last: Some(finding) });
    status.pending_plan = Some(PendingPlan { hash: long("h", 64), why: message });
    status.cleanup = Some(Cleanup { stage: CleanupStage::ProvingAgain, since: now() });
    status
}

fn with_replays(mut status: RetryPipelineStatus) -> RetryPipelineStatus {
    let replay = ReplayRecord {
        name: long("r", 63),
        spec_hash: long("h", 64),
        result: long("R", 64),
        finished: now(),
        moved: i64::MAX,
        approved: true,
    };
    status.replays = vec![replay; 50];
    status.earlier_replays = Some(ByteString(vec![7; 8_000]));
    status
}

fn bytes(status: &impl serde::Serialize) -> usize {
    serde_json::to_vec(status).unwrap().len()
}

/// Every part and its size, for a message.
fn parts(status: &RetryPipelineStatus) -> String {
    let Value::Object(parts) = serde_json::to_value(status).unwrap() else { unreachable!("a map") };
    let text = parts.iter().map(|(key, value)| format!("{key} {}", bytes(value)));
    text.collect::<Vec<_>>().join(", ")
}

#[test]
fn the_largest_status_stays_below_64_kib_and_below_100_kb_with_all_replays() {
    let mut largest_of_all = 0;
    for mode in ["Broker", "Application", "Native", "None"] {
        for ownership in ["Managed", "External"] {
            for longest in SHAPES {
                let Some((length, task)) = largest(mode, ownership, longest) else { continue };
                let status = status(&task);
                let what = format!("{mode} {ownership} {longest:?} with {length} bytes: {}", parts(&status));
                assert!(bytes(&status) < MOST, "{} bytes, {what}", bytes(&status));
                largest_of_all = largest_of_all.max(bytes(&status));
                let whole = with_replays(status);
                assert!(bytes(&whole) < MOST_WITH_REPLAYS, "{} bytes, {what}", bytes(&whole));
                println!("{} {what}", bytes(&whole));
            }
        }
    }
    // Or the specifications above would be small, and nothing would be shown.
    assert!(largest_of_all > MOST * 4 / 5, "{largest_of_all}");
}

#[test]
fn the_longest_names_are_allowed_with_the_default_ladder() {
    let spec = |queue: usize, retry: Value, dlq: &str| {
        let mut object = json!({
            "apiVersion": "redrive.dev/v1alpha1", "kind": "RetryPipeline", "metadata": {"name": "orders"},
            "spec": {"broker": {"secretRef": {"name": "s"}}, "source": {"queue": {"name": long("q", queue)}}},
        });
        object["spec"]["retry"] = retry;
        let binding =
            |n: usize| json!({"exchange": long(&format!("{n}"), 255), "routingKey": long("k", 255)});
        object["spec"]["source"]["bindings"] = (0..40).map(binding).collect();
        object["spec"]["deadLetter"] = json!({"name": dlq, "parkingLot": true});
        serde_json::from_value(object).unwrap()
    };
    // What derives from the queue's name has to fit into 255 bytes as well.
    for object in [
        spec(225, json!({}), "{queue}.dlq"),
        spec(255, json!({"mode": "Application", "naming": {"template": "retry.{attempt}"}}), "dlq"),
    ] {
        let problems = prepare(Arc::new(object), "c1").err();
        assert_eq!(problems, None);
    }
}

#[test]
fn names_of_every_day_are_allowed_with_as_many_of_them_as_there_may_be() {
    for (mode, length) in [("Broker", 55), ("Application", 30), ("Native", 150), ("None", 150)] {
        assert!(task(mode, "Managed", Longest::None, length).is_some(), "{mode} {length}");
    }
}
