//! Alerts are complete: tested both ways, with a severity, a duration, and a page that helps.

use std::collections::{BTreeMap, BTreeSet};

use fancy_regex::Regex;
use serde_json::Value;

use crate::expression::series;
use crate::{array, path, promtool, read, rules, text, yaml};

/// Files of alerts; each has its tests in a file of the same name here.
const FILES: [&str; 2] = ["alerts.yaml", "broker-alerts.yaml"];

/// Pages that no alert leads to.
const GENERAL: [&str; 3] = ["README", "replay-gone-wrong", "restore"];

fn alerts() -> impl Iterator<Item = Value> {
    FILES.into_iter().flat_map(rules)
}

fn name(alert: &Value) -> String {
    text(&alert["alert"]).to_owned()
}

/// What the tests expect of each alert: the labels each time that it fires, and how often it does not.
#[derive(Default)]
struct Expected {
    firing: Vec<BTreeSet<String>>,
    silent: usize,
}

fn expected() -> BTreeMap<String, Expected> {
    let asked = Regex::new(r#"^ALERTS\{alertname="(\w+)",alertstate="firing"\}$"#).unwrap();
    let mut found: BTreeMap<String, Expected> = BTreeMap::new();
    for file in FILES {
        let tests = yaml(&format!("tests/rules/{file}"));
        for one in array(&tests["tests"]).flat_map(|test| array(&test["promql_expr_test"])) {
            let Some(asked) = asked.captures(text(&one["expr"])).unwrap() else { continue };
            let expected = found.entry(asked[1].to_owned()).or_default();
            let samples: Vec<_> = array(&one["exp_samples"]).collect();
            expected.silent += usize::from(samples.is_empty());
            expected.firing.extend(samples.iter().map(|sample| series(text(&sample["labels"])).1));
        }
    }
    found
}

#[test]
fn promtool_accepts_all_rules() {
    for file in ["recording.yaml", "alerts.yaml", "broker-alerts.yaml"] {
        promtool::run(
            &["check", "rules", path(&format!("charts/redrive/rules/{file}")).to_str().unwrap()],
            "",
        );
    }
}

#[test]
fn alerts_fire_when_they_should_and_only_then() {
    for file in FILES {
        promtool::run(&["test", "rules", path(&format!("tests/rules/{file}")).to_str().unwrap()], "");
    }
}

#[test]
fn every_alert_is_tested_both_ways() {
    let expected = expected();
    for alert in alerts() {
        let name = name(&alert);
        let tests = expected.get(&name).unwrap_or_else(|| panic!("{name} has no test"));
        assert!(!tests.firing.is_empty(), "no test sees {name} fire");
        assert!(tests.silent > 0, "no test sees {name} silent");
    }
    let known: BTreeSet<_> = alerts().map(|alert| name(&alert)).collect();
    let unknown: Vec<_> = expected.keys().filter(|name| !known.contains(*name)).collect();
    assert!(unknown.is_empty(), "tests of alerts that are not there: {unknown:?}");
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_to_do() {
    let label = Regex::new(r"\$labels\.(\w+)").unwrap();
    let expected = expected();
    for alert in alerts() {
        let name = name(&alert);
        let severity = text(&alert["labels"]["severity"]);
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        assert!(alert["for"].is_string(), "{name} has no duration");
        let annotations = &alert["annotations"];
        for key in ["summary", "description"] {
            let words = text(&annotations[key]);
            // Impact and first action take two sentences.
            assert!(key == "summary" || words.matches(". ").count() >= 1, "{name}: {words}");
            for used in label.captures_iter(words) {
                let used = used.unwrap()[1].to_owned();
                let everywhere = expected[&name].firing.iter().all(|labels| labels.contains(&used));
                assert!(everywhere, "{name}: {key} names the label {used}, which it does not have");
            }
        }
        let page = format!("docs/runbooks/{name}.md");
        let wanted = format!("https://github.com/redrive/redrive/blob/main/{page}");
        assert_eq!(annotations["runbook_url"], wanted.as_str());
    }
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let mut names: BTreeSet<String> = alerts().map(|alert| name(&alert)).collect();
    assert_eq!(names.len(), alerts().count(), "an alert's name is used twice");
    for name in &names {
        let page = read(&format!("docs/runbooks/{name}.md"));
        assert!(page.starts_with(&format!("# {name}\n")), "{name}: another title");
        let parts: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(parts, ["Meaning", "Impact", "Diagnosis", "Mitigation"], "{name}");
    }
    names.extend(GENERAL.map(str::to_owned));
    let pages = std::fs::read_dir(path("docs/runbooks")).unwrap();
    let pages: BTreeSet<String> =
        pages.map(|page| page.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(pages, names);
}

#[test]
fn links_of_runbooks_lead_somewhere() {
    let link = Regex::new(r"\]\(([^)#:]+)(#[^)]*)?\)").unwrap();
    for page in std::fs::read_dir(path("docs/runbooks")).unwrap() {
        let page = page.unwrap().path();
        let words = std::fs::read_to_string(&page).unwrap();
        for found in link.captures_iter(words.as_str()) {
            let target = page.parent().unwrap().join(&found.unwrap()[1]);
            assert!(target.exists(), "{}: {} is not there", page.display(), target.display());
        }
    }
}
