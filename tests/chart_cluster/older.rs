//! An operator beside the definitions of an earlier version, which would drop what they don't know.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Namespace, kubectl, turn};

const DEFINITION: &str = "crds/redrive.dev_retrypipelines.yaml";

/// A field that an earlier version could have lacked.
const FIELD: &str = "drift";

/// The definition of pipelines without the field, until this is dropped.
struct Earlier;

impl Earlier {
    fn install() -> Self {
        let path = format!("{}/{DEFINITION}", env!("CARGO_MANIFEST_DIR"));
        let mut definition: Value = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let status = schema["properties"]["status"]["properties"].as_object_mut().unwrap();
        assert!(status.remove(FIELD).is_some(), "no such field: {FIELD}");
        kubectl::say_to(&["replace", "--filename=-"], &definition.to_string());
        let these = Self;
        until("the earlier definition is published", || !is_published());
        these
    }
}

impl Drop for Earlier {
    fn drop(&mut self) {
        // A failure that is under way says more than one of this.
        kubectl::run(&["replace", "--filename", DEFINITION], "");
    }
}

/// Whether the API server tells clients of the field.
fn is_published() -> bool {
    let document = kubectl::say(&["get", "--raw", "/openapi/v3/apis/redrive.dev/v1alpha1"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    let pipeline = &document["components"]["schemas"]["dev.redrive.v1alpha1.RetryPipeline"];
    !pipeline["properties"]["status"]["properties"][FIELD].is_null()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        sleep(Duration::from_millis(200));
    }
}

/// An operator that watches one namespace; it goes with the test.
struct Operator {
    process: Child,
    health: String,
}

impl Operator {
    fn start(namespace: &Namespace) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let health = format!("127.0.0.1:{port}");
        let process = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(["controller", "--watch-namespace", &namespace.0, "--health-address", &health])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, health }
    }

    /// What a readiness probe is answered, such as 503; nothing while nobody listens.
    fn readiness(&self) -> String {
        let address = format!("http://{}/readyz", self.health);
        let asked = Command::new("curl")
            .args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", &address])
            .output();
        String::from_utf8(asked.unwrap().stdout).unwrap()
    }

    /// Whether it ends well by itself, and what it says.
    fn end(mut self) -> (bool, String) {
        until("the operator ends", || self.process.try_wait().unwrap().is_some());
        let said = std::io::read_to_string(self.process.stderr.take().unwrap()).unwrap();
        (self.process.wait().unwrap().success(), said)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn an_operator_beside_older_definitions_waits_for_those_of_its_version_and_then_refuses() {
    let _turn = turn();
    let namespace = Namespace::new("older");
    let earlier = Earlier::install();
    let (well, said) = Operator::start(&namespace).end();
    assert!(!well, "{said}");
    for part in ["older than this operator", "RetryPipeline.status.drift", "the files in crds/"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }

    let operator = Operator::start(&namespace);
    until("it answers probes", || operator.readiness() == "503");
    drop(earlier);
    until("it works", || operator.readiness() == "200");
}
