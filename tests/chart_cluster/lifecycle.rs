//! A release from its installation to its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::helm::{CHART, HELMS, Helm};
use crate::{Namespace, kubectl, turn};

const DEFINITIONS: [&str; 2] = ["retrypipelines.redrive.dev", "dlqreplays.redrive.dev"];

/// A column of the definition of pipelines that an earlier version of the chart lacked.
const COLUMN: &str = "Drifted";

/// A copy of the chart as an earlier version could have been.
struct Earlier(PathBuf);

impl Earlier {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("redrive-chart-{}", std::process::id()));
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join(CHART), &path);
        let chart = path.join("Chart.yaml");
        let text = fs::read_to_string(&chart).unwrap();
        fs::write(&chart, text.replacen("\nversion: ", "\nversion: 0.0.1 # ", 1)).unwrap();
        let definition = path.join("files/crds/redrive.dev_retrypipelines.yaml");
        let mut object: serde_json::Value =
            serde_yaml::from_str(&fs::read_to_string(&definition).unwrap()).unwrap();
        let columns = object["spec"]["versions"][0]["additionalPrinterColumns"].as_array_mut().unwrap();
        columns.retain(|column| column["name"] != COLUMN);
        // The chart looks for the specification in the text, as it is in the generated files.
        let text = format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: {}\nspec:\n  {}\n",
            DEFINITIONS[0],
            serde_yaml::to_string(&object["spec"]).unwrap().trim_end().replace('\n', "\n  ")
        );
        fs::write(&definition, text).unwrap();
        Self(path)
    }
}

impl Drop for Earlier {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let target = to.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy(&entry, &target);
        } else {
            fs::copy(&entry, &target).unwrap();
        }
    }
}

/// A release that goes with the test, also where it fails.
struct Release {
    helm: Helm,
    namespace: Namespace,
}

impl Release {
    fn run(&self, arguments: &[&str]) -> String {
        let namespace = format!("--namespace={}", self.namespace.0);
        self.helm.say(&[arguments, &[&namespace]].concat())
    }

    fn port(&self) -> serde_json::Value {
        let service = kubectl::get(&["service", "redrive-metrics", "--namespace", &self.namespace.0]);
        service["spec"]["ports"][0]["port"].clone()
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let namespace = format!("--namespace={}", self.namespace.0);
        self.helm.run(&["uninstall", "redrive", "--ignore-not-found", &namespace]);
    }
}

fn columns() -> Vec<String> {
    let definition = kubectl::get(&["crd", DEFINITIONS[0]]);
    let columns = definition["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap();
    columns.iter().map(|column| column["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the API server says this, or nothing where it shall be empty, about a replay in
/// somebody else's name. It needs a moment for a policy that is new.
fn until_forged_replay_is(told: &str, namespace: &str) {
    let replay = json!({
        "apiVersion": "redrive.dev/v1alpha1", "kind": "DlqReplay",
        "metadata": {"name": "forged", "namespace": namespace},
        "spec": {"pipelineRef": {"name": "orders"}, "justification": "the fix is deployed", "requestedBy": "somebody else"},
    });
    let began = Instant::now();
    loop {
        let found = kubectl::complaint(&["create", "--dry-run=server", "--filename=-"], &replay.to_string());
        if if told.is_empty() { found.is_empty() } else { found.contains(told) } {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "wanted {told:?}, found {found:?}");
        sleep(Duration::from_millis(500));
    }
}

#[test]
fn a_release_goes_through_its_life_and_leaves_definitions_and_pipelines_behind() {
    let _turn = turn();
    let earlier = Earlier::new();
    let earlier = earlier.0.to_str().unwrap();
    for helm in HELMS {
        live(helm, earlier);
    }
}

fn live(helm: Helm, earlier: &str) {
    // As whoever used the plain manifests before has them.
    kubectl::say(&["apply", "--server-side", "--force-conflicts", "--filename=crds/"]);
    for definition in DEFINITIONS {
        kubectl::say(&["wait", "--for=condition=Established", "crd", definition]);
    }
    let release = Release { helm, namespace: Namespace::new(&format!("{helm:?}").to_lowercase()) };
    let namespace = release.namespace.0.as_str();
    let create = ["apply", "--filename=examples/orders.yaml", "--namespace", namespace];
    kubectl::say(&create);

    let take_over: &[&str] = match helm {
        Helm::Three => &["--take-ownership"],
        // It applies on the server, where others may be known as owners of a field.
        Helm::Four => &["--take-ownership", "--force-conflicts"],
    };
    let install = ["install", "redrive", earlier, "--set=replicas=0"];
    let told = release.run(&[&install[..], take_over].concat());
    assert!(told.contains("kubectl -n ") && told.contains("replicas is 0"), "{told}");
    assert!(!columns().contains(&COLUMN.to_owned()));
    until_forged_replay_is("who is somebody else", namespace);

    release.run(&["upgrade", "redrive", CHART, "--set=replicas=0,metrics.port=9090,admission.mode=Warn"]);
    assert!(columns().contains(&COLUMN.to_owned()), "the definitions come with the release");
    assert_eq!(release.port(), 9090);
    until_forged_replay_is("Warning", namespace);

    release.run(&["upgrade", "redrive", CHART, "--set=replicas=0,admission.mode=Off"]);
    until_forged_replay_is("", namespace);

    release.run(&["rollback", "redrive", "2"]);
    assert_eq!(release.port(), 9090);
    assert!(columns().contains(&COLUMN.to_owned()));
    assert!(kubectl::is_there(&["validatingadmissionpolicy", "replay-identity.redrive.dev"]));
    assert!(kubectl::is_there(&["deployment", "redrive", "--namespace", namespace]));

    let told = release.run(&["uninstall", "redrive"]);
    assert!(told.contains("kept due to the resource policy"), "{told}");
    for gone in [
        &["deployment", "redrive", "--namespace", namespace][..],
        &["role", "redrive-workers", "--namespace", namespace],
        &["clusterrole", "redrive-operator"],
        &["clusterrole", "redrive-approver"],
        &["validatingadmissionpolicy", "replay-identity.redrive.dev"],
    ] {
        assert!(!kubectl::is_there(gone), "{gone:?} stays");
    }
    for definition in DEFINITIONS {
        assert!(kubectl::is_there(&["crd", definition]), "{definition} is gone");
    }
    assert!(
        kubectl::is_there(&["retrypipeline", "orders", "--namespace", namespace]),
        "the pipeline is gone"
    );

    // The same release finds what it left behind.
    release.run(&["install", "redrive", CHART, "--set=replicas=0"]);
    kubectl::say(&["delete", "retrypipeline", "orders", "--namespace", namespace]);
}
