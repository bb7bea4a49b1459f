//! kubectl, on the cluster that KUBECONFIG names.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "for tests only")]

use std::process::{Command, Output};

use serde_json::Value;

use super::command::feed;

/// Runs it with a text on its standard input.
pub fn run(arguments: &[&str], input: &str) -> Output {
    assert!(
        std::env::var_os("KUBECONFIG").is_some(),
        "KUBECONFIG names no cluster: start one with `hack/dev up` and name it with `eval \"$(hack/dev env)\"`"
    );
    let mut command = Command::new("kubectl");
    feed(command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")), input)
}

/// What it prints; fails where it does.
pub fn say(arguments: &[&str]) -> String {
    say_to(arguments, "")
}

pub fn say_to(arguments: &[&str], input: &str) -> String {
    let output = run(arguments, input);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// What it complains about; nothing where it succeeds without a warning.
pub fn complaint(arguments: &[&str], input: &str) -> String {
    String::from_utf8(run(arguments, input).stderr).unwrap()
}

/// Whether an object is there.
pub fn is_there(arguments: &[&str]) -> bool {
    !say(&[&["get", "--ignore-not-found", "--output=name"], arguments].concat()).is_empty()
}

pub fn get(arguments: &[&str]) -> Value {
    serde_json::from_str(&say(&[&["get", "--output=json"], arguments].concat())).unwrap()
}
