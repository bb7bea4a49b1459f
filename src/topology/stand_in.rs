//! Queues that are known by their name, and stand-ins for them while they are made anew.
//!
//! Type and arguments of a queue can't be changed, and people know the DLQ, the quarantine
//! queues and the parking lot by name. So another queue, `Q.moving`, takes what comes in while
//! the messages of the old one are moved there; once that is proven empty it is deleted and
//! declared as wanted, the same happens the other way round, and the stand-in goes:
//!
//! ```text
//! chain -> Q (old)                     messages wait in Q
//! chain -> Q.moving    Q  ==> Q.moving the chain is switched in one step, then messages move
//! chain -> Q.moving                    Q is proven empty, and deleted
//! chain -> Q (new)     Q.moving ==> Q  the same way back
//! chain -> Q (new)                     Q.moving is proven empty, and deleted
//! ```
//!
//! Which of these is the present is read from what exists, so that an operator that was killed
//! goes on where it stopped, and an edit that is taken back returns.

use std::collections::BTreeMap;

use super::desired::{self, DesiredQueue, QueueRole};
use super::diff::{Mismatch, queue_mismatches};
use super::model::{Destination, ObjectKey, Queue};
use super::names;
use super::observed::{BrokerFacts, Observed};
use super::ownership::{Inventory, Standing, State, standing};
use super::plan::Move;
use super::validate::Pipeline;

/// An edit may come while the stand-in of the one before, which differs, still holds messages.
const CANDIDATES: u32 = 4;

/// Queues of a pipeline that are known by name, and what stands in for them now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StandIns(BTreeMap<String, String>);

impl StandIns {
    /// The name of the queue that is in use.
    #[must_use]
    pub fn in_use(&self, queue: &str) -> String {
        self.0.get(queue).map_or(queue, String::as_str).to_owned()
    }
}

/// The stand-ins that are needed.
pub(super) fn choose(
    pipeline: &Pipeline,
    facts: &BrokerFacts,
    observed: &Observed,
    inventory: &Inventory,
    edited: bool,
) -> StandIns {
    // Without a chain the source's own arguments say where dead letters go.
    if !pipeline.has_chain() {
        return StandIns::default();
    }
    let is_deletable = |queue: &str| is_deletable(pipeline, observed, inventory, queue);
    let needed = |queue: Queue| {
        let found = observed.queues.get(&queue.name)?;
        if !asks_for_another(&queue_mismatches(&queue, found)) || !is_deletable(&queue.name) {
            return None;
        }
        let candidates = || (1..=CANDIDATES).map(|number| names::stand_in(&queue.name, number));
        let fits = |name: &String| {
            observed.queues.get(name).is_some_and(|found| queue_mismatches(&queue, found).is_empty())
        };
        let under_way = candidates().any(|name| is_deletable(&name));
        let free = |name: &String| !observed.queues.contains_key(name);
        let chosen = candidates().find(fits).or_else(|| candidates().find(free))?;
        ((edited || under_way) && chosen.len() <= names::MAX_NAME_BYTES).then_some((queue.name, chosen))
    };
    StandIns(desired::holding_queues(pipeline, facts).into_iter().filter_map(needed).collect())
}

/// Whether a queue differs by what fields of the specification decide, and by nothing else.
fn asks_for_another(mismatches: &[Mismatch]) -> bool {
    let fields = ["x-queue-type", "x-quorum-initial-group-size", "x-message-ttl", "x-max-length"];
    let of_fields = || mismatches.iter().all(|found| fields.contains(&found.key.as_str()));
    // All other differences follow from the type's.
    mismatches.iter().any(|found| found.key == "x-queue-type") || (!mismatches.is_empty() && of_fields())
}

/// Whether a queue exists that we declared, and that nobody else owns.
fn is_deletable(pipeline: &Pipeline, observed: &Observed, inventory: &Inventory, queue: &str) -> bool {
    let recorded = inventory.get(&ObjectKey::Queue(queue.to_owned()));
    let object = Destination::Queue(queue.to_owned());
    observed.queues.contains_key(queue)
        && !observed.unavailable.contains(queue)
        && recorded.is_some_and(|record| record.state != State::Adopted)
        && matches!(
            standing(observed, &object, &pipeline.identity),
            Standing::Ours { adopted: false, others } if others.is_empty()
        )
}

/// Whether a queue of ours stands in for another, now or until it is proven empty.
pub(super) fn is_any(inventory: &Inventory) -> bool {
    inventory.keys().any(|key| matches!(key, ObjectKey::Queue(name) if names::stood_in_for(name).is_some()))
}

/// Where the messages of a queue go that is wanted no more: a holding queue's to the one that
/// holds them from now on. `None` for every other queue, which drains by itself or stays.
pub(super) fn destination(
    pipeline: &Pipeline,
    observed: &Observed,
    desired: &[DesiredQueue],
    queue: &str,
) -> Option<Move> {
    let found = observed.queues.get(queue)?;
    let ends_the_line = !found.arguments.contains_key("x-dead-letter-exchange");
    if !ends_the_line || queue == pipeline.spec.source.queue {
        return None;
    }
    let to = heir(desired, queue)?;
    observed.queues.contains_key(&to).then(|| Move { from: queue.to_owned(), to })
}

/// The wanted queue that is for the same as this one.
fn heir(desired: &[DesiredQueue], queue: &str) -> Option<String> {
    let base = names::stood_in_for(queue).unwrap_or(queue);
    let named = desired.iter().find(|wanted| {
        let name = wanted.queue.name.as_str();
        names::stood_in_for(name).unwrap_or(name) == base
    });
    let is_for = |role: &QueueRole| match (role, beside(base)) {
        (QueueRole::DeadLetter, None) => true,
        (QueueRole::Quarantine(category), Some(Beside::Quarantine(of))) => category == of,
        (QueueRole::ParkingLot, Some(Beside::Parking)) => true,
        _ => false,
    };
    // A quarantine or parking lot that nothing replaces keeps what people put there.
    let wanted = named.or_else(|| desired.iter().find(|wanted| is_for(&wanted.role)))?;
    Some(wanted.queue.name.clone())
}

/// What is declared beside a DLQ.
enum Beside<'a> {
    Quarantine(&'a str),
    Parking,
}

/// What a holding queue is, by its name; `None` for a DLQ.
fn beside(queue: &str) -> Option<Beside<'_>> {
    if queue.ends_with(".parking") {
        return Some(Beside::Parking);
    }
    let (_, category) = queue.rsplit_once(".quarantine.")?;
    Some(Beside::Quarantine(category))
}
