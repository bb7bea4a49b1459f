//! The rules that the API server checks at admission, and what it says when one is broken.
//!
//! Each message says what to write instead. A rule stands on the object that holds all the fields
//! it compares, so that adding or removing an optional field is seen as well. What needs the
//! broker, or what templates and backoffs expand to, is checked by the controller.

use serde_json::{Value, json};

use super::schema;

/// Both kinds: names end up in names on the broker and of worker Jobs.
pub(super) const OBJECT_NAME: (&str, &str) =
    ("self.metadata.name.size() <= 63", "metadata.name is longer than 63 characters: shorten it");

/// CEL for "is this queue classic", where a queue without a type is quorum.
macro_rules! classic {
    ($owner:literal, $field:literal) => {
        concat!("(has(", $owner, ".", $field, ") && ", $owner, ".", $field, " == 'classic')")
    };
}

/// CEL for "this optional field is what it was", where leaving it out means the default.
macro_rules! unchanged {
    ($path:literal, $default:literal) => {
        concat!(
            "(has(self.",
            $path,
            ") ? self.",
            $path,
            " : ",
            $default,
            ") == ",
            "(has(oldSelf.",
            $path,
            ") ? oldSelf.",
            $path,
            " : ",
            $default,
            ")"
        )
    };
}

/// CEL for "this block is absent, or one of its fields isn't set".
macro_rules! unset {
    ($block:literal, $field:literal) => {
        concat!("(!has(self.", $block, ") || !has(self.", $block, ".", $field, "))")
    };
}

/// Rules over the whole spec of a RetryPipeline.
pub(super) fn retry_pipeline() -> Value {
    let mut all = schema::rules(&PIPELINE_IMMUTABLE);
    if let (Value::Array(all), Value::Array(more)) = (&mut all, schema::rules(&PIPELINE)) {
        all.extend(more);
    }
    all
}

const PIPELINE_IMMUTABLE: [(&str, &str); 6] = [
    ("self.broker == oldSelf.broker", "broker is immutable: create a new RetryPipeline for another broker"),
    (unchanged!("vhost", "'/'"), "vhost is immutable: create a new RetryPipeline in the other vhost"),
    (
        "self.source.queue.name == oldSelf.source.queue.name",
        "source.queue.name is immutable: create a new RetryPipeline for another queue",
    ),
    (
        unchanged!("source.queue.type", "'quorum'"),
        "source.queue.type is immutable: create a new RetryPipeline with another queue name",
    ),
    (
        unchanged!("source.queue.singleActiveConsumer", "false"),
        "source.queue.singleActiveConsumer is fixed once declared: create a new RetryPipeline with another queue name",
    ),
    (
        unchanged!("source.queue.groupSize", "0"),
        "source.queue.groupSize is fixed once declared: create a new RetryPipeline with another queue name",
    ),
];

const PIPELINE: [(&str, &str); 10] = [
    (
        concat!("!has(self.source.deliveryLimit) || !", classic!("self.source.queue", "type")),
        "classic queues have no delivery limit: leave out source.deliveryLimit, or make the queue quorum",
    ),
    (
        concat!("!has(self.source.queue.groupSize) || !", classic!("self.source.queue", "type")),
        "classic queues have no replicas: leave out source.queue.groupSize, or make the queue quorum",
    ),
    (
        "!has(self.source.ownership) || self.source.ownership != 'External' || !has(self.settings) || !has(self.settings.arguments)",
        "an External queue's arguments belong to its application: use settings.policy",
    ),
    (
        "!has(self.source.ownership) || self.source.ownership != 'External' || !(has(self.source.queue.singleActiveConsumer) && self.source.queue.singleActiveConsumer || has(self.source.queue.groupSize))",
        "an External queue is declared by its application: leave out singleActiveConsumer and groupSize",
    ),
    (
        "!has(self.mergePolicy) || !self.mergePolicy || (has(self.source.ownership) && self.source.ownership == 'External')",
        "mergePolicy is for an External source: leave it out",
    ),
    (
        concat!(
            "!has(self.deadLetter) || !has(self.deadLetter.maxLength) || !(",
            classic!("self.source.queue", "type"),
            " || has(self.retry) && ",
            classic!("self.retry", "queueType"),
            ")"
        ),
        "classic queues lose what a full dead-letter queue refuses: leave out deadLetter.maxLength, or make source and retry queues quorum",
    ),
    (
        concat!(
            "!has(self.retry) || !has(self.retry.mode) || self.retry.mode != 'Native' || !",
            classic!("self.source.queue", "type")
        ),
        "mode Native needs a quorum queue: set source.queue.type to quorum, or use mode Broker",
    ),
    (
        "!has(self.retry) || !has(self.retry.mode) || self.retry.mode != 'Native' || !has(self.source.deliveryLimit)",
        "in mode Native retry.native.attempts sets the delivery limit: leave out source.deliveryLimit",
    ),
    (
        // The controller compares the names themselves; this is the slip that is easily made.
        concat!(
            unset!("deadLetter", "name"),
            " || self.deadLetter.name != '{queue}' && self.deadLetter.name != self.source.queue.name"
        ),
        "the dead-letter queue has the work queue's name: give deadLetter.name another one, such as {queue}.dlq",
    ),
    (
        "!has(self.deleteAdopted) || !self.deleteAdopted || (has(self.adopt) && self.adopt)",
        "deleteAdopted means nothing without adopt: set adopt as well, or leave it out",
    ),
];

/// Rules over `spec.retry`.
pub(super) fn retry() -> Value {
    schema::rules(&[
        ("!has(self.delays) || !has(self.backoff)", "delays and backoff exclude each other: keep one"),
        (
            "!has(self.delays) || self.delays.size() > 0 || (has(self.mode) && self.mode == 'Application')",
            "delays is empty: list at least one, or choose mode None, or Application if the client never retries",
        ),
        (
            "!has(self.naming) || !has(self.naming.template) || self.naming.template.contains('{attempt}') || self.naming.template.contains('{delay}') || (has(self.delays) && self.delays.size() < 2)",
            "all retry queues would have the same name: put {attempt} or {delay} into naming.template",
        ),
        (
            "!has(self.jitter) || (has(self.delays) ? self.delays.size() : has(self.backoff) ? self.backoff.steps : 4) * self.jitter.shards <= 64",
            "retries times jitter.shards is more than 64 queues: take fewer retries or fewer shards",
        ),
        (
            "has(self.native) == (has(self.mode) && self.mode == 'Native')",
            "mode Native needs native with min, max and attempts, and no other mode takes it",
        ),
        (
            "!has(self.mode) || self.mode != 'Native' || !(has(self.delays) || has(self.backoff))",
            "mode Native has no list of delays: use native.min, native.max and native.attempts instead",
        ),
        (
            "!has(self.mode) || self.mode != 'Native' || !(has(self.jitter) || has(self.naming) || has(self.queueType) || has(self.groupSize))",
            "mode Native has no retry queues: leave out jitter, naming, queueType and groupSize",
        ),
        (
            "!has(self.mode) || self.mode != 'None' || !(has(self.delays) || has(self.backoff) || has(self.jitter) || has(self.naming) || has(self.queueType) || has(self.groupSize))",
            "mode None has no retries: leave out everything else below retry, or choose another mode",
        ),
        (
            concat!("!has(self.groupSize) || !", classic!("self", "queueType")),
            "classic queues have no replicas: leave out retry.groupSize, or make the queues quorum",
        ),
    ])
}

/// Rules over `spec.retry.backoff`.
pub(super) fn backoff() -> Value {
    schema::rules(&[(
        "!has(self.max) || self.max >= self.initial",
        "backoff.max is shorter than backoff.initial: make it longer",
    )])
}

/// Rules over `spec.retry.native`.
pub(super) fn native() -> Value {
    schema::rules(&[("self.max >= self.min", "native.max is shorter than native.min: make it longer")])
}

/// Rules over `spec.deadLetter`.
pub(super) fn dead_letter() -> Value {
    schema::rules(&[(
        concat!("!has(self.groupSize) || !", classic!("self", "queueType")),
        "classic queues have no replicas: leave out deadLetter.groupSize, or make the queues quorum",
    )])
}

/// Rules over `spec.deadLetter.quarantine`.
pub(super) fn quarantine() -> Value {
    schema::rules(&[(
        "self.all(one, self.exists_one(other, other.category == one.category))",
        "a category stands in quarantine twice: give each entry a category of its own",
    )])
}

/// Rules over one entry of `spec.deadLetter.quarantine`.
pub(super) fn quarantine_entry() -> Value {
    schema::rules(&[
        (
            "self.category != 'replay-limit'",
            "the category replay-limit is reserved for messages that were replayed too often: choose another name",
        ),
        (
            "has(self.reasons) && self.reasons.size() > 0 || has(self.headers) && self.headers.size() > 0",
            "the entry matches nothing: give reasons, headers or both",
        ),
    ])
}

/// Rules over `spec.source.bindings`.
pub(super) fn bindings() -> Value {
    schema::rules(&[(
        "self.all(one, self.exists_one(other, other.exchange == one.exchange && (has(other.routingKey) ? other.routingKey : '') == (has(one.routingKey) ? one.routingKey : '')))",
        "a binding is listed twice: remove one",
    )])
}

/// Rules over `spec.select` of a DlqReplay.
pub(super) fn select() -> Value {
    schema::rules(&[(
        "!has(self.olderThan) || !has(self.newerThan) || self.olderThan < self.newerThan",
        "nothing is both older than olderThan and newer than newerThan: make newerThan the longer one",
    )])
}

/// The fields of a DlqReplay that never change and may be left out.
const REPLAY_IMMUTABLE: [&str; 14] = [
    "from",
    "to",
    "select",
    "onFailure",
    "expiration",
    "maxReplaysPerMessage",
    "idempotency",
    "allowFanout",
    "dryRun",
    "requestedBy",
    "notBefore",
    "deadline",
    "ttlAfterFinished",
    // Required, but compared in the same way.
    "justification",
];

/// Rules over the whole spec of a DlqReplay.
pub(super) fn dlq_replay() -> Value {
    let unchanged: Vec<String> = REPLAY_IMMUTABLE
        .iter()
        .map(|field| {
            format!(
                "(has(self.{field}) ? has(oldSelf.{field}) && self.{field} == oldSelf.{field} : !has(oldSelf.{field}))"
            )
        })
        .collect();
    let unchanged = format!("self.pipelineRef == oldSelf.pipelineRef && {}", unchanged.join(" && "));
    json!([
        {
            "rule": unchanged,
            "message": "only suspend, cancel, pace, guard and approval may change: create a new DlqReplay for anything else",
        },
        {
            // On an update there is an old object; at creation there is none.
            "rule": "oldSelf.hasValue() || !has(self.approval)",
            "message": "a DlqReplay can't be created with its approval: leave it out, and let a second person add it to the plan",
            "optionalOldSelf": true,
        },
        {
            "rule": "!has(oldSelf.approval) || (has(self.approval) && self.approval == oldSelf.approval)",
            "message": "an approval never changes once set: set cancel, and create a new DlqReplay",
        },
        {
            "rule": "!has(self.approval) || !has(self.requestedBy) || self.approval.approvedBy != self.requestedBy",
            "message": "nobody approves what they asked for themselves: let a second person approve",
        },
        {
            "rule": "!has(oldSelf.cancel) || !oldSelf.cancel || (has(self.cancel) && self.cancel)",
            "message": "a cancelled replay never runs again: create a new DlqReplay",
        },
        {
            "rule": "!(has(self.from) && has(self.to)) || !(has(self.from.parkingLot) && has(self.to.parkingLot))",
            "message": "from and to are the same queue: choose another target",
        },
        {
            "rule": "!(has(self.from) && has(self.to)) || !(has(self.from.quarantine) && has(self.to.quarantine)) || self.from.quarantine.category != self.to.quarantine.category",
            "message": "from and to are the same queue: choose another target",
        },
    ])
}
