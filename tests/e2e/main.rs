//! The whole product as people run it: the built image, installed by helm, on the real node.
//!
//! It installs the definitions and admission policies of the chart for the whole cluster, so nothing
//! else may use that meanwhile: `cargo test --test e2e`. It has to be that of `hack/dev`, whose node
//! takes the image.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod node;
mod program;
mod release;
mod strict;
#[allow(dead_code, reason = "written for more tests than these")]
#[path = "../cluster/support/mod.rs"]
mod support;

use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use node::Drained;
use release::Release;
use support::eventually;
use support::kubectl;
use support::replays::{DLQ, SOURCE};
use support::world::{World, is_ready};

/// What an image may weigh, compressed as it is pulled.
const MOST_BYTES: u64 = 25_000_000;

/// Messages of each replay.
const MESSAGES: usize = 200;

/// One release at a time: some of its objects are the cluster's.
async fn turn() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::const_new(());
    ONE.lock().await
}

/// So slow that anything can happen to it on the way.
fn slowly() -> Value {
    json!({"pace": {"messagesPerSecond": 2, "batch": 2}})
}

/// The name of a running pod of a component.
fn pod_of(world: &World, component: &str) -> Option<String> {
    let selector = format!("app.kubernetes.io/component={component}");
    let pods = kubectl::say(&[
        "get",
        "pods",
        "-n",
        &world.namespace,
        "-l",
        &selector,
        "--field-selector=status.phase=Running",
        "-o",
        "jsonpath={.items[*].metadata.name}",
    ]);
    pods.split_whitespace().next().map(str::to_owned)
}

/// Waits until another pod of this component runs.
async fn next_pod(world: &World, component: &str, but: Option<&str>) -> String {
    eventually(&format!("a pod of the {component} runs"), async || {
        let pod = pod_of(world, component).filter(|pod| Some(pod.as_str()) != but);
        pod.ok_or_else(|| kubectl::say(&["get", "pods", "-n", &world.namespace, "-o", "wide"]))
    })
    .await
}

/// How many messages the work queue holds, or held some seconds ago; of a new one nothing is said.
async fn in_source(world: &World) -> u64 {
    world.broker.totals(&world.vhost, SOURCE).await["messages"].as_u64().unwrap_or_default()
}

/// Begins a slow replay of new dead letters, and waits until it has moved some; says how many were
/// moved before it.
async fn begin_replay(world: &World, name: &str) -> u64 {
    let before = in_source(world).await;
    world.broker.fill(&world.vhost, DLQ, MESSAGES).await;
    world.replay(name, slowly()).await;
    world
        .until_replay(name, "moves", |replay| {
            let progress = replay.status.as_ref().and_then(|status| status.progress.as_ref());
            progress.is_some_and(|progress| progress.replayed >= 4)
        })
        .await;
    before
}

/// Lets a replay move all, none of them lost; says how many may be there twice.
async fn end_replay(world: &World, name: &str, before: u64) -> i64 {
    world.edit_replay(name, json!({"pace": {"messagesPerSecond": 50}})).await;
    let ended = world.until_phase(name, "Completed").await;
    let summary = ended.status.unwrap().summary.unwrap();
    let doubled = u64::try_from(summary.duplicates_possible).unwrap();
    // The broker's counts are some seconds old.
    eventually(&format!("{before} and {MESSAGES} more, of which {doubled} may be doubled"), async || {
        let source = in_source(world).await;
        let wanted = before + MESSAGES as u64;
        if (wanted..=wanted + doubled).contains(&source) { Ok(()) } else { Err(source.to_string()) }
    })
    .await;
    world.until_messages(&[(DLQ, 0)]).await;
    summary.duplicates_possible
}

/// A replay is a pod with its own account, whose records kubectl shows.
async fn first_replay(world: &World) {
    let before = begin_replay(world, "first").await;
    let worker = next_pod(world, "replay-worker", None).await;
    let account = kubectl::say(&[
        "get",
        "pod",
        &worker,
        "-n",
        &world.namespace,
        "-o",
        "jsonpath={.spec.serviceAccountName}",
    ]);
    assert_eq!(account, "redrive-replay-worker");
    let records = kubectl::say(&["logs", &worker, "-n", &world.namespace]);
    assert!(records.contains("\"outcome\""), "{records}");
    end_replay(world, "first", before).await;
}

fn logs_are_json_without_secrets(world: &World) {
    let log = kubectl::say(&[
        "logs",
        "-n",
        &world.namespace,
        "-l",
        "app.kubernetes.io/component=controller",
        "--tail=-1",
    ]);
    for line in log.lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line:?} is no JSON"));
    }
    assert!(log.contains("the operator is running") && !log.contains(support::world::PASSWORD));
}

/// Nobody cleans up any more.
fn let_go(world: &World) {
    let unfinished = json!({"metadata": {"finalizers": null}}).to_string();
    for resource in ["retrypipelines", "dlqreplays"] {
        let names = kubectl::say(&["get", resource, "-n", &world.namespace, "-o", "name"]);
        for name in names.lines() {
            kubectl::say(&["patch", name, "-n", &world.namespace, "--type=merge", "-p", &unfinished]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chart_runs_the_operator_through_all_that_happens_to_a_pod() {
    let _turn = turn().await;
    let image = node::image();
    println!("the image: {:.1} MB", image.bytes as f64 / 1e6);
    assert!(image.bytes < MOST_BYTES, "{} bytes", image.bytes);

    let world = World::new("e2e").await;
    let began = Instant::now();
    let release = Release::install(&world, image, &[]);
    world.create(world.manifest("orders", json!({}))).await;
    world.ready("orders").await;
    println!("from helm install to the first pipeline Ready: {:.1} s", began.elapsed().as_secs_f64());
    release.is_available().await;
    let operator = next_pod(&world, "controller", None).await;
    release.serves_metrics(&["redrive_pipeline_condition", "process_resident_memory_bytes"]).await;

    first_replay(&world).await;

    // Another version of the pod comes while a replay runs.
    let before = begin_replay(&world, "upgraded").await;
    release.upgrade("podAnnotations.changed=yes");
    let upgraded = next_pod(&world, "controller", Some(&operator)).await;
    release.is_available().await;
    end_replay(&world, "upgraded", before).await;

    // The pod is killed, and its work goes on.
    let before = begin_replay(&world, "killed").await;
    kubectl::say(&["delete", "pod", &upgraded, "-n", &world.namespace, "--grace-period=0", "--force"]);
    let after = next_pod(&world, "controller", Some(&upgraded)).await;
    world.edit("orders", json!({"deadLetter": {"maxLength": 5_000}})).await;
    world.ready("orders").await;
    end_replay(&world, "killed", before).await;

    // The node is drained under operator and worker, and comes back.
    let before = begin_replay(&world, "drained").await;
    let drained = Drained::now(&world.namespace);
    assert_eq!(pod_of(&world, "controller"), None);
    drop(drained);
    next_pod(&world, "controller", Some(&after)).await;
    let doubled = end_replay(&world, "drained", before).await;
    println!("a drained worker: {doubled} may be there twice");

    logs_are_json_without_secrets(&world);

    // What people have made stays.
    release.uninstall();
    assert!(is_ready(&world.get("orders").await));
    let_go(&world);
    world.leave().await;
}
