//! The numbers of resources, read from what the operator knows at the moment of a scrape.

mod convergence;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Weak;
use std::time::UNIX_EPOCH;

use kube::ResourceExt;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::MetricType;

pub(crate) use convergence::Convergence;

use super::Context;
use super::lane::numbers::Numbers;
use super::retry_pipeline::DriftNumbers;
use crate::api::{Condition, DlqReplay, ProgressState, ReplayTo, RetryPipeline, TargetKind};
use crate::ops::metrics::family;
use crate::topology::desired::QueueRole;

/// Tells of all resources that a controller looks after.
pub(super) struct Resources(pub(super) Weak<Context>);

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resources")
    }
}

/// Labels in the order in which they are written.
#[derive(Clone, Debug)]
struct Labels(Vec<(&'static str, String)>);

impl Labels {
    fn with<const N: usize>(&self, more: [(&'static str, String); N]) -> Self {
        Self(self.0.iter().cloned().chain(more).collect())
    }
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.0.as_slice().encode(encoder)
    }
}

/// A family's name, help and values.
struct Gathered {
    help: &'static str,
    kind: MetricType,
    values: Vec<(Labels, f64)>,
}

/// Families by name; each must be written in one piece, whatever order they come in.
#[derive(Default)]
struct Families(BTreeMap<&'static str, Gathered>);

impl Families {
    fn add(&mut self, name: &'static str, help: &'static str, labels: Labels, value: f64) {
        self.push(MetricType::Gauge, name, help, labels, value);
    }

    fn count(&mut self, name: &'static str, help: &'static str, labels: Labels, value: i64) {
        self.push(MetricType::Counter, name, help, labels, value as f64);
    }

    fn push(&mut self, kind: MetricType, name: &'static str, help: &'static str, labels: Labels, value: f64) {
        let family = self.0.entry(name).or_insert(Gathered { help, kind, values: Vec::new() });
        family.values.push((labels, value));
    }

    fn encode(self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        for (name, Gathered { help, kind, values }) in self.0 {
            family(encoder, kind, name, help, values)?;
        }
        Ok(())
    }
}

impl Collector for Resources {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Some(context) = self.0.upgrade() else { return Ok(()) };
        let mut families = Families::default();
        let numbers = context.lanes.numbers();
        for object in context.store.state() {
            if let Ok(pipeline) = &object.0 {
                let uid = pipeline.metadata.uid.as_deref().unwrap_or_default();
                families.pipeline(pipeline, context.reported.drift(uid));
                let vhost = pipeline.spec.vhost();
                let labels = of_pipeline(pipeline).with([("vhost", vhost.to_owned())]);
                numbers.of(uid, |numbers| families.queue(&labels, numbers));
            }
        }
        for object in context.replays.all() {
            if let Ok(replay) = &object.0 {
                let owner = context.owner_of(replay);
                families.replay(replay, owner);
            }
        }
        for ((broker, vhost), up) in numbers.up() {
            let labels = Labels(vec![("broker", broker), ("vhost", vhost)]);
            families.add("redrive_broker_up", "Whether the last look at a vhost succeeded", labels, flag(up));
        }
        for (broker, connected) in context.lanes.listening() {
            let labels = Labels(vec![("broker", broker)]);
            let help = "Whether the events of a broker are heard";
            families.add("redrive_broker_events_connected", help, labels, flag(connected));
        }
        families.encode(&mut encoder)
    }
}

impl Context {
    /// The team of a replay's pipeline.
    fn owner_of(&self, replay: &DlqReplay) -> String {
        let namespace = replay.namespace().unwrap_or_default();
        let name = &replay.spec.pipeline_ref.name;
        let pipeline = self.store.get(&kube::runtime::reflector::ObjectRef::new(name).within(&namespace));
        let owner = pipeline.and_then(|pipeline| pipeline.0.as_ref().ok().map(owner));
        owner.unwrap_or_default()
    }
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn owner(pipeline: &RetryPipeline) -> String {
    pipeline.spec.owner.as_ref().and_then(|owner| owner.team.clone()).unwrap_or_default()
}

fn of_pipeline(pipeline: &RetryPipeline) -> Labels {
    Labels(vec![
        ("resource_namespace", pipeline.namespace().unwrap_or_default()),
        ("pipeline", pipeline.name_any()),
        ("owner", owner(pipeline)),
    ])
}

fn target_name(target: TargetKind) -> &'static str {
    match target {
        TargetKind::WorkQueue => "work-queue",
        TargetKind::Origin => "origin",
        TargetKind::Quarantine => "quarantine",
        TargetKind::ParkingLot => "parking-lot",
        TargetKind::Queue => "queue",
        TargetKind::Exchange => "exchange",
        TargetKind::Discard => "discard",
    }
}

fn role(role: &QueueRole) -> &'static str {
    match role {
        QueueRole::Source => "source",
        QueueRole::Retry { .. } => "retry",
        QueueRole::DeadLetter => "dlq",
        QueueRole::Quarantine(_) => "quarantine",
        QueueRole::ParkingLot => "parking-lot",
    }
}

impl Families {
    fn pipeline(&mut self, pipeline: &RetryPipeline, drift: DriftNumbers) {
        let labels = of_pipeline(pipeline);
        let Some(status) = &pipeline.status else { return };
        let text = |text: &str| text.to_owned();
        let effective = status.effective.as_ref();
        let info = labels.with([
            ("broker", effective.map(|effective| effective.broker.clone()).unwrap_or_default()),
            ("vhost", text(pipeline.spec.vhost())),
            ("source", text(&pipeline.spec.source.queue.name)),
            ("mode", format!("{:?}", pipeline.spec.mode())),
        ]);
        self.add("redrive_pipeline_info", "A RetryPipeline", info, 1.0);
        let help = "Each condition of a RetryPipeline with its present status";
        self.conditions("redrive_pipeline_condition", help, &labels, &status.conditions);
        let help = "What differs on the broker at present";
        self.add("redrive_pipeline_drift_findings", help, labels.clone(), drift.open as f64);
        let help = "What was put right on the broker";
        self.count("redrive_pipeline_drift_corrections", help, labels, drift.repaired);
    }

    fn conditions(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &Labels,
        conditions: &[Condition],
    ) {
        for condition in conditions {
            let labels = labels.with([
                ("type", condition.type_.clone()),
                ("status", condition.status.clone()),
                ("reason", condition.reason.clone()),
            ]);
            self.add(name, help, labels, 1.0);
        }
    }

    fn queue(&mut self, labels: &Labels, numbers: &Numbers) {
        let Numbers { name, role: of, delay, max_length, totals, dead_lettering, consumers, filled } =
            numbers;
        let labels = labels.with([("queue", name.clone()), ("role", role(of).to_owned())]);
        let filled = filled.and_then(|filled| filled.duration_since(UNIX_EPOCH).ok());
        let float = |value: Option<i64>| value.map(|value| value as f64);
        let values = [
            ("redrive_queue_messages", "Messages in a queue, wherever in it", float(totals.messages)),
            ("redrive_queue_messages_ready", "Messages that are ready", float(totals.ready)),
            (
                "redrive_queue_messages_unacknowledged",
                "Messages that consumers hold",
                float(totals.unacknowledged),
            ),
            (
                "redrive_queue_messages_dead_lettering",
                "Dead letters on their way out of a queue",
                totals.messages.and(Some(*dead_lettering as f64)),
            ),
            ("redrive_queue_consumers", "Consumers of a queue", consumers.map(|count| count as f64)),
            ("redrive_queue_max_messages", "The most messages that a queue takes", float(*max_length)),
            (
                "redrive_queue_delay_seconds",
                "How long a retry queue keeps a message",
                delay.map(|delay| delay.as_secs_f64()),
            ),
            (
                "redrive_queue_nonempty_since_timestamp_seconds",
                "Since which look a queue was never seen empty",
                filled.map(|filled| filled.as_secs_f64()),
            ),
        ];
        for (name, help, value) in values {
            if let Some(value) = value {
                self.add(name, help, labels.clone(), value);
            }
        }
    }

    fn replay(&mut self, replay: &DlqReplay, owner: String) {
        let labels = Labels(vec![
            ("resource_namespace", replay.namespace().unwrap_or_default()),
            ("replay", replay.name_any()),
            ("pipeline", replay.spec.pipeline_ref.name.clone()),
            ("owner", owner),
        ]);
        let Some(status) = &replay.status else { return };
        let target = replay.spec.to.as_ref().map_or(TargetKind::WorkQueue, ReplayTo::kind);
        let target = target_name(target).to_owned();
        self.add("redrive_replay_info", "A DlqReplay", labels.with([("target", target)]), 1.0);
        let help = "Each condition of a DlqReplay with its present status";
        self.conditions("redrive_replay_condition", help, &labels, &status.conditions);
        if let Some(succeeded) = status.conditions.iter().find(|condition| condition.type_ == "Succeeded") {
            let labels = labels.with([("phase", succeeded.reason.clone())]);
            self.add("redrive_replay_phase", "Where a DlqReplay is", labels, 1.0);
        }
        if let Some(plan) = &status.plan {
            let help = "Messages that the plan of a DlqReplay selects";
            self.add("redrive_replay_expected_messages", help, labels.clone(), plan.matching as f64);
        }
        let Some(progress) = &status.progress else { return };
        let outcomes = [
            ("replayed", progress.replayed),
            ("failed", progress.failed),
            ("unroutable", progress.unroutable),
            ("nacked", progress.nacked),
            ("quarantined", progress.quarantined),
            ("unmovable", progress.unmovable),
            ("skipped", progress.skipped),
        ];
        for (outcome, count) in outcomes {
            let labels = labels.with([("outcome", outcome.to_owned())]);
            self.count(
                "redrive_replay_messages",
                "Messages of a DlqReplay, by what came of them",
                labels,
                count,
            );
        }
        if let Some(state) = progress.state.filter(|_| status.summary.is_none()) {
            let state = match state {
                ProgressState::Running => "closed",
                ProgressState::Paused => "open",
                ProgressState::Canary => "half-open",
            };
            let labels = labels.with([("state", state.to_owned())]);
            let help = "The breaker of a DlqReplay: closed while messages move, half-open for a few";
            self.add("redrive_replay_breaker_state", help, labels, 1.0);
        }
    }
}
