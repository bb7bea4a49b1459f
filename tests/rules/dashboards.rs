//! Dashboards: each query is run on the series of `series.yaml` and has to return data.

use std::collections::BTreeSet;

use fancy_regex::Regex;
use serde_json::{Value, json};

use crate::{array, path, promtool, read, text, yaml};

const NAMES: [&str; 3] = ["fleet", "pipeline", "replay"];

/// What the variables stand for in `series.yaml`, the longer names first.
const VARIABLES: [(&str, &str); 7] = [
    ("$__rate_interval", "5m"),
    ("$resource_namespace", "shop"),
    ("$rabbitmq_cluster", "rabbit"),
    ("$namespace", "messaging"),
    ("$pipeline", "orders"),
    ("$replay", "after-fix"),
    ("$owner", ".*"),
];

fn dashboard(name: &str) -> Value {
    serde_json::from_str(&read(&format!("charts/redrive/dashboards/{name}.json"))).unwrap()
}

fn targets(dashboard: &Value) -> Vec<Value> {
    array(&dashboard["panels"]).flat_map(|panel| array(&panel["targets"])).cloned().collect()
}

/// All queries, as they are.
pub(crate) fn expressions() -> impl Iterator<Item = String> {
    let all = NAMES.into_iter().map(dashboard).flat_map(|one| targets(&one));
    all.map(|target| text(&target["expr"]).to_owned())
}

#[test]
fn every_query_returns_data() {
    let mut tests = Vec::new();
    for expression in expressions() {
        // A number for "none" would hide that a query finds nothing.
        let mut query = expression.replace(" or vector(0)", "");
        for (variable, value) in VARIABLES {
            query = query.replace(variable, value);
        }
        assert!(!query.contains('$'), "a variable without a value: {query}");
        tests.push(json!({
            "expr": format!("count({query}) > bool 0"), "eval_time": "50m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }));
    }
    assert!(tests.len() > 60, "only {} queries", tests.len());
    let file = json!({
        "rule_files": [path("charts/redrive/rules/recording.yaml")],
        "evaluation_interval": "1m",
        "group_eval_order": ["redrive-rates", "redrive-slo"],
        "tests": [{
            "interval": "1m", "input_series": yaml("tests/rules/series.yaml"), "promql_expr_test": tests,
        }],
    });
    let written = path(env!("CARGO_TARGET_TMPDIR")).join("dashboards.yaml");
    std::fs::write(&written, file.to_string()).unwrap();
    promtool::run(&["test", "rules", written.to_str().unwrap()], "");
}

#[test]
fn every_panel_takes_the_data_source_from_the_variable() {
    let source = json!({"type": "prometheus", "uid": "${DS_PROMETHEUS}"});
    for name in NAMES {
        let dashboard = dashboard(name);
        for panel in array(&dashboard["panels"]).filter(|panel| panel["type"] != "row") {
            let title = &panel["title"];
            assert_eq!(panel["datasource"], source, "{name}: {title}");
            assert!(array(&panel["targets"]).count() > 0, "{name}: {title} asks nothing");
            for target in array(&panel["targets"]) {
                assert_eq!(target["datasource"], source, "{name}: {title}");
            }
        }
        for variable in array(&dashboard["templating"]["list"]) {
            let asks = variable["type"] == "query";
            assert!(!asks || variable["datasource"] == source, "{name}: {}", variable["name"]);
        }
    }
}

#[test]
fn a_dashboard_keeps_its_address_and_uses_the_variables_that_it_has() {
    let used = Regex::new(r"\$\{?(\w+)").unwrap();
    for name in NAMES {
        let dashboard = dashboard(name);
        assert_eq!(dashboard["uid"], format!("redrive-{name}").as_str());
        assert!(dashboard.get("id").is_none(), "{name}: an id belongs to one Grafana");
        let list = &dashboard["templating"]["list"];
        let has: BTreeSet<&str> = array(list).map(|variable| text(&variable["name"])).collect();
        let words = dashboard.to_string();
        let uses = used.captures_iter(words.as_str()).map(|found| found.unwrap().get(1).unwrap().as_str());
        let uses: BTreeSet<&str> = uses.filter(|word| !word.starts_with("__")).collect();
        assert_eq!(uses, has, "{name}");
        let ids: Vec<_> = array(&dashboard["panels"]).map(|panel| panel["id"].to_string()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{name}: an id of a panel twice");
    }
}
