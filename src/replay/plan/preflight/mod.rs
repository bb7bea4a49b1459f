//! What speaks against a run, found before anything moves.
//!
//! Guarantees: pure, one finding for each thing found, in a fixed order; the name of a check
//! never changes, and its sentence says what to do. Left out: what shows only when the run
//! begins, such as somebody else's exclusive consumer.

mod messages;
mod origin;
mod target;

use std::cmp::Reverse;
use std::time::Duration;

use super::facts::Facts;
use super::survey::Summary;
use crate::replay::run::Guard;
use crate::topology::names;

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Good to know.
    Info,
    /// Risky, but the requester's decision.
    Warning,
    /// It can't start.
    Error,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How grave it is.
    pub severity: Severity,
    /// Which check, such as `TargetDropsHead`.
    pub check: &'static str,
    /// What was found, and what to do.
    pub message: String,
}

/// What of a run bears on the findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The target may reach more than one queue.
    pub allow_fanout: bool,
    /// Messages keep their own time to live.
    pub keep_expiration: bool,
    /// The longest time from the first message on.
    pub deadline: Duration,
}

/// Everything that speaks against a run, the gravest first. Without `summary` only what the
/// objects show.
#[must_use]
pub fn findings(facts: &Facts, asked: &Asked, guard: &Guard, summary: Option<&Summary>) -> Vec<Finding> {
    let mut found = Findings::default();
    origin::check(facts, asked, &mut found);
    target::check(facts, asked, guard, summary, &mut found);
    if let Some(summary) = summary {
        messages::check(facts, asked, summary, &mut found);
    }
    let mut findings = found.0;
    // A stable sort: what was found first stays first among equals.
    findings.sort_by_key(|finding| Reverse(finding.severity));
    findings
}

/// The findings so far.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, severity: Severity, check: &'static str, message: impl Into<String>) {
        self.0.push(Finding { severity, check, message: message.into() });
    }

    fn error(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(Severity::Error, check, message);
    }

    fn warning(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(Severity::Warning, check, message);
    }

    fn info(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(Severity::Info, check, message);
    }
}

/// A span as people write it.
fn span(span: Duration) -> String {
    names::duration(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
