//! The command `redrive` as people type it, and what became of their replays.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use redrive::api::{DlqReplay, ReplaySummary};

use crate::{Arguments, Result};

/// Who types a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Person {
    /// Whoever may read the broker's Secret.
    Administrator,
    /// Asks for replays.
    Requester,
    /// Approves what the requester asks for.
    Approver,
}

/// The command, and those who type it.
pub(crate) struct Redrive {
    program: PathBuf,
    namespace: String,
    requester: Option<PathBuf>,
    approver: Option<PathBuf>,
    replays: Api<DlqReplay>,
    /// What the names of this run's replays end with: each replay runs once.
    run: String,
}

impl Redrive {
    pub(crate) fn new(arguments: &Arguments, client: Client) -> Self {
        Self {
            program: arguments.redrive.clone(),
            namespace: arguments.namespace.clone(),
            requester: arguments.requester.clone(),
            approver: arguments.approver.clone(),
            replays: Api::namespaced(client, &arguments.namespace),
            run: Timestamp::now().strftime("%H%M%S").to_string(),
        }
    }

    /// Whether there is somebody else to approve a replay.
    pub(crate) fn has_approver(&self) -> bool {
        self.approver.is_some()
    }

    /// The name that a replay has in this run.
    pub(crate) fn name(&self, of: &str) -> String {
        format!("{of}-{}", self.run)
    }

    /// Shows the command, runs it as that person, and returns its exit code.
    ///
    /// Ctrl-C reaches it as well: a terminal tells all that runs in it.
    pub(crate) async fn run(&self, person: Person, words: &[&str]) -> Result<i32> {
        println!("{}$ kubectl redrive {}", prompt(person), typed(words));
        let mut command = Command::new(&self.program);
        command.args(words).args(["--namespace", &self.namespace]).stdin(Stdio::null());
        if let Some(kubeconfig) = self.kubeconfig(person) {
            command.env("KUBECONFIG", kubeconfig);
        }
        let status = tokio::task::spawn_blocking(move || command.status()).await??;
        println!();
        status.code().ok_or_else(|| format!("redrive was ended: {status}").into())
    }

    fn kubeconfig(&self, person: Person) -> Option<&Path> {
        match person {
            Person::Administrator => None,
            Person::Requester => self.requester.as_deref(),
            Person::Approver => self.approver.as_deref(),
        }
    }

    /// A replay as the API server has it.
    pub(crate) async fn replay(&self, name: &str) -> Result<DlqReplay> {
        Ok(self.replays.get(name).await?)
    }
}

/// How a replay ended.
pub(crate) fn summary(replay: &DlqReplay) -> Result<&ReplaySummary> {
    let summary = replay.status.as_ref().and_then(|status| status.summary.as_ref());
    summary.ok_or_else(|| "the replay has not ended".into())
}

fn prompt(person: Person) -> &'static str {
    match person {
        Person::Administrator => "administrator",
        Person::Requester => "requester",
        Person::Approver => "approver",
    }
}

/// The words as a shell would want them.
fn typed(words: &[&str]) -> String {
    let quoted = |word: &&str| if word.contains(' ') { format!("\"{word}\"") } else { (*word).to_owned() };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
