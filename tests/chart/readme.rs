//! The chart's README: its table of values is written from the comments of `values.yaml`.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use crate::helm::CHART;
use crate::{check_fresh, folder};

/// What stands before it in the README is written by hand.
const MARK: &str =
    "<!-- From here on generated from values.yaml: UPDATE_CHART=1 cargo test --test chart -->\n";

/// A line of `values.yaml` that has a key.
struct Line<'a> {
    depth: usize,
    key: &'a str,
}

fn key_of(line: &str) -> Option<Line<'_>> {
    let trimmed = line.trim_start();
    let (key, _) = trimmed.split_once(':')?;
    let is_key = !key.is_empty() && !key.starts_with(['#', '-']);
    is_key.then(|| Line { depth: (line.len() - trimmed.len()) / 2, key })
}

/// The table, and the paths that no comment describes.
fn table(values: &str) -> (String, Vec<String>) {
    let defaults: Value = serde_yaml::from_str(values).unwrap();
    let (mut text, mut silent) = (String::new(), Vec::new());
    let mut path: Vec<&str> = Vec::new();
    let mut comment = Vec::new();
    // What is below a value that is described as a whole.
    let mut described: Option<usize> = None;
    for line in values.lines().skip_while(|line| !line.starts_with("## ")) {
        if let Some(heading) = line.strip_prefix("## ") {
            write!(text, "\n### {heading}\n\n| value | says | default |\n|---|---|---|\n").unwrap();
            continue;
        }
        if let Some(words) = line.trim_start().strip_prefix("# ") {
            comment.push(words);
            continue;
        }
        let Some(Line { depth, key }) = key_of(line) else { continue };
        if described.is_some_and(|above| depth > above) {
            continue;
        }
        path.truncate(depth);
        path.push(key);
        described = (!comment.is_empty()).then_some(depth);
        let default = path.iter().fold(&defaults, |value, key| &value[key]);
        if !comment.is_empty() {
            let cell = |text: &str| text.replace('|', "\\|");
            let (says, default) = (cell(&comment.join(" ")), cell(&default.to_string()));
            writeln!(text, "| `{}` | {says} | `{default}` |", path.join(".")).unwrap();
        } else if !default.is_object() {
            silent.push(path.join("."));
        }
        comment.clear();
    }
    (text, silent)
}

#[test]
fn the_readme_describes_every_value() {
    let values = fs::read_to_string(folder(CHART).join("values.yaml")).unwrap();
    let (table, silent) = table(&values);
    assert_eq!(silent, Vec::<String>::new(), "these values have no comment");
    let path = format!("{CHART}/README.md");
    let readme = fs::read_to_string(folder(&path)).unwrap();
    let (written, _) = readme.split_once(MARK).expect("the mark");
    check_fresh(&path, &format!("{written}{MARK}{table}"), "UPDATE_CHART");
}
