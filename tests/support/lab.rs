//! A pipeline, a vhost and an inventory, taken through rounds as the controller
//! takes them: compare, record, write, compare again.

#![allow(dead_code, unreachable_pub, reason = "each test crate uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

use redrive::topology::diff::{Context, Diff, diff};
use redrive::topology::drift;
use redrive::topology::effective::PolicyIndex;
use redrive::topology::model::{ObjectKey, QueueType};
use redrive::topology::observed::BrokerFacts;
use redrive::topology::ownership::{Inventory, Record, State};
use redrive::topology::plan::{Plan, PlannedStep, Step};
use redrive::topology::removal::Removal;
use redrive::topology::spec::{
    DeadLetter, Delays, Identity, Mode, Ownership, Settings, Source, SourceBinding, SourceExchange, Spec,
};
use redrive::topology::validate::{Pipeline, validate};

use super::world::{World, Write, in_some_order, writes};

/// More rounds than any edit may take.
pub const MAX_ROUNDS: usize = 10;

pub fn identity(name: &str) -> Identity {
    Identity { cluster: "c1".into(), namespace: "shop".into(), name: name.into(), uid: format!("uid-{name}") }
}

pub fn facts(version: (u32, u32, u32)) -> BrokerFacts {
    let types = ["direct", "fanout", "headers", "topic", "x-random"];
    BrokerFacts { version, exchange_types: types.into_iter().map(str::to_owned).collect() }
}

/// The pipeline `orders` with all defaults.
pub fn orders() -> Spec {
    Spec {
        source: Source {
            ownership: Ownership::Managed,
            queue: "orders".into(),
            kind: QueueType::Quorum,
            max_length: None,
            message_ttl: None,
            consumer_timeout: None,
            single_active_consumer: false,
            group_size: None,
            exchange: Some(SourceExchange { name: "orders.exchange".into(), kind: "topic".into() }),
            bindings: vec![SourceBinding {
                exchange: "orders.exchange".into(),
                routing_key: "orders.created".into(),
            }],
            exclusive_bindings: false,
            delivery_limit: None,
        },
        mode: Mode::Broker,
        delays: Delays::List(vec![5_000, 30_000]),
        jitter: None,
        retry_template: "{queue}.retry.{attempt}".into(),
        number_from: 0,
        retry_type: QueueType::Quorum,
        retry_group_size: None,
        dead_letter: DeadLetter {
            template: "{queue}.dlq".into(),
            retention: None,
            kind: QueueType::Quorum,
            group_size: None,
            max_length: None,
            quarantine: Vec::new(),
            parking_lot: false,
        },
        settings: Settings::Policy { priority: 10 },
        merge_policy: false,
    }
}

pub fn checked(spec: &Spec) -> Pipeline {
    match validate(identity("orders"), spec.clone()) {
        Ok(pipeline) => pipeline,
        Err(problems) => panic!("{problems:?} in {spec:?}"),
    }
}

#[derive(Clone)]
pub struct Lab {
    pub world: World,
    pub inventory: Inventory,
    pub facts: BrokerFacts,
    pub adopt: bool,
    pub proven_empty: BTreeSet<String>,
    pub contested: BTreeMap<ObjectKey, String>,
    /// What was carried out last.
    pub applied: Option<Spec>,
    /// The pending plan that is allowed.
    pub consent: Option<String>,
    /// Decides the order of steps that may run in any.
    pub seed: u64,
}

impl Lab {
    pub fn new(version: (u32, u32, u32)) -> Self {
        Self {
            world: World::default(),
            inventory: Inventory::new(),
            facts: facts(version),
            adopt: false,
            proven_empty: BTreeSet::new(),
            contested: BTreeMap::new(),
            applied: None,
            consent: None,
            seed: 0,
        }
    }

    /// A vhost in which a pipeline is complete.
    pub fn with(version: (u32, u32, u32), pipeline: &Pipeline) -> Self {
        let mut lab = Self::new(version);
        lab.settle(pipeline);
        lab
    }

    pub fn diff(&self, pipeline: &Pipeline) -> Diff {
        self.compare(pipeline, diff)
    }

    /// What a comparison finds of others' changes, as text.
    pub fn drift(&self, pipeline: &Pipeline) -> Vec<String> {
        self.compare(pipeline, |context| {
            drift::findings(context, &diff(context)).iter().map(ToString::to_string).collect()
        })
    }

    fn compare<T>(&self, pipeline: &Pipeline, run: impl FnOnce(&Context<'_>) -> T) -> T {
        let observed = &self.world.observed;
        let policies = PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref());
        run(&Context {
            pipeline,
            facts: &self.facts,
            observed,
            policies: &policies,
            inventory: &self.inventory,
            adopt: self.adopt,
            proven_empty: &self.proven_empty,
            contested: &self.contested,
            edited: self.applied.as_ref() != Some(&pipeline.spec),
            consent: self.consent.as_deref(),
        })
    }

    /// The plan, as text.
    pub fn plan(&self, pipeline: &Pipeline) -> String {
        self.diff(pipeline).plan.to_string()
    }

    /// The writes of a comparison, in an order in which they may come.
    pub fn steps(&self, plan: &Plan) -> Vec<PlannedStep> {
        in_some_order(plan, self.seed)
    }

    /// Takes over what a comparison brought, once all of it is written.
    pub fn finish(&mut self, diff: &Diff) {
        self.inventory.clone_from(&diff.inventory);
        self.prove(&diff.plan.draining);
    }

    /// Proves queues empty that hold nothing.
    pub fn prove(&mut self, draining: &[String]) {
        let queues = &self.world.observed.queues;
        let empty = draining.iter().filter(|name| queues.get(*name).is_some_and(|q| q.totals.proven_empty()));
        self.proven_empty = empty.cloned().collect();
    }

    /// One round, with a look at the vhost after every write.
    pub fn round(&mut self, pipeline: &Pipeline, mut look: impl FnMut(&World, &Write)) -> Diff {
        let diff = self.diff(pipeline);
        self.inventory = diff.intended(&self.inventory);
        for planned in self.steps(&diff.plan) {
            for write in writes(&planned.step) {
                self.world.write(&write).unwrap_or_else(|error| panic!("{}: {error}", planned.step));
                look(&self.world, &write);
            }
        }
        self.finish(&diff);
        if diff.plan.steps.is_empty() && diff.plan.blocked.is_empty() {
            self.applied = Some(pipeline.spec.clone());
        }
        diff
    }

    /// Rounds until nothing differs.
    pub fn settle(&mut self, pipeline: &Pipeline) -> Diff {
        for _ in 0..=MAX_ROUNDS {
            let diff = self.round(pipeline, |_, _| {});
            if diff.plan.steps.is_empty() && self.proven_empty.is_empty() {
                return diff;
            }
        }
        panic!("does not settle:\n{}", self.plan(pipeline));
    }

    /// Stops a round after some writes, as a crash would. `recorded` says whether
    /// what was done got into the inventory.
    pub fn crash(&mut self, pipeline: &Pipeline, after: usize, recorded: bool) {
        let diff = self.diff(pipeline);
        self.inventory = diff.intended(&self.inventory);
        let mut left = after;
        for planned in self.steps(&diff.plan) {
            for write in writes(&planned.step) {
                if left == 0 {
                    return;
                }
                left -= 1;
                self.world.write(&write).unwrap_or_else(|error| panic!("{}: {error}", planned.step));
            }
            if recorded {
                self.record(&planned.step, &diff);
            }
        }
        self.finish(&diff);
    }

    fn record(&mut self, step: &Step, diff: &Diff) {
        let Some(key) = step.object() else { return };
        match diff.inventory.get(&key) {
            Some(record) => {
                self.inventory.insert(key, *record);
            }
            None => {
                self.inventory.remove(&key);
            }
        }
    }

    pub fn removal(&self, delete_adopted: bool, run: impl FnOnce(&Removal<'_>) -> Plan) -> Plan {
        let identity = identity("orders");
        run(&Removal {
            identity: &identity,
            source: "orders",
            inventory: &self.inventory,
            observed: &self.world.observed,
            delete_adopted,
        })
    }

    /// The state of a queue or exchange in the inventory.
    pub fn state(&self, key: &ObjectKey) -> Option<State> {
        self.inventory.get(key).map(|record: &Record| record.state)
    }
}
