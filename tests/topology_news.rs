//! Which of a broker's changes concern a pipeline: all that it has, and nothing beside it.

#[path = "support/lab.rs"]
mod lab;
#[path = "support/world.rs"]
mod world;

use lab::{Lab, checked, orders};
use redrive::topology::model::{Args, Binding, Destination};
use redrive::topology::names::OWNER_EXCHANGE;
use redrive::topology::news::{Change, Known, Own};
use redrive::topology::plan::Step;
use std::time::Duration;

const NEW: (u32, u32, u32) = (4, 3, 6);

/// A vhost with `orders`, and what its lane knows.
fn known() -> (Lab, Known) {
    let pipeline = checked(&orders());
    let lab = Lab::with(NEW, &pipeline);
    let mut known = Known::default();
    known.add(&pipeline, &lab.inventory);
    (lab, known)
}

fn queue(name: &str) -> Destination {
    Destination::Queue(name.to_owned())
}

fn exchange(name: &str) -> Destination {
    Destination::Exchange(name.to_owned())
}

fn binding(source: &str, destination: Destination) -> Binding {
    Binding { source: source.to_owned(), destination, routing_key: "k".to_owned(), arguments: Args::new() }
}

#[test]
fn whatever_the_pipeline_has_declared_concerns_it() {
    let (lab, known) = known();
    let observed = &lab.world.observed;
    let queues = observed.queues.keys().map(|name| queue(name));
    let exchanges = observed.exchanges.keys().map(|name| exchange(name));
    let objects: Vec<Destination> = queues.chain(exchanges).collect();
    assert!(objects.len() > 12, "{objects:?}");
    for object in objects {
        assert!(known.concerns(&Change::Deleted(object.clone())), "{object}");
        assert!(known.concerns(&Change::Declared(object.clone())), "{object}");
    }
    for binding in observed.bindings() {
        assert!(known.concerns(&Change::Unbound(binding.clone())), "{binding}");
    }
}

#[test]
fn what_is_merely_called_alike_does_not() {
    let (_, known) = known();
    for theirs in [queue("order"), queue("orders.retry.9"), exchange("orders"), queue("orders.exchange")] {
        assert!(!known.concerns(&Change::Deleted(theirs.clone())), "{theirs}");
        assert!(!known.concerns(&Change::Declared(theirs.clone())), "{theirs}");
    }
}

#[test]
fn a_foreign_binding_concerns_by_where_it_leads_or_by_a_source_that_is_closed() {
    let (_, known) = known();
    let concerns = |source: &str, to: Destination| {
        let binding = binding(source, to);
        let (bound, unbound) = (Change::Bound(binding.clone()), Change::Unbound(binding));
        assert_eq!(known.concerns(&bound), known.concerns(&unbound));
        known.concerns(&bound)
    };
    assert!(concerns("amq.topic", queue("orders")), "onto our queue");
    assert!(concerns("orders.return.0", queue("spy")), "out of the way back");
    assert!(concerns("orders.dlx.guard", queue("spy")), "out of the chain");
    assert!(!concerns("orders.exchange", queue("other")), "others subscribe there as well");
    assert!(!concerns(OWNER_EXCHANGE, queue("other")), "the marker of somebody else");
    assert!(!concerns("amq.topic", queue("other")));
}

#[test]
fn every_policy_may_matter() {
    let (_, known) = known();
    assert!(known.concerns(&Change::PolicySet("any".to_owned())));
    assert!(known.concerns(&Change::PolicyCleared("any".to_owned())));
    assert!(known.concerns(&Change::Vhost));
}

/// Whatever a plan writes is expected to be told, and told once it is nobody's news.
#[test]
fn all_that_a_plan_writes_is_our_own() {
    let mut spec = orders();
    spec.dead_letter.retention = Some(86_400_000);
    let pipeline = checked(&spec);
    let lab = Lab::new(NEW);
    let plan = lab.diff(&pipeline).plan;
    let mut own = Own::default();
    let steps: Vec<Step> = plan.steps.iter().map(|planned| planned.step.clone()).collect();
    assert!(steps.len() > 20, "{plan}");
    for step in &steps {
        own.expect(step, Duration::ZERO);
    }
    for step in &steps {
        assert!(own.is_own(&Change::of(step), Duration::from_secs(1)), "{step:?}");
    }
    for step in &steps {
        assert!(!own.is_own(&Change::of(step), Duration::from_secs(1)), "somebody else's: {step:?}");
    }
}
