//! The example for KEDA counts the messages that wait for a consumer, and nothing else.

use serde_json::{Value, json};

use crate::{array, path, promtool, text, yaml};

/// Runs queries on `series.yaml`; each has to return this one number.
fn assert_answers(file: &str, answers: &[(String, f64)]) {
    let ask = |(query, value): &(String, f64)| {
        json!({
            "expr": format!("sum({query})"), "eval_time": "50m",
            "exp_samples": [{"labels": "{}", "value": value}],
        })
    };
    let tests: Vec<Value> = answers.iter().map(ask).collect();
    let file_of_tests = json!({
        "rule_files": [path("charts/redrive/rules/recording.yaml")],
        "evaluation_interval": "1m",
        "group_eval_order": ["redrive-rates", "redrive-slo"],
        "tests": [{
            "interval": "1m", "input_series": yaml("tests/rules/series.yaml"), "promql_expr_test": tests,
        }],
    });
    let written = path(env!("CARGO_TARGET_TMPDIR")).join(file);
    std::fs::write(&written, file_of_tests.to_string()).unwrap();
    promtool::run(&["test", "rules", written.to_str().unwrap()], "");
}

#[test]
fn neither_retries_nor_dead_letters_are_taken_for_work() {
    let object = yaml("examples/keda-scaledobject.yaml");
    let triggers = &object["spec"]["triggers"];
    let query = |name: &str| {
        let found = array(triggers).find(|trigger| trigger["name"] == name).unwrap();
        text(&found["metadata"]["query"]).to_owned()
    };
    // Of the work queue 30 are ready and 10 are held; 200 wait for a retry, and hundreds are dead. Four,
    // two and one a second enter the retry queues.
    assert_answers("keda.yaml", &[(query("waiting"), 30.0), (query("retries"), 7.0)]);
    let formula = text(&object["spec"]["advanced"]["scalingModifiers"]["formula"]);
    for trigger in array(triggers) {
        assert!(formula.contains(text(&trigger["name"])), "{formula}");
    }
}
