//! A worker's process, started as its Job says, by the test in the place of a node: so that it can
//! be killed at any moment, and its output outlives it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use redrive::api::DlqReplay;
use redrive::controller::RunnerKind;
use serde_json::Value;

use super::world::World;
use super::{PATIENCE, eventually};

/// Where the Job mounts the run's Secret.
const MOUNT: &str = "/etc/redrive";

/// A run whose Job no node takes up.
pub(crate) struct Run {
    arguments: Vec<String>,
    directory: PathBuf,
    lives: usize,
}

impl Run {
    /// Has the operator of a world make Jobs, and no controller make pods of them.
    pub(crate) fn without_pods(world: &mut World) {
        world.settings.replays.runner = RunnerKind::Job;
        // Nobody made this account, so no pod is ever made.
        world.settings.replays.service_account = "nobody".to_owned();
    }

    /// Waits for the Job, and lays out its Secret as a node would.
    pub(crate) async fn of(world: &World, replay: &DlqReplay) -> Self {
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
        let there = directory.to_str().unwrap();
        let arguments = pod.containers[0].args.iter().flatten();
        let arguments = arguments.map(|argument| argument.replace(MOUNT, there)).collect();
        Self { arguments, directory, lives: 0 }
    }

    /// Begins another life.
    pub(crate) fn start(&mut self) -> Worker {
        self.lives += 1;
        let path = |kind: &str| self.directory.join(format!("{kind}-{}", self.lives));
        let child = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(fs::File::create(path("records")).unwrap())
            .stderr(fs::File::create(path("log")).unwrap())
            .spawn()
            .unwrap();
        Worker { child, log: path("log") }
    }

    /// The ids of all messages that any life has recorded.
    pub(crate) fn recorded(&self) -> BTreeSet<String> {
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

/// One life of the worker; it ends with the test at the latest.
pub(crate) struct Worker {
    child: Child,
    log: PathBuf,
}

impl Worker {
    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until it ends by itself, with success.
    pub(crate) async fn succeeds(&mut self) {
        let started = std::time::Instant::now();
        let status = loop {
            if let Some(status) = self.ended() {
                break status;
            }
            assert!(started.elapsed() < PATIENCE, "it does not end: {}", self.said());
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert!(status.success(), "{status}: {}", self.said());
    }

    /// Its log so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGKILL: it can't settle anything.
    pub(crate) fn kill(mut self) {
        assert_eq!(self.ended(), None, "it lives until it is killed: {}", self.said());
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
