//! Programs beside the tests: the development cluster and clients in Python.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::variable;

/// Whether the long series run as well; says once of each that it is left out.
pub(crate) fn full(what: &'static str) -> bool {
    static SAID: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let full = std::env::var_os("REDRIVE_TEST_FULL").is_some_and(|value| value == "1");
    if !full && SAID.lock().expect("no panic").insert(what) {
        // Past the capture of the test harness, which keeps quiet about what passes.
        let _ = writeln!(std::io::stderr(), "left out without REDRIVE_TEST_FULL=1: {what}");
    }
    full
}

/// Runs `hack/dev` for a development cluster of this name and returns what it prints.
fn development(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(variable("REDRIVE_DEV"))
        .args(arguments)
        .env("REDRIVE_DEV_NAME", name)
        .stderr(Stdio::inherit())
        .output()
        .expect("hack/dev runs");
    assert!(output.status.success(), "hack/dev {arguments:?} failed");
    String::from_utf8(output.stdout).expect("text")
}

/// A client in Python; it ends with its owner.
pub(crate) struct Python {
    child: Child,
    output: Option<JoinHandle<String>>,
    errors: Option<JoinHandle<String>>,
}

impl Python {
    /// Starts `hack/python/<script>`.
    pub(crate) fn start(script: &str, arguments: &[&str]) -> Self {
        let python = development(&variable("REDRIVE_DEV_NAME"), &["python"]);
        let path = format!("{}/hack/python/{script}", env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new(python.trim())
            .arg(path)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python starts");
        let output = child.stdout.take().map(read);
        let errors = child.stderr.take().map(read);
        Self { child, output, errors }
    }

    /// Waits for its end: whether it succeeded, what it printed, what it complained of.
    pub(crate) async fn end(mut self, patience: Duration) -> (bool, String, String) {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None if start.elapsed() < patience => tokio::time::sleep(Duration::from_millis(50)).await,
                None => panic!("the client did not end within {patience:?}"),
            }
        };
        let text = |thread: Option<JoinHandle<String>>| thread.map(|thread| thread.join().expect("text"));
        let (output, errors) = (text(self.output.take()), text(self.errors.take()));
        (status.success(), output.unwrap_or_default(), errors.unwrap_or_default())
    }

    /// Waits for its success and what it printed, a JSON object a line.
    pub(crate) async fn lines(self, patience: Duration) -> Vec<serde_json::Value> {
        let (success, output, errors) = self.end(patience).await;
        assert!(success, "the client failed: {errors}");
        output.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
