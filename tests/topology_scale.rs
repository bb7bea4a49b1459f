//! What a comparison costs beside a thousand other pipelines.

#[path = "support/lab.rs"]
mod lab;
#[path = "support/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use lab::{Lab, identity, orders};
use redrive::topology::diff::{Context, diff};
use redrive::topology::effective::PolicyIndex;
use redrive::topology::ownership::Inventory;
use redrive::topology::spec::{Delays, Spec};
use redrive::topology::validate::{Pipeline, validate};

const PIPELINES: usize = 1_000;

fn pipeline(number: usize) -> Pipeline {
    let mut spec: Spec = orders();
    spec.source.queue = format!("orders-{number}");
    spec.delays = Delays::List(vec![5_000, 30_000, 120_000, 600_000]);
    spec.dead_letter.retention = Some(86_400_000);
    validate(identity(&format!("orders-{number}")), spec).expect("a pipeline")
}

/// `cargo test --release --test topology_scale -- --ignored --nocapture`
#[test]
#[ignore = "measures, takes a while in debug"]
fn a_thousand_settled_pipelines_are_compared_in_far_less_than_a_millisecond_each() {
    let pipelines: Vec<Pipeline> = (0..PIPELINES).map(pipeline).collect();
    let mut observed = redrive::topology::observed::Observed::default();
    let mut bindings = Vec::new();
    let mut inventories: Vec<Inventory> = Vec::new();
    for pipeline in &pipelines {
        let mut lab = Lab::new((4, 3, 6));
        lab.settle(pipeline);
        observed.queues.extend(lab.world.observed.queues.clone());
        observed.exchanges.extend(lab.world.observed.exchanges.clone());
        observed.policies.extend(lab.world.observed.policies.clone());
        bindings.extend(lab.world.observed.bindings().to_vec());
        inventories.push(lab.inventory);
    }
    // The shared exchange has a thousand owners, as it would.
    observed.set_bindings(bindings);
    for queue in observed.queues.values_mut() {
        queue.totals.messages = Some(7);
    }
    let started = Instant::now();
    let policies = PolicyIndex::new(&observed.policies, None);
    let indexed = started.elapsed();
    let facts = lab::facts((4, 3, 6));
    let (proven_empty, contested) = (BTreeSet::new(), BTreeMap::new());
    let started = Instant::now();
    for (pipeline, inventory) in pipelines.iter().zip(&inventories) {
        let diff = diff(&Context {
            pipeline,
            facts: &facts,
            observed: &observed,
            policies: &policies,
            inventory,
            adopt: false,
            proven_empty: &proven_empty,
            contested: &contested,
            edited: false,
            consent: None,
        });
        assert!(diff.plan.is_empty(), "{}", diff.plan);
    }
    let each = started.elapsed() / u32::try_from(PIPELINES).expect("few");
    println!(
        "{} queues, {} bindings, {} policies: index {indexed:?}, each comparison {each:?}",
        observed.queues.len(),
        observed.bindings().len(),
        observed.policies.len()
    );
    assert!(cfg!(debug_assertions) || each.as_micros() < 1_000, "{each:?} each");
}
