//! The DLQ and its quarantine categories.

use super::super::model::{Arg, QueueType};
use super::super::names;
use super::super::pipeline::REPLAY_LIMIT_CATEGORY;
use super::super::problem::Problems;
use super::super::spec::{Category, Mode, Spec};
use super::MAX_TTL;

/// Why a message was dead-lettered, in the broker's words.
const REASONS: [&str; 4] = ["rejected", "expired", "maxlen", "delivery_limit"];

pub(super) fn check(spec: &Spec, problems: &mut Problems) {
    let dead_letter = &spec.dead_letter;
    problems.check_range("deadLetter.retention", dead_letter.retention, 1, MAX_TTL, "ms");
    problems.check_range("deadLetter.maxLength", dead_letter.max_length, 1, i64::MAX, "messages");
    let loses_when_full = spec.source.kind == QueueType::Classic || dead_letter.kind == QueueType::Classic;
    if dead_letter.max_length.is_some() && loses_when_full {
        problems.add(
            "deadLetter.maxLength",
            "a full DLQ would lose messages behind classic queues: remove it, or use quorum queues",
        );
    }
    if let Some(token) =
        ["{attempt}", "{delay}"].into_iter().find(|token| dead_letter.template.contains(token))
    {
        problems.add(
            "deadLetter.name",
            format!("has {token}, and there is one DLQ for all tiers: use {{queue}} alone"),
        );
    }
    for (index, category) in dead_letter.quarantine.iter().enumerate() {
        check_category(spec, index, category, problems);
    }
}

fn check_category(spec: &Spec, index: usize, category: &Category, problems: &mut Problems) {
    let field = format!("deadLetter.quarantine[{index}]");
    let name = &category.name;
    if name == REPLAY_LIMIT_CATEGORY {
        problems.add(&field, "the category replay-limit is reserved for replays: use another name");
    }
    if !is_category(name) {
        problems.add(
            &field,
            format!("category {name:?}: use 1 to 40 of a-z, 0-9 and '-', not starting with '-'"),
        );
    }
    if spec.dead_letter.quarantine[..index].iter().any(|other| other.name == *name) {
        problems.add(&field, format!("category {name:?} is listed twice: merge the two"));
    }
    if category.reasons.is_empty() && category.headers.is_empty() {
        problems.add(&field, "has neither reasons nor headers and would match everything: add one");
    }
    for reason in category.reasons.iter().filter(|reason| !REASONS.contains(&reason.as_str())) {
        problems.add(&field, format!("the broker has no reason {reason:?}: use {}", REASONS.join(", ")));
    }
    if spec.mode == Mode::Broker
        && category.headers.is_empty()
        && category.reasons.iter().any(|r| r == "rejected")
    {
        problems.add(
            &field,
            "takes every rejection, so that nothing would be retried: add headers, or use mode None",
        );
    }
    for (header, value) in &category.headers {
        let reserved = header == "x-match" || header.starts_with("x-last-death-");
        if reserved {
            problems
                .add(&field, format!("the header {header:?} is set by Redrive or the broker: use reasons"));
        } else if header.is_empty() || header.len() > names::MAX_NAME_BYTES {
            problems.add(&field, format!("the header {header:?} has {} bytes: write 1 to 255", header.len()));
        }
        if matches!(value, Arg::Other(_)) {
            problems.add(&field, format!("the header {header:?} is no string, integer or boolean: use one"));
        }
    }
}

fn is_category(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=40).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('-')
}
