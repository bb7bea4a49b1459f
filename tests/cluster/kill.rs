//! An operator that ends in the middle: whatever was done by then, the next one goes on.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::proxy::Action;
use crate::support::world::{World, describe, inventory, is_ready};

/// A pipeline with everything in it that is written in a way of its own.
fn rich() -> Value {
    json!({
        "source": {"queue": {"maxLength": 1000}, "deliveryLimit": 5},
        "retry": {"delays": ["1s", "2s"]},
        "deadLetter": {"retention": "14d", "quarantine": [{"category": "poison", "reasons": ["delivery_limit"]}]},
        "deletionPolicy": "Delete",
    })
}

/// Whether the tests that take minutes run too.
fn full() -> bool {
    std::env::var("REDRIVE_TEST_FULL").is_ok_and(|value| value == "1")
}

/// Every point between the writes, or a few of them.
fn points(writes: usize) -> Vec<usize> {
    let step = if full() { 1 } else { writes.div_ceil(6).max(1) };
    (0..=writes).step_by(step).collect()
}

/// Runs the operator until `writes` writes were made; the last one's answer gets lost, and nothing
/// after it reaches the broker. Then the operator ends.
async fn run_until(world: &mut World, writes: usize, done: impl AsyncFn(&World) -> bool) {
    world.proxy.forget();
    world.proxy.rule(move |request| match request.writes_before {
        before if !request.is_write() && before <= writes => Action::Pass,
        before if before < writes => Action::Pass,
        before if before == writes && request.is_write() => Action::CutAnswer,
        _ => Action::Cut,
    });
    world.start();
    eventually("the operator is cut off, or done", async || {
        let cut = world.proxy.writes().len() > writes;
        if cut || done(world).await { Ok(()) } else { Err(format!("{} writes", world.proxy.writes().len())) }
    })
    .await;
    world.kill().await;
    world.proxy.heal();
}

#[tokio::test]
async fn cut_off_after_any_write_a_declaration_converges() {
    let mut world = World::new("kill").await;
    world.start();
    world.create_ready("orders", rich()).await;
    let wanted = world.broker.contents(&world.vhost).await;
    let writes = world.proxy.writes().len();
    world.stop().await;
    for point in points(writes) {
        // Another resource each time, so that nothing is known of it.
        world.pipelines().delete("orders", &Default::default()).await.unwrap();
        let patch = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let _ = world.pipelines().patch("orders", &Default::default(), &patch).await;
        world.broker.delete(&["vhosts", &world.vhost]).await;
        world.broker.create_vhost(&world.vhost).await;
        world.create(world.manifest("orders", rich())).await;
        run_until(&mut world, point, async |world| is_ready(&world.get("orders").await)).await;
        world.start();
        let pipeline = world.ready("orders").await;
        let without_uid = |lines: Vec<String>| -> Vec<String> {
            let cut = |line: String| line.split(",\"uid\"").next().unwrap_or_default().to_owned();
            lines.into_iter().map(cut).collect()
        };
        let found = without_uid(world.broker.contents(&world.vhost).await);
        assert_eq!(found, without_uid(wanted.clone()), "after {point} of {writes} writes");
        let left = (inventory(&pipeline, "Intended"), inventory(&pipeline, "Adopted"));
        assert!(left.0.is_empty() && left.1.is_empty(), "after {point} writes all is ours: {left:?}");
        assert!(pipeline.status.as_ref().unwrap().drift.is_none(), "{}", describe(&pipeline));
        world.stop().await;
    }
    world.leave().await;
}

#[tokio::test]
async fn cut_off_after_any_write_an_edit_converges() {
    let mut world = World::new("killedit").await;
    let first = json!({"retry": {"delays": ["1s"]}, "deletionPolicy": "Delete"});
    let second = json!({"retry": {"delays": ["2s", "1s"]}, "deadLetter": {"parkingLot": true}});
    let settled = async |world: &World| {
        let queues = world.broker.names("queues", &world.vhost).await;
        is_ready(&world.get("orders").await) && !queues.contains(&"orders.queue.retry.0".to_owned())
    };
    world.start();
    world.create_ready("orders", first.clone()).await;
    world.proxy.forget();
    world.edit("orders", second.clone()).await;
    eventually(
        "the edit is done",
        async || if settled(&world).await { Ok(()) } else { Err("not yet".to_owned()) },
    )
    .await;
    let wanted = world.broker.names("queues", &world.vhost).await;
    let writes = world.proxy.writes().len();
    for point in points(writes).into_iter().skip(1) {
        world.delete("orders").await;
        world.until_gone("orders").await;
        world.create_ready("orders", first.clone()).await;
        world.stop().await;
        world.edit("orders", second.clone()).await;
        run_until(&mut world, point, settled).await;
        world.start();
        eventually(&format!("after {point} of {writes} writes"), async || {
            let pipeline = world.get("orders").await;
            let queues = world.broker.names("queues", &world.vhost).await;
            if is_ready(&pipeline) && queues == wanted {
                Ok(())
            } else {
                Err(format!("{queues:?} {}", describe(&pipeline)))
            }
        })
        .await;
        let pipeline = world.get("orders").await;
        assert!(inventory(&pipeline, "Intended").is_empty() && inventory(&pipeline, "Adopted").is_empty());
    }
    world.leave().await;
}

#[tokio::test]
async fn cut_off_after_any_write_a_deletion_leaves_nothing() {
    let mut world = World::new("killdelete").await;
    world.settings.release_after = Duration::from_secs(600);
    world.start();
    world.create_ready("orders", rich()).await;
    world.proxy.forget();
    world.delete("orders").await;
    world.until_gone("orders").await;
    let writes = world.proxy.writes().len();
    for point in points(writes) {
        world.create_ready("orders", rich()).await;
        world.stop().await;
        world.delete("orders").await;
        run_until(&mut world, point, async |world| {
            world.pipelines().get_opt("orders").await.unwrap().is_none()
        })
        .await;
        world.start();
        world.until_gone("orders").await;
        let left = world.broker.contents(&world.vhost).await;
        assert!(left.iter().all(|line| line.starts_with("exchange redrive.owner ")), "{point}: {left:#?}");
    }
    world.leave().await;
}

/// The command itself, which `kill -9` ends.
struct Process(Child);

impl Process {
    fn start(world: &World) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(["controller", "--allow-local-brokers", "--namespace", &world.namespace])
            .args(["--poll-interval", "1s"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("the command starts"))
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test]
async fn a_process_that_is_killed_at_any_time_is_followed_by_one_that_goes_on() {
    let world = World::new("kill9").await;
    let mut process = Process::start(&world);
    world.create_ready("orders", rich()).await;
    let writes = world.proxy.writes().len();
    let wanted = world.broker.names("queues", &world.vhost).await;
    let points = if full() { points(writes) } else { vec![1, writes / 2, writes - 2] };
    for point in points {
        world.delete("orders").await;
        world.until_gone("orders").await;
        process.kill();
        world.proxy.forget();
        // Slow, so that the process can be met in the middle.
        world.proxy.rule(|request| {
            if request.is_write() { Action::Delay(Duration::from_millis(40)) } else { Action::Pass }
        });
        process = Process::start(&world);
        world.create(world.manifest("orders", rich())).await;
        eventually(&format!("{point} writes"), async || {
            let made = world.proxy.writes().len();
            if made >= point || is_ready(&world.get("orders").await) {
                Ok(())
            } else {
                Err(format!("{made} writes"))
            }
        })
        .await;
        process.kill();
        world.proxy.heal();
        process = Process::start(&world);
        let pipeline = world.ready("orders").await;
        assert_eq!(world.broker.names("queues", &world.vhost).await, wanted);
        assert!(inventory(&pipeline, "Adopted").is_empty(), "{:?}", inventory(&pipeline, "Adopted"));
    }
    world.delete("orders").await;
    world.until_gone("orders").await;
    let left = world.broker.contents(&world.vhost).await;
    assert!(left.iter().all(|line| line.starts_with("exchange redrive.owner ")), "{left:#?}");
    process.kill();
    world.leave().await;
}
