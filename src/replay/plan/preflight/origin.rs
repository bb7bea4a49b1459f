//! What the origin queue has against being read.

use super::super::facts::{Facts, Kind, QueueFacts};
use super::{Asked, Findings, span};
use crate::topology::names;

pub(super) fn check(facts: &Facts, asked: &Asked, found: &mut Findings) {
    let name = &facts.origin;
    let Some(queue) = &facts.origin_queue else {
        let message =
            format!("there is no queue {name:?}: wait until the pipeline is Ready, or correct spec.from");
        return found.error("OriginMissing", message);
    };
    if !queue.available {
        let message = format!("the queue {name:?} does not answer: wait until its nodes are back");
        found.error("OriginUnavailable", message);
    }
    if queue.kind == Kind::Stream {
        let message = format!(
            "{name:?} is a stream, from which nothing can be moved: look at it with redrive inspect, and copy what you need"
        );
        return found.error("OriginIsStream", message);
    }
    check_reading(queue, found);
    check_holding(queue, found);
    check_consumers(queue, found);
    check_deadline(facts, queue, asked, found);
    if queue.ready == Some(0) {
        found.info("OriginEmpty", format!("the queue {name:?} is empty: there is nothing to move"));
    }
}

/// Whether reading and returning would destroy messages.
fn check_reading(queue: &QueueFacts, found: &mut Findings) {
    let name = &queue.name;
    let unlimited = queue.delivery_limit.is_some_and(|limit| limit < 0);
    if queue.kind == Kind::Quorum && !unlimited {
        let limit =
            queue.delivery_limit.map_or("the broker's default of 20".to_owned(), |limit| limit.to_string());
        let message = format!(
            "the queue {name:?} gives messages up after {limit} deliveries, so that reading would destroy them: let the pipeline set its delivery-limit to -1, and remove what overrides that"
        );
        found.error("OriginDeliveryLimit", message);
    }
    if queue.exclusive {
        let message = format!(
            "the queue {name:?} belongs to one connection: nobody else can read it, so close that connection"
        );
        found.error("OriginExclusive", message);
    }
    if queue.single_active_consumer {
        let message = format!(
            "the queue {name:?} has a single active consumer, behind which a replay would wait for ever: declare it without x-single-active-consumer"
        );
        found.error("OriginSingleActiveConsumer", message);
    }
}

/// Whether messages could go while they are held, or when they come back.
fn check_holding(queue: &QueueFacts, found: &mut Findings) {
    let name = &queue.name;
    let limited = queue.max_length.is_some() || queue.max_length_bytes.is_some();
    if limited && !queue.rejects {
        let message = format!(
            "the queue {name:?} drops its oldest messages when it is full, also those that come back from reading: set overflow to reject-publish, or remove its limit"
        );
        found.error("OriginDropsHead", message);
    }
    if let Some(ttl) = queue.message_ttl {
        let message = format!(
            "messages leave the queue {name:?} after {}, moved or not: replay well before that, or raise deadLetter.retention",
            names::duration(ttl)
        );
        found.info("OriginExpires", message);
    }
}

fn check_consumers(queue: &QueueFacts, found: &mut Findings) {
    if let Some(consumers) = queue.consumers.filter(|count| *count > 0) {
        let message = format!(
            "somebody else reads the queue {:?} ({consumers} consumers), and takes messages that the plan counts: stop them during the replay",
            queue.name
        );
        found.warning("OriginHasConsumers", message);
    }
}

/// A run that may last longer than the broker lets it hold messages reads more than once.
fn check_deadline(facts: &Facts, queue: &QueueFacts, asked: &Asked, found: &mut Findings) {
    let Some(longest) = facts.hold().filter(|longest| asked.deadline >= *longest) else { return };
    let message = format!(
        "the broker takes messages of {:?} back that are held for {}: so in half that time the run returns what it holds, and reads the queue again",
        queue.name,
        span(longest)
    );
    found.info("ConsumerTimeout", message);
}
