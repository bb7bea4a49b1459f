//! What stands in the chart and somewhere else as well.

use std::collections::BTreeSet;
use std::fs;

use redrive::api::{DlqReplay, RetryPipeline, crds};
use redrive::controller::ReplaySettings;
use serde_json::Value;

use crate::helm::{CHART, HELMS, Helm, objects};
use crate::{check_fresh, folder};

/// A chart can't read what is outside of it, so it has copies.
const COPIES: [&str; 2] = ["crds", "admission"];

fn names(below: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(folder(below)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn the_chart_has_fresh_copies_of_the_definitions_and_of_the_policies() {
    for directory in COPIES {
        for name in names(directory) {
            let wanted = fs::read_to_string(folder(directory).join(&name)).unwrap();
            check_fresh(&format!("{CHART}/files/{directory}/{name}"), &wanted, "UPDATE_CHART");
        }
        assert_eq!(names(&format!("{CHART}/files/{directory}")), names(directory), "{directory}");
    }
}

/// The specifications that Helm renders are those of the files, to the last number.
#[test]
fn definitions_and_policies_are_rendered_as_they_are() {
    let mut wanted = Vec::new();
    for directory in COPIES {
        for name in names(directory) {
            wanted.extend(objects(&fs::read_to_string(folder(directory).join(name)).unwrap()));
        }
    }
    wanted.retain(|object| object["kind"] != "ClusterRole");
    for helm in HELMS {
        let found = objects(&helm.template(&["--set=admission.stampRequester=Always"]));
        for wanted in &wanted {
            let is_it = |found: &&Value| {
                found["kind"] == wanted["kind"] && found["metadata"]["name"] == wanted["metadata"]["name"]
            };
            let found =
                found.iter().find(is_it).unwrap_or_else(|| panic!("{} is missing", wanted["metadata"]));
            assert_eq!(found["apiVersion"], wanted["apiVersion"], "{helm:?}: {}", wanted["metadata"]);
            assert_eq!(found["spec"], wanted["spec"], "{helm:?}: {}", wanted["metadata"]);
        }
    }
}

fn chart() -> Value {
    objects(&fs::read_to_string(folder(CHART).join("Chart.yaml")).unwrap()).remove(0)
}

#[test]
fn the_chart_is_for_the_version_and_the_image_of_this_operator() {
    let chart = chart();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let image = ReplaySettings::default().image;
    let images = chart["annotations"]["artifacthub.io/images"].as_str().unwrap();
    assert!(images.contains(&format!("image: {image}\n")), "{images}");
    let rendered = Helm::Four.template(&[]);
    assert!(
        rendered.contains(&format!("image: \"{image}\"")),
        "the Deployment has another image than {image}"
    );
}

#[test]
fn artifact_hub_is_told_of_every_kind_with_an_example_that_is_one() {
    let chart = chart();
    let listed = |key: &str| -> Vec<Value> {
        let text = chart["annotations"][format!("artifacthub.io/{key}")].as_str().unwrap();
        serde_yaml::from_str(text).unwrap()
    };
    let kinds = |list: &[Value]| -> BTreeSet<String> {
        list.iter().map(|one| one["kind"].as_str().unwrap().to_owned()).collect()
    };
    let ours: BTreeSet<String> = crds::all().into_iter().map(|crd| crd.spec.names.kind).collect();
    assert_eq!(kinds(&listed("crds")), ours);
    let examples = listed("crdsExamples");
    assert_eq!(kinds(&examples), ours);
    for example in examples {
        match example["kind"].as_str() {
            Some("RetryPipeline") => drop(serde_json::from_value::<RetryPipeline>(example).unwrap()),
            _ => drop(serde_json::from_value::<DlqReplay>(example).unwrap()),
        }
    }
}
