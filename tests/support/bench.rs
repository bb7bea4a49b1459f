//! A vhost that is shared with others, in which every message is watched while
//! plans are carried out.

#![allow(dead_code, unreachable_pub, reason = "each test crate uses a part of it")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use redrive::topology::diff::Diff;
use redrive::topology::model::{
    ApplyTo, Args, Binding, Destination, Exchange, ObjectKey, Policy, Queue, QueueType,
};
use redrive::topology::names::OWNER_EXCHANGE;
use redrive::topology::ownership::{marker, owner_exchange};
use redrive::topology::plan::BlockedBy;
use redrive::topology::spec::{Mode, Ownership, Settings};
use redrive::topology::validate::Pipeline;

use super::lab::{self, Lab, MAX_ROUNDS};
use super::routing::{Death, Fate};
use super::specs::Fixed;
use super::ways::{assert_returns, assert_right, deaths, live_numbers, returns, walk, ways as ways_of};
use super::world::{World, Write};

/// Runs a property on the same cases every time; `PROPERTY_FACTOR=20` adds to them.
pub fn check<S: Strategy>(cases: u32, strategy: &S, property: impl Fn(S::Value))
where
    S::Value: Clone,
{
    let factor = std::env::var("PROPERTY_FACTOR").ok().and_then(|factor| factor.parse().ok());
    let config = Config {
        cases: cases * factor.unwrap_or(1_u32),
        failure_persistence: None,
        max_shrink_iters: 150,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(strategy, |value| {
        property(value);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// How strictly the way of messages is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Each message goes the old way or the new one, at every moment.
    Edit,
    /// While damage is repaired a message may also wait, or go to the DLQ.
    Repair,
}

/// A vhost with other people's things in it, and what is ours beside them.
pub struct Bench {
    pub lab: Lab,
    /// Numbers of all tiers that ever were.
    pub ever: BTreeSet<u32>,
    pub foreign: World,
}

impl Bench {
    pub fn new(version: (u32, u32, u32), fixed: Fixed, seed: u64) -> Self {
        let mut lab = Lab::new(version);
        lab.seed = seed;
        let mut foreign = World::default();
        put_foreign(&mut foreign, fixed);
        lab.world = foreign.clone();
        Self { lab, ever: BTreeSet::new(), foreign }
    }

    pub fn know(&mut self, pipeline: &Pipeline) {
        self.ever.extend(pipeline.tiers.iter().map(|tier| tier.number));
    }

    /// Messages in every queue that can be reached, so that nothing may be taken
    /// for drained.
    pub fn fill(&mut self, messages: i64) {
        let reached = |name: &&String| {
            observed_bindings_to(&self.lab.world, name) > 0
                || self.foreign.observed.queues.contains_key(*name)
        };
        let names: Vec<String> = self.lab.world.observed.queues.keys().filter(reached).cloned().collect();
        for name in names {
            self.lab.world.fill(&name, messages);
        }
    }

    /// One round in which every message is watched after every write.
    pub fn round(&mut self, pipeline: &Pipeline, others: &[&Pipeline], watch: Watch) -> Diff {
        let numbers = live_numbers(&self.lab.world, pipeline, &self.ever);
        let all: Vec<&Pipeline> = [pipeline].into_iter().chain(others.iter().copied()).collect();
        let deaths = deaths(&all, &numbers);
        let plan = self.lab.diff(pipeline).plan;
        let mut end = self.lab.world.clone();
        for planned in self.lab.steps(&plan) {
            end.run(&planned.step);
        }
        let (before, after) = (ways_of(&self.lab.world, pipeline, &deaths), ways_of(&end, pipeline, &deaths));
        let (back_before, back_after) = (returns(&self.lab.world), returns(&end));
        // A source that is new can be bound only when it is there.
        let is_new = !self.lab.world.observed.queues.contains_key(&pipeline.spec.source.queue);
        self.lab.round(pipeline, |world, write| {
            if matches!(write, Write::Bind(binding) if binding.source == OWNER_EXCHANGE) {
                return; // A marker leads no message anywhere.
            }
            let now = ways_of(world, pipeline, &deaths);
            for (death, fates) in &now {
                // Where its own rule is lost, a message goes like all others.
                let plain = Death { headers: Args::new(), ..death.clone() };
                let right: BTreeSet<Fate> = after[death].union(&after[&plain]).cloned().collect();
                let allowed = *fates == before[death]
                    || *fates == after[death]
                    || (watch == Watch::Repair && fates.iter().all(|fate| is_safe(fate, &right, pipeline)));
                assert!(allowed, "{death:?} goes to {fates:?} after {write:?}\nin {plan}");
            }
            let reached: BTreeSet<&String> = now.values().flatten().flat_map(queues_of).collect();
            for (queue, fates) in returns(world) {
                let known = back_before.get(&queue);
                let allowed = known == Some(&fates)
                    || back_after.get(&queue) == Some(&fates)
                    || (known.is_none() && !reached.contains(&queue))
                    || (is_new && fates == [Fate::Held].into())
                    || (watch == Watch::Repair && fates.iter().all(|fate| is_safe(fate, &fates, pipeline)));
                assert!(allowed, "what waited in {queue} goes to {fates:?} after {write:?}\nin {plan}");
            }
        })
    }

    /// Rounds until nothing is written any more, and then, when all has drained,
    /// until nothing is left of what was.
    pub fn settle(&mut self, pipeline: &Pipeline, others: &[&Pipeline], watch: Watch) {
        self.know(pipeline);
        self.fill(1);
        let diff = self.rounds(pipeline, others, watch);
        let numbers = live_numbers(&self.lab.world, pipeline, &self.ever);
        if diff.plan.blocked.is_empty() {
            assert_right(&self.lab.world, pipeline, &deaths(&[pipeline], &numbers));
            assert_returns(&self.lab.world, pipeline);
        }
        self.fill(0);
        let diff = self.rounds(pipeline, others, watch);
        assert_eq!(diff.plan.draining, Vec::<String>::new());
        if diff.plan.blocked.is_empty() {
            self.assert_settled(pipeline, &diff);
        }
        self.ever = live_numbers(&self.lab.world, pipeline, &self.ever);
    }

    pub fn rounds(&mut self, pipeline: &Pipeline, others: &[&Pipeline], watch: Watch) -> Diff {
        for _ in 0..=MAX_ROUNDS {
            let diff = self.round(pipeline, others, watch);
            assert_allowed(&diff, pipeline, watch);
            if diff.plan.steps.is_empty() && self.lab.proven_empty.is_empty() {
                return diff;
            }
        }
        panic!("does not settle:\n{}", self.lab.plan(pipeline));
    }

    pub fn assert_settled(&self, pipeline: &Pipeline, diff: &Diff) {
        let world = &self.lab.world;
        assert!(diff.plan.is_empty(), "{}", diff.plan);
        let live =
            pipeline.tiers.iter().map(|tier| tier.number).filter(|_| pipeline.spec.mode == Mode::Broker);
        assert_right(world, pipeline, &deaths(&[pipeline], &live.collect()));
        walk(world, pipeline);
        let wanted: BTreeSet<&String> = diff.desired.queues.iter().map(|queue| &queue.queue.name).collect();
        let mine =
            world.observed.queues.keys().filter(|name| !self.foreign.observed.queues.contains_key(*name));
        // What a client publishes to is never taken away.
        let source = &pipeline.spec.source.queue;
        let clients_publish = |name: &&String| world.observed.queues[*name].leads_to(source);
        for name in mine.filter(|name| !clients_publish(name)) {
            let unmarked = observed_bindings_to(world, name) == 0;
            let object = Destination::Queue(name.clone());
            let bound = world.observed.bindings_to(&object);
            let bound: Vec<String> = bound.map(ToString::to_string).collect();
            assert!(wanted.contains(name) || unmarked, "{name} is left over: {bound:#?}");
        }
        for key in self.lab.inventory.keys() {
            let there = match key {
                ObjectKey::Queue(name) => world.observed.queues.contains_key(name),
                ObjectKey::Exchange(name) => world.observed.exchanges.contains_key(name),
                ObjectKey::Policy(name) => world.observed.policy(name).is_some(),
                ObjectKey::Binding { .. } => true,
            };
            assert!(there, "{key} is recorded and gone");
        }
        self.assert_foreign_untouched();
    }

    pub fn assert_foreign_untouched(&self) {
        let (world, foreign) = (&self.lab.world.observed, &self.foreign.observed);
        for (name, queue) in &foreign.queues {
            let found = world.queues.get(name).map(|found| (found.kind, &found.arguments));
            assert_eq!(found, Some((queue.kind, &queue.arguments)), "{name}");
        }
        for (name, exchange) in &foreign.exchanges {
            assert_eq!(world.exchanges.get(name), Some(exchange), "{name}");
        }
        for binding in foreign.bindings() {
            assert!(world.has_binding(binding), "{binding} is gone");
        }
        for policy in &foreign.policies {
            assert_eq!(world.policy(&policy.name), Some(policy));
        }
    }
}

pub fn observed_bindings_to(world: &World, queue: &str) -> usize {
    world.observed.bindings_to(&Destination::Queue(queue.into())).count()
}

pub fn queues_of(fate: &Fate) -> impl Iterator<Item = &String> {
    match fate {
        Fate::Queues(queues) => Some(queues),
        Fate::Held | Fate::Dropped => None,
    }
    .into_iter()
    .flatten()
}

/// While damage lasts a message may wait or end in the DLQ or quarantine, and what somebody else
/// made of it goes on until it is found.
pub fn is_safe(fate: &Fate, right: &BTreeSet<Fate>, pipeline: &Pipeline) -> bool {
    match fate {
        Fate::Held => true,
        Fate::Queues(queues) => {
            let leaks = |queue: &String| queue == "billing.queue" || *queue == pipeline.spec.source.queue;
            let own: BTreeSet<String> = queues.iter().filter(|queue| !leaks(queue)).cloned().collect();
            let leaked = own.is_empty() && !queues.is_empty();
            let ends = own.len() == 1 && own.iter().all(|queue| queue.starts_with(&pipeline.dlq));
            leaked || ends || right.contains(&Fate::Queues(own))
        }
        Fate::Dropped => pipeline.spec.source.kind == QueueType::Classic,
    }
}

/// An edit may be refused, where the user put numbers into arguments or the client knows
/// the names; nothing else may be in the way.
pub fn assert_allowed(diff: &Diff, pipeline: &Pipeline, watch: Watch) {
    let may_wait = pipeline.spec.settings == Settings::Arguments || pipeline.spec.mode == Mode::Application;
    for found in &diff.plan.blocked {
        let refused = found.by.refuses_edit() && diff.plan.steps.is_empty();
        // Without an inventory nobody knows that it is an edit.
        // What has lost its marker is not ours to delete.
        let lost = watch == Watch::Repair && found.object.starts_with(&format!("queue {}", pipeline.dlq));
        assert!((may_wait || lost) && (refused || found.by == BlockedBy::ArgumentMismatch), "{found}");
    }
}

pub fn classic(name: &str) -> Queue {
    let arguments = Args::from([("x-queue-type".to_owned(), "classic".into())]);
    Queue { name: name.into(), kind: QueueType::Classic, arguments }
}

pub fn bound(source: &str, destination: Destination, key: &str) -> Binding {
    Binding { source: source.into(), destination, routing_key: key.into(), arguments: Args::new() }
}

pub fn put_foreign(world: &mut World, fixed: Fixed) {
    let topic =
        Exchange { name: "billing".into(), kind: "topic".into(), internal: false, arguments: Args::new() };
    let billing = Destination::Queue("billing.queue".into());
    let mut put = |write: Write| world.write(&write).expect("a foreign object");
    put(Write::PutExchange(owner_exchange()));
    put(Write::PutExchange(topic));
    for name in ["billing.queue", "orders", "orders.retry", "orders.archive"] {
        let is_source = name == "orders";
        if is_source && fixed.ownership == Ownership::Managed {
            continue;
        }
        let kind = if is_source { fixed.kind } else { QueueType::Classic };
        let arguments = Args::from([("x-queue-type".to_owned(), kind.as_str().into())]);
        put(Write::PutQueue(Queue { kind, arguments, ..classic(name) }));
    }
    put(Write::Bind(bound("billing", billing.clone(), "#")));
    put(Write::Bind(bound("billing", Destination::Queue("orders.archive".into()), "orders.*")));
    put(Write::Bind(marker(&lab::identity("billing"), billing)));
    put(Write::PutPolicy(Policy {
        name: "billing".into(),
        pattern: "^billing".into(),
        apply_to: ApplyTo::All,
        priority: 99,
        definition: [("expires".to_owned(), 60_000.into())].into(),
    }));
}

pub fn pick<T: Clone>(from: &[T], at: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[at % from.len()].clone())
}
