//! A replay as text for people: what it would do, and how far it is. Pure.
//!
//! Values of headers come from producers, so nothing in them reaches a terminal as a control
//! character.

use std::fmt::Write as _;

use crate::api::{
    Bucket, Condition, DlqReplay, Finding, Histogram, ReplayFrom, ReplayPlan, ReplayProgress, ReplaySummary,
    ReplayTo, Severity,
};
use crate::cli::units;

/// Rows of one part of the histogram.
const SHOWN: usize = 10;

/// Columns of running text.
const WIDTH: usize = 96;

/// Which replay it is, why, and who wants it.
pub(in crate::cli) fn head(replay: &DlqReplay) -> String {
    let spec = &replay.spec;
    let meta = &replay.metadata;
    let mut out = match meta.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{}", meta.name.as_deref().unwrap_or_default()),
        None => meta.name.clone().unwrap_or_default(),
    };
    let _ = writeln!(
        out,
        ": {} of {} to {}{}",
        source(&spec.from()),
        spec.pipeline_ref.name,
        target(&spec.to()),
        if spec.dry_run { ", a dry run" } else { "" },
    );
    let by = spec.requested_by.as_deref().unwrap_or("nobody knows who");
    let _ = writeln!(out, "asked for by {}: {}", clean(by), clean(&spec.justification));
    out
}

fn source(from: &ReplayFrom) -> String {
    match from {
        ReplayFrom::DeadLetter {} => "dead letters".to_owned(),
        ReplayFrom::Quarantine(one) => format!("quarantine {}", one.category),
        ReplayFrom::ParkingLot {} => "the parking lot".to_owned(),
    }
}

fn target(to: &ReplayTo) -> String {
    match to {
        ReplayTo::WorkQueue {} => "the work queue".to_owned(),
        ReplayTo::Origin {} => "where each was first published to".to_owned(),
        ReplayTo::Quarantine(one) => format!("quarantine {}", one.category),
        ReplayTo::ParkingLot {} => "the parking lot".to_owned(),
        ReplayTo::Queue(queue) => format!("queue {}", clean(&queue.name)),
        ReplayTo::Exchange(exchange) => {
            format!("exchange {} with key {:?}", clean(&exchange.name), exchange.routing_key)
        }
        ReplayTo::Discard {} => "nowhere: they are deleted".to_owned(),
    }
}

/// The most messages of its plan that a replay moves.
pub(in crate::cli) fn most(replay: &DlqReplay, plan: &ReplayPlan) -> i64 {
    let limit = replay.spec.select.as_ref().and_then(|select| select.limit);
    let approved = replay.spec.approval.as_ref().map(|approval| approval.max_messages);
    limit.into_iter().chain(approved).fold(plan.matching, i64::min)
}

/// What a replay would do.
pub(in crate::cli) fn plan(replay: &DlqReplay, plan: &ReplayPlan) -> String {
    let mut out = head(replay);
    out.push('\n');
    row(&mut out, "In the queue", &number(plan.in_source));
    let most = most(replay, plan);
    let limited =
        if most < plan.matching { format!(", of which {} move", number(most)) } else { String::new() };
    row(&mut out, "Selected", &format!("{}{limited}", number(plan.matching)));
    if let Some(expected) = plan.expected_duration {
        row(&mut out, "Takes about", &units::span(expected.as_millis()));
    }
    row(&mut out, "Reaches", &routes(plan));
    if plan.colliding_ids > 0 {
        row(&mut out, "Look alike", &format!("{}, told apart by nothing", number(plan.colliding_ids)));
    }
    row(&mut out, "Plan", &clean(&plan.hash));
    if let Some(found) = &plan.histogram {
        histogram(&mut out, found);
    }
    findings(&mut out, &plan.findings);
    out
}

fn row(out: &mut String, name: &str, text: &str) {
    let _ = writeln!(out, "{name:<14}{text}");
}

fn routes(plan: &ReplayPlan) -> String {
    if plan.routes.is_empty() {
        return match plan.route_count {
            0 => "no queue that is known".to_owned(),
            count => format!("{count} queues"),
        };
    }
    let mut text = plan.routes.iter().map(|queue| clean(queue)).collect::<Vec<_>>().join(", ");
    let more = usize::try_from(plan.route_count).unwrap_or(0).saturating_sub(plan.routes.len());
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// How selected messages spread, each part with its most frequent values.
fn histogram(out: &mut String, found: &Histogram) {
    buckets(out, "reason", &found.reasons);
    buckets(out, "error type", &found.error_types);
    buckets(out, "origin", &found.origins);
    buckets(out, "age", &found.ages);
    for header in &found.headers {
        buckets(out, &format!("header {}", clean(&header.name)), &header.values);
    }
}

/// Values and how often they occur, the most frequent ones.
pub(in crate::cli) fn buckets(out: &mut String, name: &str, values: &[Bucket]) {
    if values.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nBy {name}");
    let rest: i64 = values.iter().skip(SHOWN).map(|bucket| bucket.count).sum();
    let counts = values.iter().take(SHOWN).map(|bucket| bucket.count).chain([rest]);
    let width = counts.map(|count| number(count).len()).max().unwrap_or(0);
    for bucket in values.iter().take(SHOWN) {
        let _ = writeln!(out, "  {:>width$}  {}", number(bucket.count), clean(&bucket.value));
    }
    if rest > 0 {
        let _ = writeln!(out, "  {:>width$}  all others", number(rest));
    }
}

fn findings(out: &mut String, found: &[Finding]) {
    if found.is_empty() {
        return;
    }
    out.push_str("\nFindings\n");
    let mut sorted: Vec<&Finding> = found.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    for finding in sorted {
        let mark = match finding.severity {
            Severity::Info => "  - ",
            Severity::Warning => "  ! warning: ",
            Severity::Error => "  ! it can't start: ",
        };
        paragraph(out, mark, &clean(&finding.message));
    }
}

/// Text in lines that are not too long; the first begins with a mark.
fn paragraph(out: &mut String, mark: &str, text: &str) {
    let mut line = mark.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{line}");
            "    ".clone_into(&mut line);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(out, "{line}");
}

fn succeeded(replay: &DlqReplay) -> Option<&Condition> {
    let conditions = replay.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().find(|condition| condition.type_ == "Succeeded")
}

/// Whether messages move, and there is nothing else to say.
pub(in crate::cli) fn is_moving(replay: &DlqReplay) -> bool {
    succeeded(replay).is_some_and(|condition| condition.reason == "Running")
}

/// The phase and why: `Paused: 12 of the last 50 came back`.
pub(in crate::cli) fn phase(replay: &DlqReplay) -> String {
    match succeeded(replay) {
        Some(one) if one.message.is_empty() => one.reason.clone(),
        // Where the sentence goes on below, it shows a place in an expression.
        Some(one) => format!("{}: {}", one.reason, clean(one.message.lines().next().unwrap_or_default())),
        None => "waiting for the operator to see it".to_owned(),
    }
}

/// How far it is, in one line.
pub(in crate::cli) fn progress(replay: &DlqReplay, progress: &ReplayProgress) -> String {
    let plan = replay.status.as_ref().and_then(|status| status.plan.as_ref());
    let of = plan.map(|plan| format!(" of {}", number(most(replay, plan)))).unwrap_or_default();
    let mut text = format!("{}{of} moved, {} read", number(progress.replayed), number(progress.examined));
    if progress.failed > 0 {
        let _ = write!(text, ", {} failed", number(progress.failed));
    }
    if progress.skipped > 0 {
        let _ = write!(text, ", {} left on purpose", number(progress.skipped));
    }
    if progress.beyond_fence > 0 {
        let _ = write!(text, ", {} past the fence", number(progress.beyond_fence));
    }
    if let Some(rate) = &progress.rate {
        let _ = write!(text, ", {}/s", clean(rate));
    }
    if let Some(eta) = progress.eta {
        let _ = write!(text, ", {} left", units::span(eta.as_millis()));
    }
    text
}

/// How it ended.
pub(in crate::cli) fn summary(replay: &DlqReplay, ended: &ReplaySummary) -> String {
    let mut out = format!("{}: {}\n", clean(&ended.result), lines(&ended.message));
    if replay.spec.dry_run {
        return out;
    }
    row(&mut out, "Selected", &number(ended.matched));
    row(&mut out, "Moved", &number(ended.replayed));
    let progress = replay.status.as_ref().and_then(|status| status.progress.as_ref());
    for (name, count) in
        [("Failed", ended.failed), ("Left", ended.skipped), ("Maybe twice", ended.duplicates_possible)]
    {
        if count > 0 {
            row(&mut out, name, &number(count));
        }
    }
    if let Some(count) = progress.map(|progress| progress.beyond_fence).filter(|count| *count > 0) {
        row(&mut out, "Past fence", &format!("{}, which came after the start", number(count)));
    }
    for message in progress.iter().flat_map(|progress| &progress.unmovable_messages) {
        let _ = writeln!(out, "can't be published any more, and stayed: {}", clean(message));
    }
    if let Some(started) = &ended.started {
        let took = ended.finished.0.duration_since(started.0).as_millis();
        row(&mut out, "Took", &units::span(i64::try_from(took).unwrap_or(i64::MAX)));
    }
    out
}

/// A count with commas between thousands.
pub(in crate::cli) fn number(count: i64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "no queue holds 2^53 messages")]
    units::count(count as f64)
}

/// Text of others, without anything that a terminal would obey.
pub(in crate::cli) fn clean(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, letter| {
        if letter.is_control() || is_invisible(letter) {
            out.extend(letter.escape_default());
        } else {
            out.push(letter);
        }
        out
    })
}

/// The same of text in several lines.
fn lines(text: &str) -> String {
    text.lines().map(clean).collect::<Vec<_>>().join("\n")
}

/// Marks that turn the direction of text around, and could make one value look like another.
fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests;
