//! Queues that others know by name are made anew with a person's consent, and every message has
//! exactly one way meanwhile, whenever the operator dies.

use std::collections::BTreeSet;

use redrive::topology::diff::Diff;
use redrive::topology::model::{Args, ObjectKey, QueueType};
use redrive::topology::plan::{BlockedBy, Step};
use redrive::topology::spec::{Delays, Mode, Settings, SourceBinding, Spec};
use redrive::topology::validate::Pipeline;

use crate::lab::{Lab, checked, orders};
use crate::routing::Router;
use crate::world::{World, Write, mix, writes};
use crate::{Change, application, arguments, lab_with, native, poison, policies, with};

/// More rounds than any of these takes.
const ROUNDS: usize = 24;

const EDITS: [(&str, Change, Change); 15] = [
    ("Broker to Application", |_| {}, application),
    ("Application to Broker", application, |spec| spec.mode = Mode::Broker),
    ("None to Application", |spec| spec.mode = Mode::None, application),
    ("Application to Native", application, native),
    ("settings to arguments", policies_with_numbers, |spec| spec.settings = Settings::Arguments),
    ("settings to policies", arguments, policies),
    ("delivery limit in arguments", arguments, |spec| spec.source.delivery_limit = Some(9)),
    ("a client's delay", application, |spec| spec.delays = Delays::List(vec![5_000, 60_000])),
    ("a client's retry less", application, |spec| spec.delays = Delays::List(vec![5_000])),
    ("a client's retry queues' type", application, |spec| spec.retry_type = QueueType::Classic),
    ("a client's DLQ type", application, |spec| spec.dead_letter.kind = QueueType::Classic),
    ("a client's parking lot", application_with_parking, |spec| spec.dead_letter.kind = QueueType::Classic),
    ("a client's DLQ name", application, |spec| spec.dead_letter.template = "{queue}_error".into()),
    ("a client's first category", application, |spec| spec.dead_letter.quarantine = poison()),
    (
        "a classic source's first limit",
        |spec| spec.source.kind = QueueType::Classic,
        |spec| {
            spec.source.max_length = Some(1_000);
        },
    ),
];

/// What takes no consent: no client is led elsewhere.
const STAND_INS: [(&str, Change, Change); 3] = [
    ("DLQ type", with_graves, |spec| spec.dead_letter.kind = QueueType::Classic),
    ("DLQ size", with_graves, |spec| spec.dead_letter.group_size = Some(3)),
    ("DLQ numbers in arguments", arguments, |spec| spec.dead_letter.retention = Some(604_800_000)),
];

fn with_graves(spec: &mut Spec) {
    spec.dead_letter.quarantine = poison();
    spec.dead_letter.parking_lot = true;
}

fn application_with_parking(spec: &mut Spec) {
    application(spec);
    spec.dead_letter.parking_lot = true;
}

fn policies_with_numbers(spec: &mut Spec) {
    arguments(spec);
    policies(spec);
}

/// A pipeline with messages in all its queues, and how many there are.
struct Bench {
    lab: Lab,
    total: i64,
}

impl Bench {
    fn new(before: &Spec, seed: u64) -> Self {
        let mut lab = lab_with(before);
        lab.seed = seed;
        let queues: Vec<String> = lab.world.observed.queues.keys().cloned().collect();
        for queue in &queues {
            lab.world.fill(queue, 10);
        }
        let total = 10 * i64::try_from(queues.len()).expect("few");
        Self { lab, total }
    }

    fn held(&self) -> i64 {
        self.lab.world.observed.queues.values().filter_map(|queue| queue.totals.messages).sum()
    }

    /// One comparison, in which `dies` writes are the last; every message is watched after each.
    fn round(&mut self, pipeline: &Pipeline, dies: usize) -> Diff {
        let diff = self.lab.diff(pipeline);
        self.lab.inventory = diff.intended(&self.lab.inventory);
        let all = self.lab.steps(&diff.plan);
        let all = all
            .iter()
            .flat_map(|planned| writes(&planned.step).into_iter().map(move |write| (planned, write)));
        for (number, (planned, write)) in all.enumerate() {
            if number >= dies {
                return diff;
            }
            self.check(&planned.step, &write);
            self.lab.world.write(&write).unwrap_or_else(|error| panic!("{}: {error}", planned.step));
            check_inflow(&self.lab.world, &write, &diff);
        }
        self.lab.finish(&diff);
        for moved in &diff.plan.moves {
            let from = &self.lab.world.observed.queues[&moved.from];
            let to = &self.lab.world.observed.queues[&moved.to];
            let (count, sum) = (from.totals.messages.expect("known"), to.totals.messages.expect("known"));
            self.lab.world.fill(&moved.from, 0);
            self.lab.world.fill(&moved.to, sum + count);
        }
        diff
    }

    fn check(&self, step: &Step, write: &Write) {
        if let Write::DeleteQueue(name) = write {
            let messages = self.lab.world.observed.queues[name].totals.messages;
            assert_eq!(messages, Some(0), "{step} loses them");
        }
    }

    fn finish(&mut self, pipeline: &Pipeline) {
        for _ in 0..ROUNDS {
            let diff = self.round(pipeline, usize::MAX);
            assert_eq!(diff.plan.blocked, [], "{}", diff.plan);
            assert_eq!(self.held(), self.total, "no message is lost");
            if diff.plan.is_empty() {
                return;
            }
        }
        panic!("it does not settle:\n{}", self.lab.plan(pipeline));
    }
}

/// What is published goes to one queue, the source or what stands in for it.
fn check_inflow(world: &World, write: &Write, diff: &Diff) {
    let outcomes = Router::new(&world.observed).route("orders.exchange", &Args::new(), "orders.created");
    let [outcome] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    let right =
        ["orders", "orders.moving"].iter().any(|queue| outcome.len() == 1 && outcome.contains(*queue));
    assert!(right, "{outcome:?} after {write:?} in\n{}", diff.plan);
}

/// The pending plan's hash.
fn asked(lab: &Lab, pipeline: &Pipeline, name: &str) -> String {
    let diff = lab.diff(pipeline);
    assert!(!diff.plan.blocked.is_empty(), "{name} waits: {}", diff.plan);
    for blocked in &diff.plan.blocked {
        assert_eq!(blocked.by, BlockedBy::AwaitsConsent, "{name}: {blocked}");
    }
    assert_eq!(diff.plan.steps, [], "{name}");
    let pending = diff.plan.pending.expect("a plan to consent to");
    assert!(diff.plan.blocked[0].why.contains(&pending.hash), "{name}: {}", diff.plan.blocked[0]);
    pending.hash
}

#[test]
fn with_consent_each_edit_is_carried_out_and_every_message_kept() {
    for (name, before, edit) in EDITS {
        let before = with(&orders(), before);
        let after = checked(&with(&before, edit));
        let mut bench = Bench::new(&before, 1);
        bench.lab.consent = Some("another hash".to_owned());
        let hash = asked(&bench.lab, &after, name);
        bench.lab.consent = Some(hash);
        bench.finish(&after);
        assert_as_new(&bench.lab, &after, name);
    }
}

/// Nothing tells that the pipeline was another one before.
fn assert_as_new(lab: &Lab, pipeline: &Pipeline, name: &str) {
    let mut new = lab_with(&pipeline.spec);
    new.settle(pipeline);
    let named = |lab: &Lab| lab.world.observed.queues.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(named(lab), named(&new), "{name}");
    for (queue, found) in &lab.world.observed.queues {
        assert_eq!(found.arguments, new.world.observed.queues[queue].arguments, "{name}: {queue}");
    }
    let left = lab.world.observed.exchanges.keys().find(|exchange| exchange.contains(".moving"));
    assert_eq!(left, None, "{name}");
    assert!(!lab.inventory.keys().any(|key| key.name().contains(".moving")), "{name}");
}

#[test]
fn an_operator_that_dies_at_any_write_goes_on_with_one_way_for_each_message() {
    for (name, before, edit) in EDITS {
        let before = with(&orders(), before);
        let after = checked(&with(&before, edit));
        for seed in 0..12 {
            let mut bench = Bench::new(&before, seed);
            bench.lab.consent = Some(asked(&bench.lab, &after, name));
            for turn in 0..40 {
                bench.round(&after, usize::try_from(mix(seed, turn) % 4).expect("small"));
            }
            bench.finish(&after);
            assert_as_new(&bench.lab, &after, name);
        }
    }
}

#[test]
fn queues_that_end_the_line_are_made_anew_whenever_the_operator_dies() {
    for (name, before, edit) in STAND_INS {
        let before = with(&orders(), before);
        let after = checked(&with(&before, edit));
        for seed in 0..12 {
            let mut bench = Bench::new(&before, seed);
            assert_eq!(bench.lab.diff(&after).plan.blocked, [], "{name}");
            for turn in 0..40 {
                bench.round(&after, usize::try_from(mix(seed, turn) % 4).expect("small"));
            }
            bench.finish(&after);
            assert_as_new(&bench.lab, &after, name);
        }
    }
}

#[test]
fn an_edit_that_is_taken_back_on_the_way_returns() {
    for (name, before, edit) in EDITS {
        let before = with(&orders(), before);
        let (then, after) = (checked(&before), checked(&with(&before, edit)));
        for rounds in 0..12 {
            let mut bench = Bench::new(&before, 3);
            bench.lab.consent = Some(asked(&bench.lab, &after, name));
            for _ in 0..rounds {
                bench.round(&after, usize::MAX);
            }
            // It is an edit as well, although what it asks for was there before.
            bench.lab.applied = None;
            // What was made anew already is made anew once more.
            bench.lab.consent = bench.lab.diff(&then).plan.pending.map(|pending| pending.hash);
            bench.finish(&then);
            assert_as_new(&bench.lab, &then, name);
        }
    }
}

#[test]
fn a_pipeline_that_is_deleted_on_the_way_leaves_nothing_and_leads_nothing_astray() {
    for (name, before, edit) in EDITS {
        let before = with(&orders(), before);
        let after = checked(&with(&before, edit));
        for rounds in 0..12 {
            let mut bench = Bench::new(&before, 5);
            bench.lab.consent = Some(asked(&bench.lab, &after, name));
            for _ in 0..rounds {
                bench.round(&after, usize::MAX);
            }
            // A part that something led to goes with the next pass.
            for _ in 0..3 {
                let plan = bench.lab.removal(false, |removal| removal.delete());
                bench.lab.world.apply(&plan);
            }
            let observed = &bench.lab.world.observed;
            assert_eq!(observed.queues.len(), 0, "{name} {rounds}: {:?}", observed.queues.keys());
            let left: Vec<&String> =
                observed.exchanges.keys().filter(|left| *left != "redrive.owner").collect();
            assert_eq!(left, Vec::<&String>::new(), "{name} {rounds}");
        }
    }
}

#[test]
fn a_binding_of_somebody_else_stands_against_it() {
    let mut lab = lab_with(&orders());
    let mut strange = lab.world.observed.bindings_from("orders.exchange").next().expect("ours").clone();
    strange.routing_key = "theirs".into();
    lab.world.write(&Write::Bind(strange)).expect("bound");
    let diff = lab.diff(&checked(&with(&orders(), application)));
    let text = diff.plan.blocked[0].to_string();
    assert_eq!(diff.plan.blocked[0].by, BlockedBy::NotSupportedYet, "{text}");
    assert!(text.contains("\"theirs\"") && text.contains("list it in source.bindings"), "{text}");
    // In the same edit is early enough.
    let listed = |spec: &mut Spec| {
        application(spec);
        let binding = SourceBinding { exchange: "orders.exchange".into(), routing_key: "theirs".into() };
        spec.source.bindings.push(binding);
    };
    let diff = lab.diff(&checked(&with(&orders(), listed)));
    assert!(diff.plan.pending.is_some(), "{}", diff.plan);
}

#[test]
fn what_was_adopted_is_not_made_anew() {
    let mut lab = lab_with(&orders());
    let key = ObjectKey::Queue("orders".into());
    lab.inventory.get_mut(&key).expect("recorded").state = redrive::topology::ownership::State::Adopted;
    let diff = lab.diff(&checked(&with(&orders(), application)));
    let text = diff.plan.blocked[0].to_string();
    assert!(text.contains("queue orders was there before"), "{text}");
    assert_eq!(diff.plan.pending, None);
}

#[test]
fn another_edit_needs_another_consent() {
    let lab = lab_with(&orders());
    let hashes: BTreeSet<String> =
        [application as Change, |spec: &mut Spec| spec.settings = Settings::Arguments]
            .into_iter()
            .filter_map(|edit| lab.diff(&checked(&with(&orders(), edit))).plan.pending)
            .map(|pending| pending.hash)
            .collect();
    assert_eq!(hashes.len(), 2, "{hashes:?}");
    assert!(hashes.iter().all(|hash| hash.len() == 16), "{hashes:?}");
}
