//! `redrive plan --capacity`: memory and disk of the retry tiers and the DLQ.
//!
//! Messages held are arrivals per second times the time that they stay (Little's
//! law). What a message costs comes from RabbitMQ's documentation of quorum queues
//! ("Resources that Quorum Queues Use"): at least 32 bytes of memory each, more with
//! a TTL, whatever its size; bodies are on disk, in a log that every member has.

use serde::Serialize;

use super::units::{Days, Percent, Rate, Size};
use crate::topology::model::QueueType;
use crate::topology::spec::Mode;
use crate::topology::validate::Pipeline;

/// Memory of a message in a quorum queue, as documented.
const MEMORY: f64 = 32.0;
/// The same with a TTL: "more", which we take as twice.
const MEMORY_WITH_TTL: f64 = 64.0;
/// Properties, headers and the log's own fields.
const OVERHEAD: f64 = 256.0;
/// What x-death grows by for each queue that a message died in: 7 KB after 32 tiers.
const DEATH: f64 = 220.0;
/// The broker's group size where none is given.
const REPLICAS: i64 = 3;
const DAY: f64 = 86_400.0;

/// What the pipeline has to carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) rate: Rate,
    pub(super) size: Size,
    pub(super) failures: Percent,
    pub(super) repeated_failures: Percent,
    pub(super) dlq_days: Option<Days>,
}

/// An estimate for one pipeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Capacity {
    load: ShownLoad,
    pub(super) rows: Vec<Row>,
    pub(super) total: Total,
    pub(super) assumptions: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownLoad {
    messages_per_second: f64,
    message_bytes: f64,
    failure_percent: f64,
    retry_failure_percent: f64,
}

/// One tier, or the DLQ.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    /// The queue, or the tier's shards together.
    pub(super) queue: String,
    pub(super) arrivals_per_second: f64,
    pub(super) held_seconds: f64,
    pub(super) messages: f64,
    /// Of one member of the queue.
    pub(super) memory_bytes: f64,
    /// Of one member of the queue.
    pub(super) disk_bytes: f64,
    pub(super) replicas: i64,
}

/// All queues with all their members.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Total {
    pub(super) messages: f64,
    pub(super) memory_bytes: f64,
    pub(super) disk_bytes: f64,
}

impl Capacity {
    /// Estimates what a pipeline needs under a load.
    pub(super) fn new(load: &Load, pipeline: &Pipeline) -> Self {
        let sizing = Sizing { load, pipeline };
        let mut rows = sizing.retries();
        rows.push(sizing.dlq());
        let sum = |part: fn(&Row) -> f64| rows.iter().map(part).sum();
        let total = Total {
            messages: sum(|row| row.messages),
            memory_bytes: sum(|row| row.memory_bytes * members(row)),
            disk_bytes: sum(|row| row.disk_bytes * members(row)),
        };
        let load = ShownLoad {
            messages_per_second: load.rate.0,
            message_bytes: load.size.0,
            failure_percent: load.failures.0,
            retry_failure_percent: load.repeated_failures.0,
        };
        Self { load, rows, total, assumptions: sizing.assumptions() }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a handful of members")]
fn members(row: &Row) -> f64 {
    row.replicas as f64
}

struct Sizing<'a> {
    load: &'a Load,
    pipeline: &'a Pipeline,
}

impl Sizing<'_> {
    /// Failures per second after so many retries.
    fn failing(&self, retries: usize) -> f64 {
        let again = self.load.repeated_failures.0 / 100.0;
        let retries = i32::try_from(retries).unwrap_or(i32::MAX);
        self.load.rate.0 * self.load.failures.0 / 100.0 * again.powi(retries)
    }

    fn retries(&self) -> Vec<Row> {
        let spec = &self.pipeline.spec;
        if let Mode::Native { min, max, attempts } = spec.mode {
            return vec![self.native(min, max, attempts)];
        }
        let tiers = self.pipeline.tiers.iter().enumerate();
        tiers
            .map(|(index, tier)| {
                let queue = match tier.shards.len() {
                    1 => tier.name.clone(),
                    shards => format!("{} ({shards} shards)", tier.name),
                };
                let kind = (spec.retry_type, spec.retry_group_size);
                self.row(queue, self.failing(index), seconds(tier.delay), index + 1, MEMORY_WITH_TTL, kind)
            })
            .collect()
    }

    /// In mode Native the work queue itself holds what waits.
    fn native(&self, min: i64, max: i64, attempts: i64) -> Row {
        let source = &self.pipeline.spec.source;
        let delay = |n: i64| seconds(min.saturating_mul(n).min(max));
        let attempts = usize::try_from(attempts).unwrap_or(0);
        let held: f64 = (0..attempts).zip(1..).map(|(index, n)| self.failing(index) * delay(n)).sum();
        let arrivals: f64 = (0..attempts).map(|index| self.failing(index)).sum();
        let mean = if arrivals > 0.0 { held / arrivals } else { 0.0 };
        let kind = (source.kind, source.group_size);
        self.row(format!("{} (delayed)", source.queue), arrivals, mean, 0, MEMORY_WITH_TTL, kind)
    }

    fn dlq(&self) -> Row {
        let dead_letter = &self.pipeline.spec.dead_letter;
        let retries = match self.pipeline.spec.mode {
            Mode::Native { attempts, .. } => usize::try_from(attempts).unwrap_or(0),
            _ => self.pipeline.tiers.len(),
        };
        let retention = dead_letter.retention.map(seconds);
        let wanted = self.load.dlq_days.map(|days| days.0 * DAY);
        // Whatever people plan to keep, the retention deletes.
        let held = match (wanted, retention) {
            (Some(wanted), Some(retention)) => wanted.min(retention),
            (Some(held), None) | (None, Some(held)) => held,
            (None, None) => DAY,
        };
        let memory = if retention.is_some() { MEMORY_WITH_TTL } else { MEMORY };
        let deaths = self.pipeline.tiers.len() + 1;
        let kind = (dead_letter.kind, dead_letter.group_size);
        let row = self.row(self.pipeline.dlq.clone(), self.failing(retries), held, deaths, memory, kind);
        match dead_letter.max_length {
            Some(most) => row.capped(most),
            None => row,
        }
    }

    fn row(
        &self,
        queue: String,
        arrivals: f64,
        held: f64,
        deaths: usize,
        memory: f64,
        (kind, group_size): (QueueType, Option<i64>),
    ) -> Row {
        let messages = arrivals * held;
        let deaths = f64::from(u32::try_from(deaths).unwrap_or(u32::MAX));
        let disk = self.load.size.0 + OVERHEAD + deaths * DEATH;
        let replicas = if kind == QueueType::Quorum { group_size.unwrap_or(REPLICAS) } else { 1 };
        Row {
            queue,
            arrivals_per_second: arrivals,
            held_seconds: held,
            messages,
            memory_bytes: messages * memory,
            disk_bytes: messages * disk,
            replicas,
        }
    }

    fn assumptions(&self) -> Vec<String> {
        let spec = &self.pipeline.spec;
        let mut found = vec![
            format!(
                "{} % of the messages fail at the first attempt, {} % of those that come back fail again, at every \
                 retry.",
                self.load.failures.0, self.load.repeated_failures.0
            ),
            "Messages held = arrivals per second × time held; a steady state, without peaks.".to_owned(),
            "Memory: 32 bytes a message in a quorum queue, whatever its size (RabbitMQ's documentation: \"at least\"), \
             taken as 64 where messages have a TTL or were returned. Besides, each node needs about 1.5 GiB for the \
             write-ahead log that all its quorum queues share (3 × 512 MiB)."
                .to_owned(),
            format!(
                "Disk: the message, {OVERHEAD:.0} bytes of properties and log, {DEATH:.0} bytes of x-death for each \
                 queue it died in; the log is compacted some time after messages leave, so plan for twice as much."
            ),
        ];
        let retries = match spec.mode {
            Mode::Native { .. } => (spec.source.kind, spec.source.group_size),
            _ => (spec.retry_type, spec.retry_group_size),
        };
        let holding = (spec.dead_letter.kind, spec.dead_letter.group_size);
        let unknown_size = (QueueType::Quorum, None);
        if holding == unknown_size || (spec.mode != Mode::None && retries == unknown_size) {
            found.push(format!(
                "Quorum queues without groupSize have {REPLICAS} members, on different nodes."
            ));
        }
        let forever = spec.dead_letter.retention.is_none() && self.load.dlq_days.is_none();
        if forever {
            found.push(format!(
                "Nothing leaves {} by itself: its line is the growth of one day. Give --dlq-days or a retention.",
                self.pipeline.dlq
            ));
        }
        if [spec.retry_type, spec.dead_letter.kind].contains(&QueueType::Classic) {
            found.push("Classic queues keep messages on disk and some in memory: take their memory as a rough guess.".to_owned());
        }
        found
    }
}

impl Row {
    /// No more than a queue takes.
    fn capped(self, most: i64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let share = most as f64 / self.messages;
        if share >= 1.0 || !share.is_finite() {
            return self;
        }
        Self {
            messages: self.messages * share,
            memory_bytes: self.memory_bytes * share,
            disk_bytes: self.disk_bytes * share,
            ..self
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "ten years of milliseconds are exact")]
fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}
