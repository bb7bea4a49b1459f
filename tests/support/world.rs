//! A broker's vhost in memory, which takes one write at a time.

#![allow(dead_code, unreachable_pub, reason = "each test crate uses a part of it")]

use redrive::topology::model::{Arg, Binding, Destination, Exchange, Policy, Queue};
use redrive::topology::observed::{Observed, ObservedExchange, ObservedQueue, Totals};
use redrive::topology::plan::{Plan, PlannedStep, Stage, Step};

/// What one request changes; a step may take two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    PutQueue(Queue),
    PutExchange(Exchange),
    Bind(Binding),
    Unbind(Binding),
    PutPolicy(Policy),
    DeletePolicy(String),
    DeleteQueue(String),
    DeleteExchange(String),
}

/// What a broker answers to a write that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Created,
    NothingChanged,
}

/// The requests of a step, in their order.
pub fn writes(step: &Step) -> Vec<Write> {
    match step.clone() {
        Step::CreateQueue { queue, marker } => vec![Write::PutQueue(queue), Write::Bind(marker)],
        Step::CreateExchange { exchange, marker } => {
            std::iter::once(Write::PutExchange(exchange)).chain(marker.map(Write::Bind)).collect()
        }
        Step::Mark(binding) | Step::Bind(binding) => vec![Write::Bind(binding)],
        Step::Unmark(binding) | Step::Unbind(binding) => vec![Write::Unbind(binding)],
        Step::SetPolicy(policy) => vec![Write::PutPolicy(policy)],
        Step::ClearPolicy(name) => vec![Write::DeletePolicy(name)],
        Step::DeleteQueue(name) => vec![Write::DeleteQueue(name)],
        Step::DeleteExchange(name) => vec![Write::DeleteExchange(name)],
    }
}

/// The steps of a plan in one of the orders in which they may run: any order among
/// steps of the same stage and rank.
pub fn in_some_order(plan: &Plan, seed: u64) -> Vec<PlannedStep> {
    let mut steps: Vec<(Stage, u8, u64, PlannedStep)> = plan
        .steps
        .iter()
        .enumerate()
        .map(|(index, planned)| {
            (planned.stage, planned.step.rank(), mix(seed, index as u64), planned.clone())
        })
        .collect();
    steps.sort_by_key(|(stage, rank, luck, _)| (*stage, *rank, *luck));
    steps.into_iter().map(|(.., planned)| planned).collect()
}

/// A number that looks random and depends on both.
pub fn mix(seed: u64, index: u64) -> u64 {
    let mut value = seed ^ index.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0xD1B5_4A32_D192_ED03);
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// The vhost.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub observed: Observed,
}

impl World {
    /// Takes one write, as a broker would.
    pub fn write(&mut self, write: &Write) -> Result<Answer, String> {
        match write {
            Write::PutQueue(queue) => self.put_queue(queue),
            Write::PutExchange(exchange) => self.put_exchange(exchange),
            Write::Bind(binding) => self.bind(binding),
            Write::Unbind(binding) => {
                let known = self.observed.has_binding(binding);
                self.retain(|found| found != binding);
                Ok(if known { Answer::Created } else { Answer::NothingChanged })
            }
            Write::PutPolicy(policy) => {
                self.observed.policies.retain(|found| found.name != policy.name);
                self.observed.policies.push(policy.clone());
                Ok(Answer::Created)
            }
            Write::DeletePolicy(name) => {
                self.observed.policies.retain(|found| found.name != *name);
                Ok(Answer::Created)
            }
            Write::DeleteQueue(name) => {
                self.observed.queues.remove(name);
                let gone = Destination::Queue(name.clone());
                self.retain(|found| found.destination != gone);
                Ok(Answer::Created)
            }
            Write::DeleteExchange(name) => {
                self.observed.exchanges.remove(name);
                let gone = Destination::Exchange(name.clone());
                self.retain(|found| found.destination != gone && found.source != *name);
                Ok(Answer::Created)
            }
        }
    }

    /// Runs a whole step.
    pub fn run(&mut self, step: &Step) {
        for write in writes(step) {
            self.write(&write).unwrap_or_else(|error| panic!("{step}: {error}"));
        }
    }

    /// Runs a whole plan.
    pub fn apply(&mut self, plan: &Plan) {
        for planned in &plan.steps {
            self.run(&planned.step);
        }
    }

    fn put_queue(&mut self, queue: &Queue) -> Result<Answer, String> {
        let mut arguments = queue.arguments.clone();
        let kind = arguments.remove("x-queue-type");
        assert_eq!(kind, Some(Arg::from(queue.kind.as_str())), "{} says which type it is", queue.name);
        assert!((1..=255).contains(&queue.name.len()), "{} has a length that can be declared", queue.name);
        let wanted = ObservedQueue {
            kind: queue.kind,
            durable: true,
            auto_delete: false,
            exclusive: false,
            arguments,
            totals: Totals { messages: Some(0), ready: Some(0), unacknowledged: Some(0) },
        };
        match self.observed.queues.get(&queue.name) {
            None => {
                self.observed.queues.insert(queue.name.clone(), wanted);
                Ok(Answer::Created)
            }
            Some(found) if (ObservedQueue { totals: wanted.totals, ..found.clone() }) == wanted => {
                Ok(Answer::NothingChanged)
            }
            Some(_) => Err(format!("inequivalent arg for queue {}", queue.name)),
        }
    }

    fn put_exchange(&mut self, exchange: &Exchange) -> Result<Answer, String> {
        assert!(
            (1..=255).contains(&exchange.name.len()),
            "{} has a length that can be declared",
            exchange.name
        );
        let wanted = ObservedExchange {
            kind: exchange.kind.clone(),
            durable: true,
            auto_delete: false,
            internal: exchange.internal,
            arguments: exchange.arguments.clone(),
        };
        match self.observed.exchanges.get(&exchange.name) {
            None => {
                self.observed.exchanges.insert(exchange.name.clone(), wanted);
                Ok(Answer::Created)
            }
            Some(found) if *found == wanted => Ok(Answer::NothingChanged),
            Some(_) => Err(format!("inequivalent arg for exchange {}", exchange.name)),
        }
    }

    fn bind(&mut self, binding: &Binding) -> Result<Answer, String> {
        let there = match &binding.destination {
            Destination::Queue(name) => self.observed.queues.contains_key(name),
            Destination::Exchange(name) => self.observed.exchanges.contains_key(name),
        };
        if !there || !self.observed.exchanges.contains_key(&binding.source) {
            return Err(format!("{binding}: one end does not exist"));
        }
        if self.observed.has_binding(binding) {
            return Ok(Answer::NothingChanged);
        }
        let bindings = self.observed.bindings().iter().cloned().chain([binding.clone()]).collect::<Vec<_>>();
        self.observed.set_bindings(bindings);
        Ok(Answer::Created)
    }

    /// Keeps the bindings that a test wants to keep.
    pub fn retain(&mut self, keep: impl Fn(&Binding) -> bool) {
        let bindings: Vec<_> = self.observed.bindings().iter().filter(|found| keep(found)).cloned().collect();
        self.observed.set_bindings(bindings);
    }

    /// Says how many messages a queue holds.
    pub fn fill(&mut self, queue: &str, messages: i64) {
        if let Some(found) = self.observed.queues.get_mut(queue) {
            found.totals =
                Totals { messages: Some(messages), ready: Some(messages), unacknowledged: Some(0) };
        }
    }

    /// Everything but message counts, in an order that does not depend on history.
    pub fn shape(&self) -> Shape {
        let mut bindings = self.observed.bindings().to_vec();
        bindings.sort();
        let mut policies: Vec<String> = self.observed.policies.iter().map(ToString::to_string).collect();
        policies.sort();
        let queues = self.observed.queues.iter();
        Shape {
            queues: queues
                .map(|(name, queue)| {
                    (name.clone(), ObservedQueue { totals: Totals::default(), ..queue.clone() })
                })
                .collect(),
            exchanges: self.observed.exchanges.clone().into_iter().collect(),
            bindings,
            policies,
        }
    }
}

/// What two vhosts have in common when they are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    pub queues: Vec<(String, ObservedQueue)>,
    pub exchanges: Vec<(String, ObservedExchange)>,
    pub bindings: Vec<Binding>,
    pub policies: Vec<String>,
}
