//! The generated definitions: fresh, small, bounded, and without defaults.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::{fs, path::Path};

use redrive::api::crds;
use serde_json::Value;

/// The schema of each kind, by the kind's name.
fn schemas() -> Vec<(String, Value)> {
    crds::all()
        .iter()
        .map(|crd| {
            let crd = serde_json::to_value(crd).unwrap();
            let kind = crd["spec"]["names"]["kind"].as_str().unwrap().to_owned();
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            (kind, schema.clone())
        })
        .collect()
}

/// Calls `see` with each schema below `schema`, itself included, and with its path.
fn walk(schema: &Value, path: &str, see: &mut impl FnMut(&str, &Value)) {
    see(path, schema);
    if let Some(properties) = schema["properties"].as_object() {
        for (name, property) in properties {
            walk(property, &format!("{path}.{name}"), see);
        }
    }
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{path}[]"), see);
    }
    if schema["additionalProperties"].is_object() {
        walk(&schema["additionalProperties"], &format!("{path}.*"), see);
    }
}

/// What each schema for which `wrong` holds is, and where.
fn findings(wrong: impl Fn(&str, &Value) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (kind, schema) in schemas() {
        walk(&schema, &kind, &mut |path, part| {
            if wrong(path, part) {
                found.push(format!("{path}: {part}"));
            }
        });
    }
    found
}

/// Whether a user writes what stands at this path.
fn is_input(path: &str) -> bool {
    path.contains(".spec.")
}

fn nothing() -> Vec<String> {
    Vec::new()
}

/// With `UPDATE_CRDS=1` the files are written instead of compared.
#[test]
fn the_files_in_crds_are_what_the_types_generate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    let rendered = crds::render().unwrap();
    if std::env::var_os("UPDATE_CRDS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (file, yaml) in &rendered {
            fs::write(folder.join(file), yaml).unwrap();
        }
    }
    for (file, yaml) in &rendered {
        let found = fs::read_to_string(folder.join(file)).unwrap_or_default();
        assert!(found == *yaml, "crds/{file} is stale: run `UPDATE_CRDS=1 cargo test --test crds`");
    }
    let files = fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, rendered.len(), "crds/ holds one file per kind");
}

#[test]
fn each_definition_is_under_200_kilobytes() {
    for (file, yaml) in crds::render().unwrap() {
        assert!(yaml.len() < 200_000, "{file} has {} bytes", yaml.len());
    }
}

#[test]
fn no_schema_has_a_default() {
    assert_eq!(findings(|_, part| part.get("default").is_some()), nothing());
}

#[test]
fn no_schema_allows_null_but_the_status_as_a_whole() {
    let nullable = |path: &str, part: &Value| {
        part.get("nullable").is_some()
            && !path.ends_with("RetryPipeline.status")
            && !path.ends_with("DlqReplay.status")
    };
    assert_eq!(findings(nullable), nothing());
}

#[test]
fn every_format_is_one_that_kubernetes_knows() {
    let known = ["date-time", "duration", "byte", "int32", "int64"];
    let unknown =
        |_: &str, part: &Value| part["format"].as_str().is_some_and(|format| !known.contains(&format));
    assert_eq!(findings(unknown), nothing());
}

#[test]
fn no_number_is_a_float() {
    assert_eq!(findings(|_, part| part["type"] == "number"), nothing());
}

#[test]
fn every_text_that_a_user_writes_is_bounded() {
    let unbounded = |path: &str, part: &Value| {
        is_input(path)
            && part["type"] == "string"
            && part.get("enum").is_none()
            && part.get("maxLength").is_none()
    };
    assert_eq!(findings(unbounded), nothing());
}

#[test]
fn every_list_is_bounded_and_says_how_it_merges() {
    let loose = |_: &str, part: &Value| {
        part["type"] == "array"
            && (part.get("maxItems").is_none() || part.get("x-kubernetes-list-type").is_none())
    };
    assert_eq!(findings(loose), nothing());
}

#[test]
fn every_map_that_a_user_writes_is_bounded() {
    let unbounded = |path: &str, part: &Value| {
        is_input(path) && part.get("additionalProperties").is_some() && part.get("maxProperties").is_none()
    };
    assert_eq!(findings(unbounded), nothing());
}

#[test]
fn every_field_is_described() {
    let silent = |path: &str, part: &Value| {
        path.contains('.')
            && !path.ends_with("[]")
            && !path.ends_with(".*")
            && part["description"].as_str().is_none_or(str::is_empty)
    };
    assert_eq!(findings(silent), nothing());
}

#[test]
fn every_rule_says_what_is_wrong_in_one_line() {
    let mute = |_: &str, part: &Value| {
        let rules = part["x-kubernetes-validations"].as_array();
        rules.into_iter().flatten().any(|rule| {
            rule["message"].as_str().is_none_or(|message| message.is_empty() || message.contains('\n'))
        })
    };
    assert_eq!(findings(mute), nothing());
}

/// A resource must not reach for the Secrets of other namespaces.
#[test]
fn a_secret_is_named_without_a_namespace() {
    for (kind, schema) in schemas() {
        let mut found = 0;
        walk(&schema, &kind, &mut |path, part| {
            if path.to_lowercase().ends_with("secretref") {
                found += 1;
                let fields: Vec<&String> = part["properties"].as_object().unwrap().keys().collect();
                assert_eq!(fields, ["name"], "{path}");
            }
        });
        assert!(kind != "RetryPipeline" || found > 0, "{kind}");
    }
}
