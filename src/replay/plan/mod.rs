//! What a replay would do, before anything moves: what stands in the queue, where it would go,
//! what speaks against it, how long it takes.
//!
//! Everything here is computed from what was observed; reading the broker is
//! `broker::replay`'s.

pub mod duration;
pub mod facts;
pub mod hash;
pub mod preflight;
pub mod sketch;
pub mod survey;
mod text;

use std::time::Duration;

use super::run::{Guard, Pace};
use facts::Facts;
use preflight::{Asked, Finding, Severity};
use survey::Summary;

/// What a replay would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Messages ready in the origin queue when it was read.
    pub in_source: u64,
    /// What the read showed; `None` where a finding forbids reading.
    pub summary: Option<Summary>,
    /// Whether more messages stand in the queue than may be read.
    pub scan_limit_reached: bool,
    /// The queues that the target reaches.
    pub routes: Vec<String>,
    /// What speaks against it, the gravest first.
    pub findings: Vec<Finding>,
    /// How long it takes at the pace given.
    pub expected: Option<Duration>,
    /// What an approval refers to; see [`hash::hash`].
    pub hash: String,
}

/// What a plan is made for.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The immutable part of the specification, in one fixed form.
    pub spec: &'a str,
    /// How fast.
    pub pace: &'a Pace,
    /// When to pause or stop.
    pub guard: &'a Guard,
    /// What bears on the findings.
    pub asked: Asked,
    /// The most messages to move.
    pub limit: Option<u64>,
    /// The most messages to read.
    pub scan: u64,
}

impl Plan {
    /// Makes a plan. `summary` is missing where the findings of `facts` alone are errors.
    #[must_use]
    pub fn new(request: &Request<'_>, facts: &Facts, summary: Option<Summary>) -> Self {
        let findings = preflight::findings(facts, &request.asked, request.guard, summary.as_ref());
        let routes = facts.target.routes();
        let in_source = facts.origin_queue.as_ref().and_then(|queue| queue.ready).unwrap_or_default();
        let moving = summary.as_ref().map(|summary| {
            let left: u64 = summary.left_behind();
            let most = request.limit.unwrap_or(u64::MAX);
            (summary.matching - left).min(most)
        });
        Self {
            in_source,
            scan_limit_reached: summary
                .as_ref()
                .is_some_and(|summary| summary.examined >= request.scan && in_source > summary.examined),
            expected: moving.map(|messages| duration::expected(messages, request.pace)),
            hash: hash::hash(request.spec, request.pace, request.guard, &routes, &findings),
            summary,
            routes,
            findings,
        }
    }

    /// Whether something forbids the run.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }
}
