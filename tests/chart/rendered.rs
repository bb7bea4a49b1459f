//! What the chart renders to with each file of values.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::check_fresh;
use crate::command::tool;
use crate::helm::{CHART, HELMS, Helm, name_of, objects, text, value_files};

/// The oldest Kubernetes that the chart is for, and a recent one.
const VERSIONS: [&str; 2] = ["1.33", "1.36"];

/// Kinds that only some clusters know, so that their schema is in no version of Kubernetes.
const ELSEWHERE: [&str; 2] = ["PrometheusRule", "ServiceMonitor"];

/// Kinds that are younger than the oldest Kubernetes.
const YOUNGER: [&str; 2] = ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"];

/// What every file of values renders to, by each Helm; once for all tests.
fn rendered(helm: Helm) -> &'static BTreeMap<String, String> {
    static RENDERED: [OnceLock<BTreeMap<String, String>>; 2] = [const { OnceLock::new() }; 2];
    RENDERED[helm as usize].get_or_init(|| {
        let render = |(name, file): (String, String)| (name, helm.template(&["--values", &file]));
        value_files().into_iter().map(render).collect()
    })
}

#[test]
fn both_helms_find_no_fault_with_it() {
    for (name, file) in value_files() {
        for helm in HELMS {
            let output = helm.run(&["lint", "--strict", CHART, "--values", &file]);
            assert!(output.status.success(), "{helm:?} {name}: {}", text(&output.stdout));
        }
    }
}

#[test]
fn both_helms_render_the_same() {
    for (name, text) in rendered(Helm::Three) {
        assert!(*text == rendered(Helm::Four)[name], "{name}");
    }
}

/// The documents by their objects' names, each as it was printed.
fn documents(rendered: &str) -> BTreeMap<String, &str> {
    let documents = rendered.split("\n---\n").map(str::trim_end).filter(|document| !document.is_empty());
    let named = documents.map(|document| {
        let object: Value = serde_yaml::from_str(document).unwrap();
        (name_of(&object), document)
    });
    named.collect()
}

/// As `defaults.yaml` it is whole, but for what is a copy of another file; the others hold what
/// they change.
#[test]
fn each_file_of_values_gives_what_it_gave_before() {
    let files = rendered(Helm::Four);
    assert!(files.len() >= 15, "{:?}", files.keys());
    let by_default = documents(&files["defaults"]);
    for (name, text) in files {
        let found = documents(text);
        let mut golden = String::new();
        let is_base = name == "defaults";
        for (object, document) in &found {
            let before = by_default.get(object).map(|before| without_source(before));
            if is_base || before != Some(without_source(document)) {
                write!(golden, "{}\n---\n", without_copy(document, before.filter(|_| !is_base))).unwrap();
            }
        }
        for object in by_default.keys().filter(|object| !found.contains_key(*object)) {
            writeln!(golden, "# not there: {object}").unwrap();
        }
        check_fresh(&format!("tests/golden/chart/{name}.yaml"), &golden, "UPDATE_GOLDEN");
    }
}

/// Without a specification that is a copy of another file, or that is the same by default.
fn without_copy(document: &str, by_default: Option<String>) -> String {
    let copied = ["CustomResourceDefinition\n", "ValidatingAdmissionPolicy\n"];
    let is_copy = copied.iter().any(|kind| document.contains(&format!("\nkind: {kind}")));
    let Some((head, spec)) = document.split_once("\nspec:\n").filter(|_| is_copy) else {
        return document.to_owned();
    };
    match by_default {
        None => format!("{head}\n# spec: that of the file"),
        Some(before) if before.ends_with(spec) => format!("{head}\n# spec: the same"),
        Some(_) => document.to_owned(),
    }
}

/// Without the comment that says where it came from, which stands at the first of several only.
fn without_source(document: &str) -> String {
    document.lines().filter(|line| !line.starts_with("# Source")).collect::<Vec<_>>().join("\n")
}

#[test]
fn all_of_it_is_valid_by_the_schemas_of_kubernetes() {
    let directory = std::env::temp_dir().join(format!("redrive-rendered-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    for (name, text) in rendered(Helm::Four) {
        fs::write(directory.join(name), text).unwrap();
    }
    let validate = tool("kubernetes-validate");
    for version in VERSIONS {
        let files = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let output = Command::new(&validate)
            .args(["--strict", "--quiet", "--kubernetes-version", version])
            .args(files)
            .output()
            .unwrap();
        let told = text(&output.stdout) + &text(&output.stderr);
        let is_known = |line: &&str| {
            let kind =
                line.split("for kind ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
            let may_lack = ELSEWHERE.contains(&kind) || version == VERSIONS[0] && YOUNGER.contains(&kind);
            !may_lack || !line.contains("Couldn't find schema")
        };
        let complaints: Vec<_> = told.lines().filter(is_known).collect();
        assert!(output.status.success() && complaints.is_empty(), "{version}: {complaints:#?}");
    }
    fs::remove_dir_all(directory).unwrap();
}

/// What the API server of a namespace with the level `restricted` asks for, and more.
#[test]
fn the_pod_may_do_nothing_on_its_node() {
    let rendered = objects(&Helm::Four.template(&[]));
    let deployment = rendered.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let container = &pod["containers"][0]["securityContext"];
    assert_eq!(container["readOnlyRootFilesystem"], true);
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(container["capabilities"]["drop"][0], "ALL");
}

#[test]
fn every_setting_is_one_that_the_operator_knows() {
    let output = Command::new(env!("CARGO_BIN_EXE_redrive")).args(["controller", "--help"]).output().unwrap();
    let help = text(&output.stdout);
    let mut seen = Vec::new();
    for text in rendered(Helm::Four).values() {
        for object in objects(text) {
            let variables = object["spec"]["template"]["spec"]["containers"][0]["env"].as_array().cloned();
            seen.extend(variables.into_iter().flatten().map(|one| one["name"].as_str().unwrap().to_owned()));
        }
    }
    seen.retain(|name| ["REDRIVE_", "OTEL_"].iter().any(|prefix| name.starts_with(prefix)));
    seen.sort();
    seen.dedup();
    assert!(seen.len() >= 22, "the files of values should set every variable once: {seen:?}");
    let unknown: Vec<_> = seen.iter().filter(|name| !help.contains(&format!("[env: {name}="))).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// With a condition in its own values, which the schema has to know, and with values for all.
#[test]
fn a_parent_chart_may_switch_it_on_and_share_what_it_likes() {
    let parent = std::env::temp_dir().join(format!("redrive-parent-{}", std::process::id()));
    fs::create_dir_all(&parent).unwrap();
    let dependency = "{name: redrive, version: '*', repository: '', condition: redrive.enabled}";
    let chart = format!("apiVersion: v2\nname: parent\nversion: 1.0.0\ndependencies: [{dependency}]\n");
    fs::write(parent.join("Chart.yaml"), chart).unwrap();
    let values =
        "global: {imageRegistry: mirror.example.com, anything: {goes: true}}\nredrive: {enabled: true}\n";
    fs::write(parent.join("values.yaml"), values).unwrap();
    for helm in HELMS {
        let charts = parent.join("charts");
        helm.say(&["package", CHART, "--destination", charts.to_str().unwrap()]);
        let rendered = helm.say(&["template", "release", parent.to_str().unwrap()]);
        assert!(rendered.contains("image: \"mirror.example.com/redrive/redrive:"), "{helm:?}");
        let off = helm.say(&["template", "release", parent.to_str().unwrap(), "--set=redrive.enabled=false"]);
        assert!(!off.contains("kind: Deployment"), "{helm:?}");
    }
    fs::remove_dir_all(parent).unwrap();
}
