//! Where a run reads and where it publishes, by the pipeline's names.

use super::super::{ReplayFrom, ReplayTo};
use super::add;
use crate::api::{ReplayPolicy, TargetKind};
use crate::replay::run::Target;
use crate::topology::names;
use crate::topology::pipeline::Pipeline;
use crate::topology::validate::Problem;

/// Where replays may move messages to if the pipeline says nothing.
const DEFAULT_TARGETS: [TargetKind; 3] =
    [TargetKind::WorkQueue, TargetKind::Quarantine, TargetKind::ParkingLot];

/// The queue that is read, or nothing and a problem.
pub(super) fn origin(from: &ReplayFrom, pipeline: &Pipeline, problems: &mut Vec<Problem>) -> Option<String> {
    match from {
        ReplayFrom::DeadLetter {} => Some(pipeline.dlq.clone()),
        ReplayFrom::Quarantine(of) => {
            quarantine("from.quarantine.category", &of.category, pipeline, problems)
        }
        ReplayFrom::ParkingLot {} => parking_lot("from.parkingLot", pipeline, problems),
    }
}

/// Where messages go, or nothing and a problem.
pub(super) fn target(
    to: &ReplayTo,
    origin: Option<&str>,
    pipeline: &Pipeline,
    policy: &ReplayPolicy,
    problems: &mut Vec<Problem>,
) -> Option<Target> {
    check_allowed(to, policy, problems);
    let (field, queue) = match to {
        ReplayTo::WorkQueue {} => ("to.workQueue", Some(pipeline.spec.source.queue.clone())),
        ReplayTo::Quarantine(of) => {
            ("to.quarantine", quarantine("to.quarantine.category", &of.category, pipeline, problems))
        }
        ReplayTo::ParkingLot {} => ("to.parkingLot", parking_lot("to.parkingLot", pipeline, problems)),
        ReplayTo::Queue(queue) => {
            ("to.queue.name", named("to.queue.name", "the queue", &queue.name, problems))
        }
        ReplayTo::Exchange(exchange) => return to_exchange(&exchange.name, &exchange.routing_key, problems),
        ReplayTo::Origin {} => return Some(Target::Origin { exchanges: exchanges(pipeline) }),
        ReplayTo::Discard {} => return Some(Target::Discard),
    };
    let queue = queue?;
    if origin == Some(&queue) {
        let message =
            format!("{queue:?} is the queue that is read: choose another target, or another spec.from");
        add(problems, field, message);
    }
    Some(Target::Queue(queue))
}

fn check_allowed(to: &ReplayTo, policy: &ReplayPolicy, problems: &mut Vec<Problem>) {
    let allowed = policy.allowed_targets.as_deref().unwrap_or(&DEFAULT_TARGETS);
    let kind = to.kind();
    if allowed.contains(&kind) {
        return;
    }
    let names: Vec<String> = allowed.iter().map(|kind| format!("{kind:?}")).collect();
    let allowed = if names.is_empty() { "no target at all".to_owned() } else { names.join(", ") };
    let message = format!(
        "the pipeline allows {allowed} and not {kind:?}: choose what it allows, or add {kind:?} to replayPolicy.allowedTargets in the RetryPipeline"
    );
    add(problems, "to", message);
}

fn to_exchange(name: &str, routing_key: &str, problems: &mut Vec<Problem>) -> Option<Target> {
    let name = named("to.exchange.name", "the exchange", name, problems)?;
    if routing_key.len() > names::MAX_NAME_BYTES {
        let message = format!("has {} bytes: at most 255 are allowed, so shorten it", routing_key.len());
        add(problems, "to.exchange.routingKey", message);
    }
    Some(Target::Exchange { name, routing_key: routing_key.to_owned() })
}

fn named(field: &str, what: &str, name: &str, problems: &mut Vec<Problem>) -> Option<String> {
    match names::problem(what, name) {
        Some(message) => {
            add(problems, field, message);
            None
        }
        None => Some(name.to_owned()),
    }
}

fn quarantine(
    field: &str,
    category: &str,
    pipeline: &Pipeline,
    problems: &mut Vec<Problem>,
) -> Option<String> {
    let known: Vec<&str> = pipeline.quarantine_categories().collect();
    if known.contains(&category) {
        return Some(pipeline.names().quarantine(category));
    }
    let there_are = if known.is_empty() {
        "the pipeline has no quarantine: add the category to deadLetter.quarantine in the RetryPipeline"
            .to_owned()
    } else {
        format!("the pipeline has no such category: write one of {}", known.join(", "))
    };
    add(problems, field, format!("{category:?}: {there_are}"));
    None
}

fn parking_lot(field: &str, pipeline: &Pipeline, problems: &mut Vec<Problem>) -> Option<String> {
    if pipeline.spec.dead_letter.parking_lot {
        return Some(pipeline.names().parking_lot());
    }
    let message = "the pipeline has no parking lot: set deadLetter.parkingLot in the RetryPipeline, or choose another queue";
    add(problems, field, message);
    None
}

/// The exchanges that a message may go back to: the source's own, and those bound to it.
fn exchanges(pipeline: &Pipeline) -> Vec<String> {
    let source = &pipeline.spec.source;
    let own = source.exchange.iter().map(|exchange| &exchange.name);
    let bound = source.bindings.iter().map(|binding| &binding.exchange);
    let mut exchanges: Vec<String> = own.chain(bound).filter(|name| !name.is_empty()).cloned().collect();
    exchanges.sort();
    exchanges.dedup();
    exchanges
}
