//! Edits that are refused, field by field and whole, and those that are carried out.

mod carried_out;
#[path = "../support/lab.rs"]
mod lab;
mod recreations;
mod refused;
#[path = "../support/routing.rs"]
mod routing;
#[path = "../support/world.rs"]
mod world;

use lab::{Lab, checked};
use redrive::topology::model::{Arg, Args, Queue};
use redrive::topology::spec::{Category, Mode, Ownership, Settings, Spec};
use world::Write;

const NEW: (u32, u32, u32) = (4, 3, 6);

type Change = fn(&mut Spec);

fn with(base: &Spec, change: Change) -> Spec {
    let mut spec = base.clone();
    change(&mut spec);
    spec
}

fn poison() -> Vec<Category> {
    vec![Category { name: "poison".into(), reasons: vec!["delivery_limit".into()], headers: Args::new() }]
}

fn application(spec: &mut Spec) {
    spec.mode = Mode::Application;
}

fn native(spec: &mut Spec) {
    spec.mode = Mode::Native { min: 1_000, max: 60_000, attempts: 8 };
}

/// Numbers of all kinds, in the queues' arguments.
fn arguments(spec: &mut Spec) {
    spec.settings = Settings::Arguments;
    spec.dead_letter.retention = Some(1_209_600_000);
    spec.dead_letter.max_length = Some(1_000);
    spec.source.max_length = Some(500);
    spec.source.message_ttl = Some(60_000);
    spec.source.consumer_timeout = Some(120_000);
    spec.source.delivery_limit = Some(5);
}

/// The same numbers in policies.
fn policies(spec: &mut Spec) {
    spec.settings = Settings::Policy { priority: 10 };
}

/// A world in which a pipeline is complete; where the source is External, it is there.
fn lab_with(spec: &Spec) -> Lab {
    let mut lab = Lab::new(NEW);
    if spec.source.ownership == Ownership::External {
        let kind = ("x-queue-type".to_owned(), Arg::from(spec.source.kind.as_str()));
        let queue = Queue { name: "orders".into(), kind: spec.source.kind, arguments: [kind].into() };
        lab.world.write(&Write::PutQueue(queue)).expect("the source");
    }
    lab.settle(&checked(spec));
    lab
}
