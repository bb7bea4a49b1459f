//! What the API server accepts and refuses, and with which words.
//!
//! `tests/manifests/*.yaml` is the table: each document is a case that changes a base manifest
//! (`tests/manifests/base`), by a merge patch in which `null` removes a field. A case with
//! `refused` lists every complaint, as `field: message`; without it, the object must be accepted.
//! A case with `updates` creates the object first and then changes it, step by step.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod approval;
mod careful;
mod cluster;
mod command;
mod floor;
#[path = "../support/kubernetes.rs"]
mod kubernetes;
mod people;
mod place;
mod status;
mod verified;
mod written;

use std::{fs, path::PathBuf};

use redrive::api::crds;
use serde::Deserialize;
use serde_json::{Value, json};

use cluster::Cluster;

/// One row of the table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// What the case shows.
    case: String,
    /// Which base manifest it starts from.
    base: String,
    /// What it changes in the base manifest.
    #[serde(default)]
    manifest: Value,
    /// For an update: what it changes in `manifest`, one step after the other. The last is judged.
    #[serde(default)]
    updates: Vec<Value>,
    /// Every complaint; accepted without it.
    #[serde(default)]
    refused: Vec<String>,
}

fn folder(below: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(below)
}

fn yaml_files(below: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder(below))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    files
}

fn documents<T: serde::de::DeserializeOwned>(path: &PathBuf) -> Vec<T> {
    let text = fs::read_to_string(path).unwrap();
    serde_yaml::Deserializer::from_str(&text)
        .map(|document| {
            T::deserialize(document).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
        .collect()
}

fn cases() -> Vec<Case> {
    yaml_files("tests/manifests").iter().flat_map(documents).collect()
}

fn base(name: &str) -> Value {
    documents(&folder("tests/manifests/base").join(format!("{name}.yaml"))).remove(0)
}

/// Applies a JSON merge patch (RFC 7386).
fn merged(base: &Value, patch: &Value) -> Value {
    let (Value::Object(base), Value::Object(patch)) = (base, patch) else {
        return if patch.is_null() { base.clone() } else { patch.clone() };
    };
    let mut result = base.clone();
    for (key, change) in patch {
        if change.is_null() {
            result.remove(key);
        } else {
            let before = base.get(key).cloned().unwrap_or(Value::Null);
            let before = if change.is_object() && !before.is_object() { json!({}) } else { before };
            result.insert(key.clone(), merged(&before, change));
        }
    }
    Value::Object(result)
}

fn verdict(case: &Case, found: &[String]) -> Option<String> {
    let mut expected = case.refused.clone();
    expected.sort();
    (found != expected).then(|| format!("{}\n    expected {expected:#?}\n    found {found:#?}", case.case))
}

#[tokio::test]
async fn the_api_server_judges_every_manifest_as_the_table_says() {
    let cluster = Cluster::connect("creates").await;
    let mut wrong = Vec::new();
    for case in cases().iter().filter(|case| case.updates.is_empty()) {
        let object = merged(&base(&case.base), &case.manifest);
        wrong.extend(verdict(case, &cluster.complaints_on_create(&object).await));
    }
    cluster.leave().await;
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn the_api_server_judges_every_change_as_the_table_says() {
    let cluster = Cluster::connect("updates").await;
    let mut wrong = Vec::new();
    for case in &cases() {
        if !case.updates.is_empty() {
            let object = merged(&base(&case.base), &case.manifest);
            let found = cluster.complaints_on_update(&object, &case.updates).await;
            wrong.extend(verdict(case, &found));
        }
    }
    cluster.leave().await;
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn the_api_server_accepts_every_example() {
    let cluster = Cluster::connect("examples").await;
    let mut wrong = Vec::new();
    // And what `redrive replay --print` makes of flags.
    for path in [yaml_files("examples"), yaml_files("tests/golden/cli")].concat() {
        for mut object in documents::<Value>(&path) {
            // It is tried in a namespace of its own.
            object["metadata"].as_object_mut().unwrap().remove("namespace");
            if object["apiVersion"] == "redrive.dev/v1alpha1" {
                let found = cluster.complaints_on_create(&object).await;
                if !found.is_empty() {
                    wrong.push(format!("{}: {found:#?}", path.display()));
                }
            }
        }
    }
    cluster.leave().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Needs no cluster: a rule that no case breaks may be broken itself.
#[test]
fn every_rule_is_broken_by_some_case() {
    fn messages(schema: &Value, found: &mut Vec<String>) {
        let rules = schema["x-kubernetes-validations"].as_array();
        for rule in rules.into_iter().flatten() {
            found.push(rule["message"].as_str().unwrap().to_owned());
        }
        match schema {
            Value::Object(members) => members.values().for_each(|part| messages(part, found)),
            Value::Array(items) => items.iter().for_each(|part| messages(part, found)),
            _ => {}
        }
    }
    let mut rules = Vec::new();
    for crd in crds::all() {
        messages(&serde_json::to_value(crd).unwrap(), &mut rules);
    }
    rules.sort();
    rules.dedup();
    let refused: Vec<String> = cases().into_iter().flat_map(|case| case.refused).collect();
    rules.retain(|message| !refused.iter().any(|complaint| complaint.ends_with(message.as_str())));
    assert_eq!(rules, Vec::<String>::new(), "no case in tests/manifests breaks these");
}
