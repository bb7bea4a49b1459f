//! The hash that an approval refers to.
//!
//! It covers what a person consents to: the immutable specification, pace and guard with every
//! default filled in, the queues that the target reaches, and which checks found something.
//! It ignores what changes by itself: how many messages there are, their ages and histogram,
//! the expected duration, and the numbers inside the sentences of findings.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::preflight::{Finding, Severity};
use crate::replay::run::{Canary, Guard, Pace, Ramp};

/// The hash: 64 hexadecimal digits. `spec` is the immutable specification in one fixed form,
/// and `routes` are in any order.
#[must_use]
pub fn hash(spec: &str, pace: &Pace, guard: &Guard, routes: &[String], findings: &[Finding]) -> String {
    let mut routes: Vec<&str> = routes.iter().map(String::as_str).collect();
    routes.sort_unstable();
    let mut checks: Vec<(&str, &str)> =
        findings.iter().map(|finding| (finding.check, severity(finding.severity))).collect();
    checks.sort_unstable();
    checks.dedup();
    // As JSON, whose lists and texts have an end, so that no two plans give the same bytes.
    let covered = serde_json::json!(["redrive plan 1", spec, pace_of(pace), guard_of(guard), routes, checks]);
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(covered.to_string()) {
        // Writing into a text never fails.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

/// Every field by name, so that one that is added can't be forgotten here.
fn pace_of(pace: &Pace) -> serde_json::Value {
    let Pace { per_second, batch, pause, ramp, window } = pace;
    let ramp = ramp.as_ref().map(|Ramp { from, every, factor }| (from, millis(*every), factor));
    serde_json::json!([per_second, batch, millis(*pause), ramp, window])
}

fn guard_of(guard: &Guard) -> serde_json::Value {
    let Guard {
        stop_on_return_percent,
        sample,
        min_returns,
        canary: Canary { messages, after, tries },
        pause_above_target_depth,
        require_consumers,
        max_unroutable,
    } = guard;
    serde_json::json!([
        stop_on_return_percent,
        sample,
        min_returns,
        messages,
        millis(*after),
        tries,
        pause_above_target_depth,
        require_consumers,
        max_unroutable,
    ])
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
