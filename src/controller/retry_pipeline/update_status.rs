//! The status of a pipeline: made from what was applied, written only when it differs.

#[cfg(test)]
mod size;

use kube::{Client, ResourceExt};
use serde_json::json;

use super::conditions::{self, Verdict};
use super::inventory;
use crate::api::{
    AuditLevel, Broker, ContractQueue, DetectionMode, Drift, DriftAction, DriftDetection, DriftFinding,
    Duration, Effective, EffectiveDeadLetter, EffectiveReplayPolicy, PendingPlan, PolicySettings, QueueDepth,
    QueueRole, QueueType, RetryMode, RetryPipeline, RetryPipelineStatus, Settings, TargetKind,
};
use crate::controller::api_server::WriteError;
use crate::controller::broker_events::Detection;
use crate::controller::lane::{Action, Finding, Maintain, Maintained};
use crate::controller::patch_status::{self, patch_status, set};
use crate::topology::desired::{DEFAULT_DELIVERY_LIMIT, QueueRole as TopologyRole};
use crate::topology::model::{Arg, Queue};
use crate::topology::ownership::Inventory;
use crate::topology::plan::Pending;
use crate::topology::spec::Settings as TopologySettings;
use crate::topology::validate::Pipeline;

/// Keys of the status that replays write, and that must not be overwritten.
const OF_REPLAYS: [&str; 2] = ["replays", "earlierReplays"];

/// Messages per 24 hours that need no approval where approval is required.
const WITHOUT_APPROVAL: i64 = 50;

/// The longest name of a broker's user, or list of them, in bytes.
pub(super) const MAX_USER: usize = 255;

/// The status after a look at the broker.
pub(crate) fn maintained(object: &RetryPipeline, task: &Maintain, found: &Maintained) -> RetryPipelineStatus {
    let mut status = object.status.clone().unwrap_or_default();
    judge(&mut status, object, conditions::of_maintained(found));
    status.observed_generation = object.metadata.generation;
    if found.is_applied() {
        status.applied_generation = object.metadata.generation;
    }
    status.broker_id = found.broker_id.clone().or(status.broker_id);
    status.cluster_uid = task.cluster_uid.clone().or(status.cluster_uid);
    // What can't be carried out is not in force.
    if found.is_applied() || status.effective.is_none() {
        status.effective = Some(effective(object, &task.pipeline));
        status.client_contract = found.contract.iter().map(contract).collect();
    }
    status.inventory = inventory::write(&found.inventory);
    status.queues = found.depths.iter().filter_map(depth).collect();
    status.pending_plan = found.pending.as_ref().map(pending_plan);
    // While it is being found out, what is said stays.
    status.drift_detection = found.detection.as_ref().map(detection).or(status.drift_detection);
    status.cleanup = None;
    status
}

fn pending_plan(pending: &Pending) -> PendingPlan {
    PendingPlan { hash: pending.hash.clone(), why: conditions::shortened(pending.why.clone()) }
}

/// Sets conditions.
pub(super) fn judge(status: &mut RetryPipelineStatus, object: &RetryPipeline, verdicts: Vec<Verdict>) {
    for verdict in verdicts {
        conditions::set(&mut status.conditions, verdict, object.metadata.generation);
    }
}

/// Whether a status differs from the resource's in more than a time.
pub(crate) fn differs(object: &RetryPipeline, next: &RetryPipelineStatus) -> bool {
    object.status.as_ref() != Some(next)
}

/// Whether the specification has been carried out before, so that every difference
/// from now on is drift.
pub(super) fn is_settled(object: &RetryPipeline) -> bool {
    let applied = object.status.as_ref().and_then(|status| status.applied_generation);
    applied.is_some() && applied == object.metadata.generation
}

/// Writes a status if it differs, and returns the resource as it is then; what
/// replays recorded stays untouched.
pub(super) async fn write(
    client: &Client,
    object: &RetryPipeline,
    next: &RetryPipelineStatus,
) -> Result<Option<RetryPipeline>, WriteError> {
    if !differs(object, next) {
        return Ok(None);
    }
    let before = object.status.clone().unwrap_or_default();
    let steps = patch_status::steps(&before, next, &OF_REPLAYS);
    // What exists was recorded as intended before.
    let exists = object.status.is_some() || !next.inventory.is_empty();
    patch_status(client, object, object.status.is_some(), steps, exists).await.map(Some)
}

/// Records what is about to be declared, before the first write on the broker.
pub(crate) async fn record_inventory(
    client: &Client,
    object: &RetryPipeline,
    inventory: &Inventory,
) -> Result<(), String> {
    let steps = vec![set("inventory", &json!(inventory::write(inventory)))];
    let has_status = object.status.is_some();
    patch_status(client, object, has_status, steps, has_status)
        .await
        .map(|_| ())
        .map_err(|error| format!("the inventory can't be recorded: {error}"))
}

fn effective(object: &RetryPipeline, pipeline: &Pipeline) -> Effective {
    let spec = &object.spec;
    let retry = spec.retry.as_ref();
    let mode = spec.mode();
    let source_type = spec.source.queue.queue_type();
    let counted = source_type == QueueType::Quorum && mode != RetryMode::Native;
    let jitter = retry.and_then(|retry| retry.jitter.as_ref()).filter(|_| pipeline.spec.mode.has_tiers());
    Effective {
        broker: match &spec.broker {
            Broker::ClusterRef(cluster) => {
                let namespace = cluster.namespace.clone().or_else(|| object.namespace()).unwrap_or_default();
                format!("cluster {namespace}/{}", cluster.name)
            }
            Broker::SecretRef(secret) => format!("secret {}", secret.name),
        },
        vhost: spec.vhost().to_owned(),
        ownership: spec.source.ownership(),
        source_type,
        delivery_limit: counted.then(|| spec.source.delivery_limit.unwrap_or(default_limit())),
        mode,
        steps: i32::try_from(pipeline.tiers.len()).unwrap_or(i32::MAX),
        delays: pipeline.tiers.iter().map(|tier| Duration::from_millis(tier.delay)).collect(),
        native: retry.and_then(|retry| retry.native.clone()).filter(|_| mode == RetryMode::Native),
        jitter_percent: jitter.map_or(0, |jitter| jitter.percent),
        shards: jitter.map_or(1, |jitter| jitter.shards),
        retry_type: retry.and_then(|retry| retry.queue_type).unwrap_or_default(),
        dead_letter: EffectiveDeadLetter {
            name: pipeline.dlq.clone(),
            type_: spec
                .dead_letter
                .as_ref()
                .and_then(|dead_letter| dead_letter.queue_type)
                .unwrap_or_default(),
            retention: spec.dead_letter.as_ref().and_then(|dead_letter| dead_letter.retention),
            max_length: pipeline.spec.dead_letter.max_length,
        },
        settings: match pipeline.spec.settings {
            TopologySettings::Arguments => Settings::Arguments {},
            TopologySettings::Policy { priority } => {
                Settings::Policy(PolicySettings { priority: i32::try_from(priority).ok() })
            }
        },
        replay_policy: replay_policy(object),
        drift_policy: spec.drift_policy(),
        deletion_policy: spec.deletion_policy(),
    }
}

fn default_limit() -> i32 {
    i32::try_from(DEFAULT_DELIVERY_LIMIT).unwrap_or(i32::MAX)
}

fn replay_policy(object: &RetryPipeline) -> EffectiveReplayPolicy {
    let policy = object.spec.replay_policy.clone().unwrap_or_default();
    let without_approval =
        policy.messages_without_approval.or(policy.require_approval.then_some(WITHOUT_APPROVAL));
    let targets = || vec![TargetKind::WorkQueue, TargetKind::Quarantine, TargetKind::ParkingLot];
    EffectiveReplayPolicy {
        require_approval: policy.require_approval,
        messages_without_approval: without_approval,
        max_rate: policy.max_rate.unwrap_or(100),
        allowed_targets: policy.allowed_targets.unwrap_or_else(targets),
        allow_body: policy.allow_body,
        audit: policy.audit.unwrap_or(AuditLevel::BestEffort),
    }
}

fn contract(queue: &Queue) -> ContractQueue {
    let value = |argument: &Arg| match argument {
        Arg::Bool(value) => json!(value),
        Arg::Int(value) => json!(value),
        Arg::Str(value) | Arg::Other(value) => json!(value),
    };
    let classic = queue.kind == crate::topology::model::QueueType::Classic;
    ContractQueue {
        name: queue.name.clone(),
        type_: if classic { QueueType::Classic } else { QueueType::Quorum },
        arguments: queue.arguments.iter().map(|(key, argument)| (key.clone(), value(argument))).collect(),
    }
}

fn depth((role, name, ready): &(TopologyRole, String, Option<i64>)) -> Option<QueueDepth> {
    let role = match role {
        TopologyRole::Source => QueueRole::Source,
        TopologyRole::Retry { .. } => QueueRole::Retry,
        TopologyRole::DeadLetter => QueueRole::DeadLetter,
        TopologyRole::Quarantine(_) => QueueRole::Quarantine,
        TopologyRole::ParkingLot => QueueRole::ParkingLot,
    };
    // A count that the broker leaves out is unknown, and not zero.
    ready.map(|ready| QueueDepth { role, name: name.clone(), ready })
}

fn detection(detection: &Detection) -> DriftDetection {
    match detection {
        Detection::Events => DriftDetection { mode: DetectionMode::Events, why: None },
        Detection::Polling(why) => {
            DriftDetection { mode: DetectionMode::Polling, why: Some(conditions::shortened(why.clone())) }
        }
    }
}

/// Counts findings that are news.
pub(super) fn drift(before: Option<Drift>, news: &[Finding]) -> Option<Drift> {
    let Some(last) = news.last() else { return before };
    let count = before.map_or(0, |drift| drift.count) + i64::try_from(news.len()).unwrap_or(0);
    let finding = DriftFinding {
        time: conditions::now(),
        object: conditions::shortened(last.object.clone()),
        what: conditions::shortened(last.what.clone()),
        by: last.by.clone().filter(|by| by.len() <= MAX_USER),
        action: match last.action {
            Action::Repaired => DriftAction::Repaired,
            Action::Reported => DriftAction::Reported,
            Action::Blocked => DriftAction::Blocked,
        },
    };
    Some(Drift { count, last: Some(finding) })
}
