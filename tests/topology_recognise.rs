//! Pipelines read back from a vhost in memory: what Redrive declared for any specification, and
//! what applications declared, or why that can't be described.

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

use bench::{Bench, Watch, check};
use lab::{Lab, checked};
use proptest::prelude::*;
use redrive::topology::effective::PolicyIndex;
use redrive::topology::model::{ApplyTo, Policy, QueueType};
use redrive::topology::recognise::{Described, Effect, Look, Recognised, recognise};
use redrive::topology::spec::{Delays, Identity, Jitter, Mode, Ownership, Settings, Spec};
use redrive::topology::validate::{Pipeline, check_broker, validate};
use specs::{Fixed, edits, fixed, spec, version};

/// A specification with the numbers and types that edits leave alone.
fn rich(fixed: Fixed) -> impl Strategy<Value = Spec> {
    let number = |number: i64| proptest::option::of(Just(number));
    let numbers = (number(1_000), number(3_600_000), number(7_200_000), number(50_000));
    let sizes = (number(3), number(5), number(1));
    let kinds = (any::<bool>(), any::<bool>(), any::<bool>(), 0..20_i64);
    (spec(fixed), numbers, sizes, kinds).prop_map(move |(mut spec, numbers, sizes, kinds)| {
        let external = fixed.ownership == Ownership::External;
        let kind = |classic: bool| if classic { QueueType::Classic } else { QueueType::Quorum };
        (spec.source.max_length, spec.source.message_ttl, spec.source.consumer_timeout) =
            (numbers.0, numbers.1, numbers.2);
        spec.source.single_active_consumer = kinds.0 && !external;
        spec.source.group_size = sizes.0.filter(|_| !external && fixed.kind == QueueType::Quorum);
        if spec.mode.has_tiers() {
            spec.retry_type = kind(kinds.1);
            spec.retry_group_size = sizes.1.filter(|_| !kinds.1);
        }
        spec.dead_letter.kind = kind(kinds.2);
        spec.dead_letter.group_size = sizes.2.filter(|_| !kinds.2);
        let all_quorum = fixed.kind == QueueType::Quorum && !kinds.1 && !kinds.2;
        spec.dead_letter.max_length = numbers.3.filter(|_| all_quorum);
        if spec.mode == Mode::Application && kinds.3 < 5 {
            spec.delays = Delays::List(Vec::new());
            (spec.retry_type, spec.retry_group_size, spec.jitter) = (QueueType::Quorum, None, None);
        }
        if let Settings::Policy { priority } = &mut spec.settings {
            *priority += kinds.3;
        }
        spec
    })
}

fn recognised(lab: &Lab) -> Recognised {
    let observed = &lab.world.observed;
    let policies = PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref());
    let look =
        Look { observed, facts: &lab.facts, policies: &policies, namespace: "shop", cluster: "import" };
    recognise(&look, &|queue| queue == "orders")
}

/// The one pipeline of a vhost.
fn only(lab: &Lab) -> Described {
    let Recognised { mut pipelines, unfit, .. } = recognised(lab);
    assert_eq!(unfit, []);
    assert_eq!(pipelines.len(), 1);
    pipelines.remove(0)
}

/// Whether a broker of this version can take a pipeline.
fn is_possible(version: (u32, u32, u32), pipeline: &Pipeline) -> bool {
    check_broker(pipeline, &lab::facts(version)).is_empty()
}

/// What two specifications have in common when nothing on the broker tells them apart.
fn visible(mut spec: Spec) -> Spec {
    spec.source.exclusive_bindings = false;
    spec.source.bindings.sort();
    // A chain without a ladder is the same for a client that never retries and for nobody at all.
    let never_retries = spec.mode == Mode::Application && spec.delays == Delays::List(Vec::new());
    if never_retries && !spec.dead_letter.quarantine.is_empty() {
        spec.mode = Mode::None;
    }
    // One shard spreads nothing.
    spec.jitter = spec.jitter.filter(|jitter: &Jitter| jitter.shards > 1);
    for category in &mut spec.dead_letter.quarantine {
        category.reasons.sort();
    }
    spec
}

#[test]
fn what_was_declared_for_a_specification_is_described_so_that_nothing_changes() {
    let strategy = (version(), fixed().prop_flat_map(|fixed| (Just(fixed), rich(fixed))), any::<u64>());
    check(240, &strategy, |(version, (fixed, spec), seed)| {
        let pipeline = checked(&spec);
        if !is_possible(version, &pipeline) {
            return;
        }
        let mut bench = Bench::new(version, fixed, seed);
        bench.lab.settle(&pipeline);
        let found = only(&bench.lab);
        assert_eq!(found.effect, Effect::Nothing, "{:#?}\nas\n{:#?}", spec, found.pipeline.spec);
        assert!(found.marked);
        assert_eq!(
            (found.pipeline.identity.namespace.as_str(), found.pipeline.identity.name.as_str()),
            ("shop", "orders")
        );
        let (read, meant) = (visible(found.pipeline.spec), visible(spec));
        assert_eq!(read.source.queue, meant.source.queue);
        assert_eq!(read.source.ownership, meant.source.ownership);
        assert_eq!(read.mode, meant.mode);
        assert_eq!(read.source.delivery_limit.unwrap_or(20), meant.source.delivery_limit.unwrap_or(20));
        assert_eq!(read.dead_letter, meant.dead_letter);
        assert_eq!((read.retry_type, read.retry_group_size), (meant.retry_type, meant.retry_group_size));
        let numbers =
            |spec: &Spec| (spec.source.max_length, spec.source.message_ttl, spec.source.consumer_timeout);
        assert_eq!(numbers(&read), numbers(&meant));
        if meant.mode.has_tiers() && meant.jitter.is_none() {
            let delays = |pipeline: &Spec| {
                let mut delays: Vec<i64> = checked(pipeline).tiers.iter().map(|tier| tier.delay).collect();
                // The order of a client's own queues is nowhere on the broker.
                if !meant.retry_template.contains("{attempt}") {
                    delays.sort_unstable();
                }
                delays
            };
            assert_eq!(delays(&read), delays(&meant));
        }
    });
}

#[test]
fn after_edits_the_newest_is_described() {
    let strategy = (version(), edits(2), any::<u64>());
    check(64, &strategy, |(version, (fixed, specs), seed)| {
        let [first, second] = [checked(&specs[0]), checked(&specs[1])];
        if ![&first, &second].iter().all(|pipeline| is_possible(version, pipeline)) {
            return;
        }
        let mut bench = Bench::new(version, fixed, seed);
        bench.settle(&first, &[], Watch::Edit);
        bench.settle(&second, &[&first], Watch::Edit);
        let found = only(&bench.lab);
        assert_eq!(found.effect, Effect::Nothing, "{:#?}\nas\n{:#?}", specs[1], found.pipeline.spec);
    });
}

#[test]
fn a_description_is_adopted_by_another_resource_of_its_name_without_a_write() {
    let strategy = (version(), fixed().prop_flat_map(|fixed| (Just(fixed), rich(fixed))), any::<u64>());
    check(64, &strategy, |(version, (fixed, spec), seed)| {
        let pipeline = checked(&spec);
        if !is_possible(version, &pipeline) {
            return;
        }
        let mut bench = Bench::new(version, fixed, seed);
        bench.lab.settle(&pipeline);
        let found = only(&bench.lab);
        let mut lab = bench.lab.clone();
        lab.inventory.clear();
        lab.applied = None;
        lab.adopt = true;
        let before = lab.world.shape();
        let after_look = lab.settle(&found.pipeline);
        assert!(after_look.plan.is_empty());
        let without_markers = |shape: &world::Shape| {
            let mut shape = shape.clone();
            shape.bindings.retain(|binding| binding.source != "redrive.owner");
            shape
        };
        assert_eq!(without_markers(&lab.world.shape()), without_markers(&before));
    });
}

#[test]
fn a_policy_that_was_merged_is_read_as_merged() {
    let mut spec = lab::orders();
    spec.source.ownership = Ownership::External;
    spec.merge_policy = true;
    spec.source.exchange = None;
    spec.source.bindings.clear();
    let fixed = specs::Fixed {
        ownership: Ownership::External,
        kind: spec.source.kind,
        settings: spec.settings,
        application: false,
    };
    let mut bench = Bench::new((4, 3, 6), fixed, 1);
    bench.lab.world.observed.policies.push(Policy {
        name: "limits".into(),
        pattern: "^orders$".into(),
        apply_to: ApplyTo::Queues,
        priority: 1,
        definition: [("max-length".to_owned(), 5_000.into())].into(),
    });
    bench.settle(&checked(&spec), &[], Watch::Edit);
    let found = only(&bench.lab);
    assert_eq!(found.effect, Effect::Nothing);
    assert!(found.pipeline.spec.merge_policy);
    assert_eq!(found.pipeline.spec.source.max_length, None, "the other policy says so");
}

#[test]
fn pipelines_of_two_clusters_are_told_apart() {
    let mut lab = Lab::new((4, 3, 6));
    lab.settle(&checked(&lab::orders()));
    lab.inventory.clear();
    let elsewhere = Identity { cluster: "c2".into(), ..lab::identity("orders") };
    let mut spec = lab::orders();
    spec.source.queue = "carts".into();
    lab.settle(&validate(elsewhere, spec).expect("a pipeline"));
    let policies = PolicyIndex::new(&[], None);
    let observed = &lab.world.observed;
    let look = Look { observed, facts: &lab.facts, policies: &policies, namespace: "shop", cluster: "c1" };
    let Recognised { pipelines, .. } = recognise(&look, &|_| true);
    let found: Vec<(&str, bool)> = pipelines
        .iter()
        .map(|one| {
            let told = one.remarks.iter().any(|remark| remark.starts_with("Pipelines of several clusters"));
            (one.pipeline.identity.cluster.as_str(), told)
        })
        .collect();
    assert_eq!(found, [("c1", false), ("c2", true)]);
}
