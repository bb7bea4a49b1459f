//! What the target has against being published to.

use super::super::facts::{ExchangeFacts, Facts, QueueFacts, Routes, TargetFacts};
use super::super::survey::Summary;
use super::{Asked, Findings};
use crate::replay::run::Guard;
use crate::topology::names;

/// Queues that a sentence names.
const NAMED: usize = 5;

pub(super) fn check(
    facts: &Facts,
    asked: &Asked,
    guard: &Guard,
    summary: Option<&Summary>,
    found: &mut Findings,
) {
    match &facts.target {
        TargetFacts::Queue(name, None) => {
            let message =
                format!("there is no queue {name:?}: correct spec.to; nothing is ever created for a replay");
            found.error("TargetMissing", message);
        }
        TargetFacts::Exchange(name, exchange, routes) => {
            check_exchange(name, exchange.as_ref(), routes, found)
        }
        TargetFacts::Origin(exchanges) => check_origins(exchanges, found),
        TargetFacts::Queue(..) | TargetFacts::Discard => {}
    }
    check_fanout(facts, asked, found);
    for queue in facts.target.reached() {
        check_queue(queue, guard, summary, found);
    }
    check_limit_queue(facts, found);
    if !facts.alarms.is_empty() && facts.target != TargetFacts::Discard {
        let message = format!(
            "the broker takes no publishes at present ({}): the replay waits until the alarm is over",
            facts.alarms.join(", ")
        );
        found.warning("BrokerAlarm", message);
    }
}

fn check_exchange(name: &str, exchange: Option<&ExchangeFacts>, routes: &Routes, found: &mut Findings) {
    let Some(exchange) = exchange else {
        let message =
            format!("there is no exchange {name:?}: correct spec.to; nothing is ever created for a replay");
        return found.error("TargetMissing", message);
    };
    check_alternate(exchange, found);
    if exchange.internal {
        let message =
            format!("the exchange {name:?} is internal and takes no publishes: name another one in spec.to");
        found.error("TargetInternal", message);
    }
    if let Some(why) = &routes.unknown {
        let message = format!(
            "which queues the exchange {name:?} reaches can't be told beforehand ({why}): try it with select.limit 1 first"
        );
        found.warning("RoutesUnknown", message);
    } else if routes.queues.is_empty() {
        let message = format!(
            "no queue is bound to the exchange {name:?} for this routing key, so that nothing would arrive: bind one, or correct spec.to"
        );
        found.error("TargetUnroutable", message);
    }
}

fn check_origins(exchanges: &[ExchangeFacts], found: &mut Findings) {
    if exchanges.is_empty() {
        let message = "none of the exchanges exists that are bound to the source or listed in the pipeline: use to.workQueue";
        found.error("TargetMissing", message);
    }
    exchanges.iter().for_each(|exchange| check_alternate(exchange, found));
}

fn check_alternate(exchange: &ExchangeFacts, found: &mut Findings) {
    if let Some(alternate) = &exchange.alternate {
        let message = format!(
            "what the exchange {:?} can't route goes to {alternate:?} and counts as moved: remove its alternate exchange, or make sure that every key is bound",
            exchange.name
        );
        found.warning("TargetAlternateExchange", message);
    }
}

fn check_fanout(facts: &Facts, asked: &Asked, found: &mut Findings) {
    let routes = facts.target.routes();
    if routes.contains(&facts.origin) {
        let message = format!(
            "the target leads back into {:?}, from which it is read, so that it would never end: correct spec.to",
            facts.origin
        );
        found.error("TargetIsOrigin", message);
    }
    if routes.len() < 2 {
        return;
    }
    let named: Vec<&str> = routes.iter().take(NAMED).map(String::as_str).collect();
    let more = if routes.len() > NAMED { ", …" } else { "" };
    let reached = format!("the target reaches {} queues ({}{more})", routes.len(), named.join(", "));
    if asked.allow_fanout {
        found.info(
            "TargetFanout",
            format!("{reached}, as allowFanout permits: each gets a copy of every message"),
        );
    } else {
        let message = format!(
            "{reached}, and each would get a copy: use to.queue, or set allowFanout if you want that"
        );
        found.error("TargetFanout", message);
    }
}

fn check_queue(queue: &QueueFacts, guard: &Guard, summary: Option<&Summary>, found: &mut Findings) {
    let name = &queue.name;
    if !queue.available {
        found.error(
            "TargetUnavailable",
            format!("the queue {name:?} does not answer: wait until its nodes are back"),
        );
    }
    if queue.consumers == Some(0) && guard.require_consumers {
        let message = format!(
            "nobody consumes from {name:?}: the replay waits for a consumer, so start one, or set guard.requireConsumers to false"
        );
        found.warning("TargetNoConsumers", message);
    }
    check_length(queue, summary, found);
    if let Some(ttl) = queue.message_ttl {
        let message = format!(
            "messages leave {name:?} after {} whether anybody took them or not: make sure that its consumers keep up",
            names::duration(ttl)
        );
        found.warning("TargetExpires", message);
    }
    if let (Some(most), Some(ready)) = (guard.pause_above_target_depth, queue.ready)
        && ready > most
    {
        let message = format!(
            "{name:?} holds more than guard.pauseAboveTargetDepth ({most}) already: the replay waits until it is worked off"
        );
        found.warning("TargetDepth", message);
    }
}

fn check_length(queue: &QueueFacts, summary: Option<&Summary>, found: &mut Findings) {
    let name = &queue.name;
    if queue.max_length.is_none() && queue.max_length_bytes.is_none() {
        return;
    }
    if !queue.rejects {
        let message = format!(
            "{name:?} has a limit and drops its oldest messages when it is full, confirmed or not: set overflow to reject-publish, or guard.pauseAboveTargetDepth below the limit"
        );
        return found.warning("TargetDropsHead", message);
    }
    let (Some(most), Some(ready)) = (queue.max_length.and_then(|most| u64::try_from(most).ok()), queue.ready)
    else {
        return;
    };
    if ready >= most {
        let message = format!(
            "{name:?} is full ({most} messages) and refuses more: let its consumers work it off first"
        );
        found.warning("TargetFull", message);
    } else if summary.is_some_and(|summary| ready + summary.matching > most) {
        let message = format!(
            "{name:?} takes {most} messages at most, which is less than what would come: the replay waits whenever it is full, so keep the rate below that of its consumers"
        );
        found.warning("TargetFills", message);
    }
}

fn check_limit_queue(facts: &Facts, found: &mut Findings) {
    if let Some((name, None)) = &facts.limit_queue {
        let message = format!(
            "there is no queue {name:?} for messages that were replayed too often: wait until the pipeline is Ready"
        );
        found.error("LimitQueueMissing", message);
    }
}
