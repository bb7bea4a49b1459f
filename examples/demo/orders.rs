//! The orders, where each of them is, and whether that is right. No IO.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::topology::Topology;

/// How early it may seem to come back: what consumers print is read a moment later.
const EARLY: Duration = Duration::from_millis(200);

/// How late it may come back on a busy machine.
const LATE: Duration = Duration::from_secs(3);

/// How the payment of an order goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Fine,
    FailsOnce,
    FailsTwice,
    FailsAlways,
    Crashes,
}

impl Kind {
    /// As the table calls it, and as a message's body says it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::FailsOnce => "fails once",
            Self::FailsTwice => "fails twice",
            Self::FailsAlways => "fails always",
            Self::Crashes => "crashes",
        }
    }
}

/// What a consumer says of a delivery.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) consumer: String,
    pub(crate) order: String,
    pub(crate) exchange: String,
    pub(crate) result: Outcome,
}

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Processed,
    Rejected,
    Crashed,
}

/// One delivery of an order.
pub(crate) struct Delivery {
    pub(crate) at: Instant,
    pub(crate) report: Report,
}

/// One order and what became of it so far.
pub(crate) struct Order {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) published: bool,
    pub(crate) deliveries: Vec<Delivery>,
}

/// Where an order is, as far as deliveries tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    NotPublished,
    Source,
    Tier(usize),
    Processed,
    Dead,
}

impl Order {
    pub(crate) fn new(kind: Kind, number: u32) -> Self {
        let name = format!("{}-{number}", kind.word().replace(' ', "-"));
        Self { name, kind, published: false, deliveries: Vec::new() }
    }

    /// One of many that fail always, and that the story of the retries knows nothing of.
    pub(crate) fn declined(lot: &str, number: usize) -> Self {
        let name = format!("{lot}-{number}");
        Self { name, kind: Kind::FailsAlways, published: false, deliveries: Vec::new() }
    }

    pub(crate) fn place(&self, tiers: usize) -> Place {
        match self.deliveries.last().map(|delivery| delivery.report.result) {
            None if !self.published => Place::NotPublished,
            // A crash puts the message back, or into quarantine: only the broker knows.
            None | Some(Outcome::Crashed) => Place::Source,
            Some(Outcome::Processed) => Place::Processed,
            Some(Outcome::Rejected) => match self.rejections() {
                number if number <= tiers => Place::Tier(number - 1),
                _ => Place::Dead,
            },
        }
    }

    fn rejections(&self) -> usize {
        self.deliveries.iter().filter(|delivery| delivery.report.result == Outcome::Rejected).count()
    }

    /// How long the order waited before its n-th delivery, beginning with the second.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Duration> {
        self.deliveries.windows(2).map(|pair| pair[1].at - pair[0].at)
    }

    /// What is wrong with the way that the order took, if it has come to its end.
    fn problem(&self, topology: &Topology, ends: &Ends) -> Option<String> {
        let (dead, poison) = (ends.dead(&self.name), ends.poison(&self.name));
        let processed =
            self.deliveries.iter().filter(|delivery| delivery.report.result == Outcome::Processed).count();
        let (wanted, end) = match self.kind {
            Kind::Fine | Kind::FailsOnce | Kind::FailsTwice => ((1, 0, 0), "processed once"),
            Kind::FailsAlways => ((0, 1, 0), "in the dead-letter queue"),
            Kind::Crashes => ((0, 0, 1), "in quarantine"),
        };
        if (processed, dead, poison) != wanted {
            return Some(format!(
                "it should be {end}, but was processed {processed} times, is {dead} times in the dead-letter \
                 queue, {poison} times in quarantine, and {}",
                self.last_seen()
            ));
        }
        let rejections = match self.kind {
            Kind::Fine | Kind::Crashes => 0,
            Kind::FailsOnce => 1,
            Kind::FailsTwice => 2,
            Kind::FailsAlways => topology.tiers.len() + 1,
        };
        if self.rejections() != rejections {
            return Some(format!("it should be rejected {rejections} times, not {}", self.rejections()));
        }
        if self.kind == Kind::Crashes { None } else { self.problem_of_the_way(topology) }
    }

    fn problem_of_the_way(&self, topology: &Topology) -> Option<String> {
        let first = self.deliveries.first()?;
        if first.report.exchange != topology.exchange {
            return Some(format!("its first delivery came by {}", first.report.exchange));
        }
        for ((delivery, waited), tier) in
            self.deliveries.iter().skip(1).zip(self.waits()).zip(&topology.tiers)
        {
            if delivery.report.exchange != tier.way_back {
                return Some(format!("it came back by {}, not {}", delivery.report.exchange, tier.way_back));
            }
            if waited + EARLY < tier.delay || waited > tier.delay + LATE {
                let waited = waited.as_secs_f64();
                return Some(format!("it waited {waited:.3} s in {}, not {}", tier.queue, tier.wanted));
            }
        }
        None
    }

    fn last_seen(&self) -> String {
        match self.deliveries.last() {
            None => "no consumer has seen it".to_owned(),
            Some(delivery) => format!(
                "was last {} by {} in delivery {}",
                match delivery.report.result {
                    Outcome::Processed => "processed",
                    Outcome::Rejected => "rejected",
                    Outcome::Crashed => "the end of a crash",
                },
                delivery.report.consumer,
                self.deliveries.len()
            ),
        }
    }
}

/// The names of the orders that lie in the queues at the end.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) dead: Vec<String>,
    pub(crate) poison: Vec<String>,
}

impl Ends {
    fn dead(&self, name: &str) -> usize {
        self.dead.iter().filter(|order| *order == name).count()
    }

    fn poison(&self, name: &str) -> usize {
        self.poison.iter().filter(|order| *order == name).count()
    }
}

/// All orders.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) orders: Vec<Order>,
    index: HashMap<String, usize>,
}

impl Book {
    pub(crate) fn add(&mut self, order: Order) {
        self.index.insert(order.name.clone(), self.orders.len());
        self.orders.push(order);
    }

    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = &Order> {
        self.orders.iter().filter(move |order| order.kind == kind)
    }

    /// Writes a delivery down and returns its order; `None` for one that is not ours.
    pub(crate) fn record(&mut self, report: Report, at: Instant) -> Option<&Order> {
        let order = &mut self.orders[*self.index.get(&report.order)?];
        order.deliveries.push(Delivery { at, report });
        Some(order)
    }

    /// How many orders will end where.
    pub(crate) fn expected(&self, kind: Kind) -> usize {
        self.of(kind).filter(|order| order.published).count()
    }

    /// What is not as it should be at the end, a sentence for each order.
    pub(crate) fn problems(&self, topology: &Topology, ends: &Ends) -> Vec<String> {
        let of_orders = self.orders.iter().filter_map(|order| {
            let problem = order.problem(topology, ends)?;
            Some(format!("{}: {problem}", order.name))
        });
        let strangers = ends.dead.iter().chain(&ends.poison).filter(|name| !self.index.contains_key(*name));
        of_orders.chain(strangers.map(|name| format!("{name}: nobody published it"))).collect()
    }
}

/// What the producer publishes, in this order.
pub(crate) fn of_the_show() -> Vec<Order> {
    use Kind::{Crashes, FailsAlways, FailsOnce, Fine};
    let sequence = [
        FailsAlways,
        Fine,
        FailsOnce,
        Fine,
        Crashes,
        FailsOnce,
        Fine,
        FailsAlways,
        Fine,
        FailsOnce,
        Fine,
        FailsAlways,
        Fine,
        FailsOnce,
        Crashes,
        Fine,
        FailsAlways,
        FailsOnce,
        Fine,
        Fine,
        FailsOnce,
        Fine,
        Fine,
        Fine,
    ];
    let mut numbers = HashMap::new();
    let number = |kind: Kind| {
        let number = numbers.entry(kind.word()).or_insert(0);
        *number += 1;
        Order::new(kind, *number)
    };
    sequence.into_iter().map(number).collect()
}
