//! Commands: of tools and of `redrive`, given a text, and what comes of them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "for tests only")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// How a command ended, and what it printed.
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// `redrive` in the project's directory, with nothing of ours in its environment.
pub fn redrive(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("REDRIVE_")) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// Runs it to its end with this on its standard input, of which it may leave some.
pub fn feed(command: &mut Command, input: impl AsRef<[u8]>) -> Output {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap_or_else(|error| panic!("{pipes:?}: {error}"));
    let _ = child.stdin.take().unwrap().write_all(input.as_ref());
    child.wait_with_output().unwrap()
}

/// The path of one of `hack/tools`, which is installed if need be.
pub fn tool(name: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("hack/tools");
    let output = Command::new(script).arg(name).output().unwrap();
    assert!(output.status.success(), "hack/tools {name}: {}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}
