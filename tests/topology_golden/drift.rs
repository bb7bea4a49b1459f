//! What somebody else's changes come to: repaired, or left alone.

use redrive::topology::model::{Arg, Args, Binding, Destination, Policy, QueueType};
use redrive::topology::names::OWNER_EXCHANGE;
use redrive::topology::ownership::marker;

use crate::lab::{Lab, checked, identity, orders};
use crate::world::Write;
use crate::{NEW, golden, lab_with, policy, queue, rounds};

fn repaired(damage: &[Write]) -> String {
    let mut lab = Lab::with(NEW, &checked(&orders()));
    for write in damage {
        lab.world.write(write).expect("damage");
    }
    rounds(&mut lab, &orders())
}

fn bound(source: &str, destination: Destination) -> Binding {
    Binding { source: source.into(), destination, routing_key: String::new(), arguments: Args::new() }
}

fn rule(lab: &Lab, exchange: &str) -> Binding {
    lab.world.observed.bindings_from(exchange).next().expect("a rule").clone()
}

#[test]
fn drift_of_queues_and_exchanges_is_repaired() {
    golden("drift-queue-deleted", &repaired(&[Write::DeleteQueue("orders.retry.1".into())]));
    golden("drift-dlq-deleted", &repaired(&[Write::DeleteQueue("orders.dlq".into())]));
    golden("drift-source-deleted", &repaired(&[Write::DeleteQueue("orders".into())]));
    golden("drift-chain-exchange-deleted", &repaired(&[Write::DeleteExchange("orders.dlx.guard".into())]));
    golden("drift-head-deleted", &repaired(&[Write::DeleteExchange("orders.dlx".into())]));
    golden("drift-return-deleted", &repaired(&[Write::DeleteExchange("orders.return.0".into())]));
}

#[test]
fn drift_of_bindings_and_markers_is_repaired() {
    let lab = Lab::with(NEW, &checked(&orders()));
    let rule_lost = Write::Unbind(rule(&lab, "orders.dlx.ladder"));
    golden("drift-rule-unbound", &repaired(&[rule_lost]));
    golden("drift-slots-empty", &repaired(&[Write::Unbind(rule(&lab, "orders.dlx"))]));
    let leak = bound("orders.return.0", Destination::Queue("orders.dlq".into()));
    golden("drift-extra-binding", &repaired(&[Write::Bind(leak)]));
    let user = lab.world.observed.bindings_from("orders.exchange").next().expect("a binding").clone();
    golden("drift-user-binding", &repaired(&[Write::Unbind(user)]));
    let mark = marker(&identity("orders"), Destination::Queue("orders.dlq".into()));
    golden("drift-marker-lost", &repaired(&[Write::Unbind(mark)]));
    golden("drift-owner-exchange-deleted", &repaired(&[Write::DeleteExchange(OWNER_EXCHANGE.into())]));
}

#[test]
fn drift_of_policies_is_repaired() {
    golden("drift-policy-deleted", &repaired(&[Write::DeletePolicy("redrive:c1:shop:orders:source".into())]));
    let edited = Policy {
        name: "redrive:c1:shop:orders:source".into(),
        ..policy("", 10, &[("delivery-limit", Arg::from(3))])
    };
    golden("drift-policy-edited", &repaired(&[Write::PutPolicy(edited)]));
}

#[test]
fn a_queue_that_was_declared_by_hand_with_other_arguments_is_left_alone() {
    let other = queue("orders.dlq", QueueType::Classic, &[]);
    golden("mismatch-recreated", &repaired(&[Write::DeleteQueue("orders.dlq".into()), other]));
    let odd = [("x-message-ttl", Arg::from(1))];
    let lab = lab_with(&[queue("orders.retry.1", QueueType::Quorum, &odd)]);
    golden("mismatch-first-time", &lab.plan(&checked(&orders())));
}
