//! The parts, as `hack/dev` stops and starts them.

use std::process::Command;

use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

use crate::support::proxy::Action;
use crate::support::variable;
use crate::support::world::{World, describe, inventory};

/// Held by the only test that may stop something.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// Calls `hack/dev` for the cluster of a name, and says what it printed.
pub(crate) fn development(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(variable("REDRIVE_DEV"))
        .args(arguments)
        .env("REDRIVE_DEV_NAME", name)
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("hack/dev runs");
    assert!(output.status.success(), "hack/dev {arguments:?} failed");
    String::from_utf8(output.stdout).unwrap()
}

/// A part that may be down; it is up again when the test ends, however that is.
pub(crate) struct Part(&'static [&'static str]);

impl Part {
    pub(crate) const API_SERVER: Self = Self(&["api"]);
    pub(crate) const BROKER_43: Self = Self(&["broker", "43"]);
    pub(crate) const BROKER_40: Self = Self(&["broker", "40"]);

    fn order(&self, what: &str) {
        let (part, rest) = self.0.split_first().unwrap();
        let arguments: Vec<&str> = [*part, what].into_iter().chain(rest.iter().copied()).collect();
        development(&variable("REDRIVE_DEV_NAME"), &arguments);
    }

    /// Without a warning, as a machine that fails.
    pub(crate) fn kill(&self) {
        self.order("kill");
    }

    /// With time to close everything.
    pub(crate) fn stop(&self) {
        self.order("stop");
    }

    /// Starts it, and waits until it answers.
    pub(crate) fn start(&self) {
        self.order("start");
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.start();
        }
    }
}

/// How many pipelines are applied together.
const TOGETHER: usize = 12;

/// Has the operator apply some pipelines, and comes back in the middle of it, with further writes
/// held until they are released.
pub(crate) async fn in_the_middle_of_an_apply(world: &mut World) -> Vec<String> {
    let slowly = std::time::Duration::from_millis(50);
    world.proxy.rule(move |request| if request.is_write() { Action::Delay(slowly) } else { Action::Pass });
    world.start();
    let names: Vec<String> = (0..TOGETHER).map(|number| format!("orders-{number}")).collect();
    for name in &names {
        world.create(world.manifest(name, json!({"deletionPolicy": "Delete"}))).await;
    }
    world.proxy.writes_arrived(10 * TOGETHER).await;
    world.proxy.hold_writes();
    names
}

/// Checks that all became Ready, as if nothing had been in the way.
pub(crate) async fn check_whole(world: &World, names: &[String]) {
    for name in names {
        let pipeline = world.ready(name).await;
        assert!(inventory(&pipeline, "Intended").is_empty() && inventory(&pipeline, "Adopted").is_empty());
        let drift = pipeline.status.as_ref().unwrap().drift.as_ref();
        assert!(drift.is_none(), "a first declaration is no drift: {drift:?} {}", describe(&pipeline));
    }
    let queues = world.broker.names("queues", &world.vhost).await;
    assert_eq!(queues.len(), 4 * names.len(), "{queues:#?}");
}
