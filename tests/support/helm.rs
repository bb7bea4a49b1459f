//! Helm, in the versions that the chart is for.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "for tests only")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use super::command::tool;

/// Where the chart is.
pub const CHART: &str = "charts/redrive";

/// A Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helm {
    Three,
    Four,
}

pub const HELMS: [Helm; 2] = [Helm::Three, Helm::Four];

impl Helm {
    /// A command of this Helm, in the top directory.
    pub fn command(self) -> Command {
        static PATHS: [OnceLock<PathBuf>; 2] = [const { OnceLock::new() }; 2];
        let name = match self {
            Self::Three => "helm3",
            Self::Four => "helm4",
        };
        let path = PATHS[self as usize].get_or_init(|| tool(name));
        let mut command = Command::new(path);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command
    }

    pub fn run(self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    /// What it prints; fails where it does.
    pub fn say(self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{self:?} {arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The manifests of a release `redrive` in the namespace `redrive`.
    pub fn template(self, more: &[&str]) -> String {
        let arguments = ["template", "redrive", CHART, "--namespace=redrive"];
        self.say(&[&arguments[..], more].concat())
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The objects in a text with several documents.
pub fn objects(yaml: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(yaml);
    documents
        .map(|document| Value::deserialize(document).unwrap())
        .filter(|object| !object.is_null())
        .collect()
}

/// Kind, namespace and name of an object, in one word.
pub fn name_of(object: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let place = metadata["namespace"].as_str().map(|namespace| format!("{namespace}/")).unwrap_or_default();
    format!("{} {place}{}", word(&object["kind"]), word(&metadata["name"]))
}

/// The files with values that the chart is tried with, by their names.
pub fn value_files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(CHART).join("ci");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), path.display().to_string()))
        .collect();
    files.sort();
    files
}
