//! What the users of a pipeline must know, as far as it concerns this one.

use serde::Serialize;

use super::compare::foreign_exchanges;
use crate::api::{DriftPolicy, RetryPipelineSpec};
use crate::cli::units::span;
use crate::topology::desired::{DEFAULT_DELIVERY_LIMIT, Desired, delivery_limit};
use crate::topology::diff::at_most_once_queues;
use crate::topology::model::QueueType;
use crate::topology::names;
use crate::topology::observed::{BrokerFacts, Observed};
use crate::topology::spec::{Mode, Ownership, Settings};
use crate::topology::validate::Pipeline;

/// Within this time 99.9 % of valid messages ought to be processed.
const OBJECTIVE: i64 = 30 * 60_000;

/// Something to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Note {
    pub(super) level: Level,
    /// What it is about; stable, for programs.
    pub(super) topic: &'static str,
    pub(super) text: String,
}

/// How urgent it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Info,
    Warning,
}

/// Everything that notes are made of.
pub(super) struct Circumstances<'a> {
    pub(super) pipeline: &'a Pipeline,
    pub(super) spec: &'a RetryPipelineSpec,
    pub(super) facts: &'a BrokerFacts,
    pub(super) desired: &'a Desired,
    /// `None` where no broker was asked.
    pub(super) observed: Option<&'a Observed>,
}

/// All notes that fit: how to use the pipeline first, then what to beware of.
pub(super) fn notes(circumstances: &Circumstances<'_>) -> Vec<Note> {
    let mut notes = Notes { circumstances, found: Vec::new() };
    notes.failure();
    notes.permanent_failure();
    notes.requeues();
    notes.limit();
    notes.delays();
    notes.queue_types();
    notes.dead_letters();
    notes.source();
    notes.operator();
    notes.found
}

struct Notes<'a> {
    circumstances: &'a Circumstances<'a>,
    found: Vec<Note>,
}

impl<'a> Notes<'a> {
    fn info(&mut self, topic: &'static str, text: impl Into<String>) {
        self.found.push(Note { level: Level::Info, topic, text: text.into() });
    }

    fn warn(&mut self, topic: &'static str, text: impl Into<String>) {
        self.found.push(Note { level: Level::Warning, topic, text: text.into() });
    }

    fn pipeline(&self) -> &'a Pipeline {
        self.circumstances.pipeline
    }

    fn counts_across_queues(&self) -> bool {
        self.circumstances.facts.counts_deliveries_across_queues()
    }

    /// How a consumer says that a message failed, and what happens then.
    fn failure(&mut self) {
        let pipeline = self.pipeline();
        let (source, dlq) = (&pipeline.spec.source.queue, &pipeline.dlq);
        let delays: Vec<String> = pipeline.tiers.iter().map(|tier| span(tier.delay)).collect();
        let delays = delays.join(", ");
        let text = match pipeline.spec.mode {
            Mode::Broker => format!(
                "To fail a message, consumers of {source} use basic.reject or basic.nack with requeue=false (AMQP \
                 1.0: rejected). It comes back after {delays}, and goes to {dlq} when it fails after that."
            ),
            Mode::Application => {
                let tiers: Vec<&str> = pipeline.tiers.iter().map(|tier| tier.name.as_str()).collect();
                format!(
                    "To fail a message, the client publishes it through the default exchange to {} (in this order, \
                     with the delays {delays}) and acknowledges it; basic.reject with requeue=false sends it to {dlq} \
                     at once. The client counts the attempts.",
                    tiers.join(", ")
                )
            }
            Mode::Native { min, max, attempts } => format!(
                "To fail a message, consumers of {source} use basic.reject with requeue=true. The n-th retry waits n \
                 times {}, at most {}; when it fails after {attempts} retries it goes to {dlq}. basic.nack with requeue=true is \
                 not counted: the message comes back at once, for ever.",
                span(min),
                span(max)
            ),
            Mode::None => format!(
                "A message that a consumer of {source} rejects with requeue=false goes to {dlq} at once: there are \
                 no retries."
            ),
        };
        self.info("failure", text);
    }

    fn permanent_failure(&mut self) {
        let pipeline = self.pipeline();
        let dlq = &pipeline.dlq;
        let categories = &pipeline.spec.dead_letter.quarantine;
        let quarantine = if categories.is_empty() { "" } else { " or a quarantine queue" };
        let mut text = format!(
            "A failure that no retry can help: publish the message to {dlq}{quarantine}, then acknowledge it."
        );
        if pipeline.has_chain() {
            text.push_str(
                " AMQP 1.0: settle as modified with undeliverable-here and the annotation x-opt-redrive: dead.",
            );
            text.push_str(
                " That annotation and all x-redrive-* headers are reserved, and any producer can set them: trust \
                 nothing on their word.",
            );
        }
        self.info("permanent-failure", text);
        for category in categories {
            let reasons = category.reasons.join(" or ");
            let headers: Vec<String> =
                category.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            let conditions: Vec<String> =
                [reasons, headers.join(", ")].into_iter().filter(|text| !text.is_empty()).collect();
            let queue = pipeline.names().quarantine(&category.name);
            self.info("quarantine", format!("Dead letters with {} go to {queue}.", conditions.join(" and ")));
        }
        if pipeline.spec.mode == Mode::Application && categories.is_empty() {
            self.info(
                "replay",
                "A replay with onFailure: DeadLetter is refused here, since the client decides where a failed \
                 message goes.",
            );
        }
    }

    /// Which returns count, and which loop for ever.
    fn requeues(&mut self) {
        let spec = &self.pipeline().spec;
        if spec.source.kind != QueueType::Quorum || matches!(spec.mode, Mode::Native { .. }) {
            return;
        }
        if self.counts_across_queues() {
            self.info(
                "requeue",
                "Don't requeue. reject with requeue=true, crashes and closed channels count towards the delivery \
                 limit; nack with requeue=true, recover, released, and modified without delivery-failed do not, and \
                 such a message comes back at once, for ever.",
            );
        } else {
            self.info(
                "requeue",
                "Don't requeue: every requeue, crash and closed channel counts towards the delivery limit, and the \
                 message comes back at once.",
            );
        }
        self.info(
            "prefetch",
            "Keep the prefetch small: a consumer that crashes counts against every message it had fetched.",
        );
    }

    /// The delivery limit as it is derived.
    fn limit(&mut self) {
        let pipeline = self.pipeline();
        let source = &pipeline.spec.source;
        if source.kind != QueueType::Quorum || matches!(pipeline.spec.mode, Mode::Native { .. }) {
            return;
        }
        let per_stay = source.delivery_limit.unwrap_or(DEFAULT_DELIVERY_LIMIT);
        let set = delivery_limit(pipeline, self.circumstances.facts).unwrap_or(DEFAULT_DELIVERY_LIMIT);
        let tiers = pipeline.tiers.len();
        let text = if set == per_stay {
            format!("Delivery limit: {per_stay} crashes or requeues at each stay in {}.", source.queue)
        } else {
            format!(
                "Delivery limit: {set} for the whole walk = {per_stay} crashes or requeues at each of {} stays in {}, \
                 and {tiers} rejections. One count follows a message from queue to queue.",
                tiers + 1,
                source.queue
            )
        };
        self.info("delivery-limit", text);
    }

    /// The delays against the objective of 30 minutes.
    fn delays(&mut self) {
        let pipeline = self.pipeline();
        let total = match pipeline.spec.mode {
            Mode::None => return,
            Mode::Native { min, max, attempts } => {
                (1..=attempts).fold(0_i64, |sum, n| sum.saturating_add(min.saturating_mul(n).min(max)))
            }
            Mode::Broker | Mode::Application => {
                let longest =
                    |shards: &[crate::topology::validate::Shard]| shards.iter().map(|shard| shard.ttl).max();
                pipeline
                    .tiers
                    .iter()
                    .fold(0_i64, |sum, tier| sum.saturating_add(longest(&tier.shards).unwrap_or(tier.delay)))
            }
        };
        let sum = span(total);
        if total >= OBJECTIVE {
            self.warn(
                "delays",
                format!(
                    "The delays sum to {sum}. With them a message that needs all retries misses the objective of 30m \
                     (99.9 % of valid messages): shorten or drop some."
                ),
            );
        } else if total * 2 > OBJECTIVE {
            self.warn(
                "delays",
                format!(
                    "The delays sum to {sum}, more than half of the objective of 30m (99.9 % of valid messages): \
                     little is left for queueing and processing."
                ),
            );
        } else {
            self.info(
                "delays",
                format!(
                    "The delays sum to {sum}, well under the objective of 30m (99.9 % of valid messages)."
                ),
            );
        }
    }

    fn queue_types(&mut self) {
        let classic = at_most_once_queues(self.circumstances.desired).join(", ");
        let spec = &self.pipeline().spec;
        if !classic.is_empty() {
            self.warn(
                "at-most-once",
                format!(
                    "Classic queues dead-letter at most once and have one copy: a restart at the wrong moment or a \
                     missing exchange loses messages, and the condition AtLeastOnce will be False. They are {classic}."
                ),
            );
        }
        if spec.mode.has_tiers() && spec.retry_type == QueueType::Quorum && !self.counts_across_queues() {
            self.warn(
                "priorities",
                "Don't publish with priorities: in quorum retry queues on RabbitMQ 4.0 high priorities starve the low \
                 ones.",
            );
        }
    }

    fn dead_letters(&mut self) {
        let pipeline = self.pipeline();
        let dead_letter = &pipeline.spec.dead_letter;
        let dlq = &pipeline.dlq;
        if let Some(retention) = dead_letter.retention {
            self.info(
                "retention",
                format!(
                    "Messages in {dlq} are deleted after {}, replayed or not.",
                    names::duration(retention)
                ),
            );
        }
        match dead_letter.max_length {
            Some(most) => self.warn(
                "max-length",
                format!(
                    "{dlq} refuses more than {most} messages. When it is full, 32 waiting dead letters stop all \
                     dead-lettering of {}, and after room is made it takes up to 3m to go on: alert at 80 %.",
                    pipeline.spec.source.queue
                ),
            ),
            None if dead_letter.retention.is_none() => {
                self.info("growth", format!("Nothing leaves {dlq} by itself: watch its length."));
            }
            None => {}
        }
    }

    fn source(&mut self) {
        let pipeline = self.pipeline();
        let source = &pipeline.spec.source;
        let name = &source.queue;
        if source.ownership == Ownership::External {
            let exists = if self.circumstances.observed.is_none() {
                " Assumed here: it exists, without a policy of its own."
            } else {
                ""
            };
            self.info(
                "external",
                format!(
                    "{name} is declared by its application, as a {} queue without x-dead-letter arguments.{exists}",
                    source.kind
                ),
            );
        }
        let foreign: Vec<&str> = foreign_exchanges(pipeline).into_iter().collect();
        if self.circumstances.observed.is_none() && !foreign.is_empty() {
            self.info(
                "assumed",
                format!("Assumed here: others have declared the exchange {}.", foreign.join(", ")),
            );
        }
        if let Some(most) = source.max_length {
            self.warn(
                "max-length",
                format!("{name} refuses more than {most} messages: publishers must use confirms, and returning retries wait."),
            );
        }
        if let Some(ttl) = source.message_ttl {
            self.warn(
                "message-ttl",
                format!(
                    "Messages that wait in {name} for {} go to {}, unprocessed.",
                    names::duration(ttl),
                    pipeline.dlq
                ),
            );
        }
        if pipeline.spec.mode == Mode::Broker && pipeline.tiers.iter().any(|tier| tier.shards.len() > 1) {
            self.info("plugin", "The jitter needs the plugin rabbitmq_random_exchange on every node.");
        }
        if pipeline.spec.mode == Mode::Application && pipeline.tiers.iter().any(|tier| tier.shards.len() > 1)
        {
            self.info(
                "jitter",
                "The client picks one of the shards (.s0, .s1, …) of a retry queue at each retry.",
            );
        }
        if pipeline.spec.settings == Settings::Arguments {
            self.info("arguments", "Limits and retention are queue arguments here: they can't be changed later without new queues.");
        }
    }

    /// What the operator would make of it.
    fn operator(&mut self) {
        let spec = self.circumstances.spec;
        if spec.suspend {
            self.warn(
                "suspend",
                "The pipeline is suspended: the operator writes nothing until suspend is false.",
            );
        }
        if spec.drift_policy() == DriftPolicy::Report {
            self.info(
                "drift-policy",
                "With driftPolicy: Report the operator reports later differences and leaves them.",
            );
        }
        if self.circumstances.observed.is_some_and(|observed| observed.operator_policies.is_none()) {
            self.warn(
                "operator-policies",
                "This user may not read operator policies: a dangerous one would not show here.",
            );
        }
    }
}
