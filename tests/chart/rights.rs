//! The rights that the chart gives, against those in `admission/roles.yaml`.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::folder;
use crate::granted::{Rights, granted, rights};
use crate::helm::{CHART, HELMS, Helm, name_of, objects};

/// The rights of some roles of `admission/roles.yaml`, and only those that `wanted` names.
fn of_roles(names: &[&str], wanted: impl Fn(&str) -> bool) -> Rights {
    let roles = objects(&fs::read_to_string(folder("admission/roles.yaml")).unwrap());
    let ours = roles.iter().filter(|role| names.contains(&role["metadata"]["name"].as_str().unwrap()));
    ours.flat_map(rights).filter(|right| wanted(right)).collect()
}

fn is_for_some(right: &str) -> bool {
    !right.contains("/* ")
}

const OPERATOR: &str = "redrive";
const WORKER: &str = "redrive-replay-worker";

#[test]
fn by_default_both_accounts_have_the_rights_of_their_roles_and_no_others() {
    let all = |names: &[&str]| of_roles(names, |_| true);
    let key = |account: &str, namespace: &str| (account.to_owned(), namespace.to_owned());
    let wanted = BTreeMap::from([
        (key(OPERATOR, ""), all(&["redrive-operator", "redrive-operator-clusters"])),
        (key(OPERATOR, "redrive"), all(&["redrive-operator-workers"])),
        (key(WORKER, ""), all(&["redrive-replay-worker"])),
        (key(WORKER, "redrive"), all(&["redrive-replay-worker-leases"])),
    ]);
    for helm in HELMS {
        assert_eq!(granted(&objects(&helm.template(&[]))), wanted, "{helm:?}");
    }
}

/// Then the operator makes no Jobs and no Secrets, and nobody is a worker.
#[test]
fn with_replays_inside_the_operator_there_are_no_rights_for_workers() {
    let granted = granted(&with("development"));
    let leases = of_roles(&["redrive-operator-workers"], |right| right.contains("/leases/"));
    assert_eq!(granted[&(OPERATOR.to_owned(), "redrive".to_owned())], leases);
    assert!(!granted.keys().any(|(account, _)| account == WORKER));
}

fn with(file: &str) -> Vec<Value> {
    objects(&Helm::Four.template(&["--values", &format!("{CHART}/ci/{file}.yaml")]))
}

#[test]
fn with_a_list_of_namespaces_the_same_rights_hold_there_alone() {
    let granted = granted(&with("scoped"));
    for namespace in ["shop", "billing"] {
        let pipelines = of_roles(&["redrive-operator"], |right| !is_for_some(right));
        assert_eq!(granted[&(OPERATOR.to_owned(), namespace.to_owned())], pipelines);
        assert_eq!(
            granted[&(WORKER.to_owned(), namespace.to_owned())],
            of_roles(&["redrive-replay-worker"], |_| true)
        );
    }
    // Together all that the operator may read by name, each where it is.
    let elsewhere: Rights = ["kube-system", "default", ""]
        .iter()
        .flat_map(|namespace| granted[&(OPERATOR.to_owned(), (*namespace).to_owned())].clone())
        .collect();
    assert_eq!(elsewhere, of_roles(&["redrive-operator"], is_for_some));
    let own = &granted[&(OPERATOR.to_owned(), "redrive".to_owned())];
    assert!(own.contains("/secrets/audit-connection get"), "{own:?}");
    let messaging = &granted[&(OPERATOR.to_owned(), "messaging".to_owned())];
    assert!(messaging.contains("/secrets/events-b get"), "{messaging:?}");
    // By name: a watch would be one of the whole cluster.
    assert!(
        messaging.is_superset(&of_roles(&["redrive-operator-clusters"], |right| right.ends_with(" get")))
    );
    assert!(!messaging.iter().any(|right| !right.ends_with(" get")), "{messaging:?}");
}

#[test]
fn with_a_list_of_namespaces_there_is_no_cluster_role() {
    for file in ["strict", "second"] {
        let rendered = with(file);
        let wide: Vec<_> =
            rendered.iter().filter(|one| one["metadata"]["namespace"].is_null()).map(name_of).collect();
        assert_eq!(wide, Vec::<String>::new(), "{file}");
    }
    let rendered = Helm::Four.template(&["--set=watchNamespaces={shop}"]);
    assert!(!rendered.contains("kind: ClusterRole"), "roles for people are Roles as well then");
}

/// Nobody gets to approve or to weaken guardrails by a built-in role, nor to write a status.
#[test]
fn what_is_aggregated_holds_no_right_that_counts() {
    let rendered = objects(&Helm::Four.template(&[]));
    let mut aggregated = Vec::new();
    for role in rendered.iter().filter(|one| one["kind"] == "ClusterRole") {
        let labels = role["metadata"]["labels"].as_object().unwrap();
        let into: Vec<_> =
            labels.keys().filter_map(|label| label.split_once("/aggregate-to-")).map(|(_, to)| to).collect();
        let name = role["metadata"]["name"].as_str().unwrap();
        for to in &into {
            aggregated.push(format!("{name} to {to}"));
        }
        let rights = rights(role);
        let counts = |right: &String| {
            right.contains("/status/") || right.ends_with(" approve") || right.ends_with(" guard")
        };
        assert!(into.is_empty() || !rights.iter().any(counts), "{name}: {rights:?}");
    }
    aggregated.sort();
    let wanted = ["redrive-pipeline-editor to edit", "redrive-requester to edit", "redrive-viewer to view"];
    assert_eq!(aggregated, wanted);
    assert!(!Helm::Four.template(&["--set=people.aggregate=false"]).contains("aggregate-to"));
}
