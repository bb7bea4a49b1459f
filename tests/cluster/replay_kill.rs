//! The worker's process is killed again and again while messages move as fast as they can.
//!
//! It is started as its Job says, with the run's Secret as files, by the test in the place of a
//! node: so that it can be killed at any moment, and its output outlives it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use redrive::api::{DlqReplay, ReplaySummary};
use redrive::controller::RunnerKind;
use serde_json::{Value, json};

use crate::support::amqp::{Wire, header, id, numbered};
use crate::support::replays::{DLQ, SOURCE};
use crate::support::world::World;
use crate::support::{PATIENCE, eventually};

/// Messages in flight, and so the most that one kill may double.
const WINDOW: usize = 500;

/// Where the Job mounts the run's Secret.
const MOUNT: &str = "/etc/redrive";

/// A run whose Job no node takes up.
struct Run {
    arguments: Vec<String>,
    directory: PathBuf,
    lives: usize,
}

impl Run {
    /// Waits for the Job, and lays out its Secret as a node would.
    async fn of(world: &World, replay: &DlqReplay) -> Self {
        let name = format!("redrive-replay-{}", replay.uid().unwrap());
        let jobs: Api<Job> = Api::namespaced(world.client.clone(), &world.namespace);
        let secrets: Api<Secret> = Api::namespaced(world.client.clone(), &world.namespace);
        let (job, secret) = eventually("the run has a Job and a Secret", async || {
            let job = jobs.get_opt(&name).await.map_err(|error| error.to_string())?;
            let secret = secrets.get_opt(&name).await.map_err(|error| error.to_string())?;
            job.zip(secret).ok_or_else(|| "not both are there".to_owned())
        })
        .await;
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&world.namespace);
        for (key, value) in secret.data.unwrap() {
            let (folder, file) = key.split_once('.').unwrap();
            fs::create_dir_all(directory.join(folder)).unwrap();
            fs::write(directory.join(folder).join(file), value.0).unwrap();
        }
        let pod = job.spec.unwrap().template.spec.unwrap();
        let arguments = pod.containers[0].args.clone().unwrap();
        let there = directory.to_str().unwrap();
        let arguments = arguments.iter().map(|argument| argument.replace(MOUNT, there)).collect();
        Self { arguments, directory, lives: 0 }
    }

    fn start(&mut self) -> Worker {
        self.lives += 1;
        let file = |kind: &str| fs::File::create(self.directory.join(format!("{kind}-{}", self.lives)));
        let child = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(&self.arguments)
            .stdout(file("records").unwrap())
            .stderr(file("log").unwrap())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Worker { child, log: self.directory.join(format!("log-{}", self.lives)) }
    }

    /// The ids of all messages that a life has recorded.
    fn recorded(&self) -> BTreeSet<String> {
        let mut recorded = BTreeSet::new();
        for life in 1..=self.lives {
            let text = fs::read_to_string(self.directory.join(format!("records-{life}"))).unwrap();
            // Whoever is killed while it writes leaves half a line.
            let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            recorded.extend(records.map(|record| record["messageId"].as_str().unwrap().to_owned()));
        }
        recorded
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// One life of the worker.
struct Worker {
    child: Child,
    log: PathBuf,
}

impl Worker {
    fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end.
    async fn succeeds(&mut self) {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.has_ended() {
                break status;
            }
            assert!(started.elapsed() < PATIENCE, "it does not end: {}", self.said());
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert!(status.success(), "{status}: {}", self.said());
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGKILL: it can't settle anything.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Numbers that nobody foresees, and that a failed test names.
struct Luck(u64);

impl Luck {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        println!("the moments of the kills depend on {}", now.as_micros());
        Self(u64::try_from(now.as_micros()).unwrap())
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// Starts a worker and kills it: every fourth at any moment of its first second, the others once
/// some more messages have moved.
async fn kill_one(run: &mut Run, wire: &Wire, luck: &mut Luck, kill: usize, share: usize) {
    let before = wire.ready(SOURCE).await;
    let mut worker = run.start();
    if kill % 4 == 3 {
        let moment = u64::try_from(luck.below(1_000)).unwrap();
        tokio::time::sleep(Duration::from_millis(moment)).await;
    } else {
        let enough = before + 1 + luck.below(share);
        let started = Instant::now();
        loop {
            let moved = wire.ready(SOURCE).await;
            if moved >= enough {
                break;
            }
            if let Some(status) = worker.has_ended() {
                panic!("it ended by itself, {status}, with {moved} moved: {}", worker.said());
            }
            assert!(started.elapsed() < PATIENCE, "{moved} of {enough} have moved: {}", worker.said());
        }
    }
    worker.kill();
}

/// Kills so often while so many messages move, and looks where all of them are.
async fn kills_lose_nothing(purpose: &str, version: &str, messages: usize, kills: usize) {
    let mut world = World::for_replays_on(version, purpose).await;
    world.settings.replays.runner = RunnerKind::Job;
    // Nobody made this account, so no pod is ever made: the test is the node.
    world.settings.replays.service_account = "nobody".to_owned();
    world.start();
    world.create_ready("orders", json!({"replayPolicy": {"maxRate": 100_000}})).await;
    let wire = Wire::open(&world).await;
    wire.publish("", DLQ, numbered(0..messages)).await;
    let pace = json!({"messagesPerSecond": 100_000, "batch": 1_000, "window": WINDOW});
    let replay = world.replay("r", json!({"pace": pace})).await;
    let mut run = Run::of(&world, &replay).await;
    let mut luck = Luck::new();
    for kill in 0..kills {
        kill_one(&mut run, &wire, &mut luck, kill, messages / (kills + 1)).await;
    }
    let mut last = run.start();
    last.succeeds().await;
    let replay = world.until_phase("r", "Completed").await;
    check(&wire, &run, &replay.status.unwrap().summary.unwrap(), messages, kills).await;
    world.leave().await;
}

/// Nothing is lost, no more is doubled than is said, and everything was recorded.
async fn check(wire: &Wire, run: &Run, summary: &ReplaySummary, messages: usize, kills: usize) {
    eventually("nothing is left in the dead-letter queue", async || match wire.ready(DLQ).await {
        0 => Ok(()),
        left => Err(format!("{left} are")),
    })
    .await;
    let mut copies: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
    for delivery in wire.drain(SOURCE).await {
        copies.entry(id(&delivery)).or_default().push(header(&delivery, "x-redrive-replay-id"));
    }
    assert_eq!(copies.len(), messages, "none is lost: {summary:?}");
    let total: usize = copies.values().map(Vec::len).sum();
    let doubled = total - messages;
    println!("{messages} messages, {kills} kills: {doubled} doubled, {summary:?}");
    let possible = usize::try_from(summary.duplicates_possible).unwrap();
    assert!(doubled <= possible, "{doubled} are doubled, and {possible} are said to be possible");
    assert!(possible <= WINDOW * kills, "{possible} are said to be possible after {kills} kills");
    for (message, ids) in copies {
        assert!(ids[0].is_some() && ids.iter().all(|id| *id == ids[0]), "copies of {message}: {ids:?}");
    }
    assert_eq!(run.recorded().len(), messages, "each was recorded before it left");
    assert!(usize::try_from(summary.replayed).unwrap() <= messages, "{summary:?}");
}

/// T2 and T27
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_at_full_speed_loses_nothing() {
    kills_lose_nothing("rk-few", "43", 20_000, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_at_full_speed_loses_nothing_on_4_0() {
    kills_lose_nothing("rk-few40", "40", 20_000, 5).await;
}

/// T27
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_fifty_times_loses_nothing() {
    if std::env::var("REDRIVE_TEST_FULL").is_ok_and(|value| value == "1") {
        kills_lose_nothing("rk-many", "43", 100_000, 50).await;
    } else {
        eprintln!("left out without REDRIVE_TEST_FULL=1: fifty kills among 100,000 messages");
    }
}
