//! `docs/metrics.md` is the contract between what the operator serves and what looks at it.

use std::collections::{BTreeMap, BTreeSet};

use fancy_regex::Regex;

use crate::expression::{metrics, series};
use crate::{array, dashboards, read, rules, text, yaml};

/// Labels that a scrape adds.
const SCRAPE: [&str; 4] = ["job", "instance", "pod", "namespace"];

const HISTOGRAM: [&str; 3] = ["_bucket", "_count", "_sum"];

/// The labels that a word in italics stands for.
fn shorthand(word: &str) -> Option<&'static [&'static str]> {
    match word {
        "*resource*" => Some(&["resource_namespace", "pipeline", "owner"]),
        "*queue*" => Some(&["resource_namespace", "pipeline", "owner", "vhost", "queue", "role"]),
        "*replay*" => Some(&["resource_namespace", "replay", "pipeline", "owner"]),
        _ => None,
    }
}

/// The cells of every row of every table, heads included.
fn rows() -> Vec<Vec<String>> {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// What is in backticks.
fn quoted(cell: &str) -> Vec<String> {
    let code = Regex::new("`([^`]*)`").unwrap();
    code.captures_iter(cell).map(|found| found.unwrap()[1].to_owned()).collect()
}

/// Our series and their labels.
fn ours() -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for row in rows().iter().filter(|row| row.len() == 4) {
        let (Some(name), kind) = (quoted(&row[0]).pop(), row[1].as_str()) else { continue };
        let mut labels = BTreeSet::new();
        for word in row[2].split(", ").filter(|word| !word.is_empty()) {
            match shorthand(word) {
                Some(several) => labels.extend(several.iter().map(|&label| label.to_owned())),
                None => labels.extend(quoted(word)),
            }
        }
        match kind {
            "histogram" => {
                for suffix in HISTOGRAM {
                    let bucket = (suffix == "_bucket").then(|| "le".to_owned());
                    found.insert(format!("{name}{suffix}"), labels.iter().cloned().chain(bucket).collect());
                }
            }
            "counter" | "gauge" => {
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
                found.insert(name, labels);
            }
            other => panic!("{name}: the type is {other:?}"),
        }
    }
    found
}

/// The series of RabbitMQ's exporter.
fn of_the_broker() -> BTreeSet<String> {
    let cells = rows().into_iter().filter(|row| row.len() == 3).map(|row| row[1].clone());
    cells.flat_map(|cell| quoted(&cell)).collect()
}

/// The series that recording rules make.
fn recorded() -> BTreeSet<String> {
    rules("recording.yaml").iter().map(|rule| text(&rule["record"]).to_owned()).collect()
}

#[test]
fn every_metric_in_rules_and_dashboards_is_documented() {
    let mut known: BTreeSet<String> = ours().into_keys().collect();
    known.extend(of_the_broker());
    known.extend(recorded());
    let files = ["recording.yaml", "alerts.yaml", "broker-alerts.yaml"];
    let of_rules = files.into_iter().flat_map(rules).map(|rule| text(&rule["expr"]).to_owned());
    for expression in of_rules.chain(dashboards::expressions()) {
        let unknown: Vec<_> = metrics(&expression).difference(&known).cloned().collect();
        assert!(unknown.is_empty(), "{unknown:?} in {expression}");
    }
}

#[test]
fn every_metric_of_ours_is_used_where_it_can_be_seen() {
    let used: BTreeSet<String> = dashboards::expressions().flat_map(|one| metrics(&one)).collect();
    let alerts = rules("alerts.yaml");
    let used: BTreeSet<String> =
        alerts.iter().flat_map(|rule| metrics(text(&rule["expr"]))).chain(used).collect();
    let seen = |name: &str| {
        let base = HISTOGRAM.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        used.contains(name) || used.contains(&format!("{base}_bucket"))
    };
    // Of generic dashboards for controllers.
    let generic = |name: &str| name.starts_with("controller_runtime_");
    let unseen: Vec<_> = ours().into_keys().filter(|name| !seen(name) && !generic(name)).collect();
    assert!(unseen.is_empty(), "neither alert nor dashboard shows {unseen:?}");
}

#[test]
fn the_series_of_these_tests_have_the_documented_labels() {
    let documented = ours();
    let check = |notation: &str| {
        let (name, mut labels) = series(notation);
        if name.starts_with("rabbitmq_") {
            assert!(of_the_broker().contains(&name), "{name} is not documented");
            return name;
        }
        let wanted = documented.get(&name).unwrap_or_else(|| panic!("{name} is not documented"));
        labels.retain(|label| !SCRAPE.contains(&label.as_str()));
        assert_eq!(&labels, wanted, "{notation}");
        name
    };
    for file in ["tests/rules/alerts.yaml", "tests/rules/broker-alerts.yaml"] {
        for test in array(&yaml(file)["tests"]) {
            for one in array(&test["input_series"]) {
                check(text(&one["series"]));
            }
        }
    }
    let shown: BTreeSet<String> =
        array(&yaml("tests/rules/series.yaml")).map(|one| check(text(&one["series"]))).collect();
    let missing: Vec<_> = documented.keys().filter(|name| !shown.contains(*name)).collect();
    assert!(missing.is_empty(), "series.yaml lacks {missing:?}");
}

#[test]
fn what_is_recorded_is_documented() {
    let page = read("docs/metrics.md");
    for name in recorded() {
        let (_, last) = name.rsplit_once(':').unwrap();
        assert!(page.contains(&name) || page.contains(&format!("`{last}`")), "{name}");
    }
}
