//! An operator that is killed between any two writes, on the broker or the API server: whatever
//! was done by then, the next one goes on with.
//!
//! The operator is the command itself, and a proxy stands between it and both servers. It lets so
//! many writes through and keeps the next one, and then comes the `kill -9`.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::kubernetes;
use crate::support::log;
use crate::support::proxy::Action;
use crate::support::world::{World, describe, inventory, is_ready};
use crate::support::{PATIENCE, eventually};

/// So many operators of one series are killed side by side, each in a world of its own: most of
/// the time goes by in waiting.
const SIDE_BY_SIDE: usize = 8;

/// Longer than the proof that a queue is empty takes, with a look before and after it.
const AT_REST: Duration = Duration::from_secs(25);

/// How many points of each series are tried where there is little time.
const FEW: usize = 4;

/// A pipeline with everything in it that is written in a way of its own.
fn rich() -> Value {
    json!({
        "source": {"queue": {"maxLength": 1000}, "deliveryLimit": 5},
        "retry": {"delays": ["1s", "2s"]},
        "deadLetter": {"retention": "14d", "quarantine": [{"category": "poison", "reasons": ["delivery_limit"]}]},
        "deletionPolicy": "Delete",
    })
}

/// What is done while the operator is killed.
enum Change {
    Create,
    Edit(Value),
    Delete,
}

/// One change, with the operator killed in every moment of it.
struct Series {
    name: &'static str,
    /// The pipeline, before the change if it is there then.
    spec: Value,
    change: Change,
}

/// What there is once all is done, without what is another one in each world.
type Contents = Vec<String>;

/// The command itself, which `kill -9` ends.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(world: &World, kubeconfig: &str) -> Self {
        Self::start_with(world, kubeconfig, &[], &[])
    }

    pub(crate) fn start_with(
        world: &World,
        kubeconfig: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(["controller", "--allow-local-brokers", "--watch-namespace", &world.namespace])
            // Nothing here waits for a poll, and so many operators would only be in each other's way.
            .args(["--poll-interval", "10s"])
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(log::of_processes())
            .spawn();
        Self(child.expect("the command starts"))
    }

    /// Tells it to stop, and waits until it has ended by itself.
    pub(crate) async fn stop(&mut self) -> ExitStatus {
        let told = Command::new("kill").arg(self.0.id().to_string()).status();
        assert!(told.unwrap().success());
        let ended = async {
            loop {
                if let Some(status) = self.0.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("the operator ends")
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A world with an operator that can be killed.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) kubeconfig: String,
    pub(crate) process: Process,
}

impl Stage {
    pub(crate) async fn new(name: &str) -> Self {
        let mut world = World::new(name).await;
        let address = world.proxy.before_kubernetes(&kubernetes::config().await).await;
        let kubeconfig = format!("{}/{}.kubeconfig", env!("CARGO_TARGET_TMPDIR"), world.namespace);
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": ""}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let process = Process::start(&world, &kubeconfig);
        Self { world, kubeconfig, process }
    }

    /// Everything as it is before the change, with nothing left of the turn before.
    async fn prepare(&self, series: &Series) {
        let world = &self.world;
        if world.pipelines().get_opt("orders").await.unwrap().is_some() {
            world.delete("orders").await;
            world.until_gone("orders").await;
        }
        if !matches!(series.change, Change::Create) {
            world.create_ready("orders", series.spec.clone()).await;
        }
        world.proxy.forget();
    }

    async fn make(&self, series: &Series) {
        match &series.change {
            Change::Create => {
                drop(self.world.create(self.world.manifest("orders", series.spec.clone())).await)
            }
            Change::Edit(spec) => drop(self.world.edit("orders", spec.clone()).await),
            Change::Delete => self.world.delete("orders").await,
        }
    }

    /// Whether the change is carried out to its end.
    async fn look(&self, series: &Series) -> Result<(), String> {
        let found = self.world.pipelines().get_opt("orders").await.map_err(|error| error.to_string())?;
        match (found, &series.change) {
            (None, Change::Delete) => Ok(()),
            (Some(pipeline), Change::Create | Change::Edit(_)) if is_ready(&pipeline) => Ok(()),
            (found, _) => Err(found.as_ref().map_or_else(|| "it is gone".to_owned(), describe)),
        }
    }

    async fn until_done(&self, series: &Series, when: &str) {
        eventually(&format!("{}, {when}: done", series.name), async || self.look(series).await).await;
    }

    /// What is on the broker. Names of generations depend on how often one was begun.
    async fn contents(&self) -> Contents {
        let uid =
            self.world.pipelines().get_opt("orders").await.unwrap().and_then(|found| found.metadata.uid);
        let lines = self.world.broker.contents(&self.world.vhost).await;
        let same = |line: String| {
            let line = line.replace(&self.world.namespace, "NAMESPACE");
            uid.as_ref().map_or(line.clone(), |uid| line.replace(uid, "UID"))
        };
        let mut lines: Contents = lines.into_iter().map(same).collect();
        lines.sort();
        lines
    }

    /// The change without a kill: how many writes it takes, and what it comes to.
    async fn undisturbed(&self, series: &Series) -> (usize, Contents) {
        // The first pipeline in a vhost makes what stays for ever.
        let turns = if matches!(series.change, Change::Create) { 2 } else { 1 };
        for _ in 0..turns {
            self.prepare(series).await;
            self.make(series).await;
            self.until_done(series, "undisturbed").await;
            // The last status is followed by its event.
            tokio::time::sleep(Duration::from_millis(1_500)).await;
        }
        (self.world.proxy.writes().len(), self.at_rest().await)
    }

    /// What is on the broker once nothing more goes: what an edit leaves behind stands until it is
    /// proven empty.
    async fn at_rest(&self) -> Contents {
        let mut last = self.contents().await;
        let mut since = Instant::now();
        while since.elapsed() < AT_REST {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.contents().await;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        last
    }

    /// The change with a kill after so many writes; says whether it came to that.
    async fn killed_after(&mut self, series: &Series, writes: usize) -> bool {
        self.prepare(series).await;
        self.world.proxy.rule(move |request| {
            if request.is_write() && request.writes_before >= writes { Action::Silence } else { Action::Pass }
        });
        self.make(series).await;
        let when = format!("with {writes} writes");
        let is_met = eventually(&format!("{}, {when}: the kill", series.name), async || {
            if self.world.proxy.writes().len() > writes {
                return Ok(true);
            }
            self.look(series).await.map(|()| false)
        })
        .await;
        self.process.kill();
        self.world.proxy.heal();
        self.process = Process::start(&self.world, &self.kubeconfig);
        self.until_done(series, &format!("killed after {writes} writes")).await;
        is_met
    }

    /// Checks that nothing tells that there was a kill.
    async fn check(&self, wanted: &Contents, series: &Series, writes: usize) {
        let what = format!("{}, killed after {writes} writes", series.name);
        eventually(&format!("{what}: as if there had been no kill"), async || {
            let found = self.contents().await;
            let more: Vec<_> = found.iter().filter(|line| !wanted.contains(line)).collect();
            let less: Vec<_> = wanted.iter().filter(|line| !found.contains(line)).collect();
            if more.is_empty() && less.is_empty() {
                return Ok(());
            }
            Err(format!("too much: {more:#?}, too little: {less:#?}"))
        })
        .await;
        let Some(pipeline) = self.world.pipelines().get_opt("orders").await.unwrap() else { return };
        let left = (inventory(&pipeline, "Intended"), inventory(&pipeline, "Adopted"));
        assert!(left.0.is_empty() && left.1.is_empty(), "{what}: all is ours: {left:?}");
        let drift = pipeline.status.as_ref().unwrap().drift.as_ref();
        assert!(drift.is_none(), "{what}: what we did ourselves is no drift: {drift:?}");
    }

    pub(crate) async fn leave(mut self) {
        self.process.kill();
        let _ = std::fs::remove_file(&self.kubeconfig);
        self.world.leave().await;
    }
}

/// Whether every point is tried, or a few.
fn full() -> bool {
    std::env::var("REDRIVE_TEST_FULL").is_ok_and(|value| value == "1")
}

/// Every point between the writes, before the first and after the last included, or a few of them.
fn points(writes: usize) -> Vec<usize> {
    let step = if full() { 1 } else { writes.div_ceil(FEW).max(1) };
    (0..=writes).step_by(step).collect()
}

/// Kills the operator at each point of a series.
async fn run(series: Series) {
    let started = Instant::now();
    let first = Stage::new(series.name).await;
    let (writes, wanted) = first.undisturbed(&series).await;
    let by_kubernetes = first.world.proxy.writes().iter().filter(|write| write.to_kubernetes).count();
    let points = points(writes);
    let mut stages = vec![first];
    while stages.len() < SIDE_BY_SIDE.min(points.len()) {
        stages.push(Stage::new(series.name).await);
    }
    let side_by_side = stages.len();
    let turns = stages.into_iter().enumerate().map(|(number, mut stage)| {
        let mine = points.iter().skip(number).step_by(side_by_side);
        let (series, wanted) = (&series, &wanted);
        async move {
            let mut met = 0;
            for point in mine {
                met += usize::from(stage.killed_after(series, *point).await);
                stage.check(wanted, series, *point).await;
            }
            stage.leave().await;
            met
        }
    });
    let met: usize = join_all(turns).await.into_iter().sum();
    println!(
        "{}: {writes} writes, {by_kubernetes} of them on the API server; killed at {met} of {} points in {:.0?}",
        series.name,
        points.len(),
        started.elapsed()
    );
    // After the last write there is none to meet it at; a few more may fall together.
    assert!(met + 3 >= points.len(), "{met} of {} points were met", points.len());
}

#[tokio::test]
async fn a_process_that_is_killed_at_any_time_is_followed_by_one_that_goes_on() {
    run(Series { name: "kill-create", spec: rich(), change: Change::Create }).await;
}

#[tokio::test]
async fn cut_off_after_any_write_an_edit_converges() {
    let spec = json!({"retry": {"delays": ["1s"]}, "deletionPolicy": "Delete"});
    let edit = json!({"retry": {"delays": ["2s", "1s"]}, "deadLetter": {"parkingLot": true}});
    run(Series { name: "kill-edit", spec, change: Change::Edit(edit) }).await;
}

#[tokio::test]
async fn cut_off_after_any_write_a_pipeline_that_shrinks_converges() {
    let edit = json!({"retry": {"delays": ["1s"]}, "deadLetter": {"retention": null, "quarantine": null}});
    run(Series { name: "kill-shrink", spec: rich(), change: Change::Edit(edit) }).await;
}

#[tokio::test]
async fn cut_off_after_any_write_a_queue_is_made_anew_under_its_name() {
    let spec =
        json!({"retry": {"delays": ["1s"]}, "deadLetter": {"parkingLot": true}, "deletionPolicy": "Delete"});
    let edit = json!({"deadLetter": {"queueType": "classic"}});
    run(Series { name: "kill-anew", spec, change: Change::Edit(edit) }).await;
}

#[tokio::test]
async fn cut_off_after_any_write_a_deletion_leaves_nothing() {
    run(Series { name: "kill-delete", spec: rich(), change: Change::Delete }).await;
}

#[tokio::test]
async fn cut_off_after_any_write_a_deletion_that_proves_first_leaves_nothing() {
    let mut spec = rich();
    spec["deletionPolicy"] = json!("DeleteIfEmpty");
    run(Series { name: "kill-if-empty", spec, change: Change::Delete }).await;
}
