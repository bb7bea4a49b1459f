//! Rights as RBAC objects say them, one by one.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "for tests only")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::helm::name_of;

/// Rights, each as `group/resource/name verb`; `*` is any name.
pub type Rights = BTreeSet<String>;

/// The rights of a role.
pub fn rights(role: &Value) -> Rights {
    let words = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut found = Rights::new();
    for rule in role["rules"].as_array().unwrap() {
        let all = || vec!["*".to_owned()];
        let names = if rule["resourceNames"].is_null() { all() } else { words(&rule["resourceNames"]) };
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                for name in &names {
                    let one = |verb: &String| format!("{group}/{resource}/{name} {verb}");
                    found.extend(words(&rule["verbs"]).iter().map(one));
                }
            }
        }
    }
    found
}

/// The rights that bindings give to accounts, by the account's name and the namespace in which
/// they hold; in the whole cluster where that is empty.
pub fn granted(objects: &[Value]) -> BTreeMap<(String, String), Rights> {
    let of_kind = |end: &'static str| {
        objects.iter().filter(move |object| object["kind"].as_str().is_some_and(|kind| kind.ends_with(end)))
    };
    let roles: BTreeMap<String, Rights> = of_kind("Role").map(|role| (name_of(role), rights(role))).collect();
    let mut granted: BTreeMap<_, Rights> = BTreeMap::new();
    for binding in of_kind("RoleBinding") {
        let namespace = binding["metadata"]["namespace"].as_str().unwrap_or_default();
        let place = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let word = |key: &str| binding["roleRef"][key].as_str().unwrap();
        let role = format!("{} {place}{}", word("kind"), word("name"));
        for subject in binding["subjects"].as_array().unwrap() {
            let account = subject["name"].as_str().unwrap().to_owned();
            granted.entry((account, namespace.to_owned())).or_default().extend(roles[&role].clone());
        }
    }
    granted
}
