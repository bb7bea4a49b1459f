//! Which ways messages have, and which they should have.

#![allow(dead_code, unreachable_pub, reason = "each test crate uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

use redrive::topology::model::{Arg, Args};
use redrive::topology::names::stood_in_for;
use redrive::topology::spec::{Category, Mode};
use redrive::topology::validate::Pipeline;

use super::routing::{Death, Fate, Router};
use super::world::World;

const REASONS: [&str; 4] = ["rejected", "expired", "maxlen", "delivery_limit"];

/// Every possible outcome for each kind of dead letter.
pub type Ways = BTreeMap<Death, BTreeSet<Fate>>;

/// The numbers through whose return exchange a message in the source may have come.
pub fn live_numbers(world: &World, pipeline: &Pipeline, ever: &BTreeSet<u32>) -> BTreeSet<u32> {
    let names = pipeline.names();
    let source = world.observed.queues.get(&pipeline.spec.source.queue);
    let waiting = source.is_some_and(|source| source.totals.messages != Some(0));
    let comes_back = |number: &u32| {
        let exchange = Arg::from(names.returns(*number).as_str());
        let mut queues = world.observed.queues.values();
        queues.any(|queue| queue.arguments.get("x-dead-letter-exchange") == Some(&exchange))
    };
    ever.iter().copied().filter(|number| waiting || comes_back(number)).collect()
}

/// The kinds of dead letters that can leave the source.
pub fn deaths(pipelines: &[&Pipeline], numbers: &BTreeSet<u32>) -> Vec<Death> {
    let names = pipelines[0].names();
    let mut headers = vec![
        Args::new(),
        Args::from([("x-redrive-on-failure".to_owned(), Arg::from("dead-letter"))]),
        Args::from([("x-opt-redrive".to_owned(), Arg::from("dead"))]),
    ];
    headers.extend(pipelines.iter().flat_map(|pipeline| {
        pipeline.spec.dead_letter.quarantine.iter().map(|category| category.headers.clone())
    }));
    // Two categories at once: the first must win, and only one.
    let all = pipelines.iter().flat_map(|pipeline| &pipeline.spec.dead_letter.quarantine);
    headers.push(all.flat_map(|category| category.headers.clone()).collect());
    headers.sort();
    headers.dedup();
    let mut deaths = Vec::new();
    for headers in headers {
        for reason in REASONS {
            deaths.push(Death { reason, exchange: "orders.exchange".into(), headers: headers.clone() });
        }
        for number in numbers {
            let exchange = names.returns(*number);
            deaths.push(Death { reason: "rejected", exchange: exchange.clone(), headers: headers.clone() });
            deaths.push(Death { reason: "delivery_limit", exchange, headers: headers.clone() });
        }
    }
    deaths
}

/// The ways out of the source.
pub fn ways(world: &World, pipeline: &Pipeline, deaths: &[Death]) -> Ways {
    let router = Router::new(&world.observed);
    let source = &pipeline.spec.source.queue;
    deaths.iter().map(|death| (death.clone(), router.fates(source, death))).collect()
}

/// Where the messages of each retry queue go when their delay is over.
pub fn returns(world: &World) -> BTreeMap<String, BTreeSet<Fate>> {
    let router = Router::new(&world.observed);
    let expired = Death { reason: "expired", ..Death::default() };
    let queues = world.observed.queues.iter();
    let retry = queues.filter(|(_, queue)| {
        queue.arguments.contains_key("x-message-ttl")
            && queue.arguments.contains_key("x-dead-letter-exchange")
    });
    retry.map(|(name, _)| (name.clone(), router.fates(name, &expired))).collect()
}

/// Where a dead letter must end, in the words of the specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    Queue(String),
    /// One of the queues of this tier, whatever its generation.
    Tier(u32),
}

pub fn right_way(pipeline: &Pipeline, death: &Death) -> Right {
    let names = pipeline.names();
    let dlq = Right::Queue(pipeline.dlq.clone());
    if !pipeline.has_chain() {
        return dlq;
    }
    let has = |key: &str, value: &str| death.headers.get(key) == Some(&Arg::from(value));
    if has("x-redrive-on-failure", "dead-letter") || has("x-opt-redrive", "dead") {
        return dlq;
    }
    let takes = |category: &&Category| {
        (category.reasons.is_empty() || category.reasons.iter().any(|reason| reason == death.reason))
            && category.headers.iter().all(|(key, value)| death.headers.get(key) == Some(value))
    };
    if let Some(category) = pipeline.spec.dead_letter.quarantine.iter().find(takes) {
        return Right::Queue(names.quarantine(&category.name));
    }
    if pipeline.spec.mode != Mode::Broker || death.reason != "rejected" {
        return dlq;
    }
    let came_through = names.return_number(&death.exchange);
    let above = |number: u32| came_through.is_none_or(|came| number > came);
    let next = pipeline.tiers.iter().find(|tier| above(tier.number));
    next.map_or(dlq, |tier| Right::Tier(tier.number))
}

/// Checks that every dead letter has the one way that it should have.
pub fn assert_right(world: &World, pipeline: &Pipeline, deaths: &[Death]) {
    for (death, fates) in ways(world, pipeline, deaths) {
        let right = right_way(pipeline, &death);
        let found: BTreeSet<String> = fates
            .iter()
            .map(|fate| match fate {
                Fate::Queues(queues) if queues.len() == 1 => {
                    let queue = queues.iter().next().map(String::as_str).unwrap_or_default();
                    // What stands in for a queue while that is made anew is as right.
                    stood_in_for(queue).unwrap_or(queue).to_owned()
                }
                other => panic!("{death:?} has {other:?} where {right:?} is right"),
            })
            .collect();
        match &right {
            Right::Queue(name) => assert_eq!(found, [name.clone()].into(), "{death:?}"),
            Right::Tier(number) => assert_is_tier(world, pipeline, *number, &found, &death),
        }
    }
}

fn assert_is_tier(world: &World, pipeline: &Pipeline, number: u32, found: &BTreeSet<String>, death: &Death) {
    let tier = pipeline.tiers.iter().find(|tier| tier.number == number).expect("the tier exists");
    let mut wanted: Vec<i64> = tier.shards.iter().map(|shard| shard.ttl).collect();
    wanted.sort_unstable();
    let mut delays = Vec::new();
    for name in found {
        let queue = &world.observed.queues[name];
        let back = Arg::from(pipeline.names().returns(number).as_str());
        assert_eq!(queue.arguments.get("x-dead-letter-exchange"), Some(&back), "{death:?} in {name}");
        match queue.arguments.get("x-message-ttl") {
            Some(Arg::Int(delay)) => delays.push(*delay),
            other => panic!("{name} has the delay {other:?}"),
        }
    }
    delays.sort_unstable();
    assert_eq!(delays, wanted, "{death:?} waits in {found:?}");
}

/// Checks that every retry queue that exists leads back to the source.
pub fn assert_returns(world: &World, pipeline: &Pipeline) {
    let source: BTreeSet<Fate> = [Fate::Queues([pipeline.spec.source.queue.clone()].into())].into();
    for (queue, fates) in returns(world) {
        assert_eq!(fates, source, "what waited in {queue}");
    }
}

/// A message that always fails ends after a growing walk; returns its queues.
pub fn walk(world: &World, pipeline: &Pipeline) -> Vec<String> {
    let router = Router::new(&world.observed);
    let mut exchange = "orders.exchange".to_owned();
    let mut walked = Vec::new();
    loop {
        let death = Death { reason: "rejected", exchange, headers: Args::new() };
        let fates = router.fates(&pipeline.spec.source.queue, &death);
        let Some(Fate::Queues(queues)) = fates.first() else { panic!("{death:?} has {fates:?}") };
        let queue = queues.first().expect("a queue").clone();
        walked.push(queue.clone());
        match world.observed.queues[&queue].arguments.get("x-dead-letter-exchange") {
            Some(Arg::Str(next)) => exchange = next.clone(),
            _ => return walked,
        }
        assert!(walked.len() < 40, "a loop: {walked:?}");
    }
}
