//! What GitOps tools make of real objects: kstatus itself, Argo CD's interpreter on our health script
//! (both by `hack/gitops`), and kubectl.

use std::process::{Command, Output};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::command::feed;
use crate::support::proxy::Action;
use crate::support::world::{World, verdict};

fn from_here(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// Runs it with this input; the operator of the test goes on meanwhile.
async fn run(mut command: Command, input: String) -> Output {
    tokio::task::spawn_blocking(move || feed(&mut command, input)).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `kstatus Argo`, such as `Current Healthy`.
async fn verdicts(object: &impl Serialize) -> String {
    static TOOL: OnceCell<String> = OnceCell::const_new();
    let make = async || {
        let mut tools = from_here("hack/tools");
        tools.arg("gitops");
        let made = run(tools, String::new()).await;
        assert!(made.status.success(), "{}", text(&made.stderr));
        text(&made.stdout).trim().to_owned()
    };
    let mut tool = from_here(TOOL.get_or_init(make).await);
    tool.arg("examples/argocd/health.lua");
    let said = run(tool, serde_json::to_string(object).unwrap()).await;
    assert!(said.status.success(), "{}", text(&said.stderr));
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    let word = |key: &str| said[key]["status"].as_str().unwrap().to_owned();
    format!("{} {}", word("kstatus"), word("argo"))
}

async fn kubectl(arguments: &[&str], namespace: &str) -> Output {
    let mut command = from_here("kubectl");
    command.args(["--namespace", namespace]).args(arguments);
    // What it remembers of an API server may be of an earlier one at the same address.
    command.env("KUBECACHEDIR", env!("CARGO_TARGET_TMPDIR"));
    run(command, String::new()).await
}

#[tokio::test]
async fn a_pipeline_is_judged_as_it_is() {
    let mut world = World::new("gitops").await;
    let unseen = world.create(world.manifest("orders", json!({}))).await;
    // kstatus has nothing to go by yet, and takes that for the best.
    assert_eq!(verdicts(&unseen).await, "Current Progressing");
    world.start();
    let well = world.ready("orders").await;
    assert_eq!(verdicts(&well).await, "Current Healthy");

    let mut edited = well;
    edited.metadata.generation = edited.metadata.generation.map(|generation| generation + 1);
    assert_eq!(verdicts(&edited).await, "InProgress Progressing");

    world.proxy.rule(|_| Action::Cut);
    let lost = world.until("orders", "is not ready", |one| verdict(one, "Ready").starts_with("False")).await;
    assert_eq!(verdicts(&lost).await, "InProgress Degraded");
    world.proxy.heal();
    world.ready("orders").await;

    world.edit("orders", json!({"suspend": true})).await;
    let held =
        world.until("orders", "is suspended", |one| verdict(one, "Suspended").starts_with("True")).await;
    // Nothing of the new generation is looked at, so that the old one stays the observed one.
    assert_eq!(verdicts(&held).await, "InProgress Suspended");

    let invalid = json!({"retry": {"delays": ["3651d"]}});
    world.create(world.manifest("invalid", invalid)).await;
    let stalled = world.until_reason("invalid", "InvalidSpec").await;
    assert_eq!(verdicts(&stalled).await, "Failed Degraded");
    world.leave().await;
}

#[tokio::test]
async fn a_replay_is_judged_as_it_is() {
    let policy = json!({"requireApproval": true, "messagesWithoutApproval": 3});
    let world = World::with_dead_letters("gitops-replay", policy, 10).await;
    world.replay("waits", json!({"select": {"limit": 2}, "notBefore": "2100-01-01T00:00:00Z"})).await;
    let waits = world.until_phase("waits", "Scheduled").await;
    assert_eq!(verdicts(&waits).await, "InProgress Progressing");
    world.edit_replay("waits", json!({"cancel": true})).await;
    let cancelled = world.until_phase("waits", "Cancelled").await;
    assert_eq!(verdicts(&cancelled).await, "Failed Degraded");

    world.replay("some", json!({"select": {"limit": 2}})).await;
    let complete = world.until_phase("some", "Completed").await;
    assert_eq!(verdicts(&complete).await, "Current Healthy");

    world.replay("all", json!({})).await;
    let asks = world.until_phase("all", "AwaitingApproval").await;
    assert_eq!(verdicts(&asks).await, "InProgress Suspended");
    world.leave().await;
}

#[tokio::test]
async fn kubectl_waits_for_the_generation_that_is_asked_for() {
    let mut world = World::new("gitops-wait").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    let wait = ["wait", "--for=condition=Ready", "retrypipeline/orders"];
    let old = kubectl(&[wait.as_slice(), &["--timeout=240s"]].concat(), &world.namespace).await;
    assert!(old.status.success(), "{}", text(&old.stderr));

    // The condition of the old generation is there and True, and does not count.
    world.stop().await;
    let edited = world.edit("orders", json!({"retry": {"delays": ["1s", "2s", "3s"]}})).await;
    assert_eq!(verdict(&edited, "Ready"), "True Reconciled");
    let early = kubectl(&[wait.as_slice(), &["--timeout=3s"]].concat(), &world.namespace).await;
    assert!(!early.status.success() && !text(&early.stdout).contains("condition met"), "{early:?}");

    world.start();
    let late = kubectl(&[wait.as_slice(), &["--timeout=240s"]].concat(), &world.namespace).await;
    assert!(late.status.success(), "{}", text(&late.stderr));
    let pipeline = world.get("orders").await;
    let status = pipeline.status.unwrap();
    assert_eq!(status.observed_generation, pipeline.metadata.generation);
    assert_eq!(status.effective.unwrap().steps, 3);
    world.leave().await;
}

/// Needs no cluster but its kubectl.
#[tokio::test]
async fn the_kustomize_example_is_a_valid_pipeline() {
    let built = kubectl(&["kustomize", "examples/kustomize/production"], "shop").await;
    assert!(built.status.success(), "{}", text(&built.stderr));
    let mut plan = from_here(env!("CARGO_BIN_EXE_redrive"));
    plan.args(["plan", "-f", "-"]);
    let planned = run(plan, text(&built.stdout)).await;
    let out = text(&planned.stdout);
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    assert!(out.starts_with("shop/orders") && out.contains("orders.queue.retry.3"), "{out}");
}
