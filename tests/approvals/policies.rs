//! `admission/`, installed as docs/approval.md says.

use std::process::Command;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use redrive::controller::dlq_replay::verifiability::verify;

use crate::support::{eventually, variable};

/// What is installed; gone when the test ends, however that is.
pub(crate) struct Policies(());

impl Policies {
    /// The roles, without the policies.
    pub(crate) fn roles_alone() -> Self {
        let policies = Self(());
        // What a test that was killed left behind.
        remove();
        kubectl(&["apply", "-f", "admission/roles.yaml"]);
        policies
    }

    /// All of it; comes back once what is created from then on is judged by it.
    pub(crate) async fn install(client: &Client, roles: Self) -> Self {
        kubectl(&["apply", "-f", "admission/"]);
        eventually("the policies are in effect", async || {
            let verdict = verify(client).await.map_err(|error| error.to_string())?;
            let is_in_effect = verdict.vouches_for(&Time(Timestamp::now()));
            if is_in_effect { Ok(()) } else { Err(verdict.to_string()) }
        })
        .await;
        roles
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        remove();
    }
}

fn remove() {
    kubectl(&["delete", "-f", "admission/", "--ignore-not-found"]);
}

fn kubectl(arguments: &[&str]) {
    let output = Command::new(variable("REDRIVE_DEV"))
        .arg("kubectl")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
