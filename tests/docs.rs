//! The documentation stays true: it explains every reason that the code can give, its links lead
//! somewhere, and what it shows of the command is what the command prints.

#![allow(clippy::unwrap_used)] // a test fails by panicking

#[path = "support/command.rs"]
mod command;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use command::{Ended, feed};
use redrive::api::conditions::{PipelineReason, ReplayReason};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn read(below: &str) -> String {
    fs::read_to_string(root().join(below)).unwrap_or_else(|error| panic!("{below}: {error}"))
}

/// What the rows of all tables begin with that have this heading in their first column.
fn first_cells<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let heading = format!("| {heading} |");
    let mut found = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        if line.starts_with(&heading) {
            is_inside = true;
        } else if !line.starts_with('|') {
            is_inside = false;
        } else if is_inside && !line.starts_with("|---") {
            found.push(line.split('|').nth(1).unwrap_or_default().trim());
        }
    }
    found
}

/// Compares the reasons that a page explains with those that there are.
fn assert_explained<'a>(page: &str, reasons: impl Iterator<Item = &'a str>) {
    let explained = first_cells(page, "reason");
    let mut left: Vec<&str> = explained.iter().map(|cell| cell.trim_matches('`')).collect();
    for reason in reasons {
        let place = left.iter().position(|explained| *explained == reason);
        left.remove(place.unwrap_or_else(|| panic!("{reason} is not explained")));
    }
    assert!(left.is_empty(), "explained twice, or no reasons at all: {left:?}");
}

#[test]
fn every_reason_is_explained_once_and_nothing_else() {
    let page = read("docs/conditions.md");
    let (pipelines, replays) = page.split_once("\n## Conditions of a DlqReplay\n").unwrap();
    assert_explained(pipelines, PipelineReason::ALL.iter().map(|reason| reason.as_str()));
    assert_explained(replays, ReplayReason::ALL.iter().map(|reason| reason.as_str()));
}

/// All pages, by their path below the root.
fn pages() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/runbooks", "hack"] {
        let Ok(entries) = fs::read_dir(root().join(folder)) else { continue };
        for name in entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
            if name.ends_with(".md") {
                found.push(if folder.is_empty() { name } else { format!("{folder}/{name}") });
            }
        }
    }
    assert!(found.len() > 20, "{found:?}");
    found
}

/// A page without its blocks of code.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// Where the links of a page lead.
fn links(page: &str) -> Vec<String> {
    let prose = prose(page);
    let ends = prose.split("](").skip(1);
    ends.filter_map(|end| end.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

/// What a heading is called in links to it.
fn anchors(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let slug = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|letter| letter.is_alphanumeric() || "-_ ".contains(*letter));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(slug).collect()
}

/// A path below the root, without steps up.
fn resolved(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop().unwrap_or_else(|| panic!("{page}: {target} leads out of the project"));
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&read(&page)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (target, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let place = if target.is_empty() { page.clone() } else { resolved(&page, target) };
            if !root().join(&place).exists() {
                broken.push(format!("{page}: {link} is not there"));
            } else if !anchor.is_empty() && !anchors(&read(&place)).contains(anchor) {
                broken.push(format!("{page}: {link} has no such heading"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_index_names_every_page() {
    let index: BTreeSet<String> =
        links(&read("docs/README.md")).iter().map(|link| resolved("docs/README.md", link)).collect();
    let is_missing = |page: &&String| {
        page.starts_with("docs/") && !page.starts_with("docs/runbooks/") && !index.contains(*page)
    };
    let pages = pages();
    let missing: Vec<&String> =
        pages.iter().filter(is_missing).filter(|page| *page != "docs/README.md").collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The first block of code in this language.
fn block<'a>(page: &'a str, language: &str) -> &'a str {
    let (_, begun) = page.split_once(&format!("```{language}\n")).unwrap();
    begun.split("```").next().unwrap()
}

/// Runs the command, with the pipeline of the README as its file.
fn printed(arguments: &[&str]) -> String {
    let readme = read("README.md");
    let arguments = arguments.iter().map(|argument| if *argument == "orders.yaml" { "-" } else { argument });
    let arguments: Vec<&str> = arguments.collect();
    Ended::from(feed(&mut command::redrive(&arguments), block(&readme, "yaml"))).out
}

#[test]
fn the_capacity_page_shows_what_the_command_prints() {
    let page = read("docs/capacity.md");
    let shown: Vec<&str> = page.split("```text\n$ redrive ").skip(1).collect();
    assert_eq!(shown.len(), 2);
    for block in shown {
        let (command, output) = block.split("```").next().unwrap().split_once('\n').unwrap();
        let arguments: Vec<&str> = command.split(' ').collect();
        let printed = printed(&arguments);
        assert!(printed.contains(output), "{command} prints:\n{printed}");
    }
}
