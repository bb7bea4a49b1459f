//! What is not ours, what was there before, and what a deletion takes.

use redrive::topology::model::{Arg, Args, Destination, Exchange, ObjectKey, QueueType};
use redrive::topology::ownership::{marker, owner_exchange};

use crate::lab::{Lab, checked, identity, orders};
use crate::world::Write;
use crate::{NEW, external, golden, lab_with, queue, rounds};

#[test]
fn conflicts_write_nothing() {
    let dlq = [("x-delivery-limit", Arg::from(-1)), ("x-overflow", Arg::from("reject-publish"))];
    let mut lab = lab_with(&[queue("orders.dlq", QueueType::Quorum, &dlq)]);
    golden("conflict-unmarked", &lab.plan(&checked(&orders())));
    lab.world.write(&Write::PutExchange(owner_exchange())).expect("the owner exchange");
    let mark = marker(&identity("billing"), Destination::Queue("orders.dlq".into()));
    lab.world.write(&Write::Bind(mark)).expect("a marker");
    golden("conflict-owned", &lab.plan(&checked(&orders())));
    let mut lab = Lab::new(NEW);
    lab.contested.insert(ObjectKey::Queue("orders".into()), "shop/billing".into());
    golden("conflict-contested", &lab.plan(&checked(&orders())));
}

#[test]
fn equal_objects_are_adopted() {
    let dlq = [("x-delivery-limit", Arg::from(-1)), ("x-overflow", Arg::from("reject-publish"))];
    let topic = Exchange {
        name: "orders.exchange".into(),
        kind: "topic".into(),
        internal: false,
        arguments: Args::new(),
    };
    let mut lab = lab_with(&[queue("orders.dlq", QueueType::Quorum, &dlq), Write::PutExchange(topic)]);
    lab.adopt = true;
    golden("adopt", &rounds(&mut lab, &orders()));
    golden("adopt-delete", &lab.removal(false, |removal| removal.delete()).to_string());
    golden("adopt-delete-adopted", &lab.removal(true, |removal| removal.delete()).to_string());
}

#[test]
fn deletion_takes_what_is_ours() {
    let lab = Lab::with(NEW, &checked(&orders()));
    golden("delete-unbind", &lab.removal(false, |removal| removal.unbind()).to_string());
    golden("delete", &lab.removal(false, |removal| removal.delete()).to_string());
    let mut lab = lab_with(&[queue("orders", QueueType::Quorum, &[])]);
    lab.settle(&checked(&external()));
    golden("delete-external", &lab.removal(false, |removal| removal.delete()).to_string());
}
