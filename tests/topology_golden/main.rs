//! Plans as text, one file per scenario in `tests/golden/topology`.
//!
//! `UPDATE_GOLDEN=1 cargo test --test topology_golden` writes them anew; read the
//! difference before you commit it.

mod create;
mod drift;
mod edits;
#[path = "../support/lab.rs"]
mod lab;
mod others;
mod policies;
#[path = "../support/world.rs"]
mod world;

use std::fmt::Write as _;
use std::path::PathBuf;

use lab::{Lab, checked, orders};
use redrive::topology::model::{ApplyTo, Arg, Args, Policy, Queue, QueueType};
use redrive::topology::spec::{Category, Ownership, Spec};
use world::Write;

const NEW: (u32, u32, u32) = (4, 3, 6);
const OLD: (u32, u32, u32) = (4, 0, 5);

#[track_caller]
fn golden(name: &str, text: &str) {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/topology").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be made");
        std::fs::write(&path, text).expect("the file can be written");
        return;
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        wanted == text,
        "{} differs; UPDATE_GOLDEN=1 writes it anew.\n--- wanted\n{wanted}\n--- found\n{text}",
        path.display()
    );
}

fn created(version: (u32, u32, u32), spec: &Spec) -> String {
    Lab::new(version).plan(&checked(spec))
}

/// All rounds of an edit, with what was proven empty between them.
fn rounds(lab: &mut Lab, spec: &Spec) -> String {
    let pipeline = checked(spec);
    let mut text = String::new();
    for round in 1..=lab::MAX_ROUNDS {
        let diff = lab.round(&pipeline, |_, _| {});
        writeln!(text, "# round {round}\n{}", diff.plan).expect("text");
        if diff.plan.steps.is_empty() && diff.plan.draining.is_empty() {
            break;
        }
    }
    text
}

fn edit(before: &Spec, after: &Spec) -> String {
    rounds(&mut Lab::with(NEW, &checked(before)), after)
}

fn with(change: impl FnOnce(&mut Spec)) -> Spec {
    let mut spec = orders();
    change(&mut spec);
    spec
}

fn categories() -> Vec<Category> {
    let category = |name: &str, reasons: &[&str], headers: Args| Category {
        name: name.into(),
        reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
        headers,
    };
    let schema = Args::from([("x-opt-category".to_owned(), Arg::from("schema"))]);
    vec![category("poison", &["delivery_limit"], Args::new()), category("schema", &[], schema)]
}

fn external() -> Spec {
    with(|spec| {
        spec.source.ownership = Ownership::External;
        spec.source.exchange = None;
        spec.source.bindings.clear();
    })
}

fn queue(name: &str, kind: QueueType, arguments: &[(&str, Arg)]) -> Write {
    let arguments = arguments.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    let kind_argument = ("x-queue-type".to_owned(), Arg::from(kind.as_str()));
    Write::PutQueue(Queue { name: name.into(), kind, arguments: arguments.chain([kind_argument]).collect() })
}

fn policy(name: &str, priority: i64, definition: &[(&str, Arg)]) -> Policy {
    Policy {
        name: name.into(),
        pattern: ".*".into(),
        apply_to: ApplyTo::Queues,
        priority,
        definition: definition.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
    }
}

fn lab_with(writes: &[Write]) -> Lab {
    let mut lab = Lab::new(NEW);
    for write in writes {
        lab.world.write(write).expect("the write is taken");
    }
    lab
}
