//! The API server takes all that the chart renders.

use serde_json::{Value, json};

use crate::helm::{CHART, Helm, name_of, objects, value_files};
use crate::{Namespace, kubectl, turn};

/// Kinds of other operators that the chart or an example makes objects of.
const ELSEWHERE: [&str; 3] = [
    "monitoring.coreos.com_prometheusrules.yaml",
    "monitoring.coreos.com_servicemonitors.yaml",
    "keda.sh_scaledobjects.yaml",
];

/// What a dry run takes without a warning.
const JUDGE: [&str; 5] =
    ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"];

/// Definitions of those operators, which go with the test.
struct Definitions(Vec<String>);

impl Definitions {
    fn install() -> Self {
        let folder = std::env::var("REDRIVE_DEFINITIONS").unwrap();
        let these = Self(ELSEWHERE.iter().map(|file| format!("--filename={folder}/{file}")).collect());
        these.all(&["apply", "--server-side"]);
        these.all(&["wait", "--for=condition=Established", "--timeout=60s"]);
        these
    }

    fn all(&self, arguments: &[&str]) {
        let files = self.0.iter().map(String::as_str);
        kubectl::say(&arguments.iter().copied().chain(files).collect::<Vec<_>>());
    }
}

impl Drop for Definitions {
    fn drop(&mut self) {
        let files = self.0.iter().map(String::as_str);
        // A failure that is under way says more than one of this.
        kubectl::run(&["delete"].into_iter().chain(files).collect::<Vec<_>>(), "");
    }
}

/// Judged by a dry run, all in one namespace, since others need not exist.
#[test]
fn every_file_of_values_is_accepted() {
    let _turn = turn();
    let namespace = Namespace::new("accepted");
    let _elsewhere = Definitions::install();
    let mut wrong = Vec::new();
    for (name, file) in value_files() {
        let mut rendered = objects(&Helm::Four.template(&["--values", &file]));
        for object in &mut rendered {
            let metadata = object["metadata"].as_object_mut().unwrap();
            // What has no namespace is the cluster's, but for objects of one's own.
            if metadata.contains_key("namespace") || object["kind"] == "ConfigMap" {
                object["metadata"]["namespace"] = json!(namespace.0);
            }
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": rendered}).to_string();
        let output = kubectl::run(&[&JUDGE[..], &["--filename=-"]].concat(), &list);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() || !told.is_empty() {
            wrong.push(format!("{name}: {told}"));
        }
        let accepted = String::from_utf8_lossy(&output.stdout).lines().count();
        // A namespace's list has some names twice, as one of several namespaces.
        assert_eq!(
            accepted,
            rendered.len(),
            "{name}: {:#?}",
            rendered.iter().map(name_of).collect::<Vec<_>>()
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_example_for_keda_is_one_that_its_operator_takes() {
    let _turn = turn();
    let _elsewhere = Definitions::install();
    let judge = |file: &str| kubectl::complaint(&[&JUDGE[..], &["--filename", file]].concat(), "");
    assert_eq!(judge("examples/keda-scaledobject.yaml"), "");
}

/// The pod of the strictest values, and that of the defaults.
#[test]
fn a_restricted_namespace_takes_the_pod() {
    let _turn = turn();
    let namespace = Namespace::new("restricted");
    let level = "pod-security.kubernetes.io/enforce=restricted";
    kubectl::say(&["label", "namespace", &namespace.0, level]);
    let pod = |file: &str| -> Value {
        let rendered = objects(&Helm::Four.template(&["--values", &format!("{CHART}/ci/{file}.yaml")]));
        let deployment = rendered.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let mut spec = deployment["spec"]["template"]["spec"].clone();
        spec["serviceAccountName"] = json!("default");
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": namespace.0}, "spec": spec})
    };
    let arguments = ["create", "--dry-run=server", "--filename=-"];
    for file in ["strict", "defaults"] {
        let told = kubectl::complaint(&arguments, &pod(file).to_string());
        assert!(told.is_empty(), "{file}: {told}");
    }
    // And the namespace does judge.
    let told = kubectl::complaint(&arguments, &pod("host-network").to_string());
    assert!(told.contains("violates PodSecurity"), "{told}");
}
