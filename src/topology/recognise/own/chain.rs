//! The chain of exchanges that is in use, followed as a dead letter would.

use super::super::super::model::{Arg, Args, Binding, Destination};
use super::super::super::names;
use super::super::super::pipeline::Names;
use super::super::super::spec::{Category, Mode};
use super::super::super::validate::MAX_TIERS;
use super::super::Look;
use super::super::numbers;
use super::Objects;
use super::ladder::{Ladder, Step};

/// More exchanges than a chain can have.
const LONGEST: usize = 32;

const REASON: &str = "x-last-death-reason";
const LAST_EXCHANGE: &str = "x-last-death-exchange";
const MATCH: &str = "x-match";

/// What the exchanges of a chain say.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) dlq: String,
    pub(super) categories: Vec<Category>,
    ladder: Option<String>,
    first: Option<String>,
}

impl Chain {
    /// Reads the chain in use; `None` where the pipeline has none.
    pub(super) fn read(look: &Look<'_>, queue: &str, objects: &Objects<'_>) -> Result<Option<Self>, String> {
        let names = Names::new(queue, "");
        if !objects.exchanges.contains(names.fallback().as_str()) {
            return Ok(None);
        }
        let broken =
            |what: &str| format!("its chain of exchanges around {} is not whole: {what}", names.head());
        let entry = entry(look, &names).ok_or_else(|| broken("no slot leads into it"))?;
        let generation = names.chain_generation(&entry).unwrap_or(1);
        let suffix = if generation > 1 { format!(".g{generation}") } else { String::new() };
        let mut chain = Self { dlq: String::new(), categories: Vec::new(), ladder: None, first: None };
        let mut at = Some(entry);
        for _ in 0..LONGEST {
            let Some(exchange) = at else { break };
            let part = exchange
                .strip_prefix(&format!("{}.", names.head()))
                .and_then(|part| part.strip_suffix(&suffix));
            match part {
                Some("ladder") => chain.ladder = Some(exchange.clone()),
                Some("first") => chain.first = Some(exchange.clone()),
                Some("rest") => chain.dlq = only_queue(look, &exchange).unwrap_or_default(),
                Some(part) => {
                    if let Some(name) = part.strip_prefix("category.") {
                        chain.categories.push(category(look, &exchange, name));
                    }
                }
                None => return Err(broken(&format!("it leads to the exchange {exchange}"))),
            }
            let found = look
                .observed
                .exchanges
                .get(&exchange)
                .ok_or_else(|| broken(&format!("{exchange} is missing")))?;
            at = numbers::text(&found.arguments, "alternate-exchange").map(str::to_owned);
        }
        if chain.dlq.is_empty() {
            return Err(broken("its end leads to no queue"));
        }
        Ok(Some(chain))
    }

    /// Whether it leads from tier to tier.
    pub(super) fn has_ladder(&self) -> bool {
        self.ladder.is_some()
    }

    /// Follows a message that always fails.
    pub(super) fn walk(&self, look: &Look<'_>, queue: &str, dlq: &str) -> Result<Vec<Ladder>, String> {
        let (Some(ladder), Some(first)) = (&self.ladder, &self.first) else {
            return Err("its ladder has no first step".to_owned());
        };
        let names = Names::new(queue, dlq);
        let end = Destination::Queue(dlq.to_owned());
        let rejected = |binding: &&Binding| numbers::text(&binding.arguments, REASON) == Some("rejected");
        let mut next =
            look.observed.bindings_from(first).find(rejected).map(|binding| binding.destination.clone());
        let mut steps = Vec::new();
        while let Some(target) = next.filter(|target| *target != end) {
            if steps.len() == MAX_TIERS {
                return Err("its ladder has no end".to_owned());
            }
            let step = Step::at(look, &names, &target)?;
            let back = names.returns(step.number);
            let comes_from =
                |binding: &&Binding| numbers::text(&binding.arguments, LAST_EXCHANGE) == Some(&back);
            next = look
                .observed
                .bindings_from(ladder)
                .find(comes_from)
                .map(|binding| binding.destination.clone());
            steps.push(step);
        }
        if steps.is_empty() {
            return Err("its ladder leads nowhere".to_owned());
        }
        Ladder::of_steps(queue, Mode::Broker, &steps)
    }
}

fn entry(look: &Look<'_>, names: &Names<'_>) -> Option<String> {
    [names.head(), names.alternate()].iter().find_map(|slot| {
        look.observed.bindings_from(slot).find_map(|binding| match &binding.destination {
            Destination::Exchange(name) if names.chain_generation(name).is_some() => Some(name.clone()),
            _ => None,
        })
    })
}

fn only_queue(look: &Look<'_>, exchange: &str) -> Option<String> {
    look.observed.bindings_from(exchange).find_map(|binding| match &binding.destination {
        Destination::Queue(name) => Some(name.clone()),
        Destination::Exchange(_) => None,
    })
}

/// One binding for each reason, all with the same headers.
fn category(look: &Look<'_>, exchange: &str, name: &str) -> Category {
    let mut reasons = Vec::new();
    let mut headers = Args::new();
    for binding in look.observed.bindings_from(exchange) {
        for (key, value) in &binding.arguments {
            match (key.as_str(), value) {
                (MATCH, _) => {}
                (REASON, Arg::Str(reason)) => reasons.push(reason.clone()),
                _ => drop(headers.insert(key.clone(), value.clone())),
            }
        }
    }
    reasons.sort_unstable();
    Category { name: name.to_owned(), reasons, headers }
}

/// A queue's name without the suffix of its generation, and the generation.
pub(super) fn without_generation(name: &str) -> (&str, u32) {
    let split = name.rsplit_once(".g").and_then(|(base, digits)| Some((base, digits.parse::<u32>().ok()?)));
    match split {
        Some((base, number)) if names::generation_of(base, name) == Some(number) => (base, number),
        _ => (name, 1),
    }
}
