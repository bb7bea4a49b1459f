//! promtool, from the `PATH` or by `hack/tools`.

#![allow(dead_code, unreachable_pub, reason = "for tests only")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use super::command::{feed, tool};

/// Runs it with this on its standard input, and fails with all that it says unless it is content.
pub fn run(arguments: &[&str], input: &str) {
    static TOOL: OnceLock<PathBuf> = OnceLock::new();
    let output = feed(Command::new(TOOL.get_or_init(|| tool("promtool"))).args(arguments), input);
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "promtool {arguments:?}\n{}", String::from_utf8_lossy(&said));
}
