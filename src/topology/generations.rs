//! Which generation of each retry queue and of the chain to use, and what stands in for others.
//!
//! What can't be changed in place is built beside the old one under a new name,
//! and the old one goes when it is drained. The choice is made afresh each time
//! from what exists, so that an operator that was killed at any point goes on
//! where it stopped, and a reverted edit returns to what is still there.

use std::collections::{BTreeMap, BTreeSet};

use super::desired::{self, Desired};
use super::diff::{exchange_mismatches, queue_mismatches};
use super::model::{Arg, Binding, Destination, ObjectKey};
use super::names;
use super::observed::{BrokerFacts, Observed, ObservedQueue};
use super::ownership::{Inventory, standing};
use super::plan::Stage;
use super::spec::Mode;
use super::stand_in::{self, StandIns};
use super::uses;
use super::validate::{Pipeline, Tier};

/// The generations in use; one that is not named is the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generations {
    /// By the tier's number.
    pub tiers: BTreeMap<u32, u32>,
    /// Of the chain of exchanges.
    pub chain: u32,
    /// Numbers of removed tiers whose messages may still be on their way.
    pub retired: BTreeSet<u32>,
    /// What stands in for queues that are known by name.
    pub stand_ins: StandIns,
}

impl Default for Generations {
    fn default() -> Self {
        Self { tiers: BTreeMap::new(), chain: 1, retired: BTreeSet::new(), stand_ins: StandIns::default() }
    }
}

impl Generations {
    /// The generation of a tier.
    #[must_use]
    pub fn tier(&self, number: u32) -> u32 {
        self.tiers.get(&number).copied().unwrap_or(1)
    }
}

/// Chooses generations by what exists.
#[must_use]
pub fn choose(
    pipeline: &Pipeline,
    facts: &BrokerFacts,
    observed: &Observed,
    inventory: &Inventory,
    edited: bool,
) -> Generations {
    let mut generations = Generations {
        retired: retired(pipeline, observed, inventory),
        stand_ins: stand_in::choose(pipeline, facts, observed, inventory, edited),
        ..Generations::default()
    };
    // In mode Application the client knows the names, so they must stay.
    if pipeline.spec.mode == Mode::Broker {
        for tier in &pipeline.tiers {
            generations.tiers.insert(tier.number, tier_generation(pipeline, tier, observed, inventory));
        }
    }
    if pipeline.has_chain() {
        generations.chain = chain_generation(pipeline, facts, observed, inventory, &generations);
    }
    generations
}

/// The generation whose queues are as wanted, best the one that exists.
fn tier_generation(pipeline: &Pipeline, tier: &Tier, observed: &Observed, inventory: &Inventory) -> u32 {
    let known = known_tier_queues(pipeline, tier, observed, inventory);
    let wanted = |generation| tier.shards.iter().map(move |shard| (tier.queue(generation, shard), shard.ttl));
    let fits = |generation: u32, queues: &BTreeSet<&str>| {
        let names: BTreeSet<String> = wanted(generation).map(|(name, _)| name).collect();
        queues.iter().all(|queue| names.contains(*queue))
            && wanted(generation).all(|(name, ttl)| {
                let found = observed.queues.get(&name);
                let queue = desired::retry_queue(pipeline, tier, name, ttl);
                found.is_none_or(|found| queue_mismatches(&queue, found).is_empty())
            })
    };
    let existing =
        |generation| wanted(generation).filter(|(name, _)| observed.queues.contains_key(name)).count();
    known
        .iter()
        .filter(|(generation, queues)| fits(**generation, queues))
        .map(|(generation, _)| (existing(*generation), *generation))
        .max()
        .map_or_else(|| fresh(&known, |generation| existing(generation) > 0), |(_, generation)| generation)
}

/// The first generation that is neither known nor in the way of anything. Names
/// of generations that are gone are used again, so that they stay short.
fn fresh<T>(known: &BTreeMap<u32, T>, exists: impl Fn(u32) -> bool) -> u32 {
    // At first, what is in the way must be reported and not be passed over.
    if known.is_empty() {
        return 1;
    }
    (1..=u32::MAX)
        .find(|generation| !known.contains_key(generation) && !exists(*generation))
        .unwrap_or(u32::MAX)
}

/// The tier's queues by generation: those in the inventory, and those that are
/// marked as ours where the inventory was lost.
fn known_tier_queues<'a>(
    pipeline: &Pipeline,
    tier: &Tier,
    observed: &'a Observed,
    inventory: &'a Inventory,
) -> BTreeMap<u32, BTreeSet<&'a str>> {
    let recorded = inventory.range(ObjectKey::Queue(tier.name.clone())..).map_while(|(key, _)| match key {
        ObjectKey::Queue(name) if name.starts_with(&tier.name) => Some(name.as_str()),
        _ => None,
    });
    let marked = observed
        .queues
        .range(tier.name.clone()..)
        .map(|(name, _)| name.as_str())
        .take_while(|name| name.starts_with(&tier.name))
        .filter(|name| uses::tier_generation_of(tier, name).is_some())
        .filter(|name| is_marked(pipeline, observed, inventory, &Destination::Queue((*name).to_owned())));
    let mut known: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for name in recorded.chain(marked) {
        if let Some(generation) = uses::tier_generation_of(tier, name) {
            known.entry(generation).or_default().insert(name);
        }
    }
    known
}

fn is_marked(pipeline: &Pipeline, observed: &Observed, inventory: &Inventory, object: &Destination) -> bool {
    let key = match object {
        Destination::Queue(name) => ObjectKey::Queue(name.clone()),
        Destination::Exchange(name) => ObjectKey::Exchange(name.clone()),
    };
    !inventory.contains_key(&key) && standing(observed, object, &pipeline.identity).is_ours()
}

/// Our exchanges whose name begins so, by inventory or marker.
fn known_exchanges<'a>(
    pipeline: &Pipeline,
    observed: &'a Observed,
    inventory: &'a Inventory,
    prefix: &str,
) -> BTreeSet<&'a str> {
    let recorded =
        inventory.range(ObjectKey::Exchange(prefix.to_owned())..).map_while(|(key, _)| match key {
            ObjectKey::Exchange(name) if name.starts_with(prefix) => Some(name.as_str()),
            _ => None,
        });
    let marked = observed
        .exchanges
        .range(prefix.to_owned()..)
        .map(|(name, _)| name.as_str())
        .take_while(|name| name.starts_with(prefix))
        .filter(|name| is_marked(pipeline, observed, inventory, &Destination::Exchange((*name).to_owned())));
    recorded.chain(marked).collect()
}

/// The generation that can become the wanted chain in place: best the one in use,
/// then the one of which most exists.
fn chain_generation(
    pipeline: &Pipeline,
    facts: &BrokerFacts,
    observed: &Observed,
    inventory: &Inventory,
    tiers: &Generations,
) -> u32 {
    let names = pipeline.names();
    let mut known: BTreeMap<u32, usize> = BTreeMap::new();
    for exchange in known_exchanges(pipeline, observed, inventory, &format!("{}.", names.head())) {
        if let Some(generation) = names.chain_generation(exchange) {
            *known.entry(generation).or_default() += usize::from(observed.exchanges.contains_key(exchange));
        }
    }
    let in_use = |generation| is_bound_to_a_slot(pipeline, observed, generation);
    let fits = |generation: &u32| {
        let candidate = Generations { chain: *generation, ..tiers.clone() };
        chain_fits(&desired::build(pipeline, facts, &candidate), observed, in_use(*generation))
    };
    let mut candidates: Vec<(bool, usize, u32)> =
        known.iter().map(|(generation, existing)| (in_use(*generation), *existing, *generation)).collect();
    candidates.sort_unstable();
    let fitting = candidates.iter().rev().map(|(_, _, generation)| *generation).find(fits);
    let exists = |generation| observed.exchanges.contains_key(&names::generation(&names.dead(), generation));
    fitting.unwrap_or_else(|| fresh(&known, exists))
}

fn is_bound_to_a_slot(pipeline: &Pipeline, observed: &Observed, generation: u32) -> bool {
    let names = pipeline.names();
    let entry = Destination::Exchange(names::generation(&names.dead(), generation));
    let slots = [names.head(), names.alternate()];
    observed.bindings_to(&entry).any(|binding| slots.contains(&binding.source))
}

/// Whether an exchange belongs to a chain that messages pass.
pub(super) fn is_in_use(pipeline: &Pipeline, observed: &Observed, exchange: &str) -> bool {
    let generation = pipeline.names().chain_generation(exchange);
    generation.is_some_and(|generation| is_bound_to_a_slot(pipeline, observed, generation))
}

/// The stages in which a chain's exchanges and rules are written.
pub(super) fn is_chain_stage(stage: Stage) -> bool {
    use Stage::{Category, Dead, First, Guard, Ladder, Rest};
    matches!(stage, Rest | Ladder | Guard | First | Category | Dead)
}

/// Whether the observed chain can become the wanted one by adding and removing
/// rules, with no moment in which a message has two ways or the wrong one. In a
/// chain in use an exchange that is missing can't be put back: until it has its
/// rules again, it would pass on what it should take.
fn chain_fits(wanted: &Desired, observed: &Observed, in_use: bool) -> bool {
    let mut exchanges = wanted.exchanges.iter().filter(|exchange| is_chain_stage(exchange.stage));
    let exchanges_fit = exchanges.all(|exchange| match observed.exchanges.get(&exchange.exchange.name) {
        Some(found) => exchange_mismatches(&exchange.exchange, found).is_empty(),
        None => !in_use,
    });
    let mut rules = wanted.bindings.iter().filter(|rule| is_chain_stage(rule.stage));
    exchanges_fit && rules.all(|rule| rule_fits(&rule.binding, rule.stage, observed))
}

/// The same match that leads elsewhere can't be swapped in one step. Where all
/// rules of an exchange share a target, two different matches could both match.
fn rule_fits(rule: &Binding, stage: Stage, observed: &Observed) -> bool {
    let conflicts = |found: &Binding| {
        let may_match_both = found.arguments == rule.arguments || stage == Stage::Category;
        found.destination != rule.destination && may_match_both
    };
    observed.has_binding(rule) || !observed.bindings_from(&rule.source).any(conflicts)
}

/// Removed tiers that must still be led back and guarded: a queue of theirs
/// exists, or the source may hold a message that came from one.
fn retired(pipeline: &Pipeline, observed: &Observed, inventory: &Inventory) -> BTreeSet<u32> {
    let names = pipeline.names();
    let in_use = |number: u32| {
        pipeline.spec.mode == Mode::Broker && pipeline.tiers.iter().any(|tier| tier.number == number)
    };
    let source = observed.queues.get(&pipeline.spec.source.queue);
    let source_empty = source.is_none_or(|queue| queue.totals.proven_empty());
    let returns = names.returns(0);
    let prefix = returns.strip_suffix('0').unwrap_or(&returns);
    known_exchanges(pipeline, observed, inventory, prefix)
        .into_iter()
        .filter_map(|exchange| Some((names.return_number(exchange)?, exchange)))
        .filter(|(number, _)| !in_use(*number))
        .filter(|(_, exchange)| !source_empty || is_dead_letter_target(observed, exchange))
        .map(|(number, _)| number)
        .collect()
}

/// Whether a queue dead-letters to this exchange by its arguments.
fn is_dead_letter_target(observed: &Observed, exchange: &str) -> bool {
    let leads_here = |queue: &ObservedQueue| matches!(queue.arguments.get("x-dead-letter-exchange"), Some(Arg::Str(target)) if target == exchange);
    observed.queues.values().any(leads_here)
}
