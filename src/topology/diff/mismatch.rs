//! Settings that are not as wanted and can't be changed in place.

use std::collections::BTreeSet;

use super::super::model::{Arg, Args, Exchange, Queue};
use super::super::observed::{ObservedExchange, ObservedQueue};

/// A setting that is not as wanted and can't be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub(in crate::topology) key: String,
    pub(super) wanted: String,
    pub(super) found: String,
}

/// Compares a queue's immutable settings. A queue type that the broker filled in
/// by itself is no difference.
#[must_use]
pub fn queue_mismatches(wanted: &Queue, found: &ObservedQueue) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    compare(&mut mismatches, "x-queue-type", wanted.kind.as_str(), found.kind.as_str());
    compare(&mut mismatches, "durable", "true", flag(found.durable));
    compare(&mut mismatches, "auto_delete", "false", flag(found.auto_delete));
    compare(&mut mismatches, "exclusive", "false", flag(found.exclusive));
    let without_type: Args = wanted
        .arguments
        .iter()
        .filter(|(key, _)| *key != "x-queue-type")
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    compare_args(&mut mismatches, &without_type, &found.arguments);
    mismatches
}

pub(in crate::topology) fn exchange_mismatches(wanted: &Exchange, found: &ObservedExchange) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    compare(&mut mismatches, "type", &wanted.kind, &found.kind);
    compare(&mut mismatches, "durable", "true", flag(found.durable));
    compare(&mut mismatches, "auto_delete", "false", flag(found.auto_delete));
    compare(&mut mismatches, "internal", flag(wanted.internal), flag(found.internal));
    compare_args(&mut mismatches, &wanted.arguments, &found.arguments);
    mismatches
}

fn flag(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

fn compare(mismatches: &mut Vec<Mismatch>, key: &str, wanted: &str, found: &str) {
    if wanted != found {
        mismatches.push(Mismatch { key: key.to_owned(), wanted: wanted.to_owned(), found: found.to_owned() });
    }
}

fn compare_args(mismatches: &mut Vec<Mismatch>, wanted: &Args, found: &Args) {
    let text = |value: Option<&Arg>| value.map_or_else(|| "none".to_owned(), Arg::to_string);
    let keys: BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
    for key in keys {
        compare(mismatches, key, &text(wanted.get(key)), &text(found.get(key)));
    }
}

pub(in crate::topology) fn describe_mismatches(mismatches: &[Mismatch]) -> String {
    let parts: Vec<String> = mismatches
        .iter()
        .map(|mismatch| format!("{} is {} where {} is wanted", mismatch.key, mismatch.found, mismatch.wanted))
        .collect();
    format!("{}; it can't be changed in place and is left alone", parts.join(", "))
}
