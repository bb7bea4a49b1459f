//! Each replay of `examples/` on dead letters that fit it, applied as it stands there: against the
//! pipeline of `examples/orders.yaml`, whose consumer was broken and is repaired. Only the vhost,
//! and the guardrails that an example's comment names, are added to the pipeline.

use std::process::Command;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use redrive::api::DlqReplay;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::application::{Application, ids};
use crate::support::replays::{DLQ, SOURCE, moved, text_of};
use crate::support::world::{World, merge};

const QUARANTINE: &str = "orders.queue.dlq.quarantine.schema";

fn documents(name: &str) -> Vec<Value> {
    let path = format!("{}/examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The pipeline of the examples in a vhost of this test's own, Ready.
async fn world(purpose: &str, policy: Value) -> World {
    let mut world = World::for_replays(purpose).await;
    world.start();
    let mut orders = documents("orders").remove(0);
    orders["metadata"]["namespace"] = world.namespace.clone().into();
    merge(&mut orders["spec"], json!({"vhost": world.vhost, "replayPolicy": policy}));
    world.create(orders).await;
    world.ready("orders").await;
    world
}

/// Has a broken application reject these messages until all are dead, and then repairs it.
/// Others, so many, lie there already.
async fn rejected(
    world: &World,
    others: u64,
    letters: impl IntoIterator<Item = (String, Value)>,
) -> Application {
    let application = Application::start(world).await;
    let mut count = others;
    for (id, headers) in letters {
        world.publish(&id, json!({"headers": headers})).await;
        count += 1;
    }
    until_dead(world, count).await;
    application.repair();
    application
}

async fn until_dead(world: &World, messages: u64) {
    world.until_messages(&[(DLQ, messages), (SOURCE, 0)]).await;
}

/// Applies the replays of an example, and says how they are called.
async fn apply(world: &World, name: &str) -> Vec<String> {
    let mut names = Vec::new();
    for document in documents(name) {
        let replay: DlqReplay = serde_json::from_value(document).unwrap();
        let created = world.replays().create(&PostParams::default(), &replay).await.unwrap();
        names.push(created.metadata.name.unwrap());
    }
    names
}

/// What the command prints; it has to succeed.
async fn redrive(world: &World, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.args(arguments).args(["--namespace", &world.namespace]);
    // The operator of this test goes on meanwhile.
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The ids of all dead letters in their order, as `redrive inspect` lists them.
async fn exported(world: &World) -> Vec<String> {
    let listed = redrive(world, &["inspect", "orders", "--samples", "1000"]).await;
    let id = |line: &str| {
        let (number, id) = line.trim_start().split_once(". ")?;
        number.parse::<u32>().ok().map(|_| id.to_owned())
    };
    listed.lines().filter_map(id).collect()
}

fn plain(ids: impl IntoIterator<Item = String>) -> impl Iterator<Item = (String, Value)> {
    ids.into_iter().map(|id| (id, json!({})))
}

fn texts(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// A moment so many days ago, as a publisher writes it.
fn days_ago(days: i64) -> Value {
    (Timestamp::now() - SignedDuration::from_hours(24 * days)).as_second().into()
}

#[tokio::test]
async fn the_dry_run_tells_what_died_since_yesterday_and_moves_nothing() {
    let world = world("rx-dry", json!({})).await;
    world.bury("old-01", json!({"timestamp": days_ago(2)})).await;
    let _application = rejected(&world, 1, plain(ids("new", 5))).await;
    let before = exported(&world).await;
    assert_eq!(before.len(), 6);
    let names = apply(&world, "replay-dry-run").await;
    let replay = world.until_phase(&names[0], "Completed").await;
    let status = replay.status.unwrap();
    let plan = status.plan.unwrap();
    assert_eq!((plan.in_source, plan.matching, plan.routes), (6, 5, texts(&[SOURCE])));
    assert!(status.progress.is_none(), "nothing has moved");
    world.until_messages(&[(DLQ, 6), (SOURCE, 0)]).await;
    assert_eq!(exported(&world).await, before, "in their order");
    world.leave().await;
}

#[tokio::test]
async fn ten_go_first_and_the_rest_once_somebody_resumes_it() {
    let world = world("rx-canary", json!({})).await;
    let letters = ids("m", 25);
    let application = rejected(&world, 0, plain(letters.clone())).await;
    let first = exported(&world).await[..10].to_vec();
    let names = apply(&world, "replay-canary").await;
    assert_eq!(names, ["orders-ten", "orders-rest"]);
    world.until_phase("orders-ten", "Completed").await;
    let mut wanted = first;
    wanted.sort();
    assert_eq!(application.took(10).await, wanted);
    // The rest is planned, and stays until somebody has looked at the ten.
    let held = world.until_phase("orders-rest", "Paused").await;
    assert_eq!(text_of(&held, "Succeeded"), "spec.suspend is true; nothing has moved");
    assert!(held.status.unwrap().plan.is_some());
    world.until_messages(&[(DLQ, 15), (SOURCE, 0)]).await;
    redrive(&world, &["resume", "orders-rest"]).await;
    world.until_phase("orders-rest", "Completed").await;
    assert_eq!(application.took(25).await, Vec::from_iter(letters));
    world.until_messages(&[(DLQ, 0), (SOURCE, 0)]).await;
    world.leave().await;
}

#[tokio::test]
async fn the_orders_of_one_tenant_go_and_all_others_stay() {
    let world = world("rx-tenant", json!({})).await;
    let of = |tenant: &str, version: Value| json!({"x-tenant-id": tenant, "x-order-version": version});
    let letters = [
        ("fits-01", of("42", json!(3))),
        ("fits-02", of("42", json!(4))),
        ("no-version", json!({"x-tenant-id": "42"})),
        ("other-tenant", of("7", json!(3))),
        ("too-old", of("42", json!(2))),
    ];
    let application = rejected(&world, 0, letters.map(|(id, headers)| (id.to_owned(), headers))).await;
    let names = apply(&world, "replay-tenant").await;
    let replay = world.until_phase(&names[0], "Completed").await;
    assert_eq!(replay.status.unwrap().summary.unwrap().replayed, 2);
    assert_eq!(application.took(2).await, ["fits-01", "fits-02"]);
    world.until_messages(&[(DLQ, 3), (SOURCE, 0)]).await;
    assert_eq!(world.emptied(DLQ).await, ["no-version", "other-tenant", "too-old"]);
    world.leave().await;
}

#[tokio::test]
async fn one_error_type_goes_to_quarantine() {
    let world = world("rx-error", json!({})).await;
    let with = |kind: &'static str| move |id| (id, json!({"x-error-type": kind}));
    let unreadable = ids("schema", 4).into_iter().map(with("SchemaError"));
    let letters = unreadable.chain(ids("timeout", 3).into_iter().map(with("TimeoutError")));
    // Nobody consumes from a quarantine, and the example does not ask for it.
    drop(rejected(&world, 0, letters).await);
    let names = apply(&world, "replay-error-type").await;
    world.until_phase(&names[0], "Completed").await;
    world.until_messages(&[(DLQ, 3), (QUARANTINE, 4), (SOURCE, 0)]).await;
    assert_eq!(world.emptied(QUARANTINE).await, Vec::from_iter(ids("schema", 4)));
    assert_eq!(world.emptied(DLQ).await, Vec::from_iter(ids("timeout", 3)));
    world.leave().await;
}

#[tokio::test]
async fn more_than_the_pipeline_lets_pass_waits_for_a_second_person() {
    let policy = json!({"requireApproval": true, "messagesWithoutApproval": 50});
    let world = world("rx-approval", policy).await;
    // Dead for another reason: nobody took them in time.
    world.publish("late-01", json!({"expiration": "1"})).await;
    until_dead(&world, 1).await;
    // Dead for the right reason, but too long ago.
    let death = json!([{"queue": SOURCE, "reason": "rejected", "count": 1}]);
    let buried = json!({"timestamp": days_ago(3), "headers": {"x-death": death}});
    world.bury("old-01", buried).await;
    until_dead(&world, 2).await;
    let letters = ids("m", 55);
    let application = rejected(&world, 2, plain(letters.clone())).await;
    let names = apply(&world, "replay-approval").await;
    assert_eq!(names, ["orders-after-fix"]);
    let waiting = world.until_phase("orders-after-fix", "AwaitingApproval").await;
    assert_eq!(waiting.status.unwrap().plan.unwrap().matching, 55);
    world.until_messages(&[(DLQ, 57), (SOURCE, 0)]).await;
    let said =
        redrive(&world, &["approve", "orders-after-fix", "--max-messages", "500", "--watch", "--yes"]).await;
    assert!(said.contains("Moved         55\n"), "{said}");
    assert_eq!(application.took(55).await, Vec::from_iter(letters));
    world.until_messages(&[(DLQ, 2), (SOURCE, 0)]).await;
    assert_eq!(world.emptied(DLQ).await, ["late-01", "old-01"]);
    world.leave().await;
}

#[tokio::test]
async fn a_ramp_begins_slowly_and_its_pace_may_change_meanwhile() {
    let world = world("rx-ramp", json!({})).await;
    let letters = ids("m", 40);
    let application = rejected(&world, 0, plain(letters.clone())).await;
    let names = apply(&world, "replay-ramp").await;
    let name = names[0].as_str();
    let slow = world.until_replay(name, "has moved five", |replay| moved(replay) >= 5).await;
    let progress = slow.status.unwrap().progress.unwrap();
    // The full rate would move all 40 within two seconds. The first goes at once, and each second
    // brings one more.
    let at_least = SignedDuration::from_secs(progress.replayed - 2);
    let took = Timestamp::now().duration_since(progress.started.unwrap().0);
    assert!(took >= at_least, "{} in {took}", progress.replayed);
    redrive(&world, &["suspend", name]).await;
    world.until_phase(name, "Paused").await;
    world.edit_replay(name, json!({"pace": {"ramp": null}, "suspend": false})).await;
    world.until_phase(name, "Completed").await;
    assert_eq!(application.took(40).await, Vec::from_iter(letters));
    world.until_messages(&[(DLQ, 0), (SOURCE, 0)]).await;
    world.leave().await;
}

#[tokio::test]
async fn what_was_exported_by_its_ids_is_deleted_and_nothing_else() {
    let policy = json!({"allowedTargets": ["WorkQueue", "Quarantine", "ParkingLot", "Discard"]});
    let world = world("rx-discard", policy).await;
    let test = ["load-test-0001", "load-test-0002", "load-test-0003"];
    let letters = test.iter().map(|id| (*id).to_owned()).chain(ids("order", 2));
    let application = rejected(&world, 0, plain(letters)).await;
    let exported = exported(&world).await;
    assert!(test.iter().all(|id| exported.iter().any(|one| one == id)), "{exported:?}");
    let names = apply(&world, "replay-discard").await;
    // Deleting always takes a second person, whatever the pipeline asks for.
    world.until_phase(&names[0], "AwaitingApproval").await;
    world.until_messages(&[(DLQ, 5), (SOURCE, 0)]).await;
    redrive(&world, &["approve", &names[0], "--yes"]).await;
    let replay = world.until_phase(&names[0], "Completed").await;
    assert_eq!(replay.status.unwrap().summary.unwrap().replayed, 3);
    world.until_messages(&[(DLQ, 2), (SOURCE, 0)]).await;
    assert_eq!(world.emptied(DLQ).await, Vec::from_iter(ids("order", 2)));
    assert_eq!(application.took(0).await, [""; 0]);
    world.leave().await;
}

/// An example that no test here applies is one that nobody has tried.
#[test]
fn every_example_is_applied_here() {
    let here = include_str!("replay_examples.rs");
    let folder = format!("{}/examples", env!("CARGO_MANIFEST_DIR"));
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let replays: Vec<String> = names
        .filter_map(|name| name.to_str().unwrap().strip_suffix(".yaml").map(str::to_owned))
        .filter(|name| name.starts_with("replay-"))
        .collect();
    assert_eq!(replays.len(), 7);
    for name in replays {
        assert!(here.contains(&format!("apply(&world, \"{name}\")")), "{name}");
    }
}
