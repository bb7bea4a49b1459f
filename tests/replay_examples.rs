//! The replays in `examples/`, against the pipeline of `examples/orders.yaml`: each can be carried
//! out, and each asks for what its comment says. What the API server thinks of them is in
//! `tests/admission`; `tests/cluster` applies them and looks at which messages move.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::fs;

use redrive::api::{DlqReplay, ReplayPolicy, ReplayRun, RetryPipeline, RunName};
use redrive::replay::run::Target;
use redrive::replay::selection::Selection;
use redrive::topology::spec::Identity;
use redrive::topology::validate::{Problem, validate};
use rstest::rstest;
use serde::Deserialize;
use serde_json::{Value, json};

fn documents<T: serde::de::DeserializeOwned>(name: &str) -> Vec<T> {
    let text = fs::read_to_string(format!("examples/{name}.yaml")).unwrap();
    serde_yaml::Deserializer::from_str(&text)
        // YAML itself has another form for unions.
        .map(|document| serde_json::from_value(Value::deserialize(document).unwrap()).unwrap())
        .collect()
}

fn run(replay: &DlqReplay, policy: Value) -> Result<ReplayRun, Vec<Problem>> {
    let orders: RetryPipeline = documents("orders").remove(0);
    let text = |text: &str| text.to_owned();
    let identity =
        Identity { cluster: text("c"), namespace: text("shop"), name: text("orders"), uid: text("u") };
    let pipeline = validate(identity, orders.spec.to_topology()).unwrap();
    let policy: ReplayPolicy = serde_json::from_value(policy).unwrap();
    let name = RunName { namespace: "shop", name: replay.metadata.name.as_deref().unwrap(), uid: "u" };
    replay.spec.to_run(name, &pipeline, &policy)
}

#[rstest]
#[case("replay-approval", 1)]
#[case("replay-canary", 2)]
#[case("replay-dry-run", 1)]
#[case("replay-error-type", 1)]
#[case("replay-ramp", 1)]
#[case("replay-tenant", 1)]
fn an_example_can_be_carried_out(#[case] name: &str, #[case] replays: usize) {
    let found: Vec<DlqReplay> = documents(name);
    assert_eq!(found.len(), replays);
    for replay in found {
        assert_eq!(replay.spec.pipeline_ref.name, "orders");
        let run = run(&replay, json!({})).unwrap_or_else(|problems| panic!("{problems:?}"));
        Selection::new(run.criteria, false).unwrap();
    }
}

#[test]
fn every_replay_is_among_those() {
    let mut names: Vec<String> = fs::read_dir("examples")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && fs::read_to_string(path).unwrap().contains("kind: DlqReplay"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    let wanted = ["approval", "canary", "discard", "dry-run", "error-type", "ramp", "tenant"];
    assert_eq!(names, wanted.map(|name| format!("replay-{name}")));
}

#[test]
fn messages_are_deleted_only_where_the_pipeline_allows_it() {
    let replay: DlqReplay = documents("replay-discard").remove(0);
    let problems = run(&replay, json!({})).unwrap_err();
    assert_eq!(problems.iter().map(|problem| problem.field.as_str()).collect::<Vec<_>>(), ["to"]);
    let allowed = json!({"allowedTargets": ["WorkQueue", "Discard"]});
    let run = run(&replay, allowed).unwrap();
    assert_eq!(run.target, Target::Discard);
    assert_eq!(run.criteria.message_ids.len(), 3);
}

#[test]
fn ten_go_first_and_the_rest_is_held() {
    let replays: Vec<DlqReplay> = documents("replay-canary");
    let limits = replays.iter().map(|replay| run(replay, json!({})).unwrap().limits.messages);
    assert_eq!(limits.collect::<Vec<_>>(), [Some(10), None]);
    assert_eq!(replays.iter().map(|replay| replay.spec.suspend).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn what_is_put_aside_needs_no_consumer() {
    let replay: DlqReplay = documents("replay-error-type").remove(0);
    let run = run(&replay, json!({})).unwrap();
    assert_eq!(run.target, Target::Queue("orders.queue.dlq.quarantine.schema".to_owned()));
    assert!(!run.guard.require_consumers);
}
