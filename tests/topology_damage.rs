//! What people do to a vhost by hand is repaired, and no message suffers from it.

#[path = "support/bench.rs"]
mod bench;
#[path = "support/lab.rs"]
mod lab;
#[path = "support/routing.rs"]
mod routing;
#[path = "support/specs.rs"]
mod specs;
#[path = "support/ways.rs"]
mod ways;
#[path = "support/world.rs"]
mod world;

use bench::{Bench, Watch, assert_allowed, bound, check, pick};
use lab::{Lab, MAX_ROUNDS, checked};
use proptest::prelude::*;
use redrive::topology::model::{Arg, Binding, Destination, Exchange, ObjectKey, Queue};
use redrive::topology::names::OWNER_EXCHANGE;
use redrive::topology::observed::{ObservedExchange, ObservedQueue};
use specs::{edits, version};
use world::Write;

/// Something that a person does to a vhost by hand.
#[derive(Clone, Debug)]
enum Damage {
    DeleteQueue(usize),
    DeleteExchange(usize),
    Unbind(usize),
    Unmark(usize),
    ClearPolicy(usize),
    /// One more way out of one of our exchanges, to somebody's queue.
    Leak(usize),
    /// One more way out of one of our exchanges, back to the source.
    Loop(usize),
    /// One more way into one of our exchanges, from somebody's.
    Detour(usize),
    /// A queue is deleted and declared again as it was, bare.
    QueueAgain(usize),
    /// An exchange is.
    ExchangeAgain(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0..1_000_usize;
    prop_oneof![
        2 => at.clone().prop_map(Damage::DeleteQueue),
        3 => at.clone().prop_map(Damage::DeleteExchange),
        4 => at.clone().prop_map(Damage::Unbind),
        2 => at.clone().prop_map(Damage::Unmark),
        1 => at.clone().prop_map(Damage::ClearPolicy),
        1 => at.clone().prop_map(Damage::Leak),
        1 => at.clone().prop_map(Damage::Loop),
        1 => at.prop_map(Damage::Detour),
    ]
}

/// With objects that are somebody else's afterwards: an edit leaves them where they are, and with
/// them what they lead to.
fn damage_and_replacement() -> impl Strategy<Value = Damage> {
    let at = 0..1_000_usize;
    prop_oneof![
        12 => damage(),
        2 => at.clone().prop_map(Damage::QueueAgain),
        3 => at.prop_map(Damage::ExchangeAgain),
    ]
}

impl Damage {
    fn writes(&self, lab: &Lab) -> Vec<Write> {
        let observed = &lab.world.observed;
        let first = self.write(lab);
        let again = match (self, &first) {
            (Self::QueueAgain(_), Some(Write::DeleteQueue(name))) => {
                observed.queues.get(name).map(|found| queue_again(name, found))
            }
            (Self::ExchangeAgain(_), Some(Write::DeleteExchange(name))) => {
                observed.exchanges.get(name).map(|found| exchange_again(name, found))
            }
            _ => None,
        };
        first.into_iter().chain(again).collect()
    }

    fn write(&self, lab: &Lab) -> Option<Write> {
        let observed = &lab.world.observed;
        let names = |kind: fn(&ObjectKey) -> Option<&String>| -> Vec<String> {
            lab.inventory.keys().filter_map(kind).cloned().collect()
        };
        let queues = names(|key| if let ObjectKey::Queue(name) = key { Some(name) } else { None });
        let exchanges = names(|key| if let ObjectKey::Exchange(name) = key { Some(name) } else { None });
        let policies = names(|key| if let ObjectKey::Policy(name) = key { Some(name) } else { None });
        let is_marker = |binding: &&Binding| binding.source == OWNER_EXCHANGE;
        let ours = |binding: &&Binding| {
            exchanges.contains(&binding.source)
                || queues.iter().any(|name| *name == binding.destination.name())
        };
        let leak = |at, to: &str| {
            let internal: Vec<String> = exchanges
                .iter()
                .filter(|name| observed.exchanges.get(*name).is_some_and(|found| found.internal))
                .cloned()
                .collect();
            let from = pick(&internal, at)?;
            observed
                .queues
                .contains_key(to)
                .then(|| Write::Bind(bound(&from, Destination::Queue(to.into()), "x")))
        };
        let bindings = observed.bindings();
        match self {
            Self::DeleteQueue(at) | Self::QueueAgain(at) => pick(&queues, *at).map(Write::DeleteQueue),
            Self::DeleteExchange(at) | Self::ExchangeAgain(at) => {
                pick(&exchanges, *at).map(Write::DeleteExchange)
            }
            Self::Unbind(at) => {
                let found: Vec<_> = bindings.iter().filter(|b| !is_marker(b) && ours(b)).cloned().collect();
                pick(&found, *at).map(Write::Unbind)
            }
            Self::Unmark(at) => {
                let found: Vec<_> = bindings.iter().filter(|b| is_marker(b) && ours(b)).cloned().collect();
                pick(&found, *at).map(Write::Unbind)
            }
            Self::ClearPolicy(at) => pick(&policies, *at).map(Write::DeletePolicy),
            Self::Leak(at) => leak(*at, "billing.queue"),
            Self::Loop(at) => leak(*at, "orders"),
            Self::Detour(at) => {
                let there: Vec<String> =
                    exchanges.iter().filter(|name| observed.exchanges.contains_key(*name)).cloned().collect();
                pick(&there, *at).map(|name| Write::Bind(bound("billing", Destination::Exchange(name), "#")))
            }
        }
    }
}

fn queue_again(name: &str, found: &ObservedQueue) -> Write {
    let kind = ("x-queue-type".to_owned(), Arg::from(found.kind.as_str()));
    let arguments = found.arguments.clone().into_iter().chain([kind]).collect();
    Write::PutQueue(Queue { name: name.to_owned(), kind: found.kind, arguments })
}

fn exchange_again(name: &str, found: &ObservedExchange) -> Write {
    let ObservedExchange { kind, internal, arguments, .. } = found.clone();
    Write::PutExchange(Exchange { name: name.to_owned(), kind, internal, arguments })
}

#[test]
fn whatever_is_damaged_by_hand_is_repaired_and_no_message_gets_a_worse_way() {
    let strategy =
        (version(), edits(1), proptest::collection::vec(damage_and_replacement(), 1..5), any::<u64>());
    check(96, &strategy, |(version, (fixed, specs), damages, seed)| {
        let mut bench = Bench::new(version, fixed, seed);
        let pipeline = checked(&specs[0]);
        bench.settle(&pipeline, &[], Watch::Edit);
        for damage in &damages {
            for write in damage.writes(&bench.lab) {
                bench.lab.world.write(&write).expect("damage");
            }
        }
        let plan = bench.lab.diff(&pipeline).plan;
        let found = bench.lab.drift(&pipeline);
        let same = plan.steps.is_empty() == found.is_empty();
        assert!(same, "nothing is repaired in silence, or told and not repaired: {found:#?}\n{plan}");
        bench.settle(&pipeline, &[], Watch::Repair);
    });
}

#[test]
fn an_edit_of_a_damaged_pipeline_ends_in_the_wanted_topology() {
    let strategy = (version(), edits(2), proptest::collection::vec(damage(), 1..4), any::<u64>());
    check(64, &strategy, |(version, (fixed, specs), damages, seed)| {
        let mut bench = Bench::new(version, fixed, seed);
        let [first, second] = [checked(&specs[0]), checked(&specs[1])];
        bench.settle(&first, &[], Watch::Edit);
        for damage in &damages {
            for write in damage.writes(&bench.lab) {
                bench.lab.world.write(&write).expect("damage");
            }
        }
        bench.know(&second);
        for _ in 0..=2 * MAX_ROUNDS {
            bench.fill(0);
            let diff = bench.lab.round(&second, |_, _| {});
            assert_allowed(&diff, &second, Watch::Repair);
            if diff.plan.steps.is_empty() && bench.lab.proven_empty.is_empty() {
                if diff.plan.blocked.is_empty() {
                    bench.assert_settled(&second, &diff);
                }
                return;
            }
        }
        panic!("does not settle:\n{}", bench.lab.plan(&second));
    });
}
