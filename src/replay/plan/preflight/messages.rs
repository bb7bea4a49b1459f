//! What the messages themselves have against being moved.

use super::super::facts::{Facts, TargetFacts};
use super::super::survey::Summary;
use super::{Asked, Findings};
use crate::replay::run::Left;

/// Bytes that a replay may add to the headers, names included: ids and counts, and the origin
/// with up to three names of 255 bytes.
const ADDED: usize = 1_536;

pub(super) fn check(facts: &Facts, asked: &Asked, summary: &Summary, found: &mut Findings) {
    let left = |left: Left| summary.left.get(&left).copied().unwrap_or_default();
    let mut count = |check, count: u64, message: &str| {
        if count > 0 {
            found.warning(check, format!("some messages {message} ({count} in all)"));
        }
    };
    count(
        "Unmovable",
        left(Left::Unmovable),
        "can't be published any more, since their headers or body are too large or ask for an answer on this channel: they stay",
    );
    count(
        "UnknownOrigin",
        left(Left::UnknownOrigin),
        "don't say where they came from, or name an exchange that is not the pipeline's: they stay, so use to.workQueue for them",
    );
    count(
        "TooManyReplays",
        left(Left::TooManyReplays),
        "were replayed too often and stay: set maxReplaysPerMessage higher, or a quarantine in the pipeline",
    );
    count(
        "ReplayLimit",
        summary.over_limit,
        "were replayed too often: they go to the quarantine replay-limit",
    );
    count(
        "CollidingIds",
        summary.colliding,
        "can't be told from another by their replay id, as they are equal in every part: consumers that drop known ids drop them",
    );
    count(
        "ExpressionFailed",
        summary.failures,
        "make select.expression fail and don't match: ask has(headers.name) before you compare",
    );
    let kept = if asked.keep_expiration { summary.expiring } else { 0 };
    count(
        "ExpirationKept",
        kept,
        "keep their own time to live, and are gone if nobody takes them in that time: use expiration Drop, or start the consumers first",
    );
    check_room(facts, summary, found);
    if facts.target != TargetFacts::Discard && summary.stale_replies > 0 {
        let message = "some messages ask for an answer to a channel that is gone: they move, but nobody gets the answer";
        found.info("StaleReplyTo", message);
    }
    let types = &summary.histogram.error_types;
    if summary.matching > 0 && types.values.is_empty() {
        let message = "no message says which error it met: have consumers add the header x-error-type if you want to select by it";
        found.info("NoErrorTypes", message);
    }
}

/// Whether all that a replay adds fits into the frame of the headers.
fn check_room(facts: &Facts, summary: &Summary, found: &mut Findings) {
    let most = facts.frame_max as usize;
    if most == 0 || facts.target == TargetFacts::Discard || summary.largest_headers + ADDED <= most {
        return;
    }
    let message = format!(
        "the largest headers take {} of the {most} bytes that a frame has: where the origin does not fit in as well, it is left out",
        summary.largest_headers
    );
    found.warning("HeadersRoom", message);
}
