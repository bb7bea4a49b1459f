//! Values that are refused, with words that help.

use std::fs;

use crate::helm::{CHART, HELMS, text};

/// Values, and words that each Helm says about them.
const CASES: &[(&str, &[&str])] = &[
    ("replicass: 3", &["replicass"]),
    ("image: {tagg: x}", &["image", "tagg"]),
    ("image: {digest: 0123}", &["digest"]),
    ("image: {registry: a, repository: 'a/b:1'}", &["repository"]),
    ("watchNamespaces: shop", &["watchNamespaces"]),
    ("watchNamespaces: [Shop]", &["watchNamespaces"]),
    ("pollInterval: 60", &["pollInterval"]),
    ("brokerEvents: {secrets: [events]}", &["brokerEvents", "secrets"]),
    ("admission: {mode: Denny}", &["admission", "mode"]),
    ("admission: {clusterFloor: requireAproval=true}", &["clusterFloor"]),
    ("networkPolicy: {brokers: {ports: []}}", &["networkPolicy", "brokers", "ports"]),
    ("prometheusRule: {alerts: {RedriveDrift: {treshold: 1}}}", &["RedriveDrift", "treshold"]),
    (
        "replicas: 2\nleaderElection: {enabled: false}",
        &["replicas: more than one operator needs leaderElection.enabled"],
    ),
    ("replays: {audit: {vhost: audit}}", &["replays.audit: the stream needs both vhost and secret"]),
    ("metrics: {port: 8081}", &["health.port: has to be another one than metrics.port"]),
    (
        "metrics: {enabled: false}\nserviceMonitor: {enabled: true}",
        &["there is nothing to scrape without metrics.enabled"],
    ),
    ("rbac: {readPolicies: true}", &["rbac.readPolicies: is only for watchNamespaces"]),
    (
        "prometheusRule: {enabled: true, disabled: [RedriveDrifft]}",
        &["no alert is called RedriveDrifft; there are ", "RedriveDrift"],
    ),
    ("prometheusRule: {enabled: true, alerts: {None: {for: 1m}}}", &["no alert is called None; there are "]),
];

#[test]
fn each_is_told_with_its_name() {
    let path = std::env::temp_dir().join(format!("redrive-values-{}.yaml", std::process::id()));
    let mut wrong = Vec::new();
    for (values, words) in CASES {
        fs::write(&path, values).unwrap();
        for helm in HELMS {
            let output = helm.run(&["template", "redrive", CHART, "--values", path.to_str().unwrap()]);
            let told = text(&output.stderr);
            if output.status.success() || !words.iter().all(|word| told.contains(word)) {
                wrong.push(format!("{helm:?} {values}: {told}"));
            }
        }
    }
    fs::remove_file(path).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
