//! Alerts, recording rules and dashboards, judged by promtool and held against the docs.
//!
//! `alerts.yaml` and `broker-alerts.yaml` say when each alert fires and when it does not;
//! `series.yaml` has the series on which the dashboards' queries are run.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod alerts;
#[path = "../support/command.rs"]
mod command;
mod dashboards;
mod documented;
mod expression;
#[path = "../support/promtool.rs"]
mod promtool;
mod scaling;

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A path of the checkout.
fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn read(relative: &str) -> String {
    std::fs::read_to_string(path(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

fn yaml(relative: &str) -> Value {
    serde_yaml::from_str(&read(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

/// The elements of an array; none where there is nothing.
fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}"))
}

/// The rules of a file in `charts/redrive/rules`, of all its groups.
fn rules(file: &str) -> Vec<Value> {
    let groups = yaml(&format!("charts/redrive/rules/{file}"));
    array(&groups["groups"]).flat_map(|group| array(&group["rules"])).cloned().collect()
}
