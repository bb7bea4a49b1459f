//! Every name that a pipeline can ever declare is short enough and stands for one thing.
//!
//! Later generations of a retry queue or chain get names of their own, so those
//! are looked at as well: a DLQ called `orders.retry.0.g2` would be in the way of
//! the second generation of `orders.retry.0`.

use std::collections::BTreeMap;

use super::names;
use super::pipeline::{Pipeline, Tier};
use super::problem::Problem;

/// Bytes that names keep free for the suffix of a generation and a shard.
const SUFFIX_ROOM: &str = ".g9999.s63";

pub(super) fn check_names(pipeline: &Pipeline, problems: &mut Vec<Problem>) {
    let queues = queue_names(pipeline);
    let exchanges = exchange_names(pipeline);
    queues.check("queue", problems);
    exchanges.check("exchange", problems);
    check_generations(pipeline, &queues, problems);
    check_reserved(pipeline, problems);
}

fn queue_names(pipeline: &Pipeline) -> Uses {
    let names = pipeline.names();
    let mut queues = Uses::default();
    queues.add("source.queue.name", pipeline.spec.source.queue.clone(), false);
    queues.add("deadLetter.name", pipeline.dlq.clone(), false);
    for category in pipeline.quarantine_categories() {
        queues.add("deadLetter.quarantine", names.quarantine(category), false);
    }
    if pipeline.spec.dead_letter.parking_lot {
        queues.add("deadLetter.parkingLot", names.parking_lot(), false);
    }
    for tier in &pipeline.tiers {
        queues.add("retry.naming.template", tier.name.clone(), true);
    }
    queues
}

fn exchange_names(pipeline: &Pipeline) -> Uses {
    let names = pipeline.names();
    let mut exchanges = Uses::default();
    if let Some(exchange) = &pipeline.spec.source.exchange {
        exchanges.add("source.exchange.name", exchange.name.clone(), false);
    }
    if pipeline.has_chain() {
        let chain = [names.rest(), names.dead(), names.ladder(), names.guard(), names.first()];
        for name in chain {
            exchanges.add("source.queue.name", name, true);
        }
        for name in [names.head(), names.alternate(), names.fallback()] {
            exchanges.add("source.queue.name", name, false);
        }
        for category in &pipeline.spec.dead_letter.quarantine {
            exchanges.add("deadLetter.quarantine", names.category(&category.name), true);
        }
        for tier in &pipeline.tiers {
            exchanges.add("source.queue.name", names.returns(tier.number), false);
            exchanges.add("retry.naming.template", tier.spreader(1), true);
        }
    }
    exchanges
}

/// No queue may have a name that a later generation of a retry queue will take.
fn check_generations(pipeline: &Pipeline, queues: &Uses, problems: &mut Vec<Problem>) {
    for tier in &pipeline.tiers {
        for (name, uses) in &queues.0 {
            if *name != tier.name && tier_generation_of(tier, name).is_some() {
                problems.push(Problem {
                    field: uses.fields[0].to_owned(),
                    message: format!(
                        "the queue name {name:?} is kept for a later generation or shard of {:?}: choose another name or template",
                        tier.name
                    ),
                });
            }
        }
    }
}

/// The user's exchange, and those that messages come from, are not the chain's.
fn check_reserved(pipeline: &Pipeline, problems: &mut Vec<Problem>) {
    let source = &pipeline.spec.source;
    let declared = source.exchange.iter().map(|exchange| ("source.exchange.name".to_owned(), &exchange.name));
    let bound = source.bindings.iter().enumerate();
    let bound = bound.map(|(index, binding)| (format!("source.bindings[{index}]"), &binding.exchange));
    for (field, name) in declared.chain(bound) {
        if is_internal(pipeline, name) {
            let message =
                format!("the exchange {name:?} is kept for this pipeline's own routing: use another name");
            problems.push(Problem { field, message });
        }
    }
}

/// Whether an exchange's name is kept for the pipeline's own routing: the chain, the way
/// back, and what spreads messages over shards.
pub(super) fn is_internal(pipeline: &Pipeline, exchange: &str) -> bool {
    let spreads = |tier: &Tier| {
        exchange.strip_suffix(".shards").is_some_and(|queue| tier_generation_of(tier, queue).is_some())
    };
    pipeline.names().is_reserved(exchange) || pipeline.tiers.iter().any(spreads)
}

/// The generation that a queue of a tier belongs to, by its name.
pub(super) fn tier_generation_of(tier: &Tier, queue: &str) -> Option<u32> {
    let unsharded = queue
        .rsplit_once(".s")
        .filter(|(_, number)| number.parse::<u32>().is_ok())
        .map_or(queue, |(base, _)| base);
    // A queue without shards may itself end in ".s1", so try the whole name first.
    names::generation_of(&tier.name, queue).or_else(|| names::generation_of(&tier.name, unsharded))
}

#[derive(Default)]
struct Uses(BTreeMap<String, Use>);

#[derive(Default)]
struct Use {
    fields: Vec<&'static str>,
    has_generations: bool,
}

impl Uses {
    fn add(&mut self, field: &'static str, name: String, has_generations: bool) {
        let entry = self.0.entry(name).or_default();
        entry.fields.push(field);
        entry.has_generations |= has_generations;
    }

    fn check(&self, kind: &str, problems: &mut Vec<Problem>) {
        for (name, Use { fields, has_generations }) in &self.0 {
            let mut add = |message| problems.push(Problem { field: fields[0].to_owned(), message });
            if fields.len() > 1 {
                add(format!(
                    "{} things would be called {kind} {name:?}: choose other names or a template with {{attempt}}",
                    fields.len()
                ));
            }
            let room = if *has_generations { SUFFIX_ROOM.len() } else { 0 };
            if let Some(message) = names::declared_problem(&format!("the {kind} name"), name) {
                add(message);
            } else if names::stood_in_for(name).is_some() {
                add(format!(
                    "the {kind} name {name:?} is kept for what stands in for another {kind} while that is made anew: use a name without \".moving\" at its end"
                ));
            } else if name.len() + room > names::MAX_NAME_BYTES {
                add(format!(
                    "the {kind} name {name:?} has {} bytes, and {room} more must stay free for later generations: at most {} are allowed, so shorten the queue's name or the template",
                    name.len(),
                    names::MAX_NAME_BYTES
                ));
            }
        }
    }
}
