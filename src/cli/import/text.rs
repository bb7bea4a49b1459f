//! What `redrive import` prints: manifests with comments, and a report of the rest.

use super::manifest::Written;
use crate::cli::replay::text::{clean, number};
use crate::topology::recognise::{Described, Effect, Recognised, Unfit};

/// Most queues that the report lists one by one.
const LISTED: usize = 50;

/// Most steps that a comment lists.
const STEPS: usize = 40;

/// What stands above a manifest.
pub(super) fn comments(described: &Described) -> String {
    let pipeline = &described.pipeline;
    let mut lines = vec![what(described)];
    match &described.effect {
        Effect::Nothing => {
            lines.push("Applying it changes nothing on the broker but markers of ownership.".to_owned());
        }
        Effect::Steps(steps) => {
            lines.push(
                "Applying it takes these steps on the broker, besides markers of ownership:".to_owned(),
            );
            lines.extend(steps.iter().take(STEPS).map(|step| format!("  {step}")));
            if steps.len() > STEPS {
                lines.push(format!("  … and {} more: redrive plan shows all", steps.len() - STEPS));
            }
        }
    }
    if described.marked {
        lines.push(format!(
            "The operator that applies it must run with the cluster id {} (--cluster-id).",
            pipeline.identity.cluster
        ));
        lines.push(
            "Not on the broker, and so not here: owner, replayPolicy, driftPolicy, deletionPolicy."
                .to_owned(),
        );
    }
    lines.extend(described.remarks.iter().cloned());
    lines.iter().map(|line| format!("# {}\n", clean(line))).collect()
}

fn what(described: &Described) -> String {
    let pipeline = &described.pipeline;
    let queues: usize = pipeline.tiers.iter().map(|tier| tier.shards.len()).sum();
    let retries = match queues {
        0 => "no retry queue".to_owned(),
        1 => "1 retry queue".to_owned(),
        many => format!("{many} retry queues"),
    };
    format!("{} with {retries} and the dead-letter queue {}.", pipeline.spec.source.queue, pipeline.dlq)
}

/// All manifests as one stream.
pub(super) fn stream(written: &[Written]) -> String {
    written.iter().map(|manifest| format!("---\n{}", manifest.text)).collect()
}

/// What was found, and what was not described.
pub(super) fn report(written: &[Written], found: &Recognised, queues: usize) -> String {
    let changing = written.iter().filter(|manifest| manifest.effect != Effect::Nothing).count();
    let mut out = format!("{} in the vhost.\n", counted(queues, "queue", "queues"));
    out.push_str(&match (written.len(), changing) {
        (0, _) => "No RetryPipeline describes any of them.\n".to_owned(),
        (all, 0) => format!(
            "{} written; applying changes nothing on the broker but markers of ownership.\n",
            counted(all, "RetryPipeline", "RetryPipelines")
        ),
        (all, some) => format!(
            "{} written; {some} of them would change something: see the comments above each.\n",
            counted(all, "RetryPipeline", "RetryPipelines")
        ),
    });
    if !found.unfit.is_empty() {
        out.push_str(&format!(
            "Not described, though part of dead-lettering: {}:\n",
            counted(found.unfit.len(), "queue", "queues")
        ));
        found.unfit.iter().take(LISTED).for_each(|unfit| out.push_str(&entry(unfit)));
        if found.unfit.len() > LISTED {
            out.push_str(&format!(
                "  … and {} more: name those that matter with --queue\n",
                commas(found.unfit.len() - LISTED)
            ));
        }
    }
    if found.plain > 0 {
        out.push_str(&format!(
            "{} without a part in dead-lettering: nothing to describe.\n",
            counted(found.plain, "queue", "queues")
        ));
    }
    out
}

fn entry(unfit: &Unfit) -> String {
    const RELATED: usize = 5;
    let more = unfit.related.len().saturating_sub(RELATED);
    let mut related = unfit.related.iter().take(RELATED).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 {
        related.push_str(&format!(" and {more} more"));
    }
    let with = if related.is_empty() { String::new() } else { format!(" (with {related})") };
    let line = format!("{}{with}: {}", unfit.queue, unfit.why);
    format!("  {}\n    {}\n", clean(&line), clean(&sentence(&unfit.instead)))
}

/// Begins with a capital and ends with a full stop.
fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(characters).chain(['.']).collect()
}

/// `1 queue`, `3,000 queues`.
fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{} {}", commas(count), if count == 1 { one } else { many })
}

fn commas(count: usize) -> String {
    number(i64::try_from(count).unwrap_or(i64::MAX))
}
