//! The consumers: processes that are started again when they crash, as
//! Kubernetes would do it, but at once.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::orders::{Outcome, Report};
use crate::{Arguments, Result};

/// What the consumers are called; those that begin with `python` are in Python.
pub(crate) const NAMES: [&str; 3] = ["rust-1", "rust-2", "python-1"];

/// What the consumers can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Some payments fail for ever.
    Broken,
    /// They go through.
    Fixed,
}

/// What comes from the consumers.
pub(crate) enum News {
    /// A delivery.
    Delivery(Report, Instant),
    /// A consumer ended although nothing told it to crash.
    Ended(String),
}

/// The running consumers. They end with it.
pub(crate) struct Workers {
    slots: Vec<Arc<Mutex<Slot>>>,
    news: UnboundedReceiver<News>,
}

/// The process of one consumer, if it may have one.
enum Slot {
    Running(Child),
    Stopped,
}

impl Workers {
    pub(crate) fn start(arguments: &Arguments, queue: &str, release: Release) -> Result<Self> {
        let (sender, news) = unbounded_channel();
        let mut workers = Self { slots: Vec::new(), news };
        for name in NAMES {
            let mut command = command(name, &arguments.python)?;
            command
                .args(["--name", name, "--queue", queue, "--payments"])
                .arg(&arguments.payments)
                .args((release == Release::Fixed).then_some("--fixed"))
                .env("AMQP_URI", &arguments.amqp_uri)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let child =
                command.spawn().map_err(|error| format!("the consumer {name} can't be started: {error}"))?;
            let slot = Arc::new(Mutex::new(Slot::Running(child)));
            workers.slots.push(slot.clone());
            let sender = sender.clone();
            thread::spawn(move || {
                if let Some(why) = supervise(&mut command, &slot, &sender) {
                    let _ = sender.send(News::Ended(format!("the consumer {name} has ended: {why}")));
                }
            });
        }
        Ok(workers)
    }

    /// The next thing that a consumer says.
    pub(crate) async fn next(&mut self) -> News {
        let gone = || News::Ended("all consumers have ended".to_owned());
        self.news.recv().await.unwrap_or_else(gone)
    }

    /// Ends them. What they hold goes back to the broker.
    pub(crate) fn stop(&mut self) {
        for slot in &self.slots {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            if let Slot::Running(child) = &mut *slot {
                let _ = child.kill();
                let _ = child.wait();
            }
            *slot = Slot::Stopped;
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn command(name: &str, python: &Path) -> Result<Command> {
    if name.starts_with("python") {
        let mut command = Command::new(python);
        command.arg("hack/python/consumer.py");
        return Ok(command);
    }
    // Cargo puts all examples into one directory.
    Ok(Command::new(std::env::current_exe()?.with_file_name("consumer")))
}

/// Passes on what a consumer prints, and starts it again after each crash.
/// Returns why it ended otherwise, or nothing when it was stopped.
fn supervise(command: &mut Command, slot: &Mutex<Slot>, news: &UnboundedSender<News>) -> Option<String> {
    loop {
        let (out, mut err) = {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            let Slot::Running(child) = &mut *slot else { return None };
            (child.stdout.take()?, child.stderr.take()?)
        };
        let mut crashed = false;
        for line in BufReader::new(out).lines().map_while(std::result::Result::ok) {
            let at = Instant::now();
            match serde_json::from_str::<Report>(&line) {
                Ok(report) => {
                    crashed = report.result == Outcome::Crashed;
                    let _ = news.send(News::Delivery(report, at));
                }
                Err(error) => return Some(format!("it printed {line:?}: {error}")),
            }
        }
        let mut said = String::new();
        let _ = err.read_to_string(&mut said);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let Slot::Running(child) = &mut *slot else { return None };
        let _ = child.wait();
        if !crashed {
            return Some(said.trim().to_owned());
        }
        match command.spawn() {
            Ok(child) => *slot = Slot::Running(child),
            Err(error) => return Some(error.to_string()),
        }
    }
}
