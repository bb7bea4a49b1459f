//! What the API server's rules refuse and `topology::validate` can't see any more,
//! since a checked specification has no trace of it: fields that exclude each other.

use crate::api::{Ownership, QueueType, Retry, RetryMode, RetryPipelineSpec};

/// A field below `spec` and what to write instead.
pub(super) type Objection = (&'static str, &'static str);

/// All that is wrong in this way.
pub(super) fn check(spec: &RetryPipelineSpec) -> Vec<Objection> {
    let mut found = source(spec);
    if let Some(retry) = &spec.retry {
        found.extend(self::retry(retry));
    }
    found.extend(dead_letter(spec));
    if spec.delete_adopted && !spec.adopt {
        found.push(("deleteAdopted", "means nothing without adopt: set adopt as well, or leave it out"));
    }
    found
}

fn source(spec: &RetryPipelineSpec) -> Vec<Objection> {
    let queue = &spec.source.queue;
    let external = spec.source.ownership() == Ownership::External;
    let mut found = Vec::new();
    if queue.queue_type() == QueueType::Classic && queue.group_size.is_some() {
        found.push((
            "source.queue.groupSize",
            "classic queues have no replicas: leave it out, or make the queue quorum",
        ));
    }
    if external && (queue.single_active_consumer || queue.group_size.is_some()) {
        found.push((
            "source.queue",
            "an External queue is declared by its application: leave out singleActiveConsumer and groupSize",
        ));
    }
    if !external && spec.merge_policy {
        found.push(("mergePolicy", "is for an External source: leave it out"));
    }
    found
}

fn retry(retry: &Retry) -> Vec<Objection> {
    let mode = retry.mode.unwrap_or_default();
    let steps = retry.delays.is_some() || retry.backoff.is_some();
    let queues = retry.jitter.is_some()
        || retry.naming.is_some()
        || retry.queue_type.is_some()
        || retry.group_size.is_some();
    let mut found = Vec::new();
    if retry.delays.is_some() && retry.backoff.is_some() {
        found.push(("retry", "delays and backoff exclude each other: keep one"));
    }
    if (mode == RetryMode::Native) != retry.native.is_some() {
        found.push((
            "retry.native",
            "mode Native needs native with min, max and attempts, and no other mode takes it",
        ));
    }
    if mode == RetryMode::Native && steps {
        found.push((
            "retry",
            "mode Native has no list of delays: use native.min, native.max and native.attempts instead",
        ));
    }
    if mode == RetryMode::Native && queues {
        found.push((
            "retry",
            "mode Native has no retry queues: leave out jitter, naming, queueType and groupSize",
        ));
    }
    if mode == RetryMode::None && (steps || queues) {
        found.push((
            "retry",
            "mode None has no retries: leave out everything else below retry, or choose another mode",
        ));
    }
    if retry.group_size.is_some() && retry.queue_type == Some(QueueType::Classic) {
        found.push((
            "retry.groupSize",
            "classic queues have no replicas: leave it out, or make the queues quorum",
        ));
    }
    found.extend(template(retry));
    found
}

fn template(retry: &Retry) -> Option<Objection> {
    let template = retry.naming.as_ref()?.template.as_ref()?;
    let rest = ["{queue}", "{attempt}", "{delay}"]
        .iter()
        .fold(template.clone(), |rest, name| rest.replace(name, ""));
    rest.contains(['{', '}'])
        .then_some(("retry.naming.template", "only {queue}, {attempt} and {delay} may stand in braces here"))
}

fn dead_letter(spec: &RetryPipelineSpec) -> Vec<Objection> {
    let Some(dead_letter) = &spec.dead_letter else { return Vec::new() };
    let mut found = Vec::new();
    if dead_letter.group_size.is_some() && dead_letter.queue_type == Some(QueueType::Classic) {
        found.push((
            "deadLetter.groupSize",
            "classic queues have no replicas: leave it out, or make the queues quorum",
        ));
    }
    let classic_retry = spec.retry.as_ref().and_then(|retry| retry.queue_type) == Some(QueueType::Classic);
    if dead_letter.max_length.is_some() && classic_retry {
        found.push((
            "deadLetter.maxLength",
            "classic retry queues lose what a full DLQ refuses: leave it out, or make them quorum",
        ));
    }
    let braces = |name: &str| name.replace("{queue}", "").contains(['{', '}']);
    if dead_letter.name.as_deref().is_some_and(braces) {
        found.push(("deadLetter.name", "only {queue} may stand in braces here"));
    }
    let headers = || dead_letter.quarantine.iter().flat_map(|entry| entry.headers.keys());
    if headers().any(|name| name == "x-match") {
        found.push((
            "deadLetter.quarantine",
            "x-match isn't a header but says how headers are matched: remove it (all of them must match)",
        ));
    }
    if headers().any(|name| name.is_empty() || name.len() > 127) {
        found.push(("deadLetter.quarantine", "a header's name has 1 to 127 characters"));
    }
    found
}
