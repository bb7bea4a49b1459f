//! Flags to a manifest. Pure: neither the cluster nor a clock is asked.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::Arguments;
use super::flags::{Direction, Header, Place};
use crate::api::{
    Canary, Category, DeathReason, DlqReplay, DlqReplaySpec, Expiration, Guard, Idempotency, OnFailure, Pace,
    PipelineRef, Ramp, ReplayFrom, ReplayTo, Selection, TargetExchange, TargetQueue, Time,
};

/// The longest name of a DlqReplay.
const MAX_NAME: usize = 63;

/// What makes a justification long enough, in characters.
const MIN_JUSTIFICATION: usize = 10;

/// The manifest that the flags ask for, or what to write instead.
pub(super) fn manifest(arguments: &Arguments, now: Timestamp) -> Result<DlqReplay, String> {
    let justification = arguments.justification.trim();
    if justification.chars().count() < MIN_JUSTIFICATION {
        return Err(
            "--justification: say in 10 characters or more why it is right to replay now, such as which \
                    fix is deployed"
                .to_owned(),
        );
    }
    let spec = DlqReplaySpec {
        pipeline_ref: PipelineRef { name: arguments.pipeline.clone() },
        from: arguments.from.clone().map(from).transpose()?,
        to: arguments.to.clone().map(|place| to(place, arguments.to_key.as_deref())).transpose()?,
        select: given(selection(arguments)?),
        pace: given(pace(arguments)),
        guard: given(guard(arguments)),
        on_failure: arguments.retry_failures.then_some(OnFailure::Retry),
        expiration: arguments.keep_expiration.then_some(Expiration::Keep),
        max_replays_per_message: arguments.max_replays_per_message,
        idempotency: arguments
            .idempotency_header
            .clone()
            .map(|header| Idempotency { header, generate: arguments.idempotency_generate }),
        allow_fanout: arguments.allow_fanout,
        dry_run: arguments.dry_run,
        justification: justification.to_owned(),
        requested_by: None,
        approval: None,
        not_before: arguments.not_before.map(Time),
        deadline: arguments.deadline,
        suspend: arguments.suspend,
        cancel: false,
        ttl_after_finished: arguments.ttl,
    };
    if arguments.to_key.is_some() && !matches!(spec.to, Some(ReplayTo::Exchange(_))) {
        return Err("--to-key goes with --to exchange:NAME alone".to_owned());
    }
    let name = arguments.name.clone().unwrap_or_else(|| generated(&arguments.pipeline, now));
    let mut manifest = DlqReplay::new(&name, spec);
    manifest.metadata.namespace.clone_from(&arguments.cluster.namespace);
    Ok(manifest)
}

/// A name that says which pipeline and when, to the second: `orders-20261129-220000`.
fn generated(pipeline: &str, now: Timestamp) -> String {
    let when = now.strftime("%Y%m%d-%H%M%S").to_string();
    let room = MAX_NAME - when.len() - 1;
    let short: String = pipeline.chars().take(room).collect();
    format!("{}-{when}", short.trim_end_matches(['-', '.']))
}

/// The part, if the flags give any of it.
fn given<T: Default + PartialEq>(part: T) -> Option<T> {
    (part != T::default()).then_some(part)
}

fn from(place: Place) -> Result<ReplayFrom, String> {
    match place {
        Place::DeadLetter => Ok(ReplayFrom::DeadLetter {}),
        Place::Quarantine(category) => Ok(ReplayFrom::Quarantine(Category { category })),
        Place::ParkingLot => Ok(ReplayFrom::ParkingLot {}),
        other => Err(other.no_place(Direction::From)),
    }
}

fn to(place: Place, key: Option<&str>) -> Result<ReplayTo, String> {
    match place {
        Place::WorkQueue => Ok(ReplayTo::WorkQueue {}),
        Place::Origin => Ok(ReplayTo::Origin {}),
        Place::Quarantine(category) => Ok(ReplayTo::Quarantine(Category { category })),
        Place::ParkingLot => Ok(ReplayTo::ParkingLot {}),
        Place::Queue(name) => Ok(ReplayTo::Queue(TargetQueue { name })),
        Place::Exchange(name) => {
            Ok(ReplayTo::Exchange(TargetExchange { name, routing_key: key.unwrap_or_default().to_owned() }))
        }
        Place::Discard => Ok(ReplayTo::Discard {}),
        other => Err(other.no_place(Direction::To)),
    }
}

fn selection(arguments: &Arguments) -> Result<Selection, String> {
    let mut headers = BTreeMap::new();
    for Header { name, value } in &arguments.headers {
        if headers.insert(name.clone(), value.clone()).is_some() {
            return Err(format!(
                "--header {name} stands there twice: a message must fit all headers, so keep one, or write an \
                 --expression"
            ));
        }
    }
    let reasons: Vec<DeathReason> = arguments.reasons.iter().map(|reason| reason.0).collect();
    Ok(Selection {
        headers,
        reasons,
        first_death_queues: arguments.first_death_queues.clone(),
        routing_keys: arguments.routing_keys.clone(),
        message_ids: arguments.message_ids.clone(),
        older_than: arguments.older_than,
        newer_than: arguments.newer_than,
        expression: arguments.expression.clone(),
        limit: arguments.limit,
        scan_limit: arguments.scan_limit,
    })
}

fn pace(arguments: &Arguments) -> Pace {
    Pace {
        messages_per_second: arguments.rate,
        batch: arguments.batch,
        pause_between_batches: arguments.pause,
        ramp: arguments.ramp_from.map(|from| Ramp {
            from,
            every: arguments.ramp_every,
            factor: arguments.ramp_factor,
        }),
        window: arguments.window,
    }
}

fn guard(arguments: &Arguments) -> Guard {
    Guard {
        stop_on_return_percent: arguments.stop_on_return_percent,
        sample: arguments.sample,
        min_returns: arguments.min_returns,
        canary: given(Canary {
            messages: arguments.canary_messages,
            after: arguments.canary_after,
            tries: arguments.canary_tries,
        }),
        pause_above_target_depth: arguments.pause_above_target_depth,
        require_consumers: arguments.without_consumers.then_some(false),
        max_unroutable: arguments.max_unroutable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_which_pipeline_and_when() {
        let now: Timestamp = "2026-11-29T22:00:05Z".parse().unwrap();
        assert_eq!(generated("orders", now), "orders-20261129-220005");
        let long = generated(&format!("{}.b", "a".repeat(46)), now);
        assert_eq!(long, format!("{}-20261129-220005", "a".repeat(46)));
        assert!(generated(&"a".repeat(63), now).len() <= MAX_NAME);
    }
}
