//! What must hold for every pipeline, every edit and every interruption.
//!
//! Messages are in the queues while edits are made: the source and all retry
//! queues hold some until a test lets them drain.

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

use std::collections::{BTreeMap, BTreeSet};

use bench::{Bench, Watch, check, pick};
use lab::{Lab, checked};
use proptest::prelude::*;
use redrive::topology::model::Destination;
use redrive::topology::ownership::marker;
use redrive::topology::plan::{BlockedBy, Step};
use redrive::topology::spec::{DeadLetter, Ownership, Spec};
use redrive::topology::validate::{Pipeline, validate};
use specs::{Fixed, edits, fixed, spec, version};
use ways::{assert_right, deaths, live_numbers, ways as ways_of};
use world::{Write, mix, writes};

/// The same with DLQ, quarantine and parking lot of another's kind.
fn with_the_graves_of(other: &Spec, spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    let DeadLetter { kind, group_size, .. } = other.dead_letter;
    (spec.dead_letter.kind, spec.dead_letter.group_size) = (kind, group_size);
    spec
}

#[test]
fn at_every_moment_of_every_edit_each_message_has_exactly_one_way() {
    let strategy = (version(), edits(3), any::<u64>());
    check(48, &strategy, |(version, (fixed, specs), seed)| {
        let mut bench = Bench::new(version, fixed, seed);
        let pipelines: Vec<Pipeline> = specs.iter().map(checked).collect();
        for (index, pipeline) in pipelines.iter().enumerate() {
            let before: Vec<&Pipeline> = pipelines[..index].iter().collect();
            bench.settle(pipeline, &before, Watch::Edit);
        }
    });
}

#[test]
fn edits_that_follow_each_other_before_anything_has_drained_keep_one_way_too() {
    let strategy = (version(), edits(4), any::<u64>());
    check(32, &strategy, |(version, (fixed, specs), seed)| {
        let mut bench = Bench::new(version, fixed, seed);
        let pipelines: Vec<Pipeline> = specs.iter().map(checked).collect();
        for (index, pipeline) in pipelines.iter().enumerate() {
            bench.know(pipeline);
            let before: Vec<&Pipeline> = pipelines[..index].iter().collect();
            bench.round(pipeline, &before, Watch::Edit);
            bench.fill(1);
        }
        let (last, before) = pipelines.split_last().expect("some");
        bench.settle(last, &before.iter().collect::<Vec<_>>(), Watch::Edit);
    });
}

#[test]
fn an_operator_that_is_killed_at_any_write_ends_where_it_would_have() {
    let strategy = (version(), edits(2), any::<u64>());
    check(24, &strategy, |(version, (fixed, specs), seed)| {
        // While a queue is made anew the chain changes twice, and a kill may save one change: the
        // ends differ by a generation then.
        let [first, second] = [checked(&specs[0]), checked(&with_the_graves_of(&specs[0], &specs[1]))];
        let mut start = Bench::new(version, fixed, seed).lab;
        for (pipeline, others) in [(&first, false), (&second, true)] {
            if others {
                start.settle(&first);
            }
            let mut whole = start.clone();
            whole.settle(pipeline);
            let count: usize =
                start.diff(pipeline).plan.steps.iter().map(|planned| writes(&planned.step).len()).sum();
            for turn in 0..4_u64 {
                let at = usize::try_from(mix(seed, turn) % (count as u64 + 1)).expect("small");
                let mut killed = start.clone();
                killed.crash(pipeline, at, turn % 2 == 0);
                // And once more on the way.
                killed.crash(
                    pipeline,
                    usize::try_from(mix(seed, turn + 9) % 9).expect("small"),
                    turn % 2 == 1,
                );
                killed.settle(pipeline);
                assert_eq!(killed.world.shape(), whole.world.shape(), "killed after write {at} of {count}");
                assert_eq!(killed.inventory, whole.inventory, "killed after write {at} of {count}");
            }
        }
    });
}

#[test]
fn an_edit_that_was_cut_short_may_be_followed_by_another() {
    let strategy = (version(), edits(3), any::<u64>());
    check(32, &strategy, |(version, (fixed, specs), seed)| {
        let mut bench = Bench::new(version, fixed, seed);
        let [first, second, third] = [checked(&specs[0]), checked(&specs[1]), checked(&specs[2])];
        bench.settle(&first, &[], Watch::Edit);
        bench.know(&second);
        bench.fill(1);
        bench.lab.crash(&second, usize::try_from(seed % 60).expect("small"), seed % 2 == 0);
        bench.settle(&third, &[&first, &second], Watch::Edit);
    });
}

#[test]
fn a_lost_inventory_is_found_again_by_the_markers() {
    let strategy = (version(), edits(2), any::<u64>());
    check(32, &strategy, |(version, (fixed, specs), seed)| {
        let mut bench = Bench::new(version, fixed, seed);
        // Without an inventory nobody knows that other arguments are an edit.
        let [first, second] = [checked(&specs[0]), checked(&with_the_graves_of(&specs[0], &specs[1]))];
        bench.settle(&first, &[], Watch::Edit);
        bench.fill(1);
        bench.know(&second);
        bench.lab.inventory.clear();
        let diff = bench.rounds(&second, &[&first], Watch::Edit);
        if diff.plan.blocked.is_empty() {
            let numbers = live_numbers(&bench.lab.world, &second, &bench.ever);
            assert_right(&bench.lab.world, &second, &deaths(&[&second], &numbers));
            bench.assert_foreign_untouched();
        }
    });
}

#[test]
fn a_removal_takes_all_that_is_ours_and_nothing_else_in_any_order() {
    let strategy = (version(), edits(1), any::<u64>());
    check(48, &strategy, |(version, (fixed, specs), seed)| {
        let mut bench = Bench::new(version, fixed, seed);
        let pipeline = checked(&specs[0]);
        bench.settle(&pipeline, &[], Watch::Edit);
        let lab = &mut bench.lab;
        let plan = lab.removal(false, |removal| removal.delete());
        let deaths = deaths(&[&pipeline], &BTreeSet::new());
        let before = ways_of(&lab.world, &pipeline, &deaths);
        let external = fixed.ownership == Ownership::External;
        let mut let_go = false;
        for planned in lab.steps(&plan) {
            lab.world.run(&planned.step);
            let_go |=
                external && matches!(&planned.step, Step::ClearPolicy(name) if name.ends_with(":source"));
            for (death, fates) in ways_of(&lab.world, &pipeline, &deaths) {
                let gone = !lab.world.observed.queues.contains_key("orders") || let_go;
                assert!(
                    gone || fates == before[&death],
                    "{death:?} goes to {fates:?} after {}",
                    planned.step
                );
            }
        }
        assert!(lab.removal(false, |removal| removal.delete()).steps.is_empty());
        assert_eq!(lab.world.shape(), bench.foreign.shape());
    });
}

#[test]
fn a_removal_that_was_cut_short_goes_on_where_it_stopped() {
    let strategy = (version(), edits(1), any::<u64>());
    check(32, &strategy, |(version, (fixed, specs), seed)| {
        let mut bench = Bench::new(version, fixed, seed);
        let pipeline = checked(&specs[0]);
        bench.settle(&pipeline, &[], Watch::Edit);
        for turn in 0..3 {
            let plan = bench.lab.removal(false, |removal| removal.delete());
            let count = plan.steps.len() as u64 + 1;
            let at = usize::try_from(mix(seed, turn) % count).expect("small");
            for planned in bench.lab.steps(&plan).into_iter().take(at) {
                bench.lab.world.run(&planned.step);
            }
        }
        let plan = bench.lab.removal(false, |removal| removal.delete());
        bench.lab.world.apply(&plan);
        assert_eq!(bench.lab.world.shape(), bench.foreign.shape());
    });
}

#[test]
fn a_conflict_writes_nothing_at_all() {
    let strategy = (version(), fixed().prop_flat_map(|fixed| (Just(fixed), spec(fixed))), any::<u64>());
    check(48, &strategy, |(version, (fixed, spec), seed)| {
        let pipeline = checked(&spec);
        let bench = Bench::new(version, fixed, seed);
        let wanted = bench.lab.diff(&pipeline).desired;
        let queues = wanted.queues.iter().filter(|queue| queue.declared);
        let exchanges = wanted.exchanges.iter().filter(|exchange| !exchange.shared);
        let writes: Vec<(Write, Destination)> = queues
            .map(|q| (Write::PutQueue(q.queue.clone()), Destination::Queue(q.queue.name.clone())))
            .chain(exchanges.map(|x| {
                (Write::PutExchange(x.exchange.clone()), Destination::Exchange(x.exchange.name.clone()))
            }))
            .collect();
        let (write, object) = pick(&writes, usize::try_from(seed % 1_000).expect("small")).expect("objects");
        for marked in [true, false] {
            let mut lab = bench.lab.clone();
            lab.world.write(&write).expect("a foreign object");
            if marked {
                let mark = marker(&lab::identity("other"), object.clone());
                lab.world.write(&Write::Bind(mark)).expect("a foreign marker");
            }
            let diff = lab.diff(&pipeline);
            assert!(diff.plan.blocked.iter().any(|b| b.by == BlockedBy::Conflict), "{}", diff.plan);
            assert_eq!((diff.plan.steps.len(), diff.inventory), (0, lab.inventory.clone()));
            lab.adopt = true;
            let adopted = lab.diff(&pipeline).plan;
            assert_eq!(adopted.steps.is_empty(), marked, "only what nobody owns is adopted:\n{adopted}");
        }
    });
}

fn names_of(spec: &Spec) -> BTreeMap<String, usize> {
    let pipeline = checked(spec);
    let mut lab = Lab::new((4, 3, 6));
    let mut seen = BTreeMap::new();
    for round in 0..2 {
        let diff = lab.diff(&pipeline);
        if round == 0 {
            for queue in &diff.desired.queues {
                *seen.entry(format!("queue {}", queue.queue.name)).or_default() += 1;
            }
            for exchange in &diff.desired.exchanges {
                *seen.entry(format!("exchange {}", exchange.exchange.name)).or_default() += 1;
            }
        }
        for policy in &diff.desired.policies {
            assert!(policy.policy.pattern.len() <= 1_024 && policy.policy.name.len() <= 255);
        }
        lab.world.apply(&diff.plan);
        lab.inventory = diff.inventory;
    }
    assert!(lab.diff(&pipeline).plan.is_empty(), "{}", lab.plan(&pipeline));
    seen
}

#[test]
fn whatever_is_accepted_can_be_declared() {
    let managed = fixed().prop_map(|fixed| Fixed { ownership: Ownership::Managed, ..fixed });
    let name = prop_oneof!["[a-z.+*()|^$?{}é/%# \\\\-]{1,40}", "[.+é]{100,250}", ".{0,20}"];
    let template = proptest::sample::select(vec![
        "{queue}.{attempt}",
        "{queue}{delay}",
        "{attempt}",
        "{queue}.dlq.{attempt}",
        "{queue}.g{attempt}",
        "{queue}.s{attempt}",
    ]);
    let dlq =
        proptest::sample::select(vec!["{queue}.dlq", "{queue}.2", "{queue}.g2", "dead", "{queue}.1.s1"]);
    let strategy = (managed.prop_flat_map(spec), name, template, dlq, 0..1_002_u32);
    check(256, &strategy, |(mut spec, name, template, dlq, from)| {
        spec.source.queue = name;
        spec.retry_template = template.into();
        spec.dead_letter.template = dlq.into();
        spec.number_from = from;
        if validate(lab::identity("orders"), spec.clone()).is_ok() {
            for (name, uses) in names_of(&spec) {
                assert_eq!(uses, 1, "{name}");
            }
        }
    });
}

#[test]
fn no_name_is_used_twice() {
    let managed = fixed().prop_map(|fixed| Fixed { ownership: Ownership::Managed, ..fixed });
    let strategy = managed.prop_flat_map(spec);
    check(64, &strategy, |spec| {
        for (name, uses) in names_of(&spec) {
            assert_eq!(uses, 1, "{name}");
        }
    });
}
