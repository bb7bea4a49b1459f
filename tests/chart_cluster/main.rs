//! The Helm chart on a real cluster, without its pods: installed, upgraded, rolled back and
//! uninstalled by both Helms.
//!
//! Definitions and admission policies are those of the whole cluster, so nothing else may use it
//! meanwhile: `cargo test --test chart_cluster`.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod accepted;
#[path = "../support/command.rs"]
mod command;
#[path = "../support/helm.rs"]
mod helm;
#[path = "../support/kubectl.rs"]
mod kubectl;
mod lifecycle;
mod older;

use std::sync::{Mutex, MutexGuard};

/// One test at a time: each makes objects of the cluster.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A namespace that goes with the test.
struct Namespace(String);

impl Namespace {
    fn new(purpose: &str) -> Self {
        let name = format!("redrive-{purpose}-{}", std::process::id());
        kubectl::say(&["create", "namespace", &name]);
        Self(name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        kubectl::run(&["delete", "namespace", &self.0, "--wait=false"], "");
    }
}
