//! Whose an object is, what is shared, and what must not be removed.

#[path = "support/lab.rs"]
mod lab;
#[path = "support/world.rs"]
mod world;

use std::collections::BTreeSet;

use lab::{Lab, checked, identity, orders};
use redrive::topology::model::{
    ApplyTo, Args, Binding, Destination, Exchange, ObjectKey, Policy, Queue, QueueType,
};
use redrive::topology::names::OWNER_EXCHANGE;
use redrive::topology::ownership::{
    Claim, Standing, State, adopted_marker, marker, owner_exchange, owner_of, standing, winner,
};
use redrive::topology::plan::{BlockedBy, Plan, Step};
use redrive::topology::spec::{Delays, Identity, Ownership, SourceExchange, Spec};
use redrive::topology::validate::validate;
use world::{World, Write};

const NEW: (u32, u32, u32) = (4, 3, 6);

fn with(change: impl FnOnce(&mut Spec)) -> Spec {
    let mut spec = orders();
    change(&mut spec);
    spec
}

fn queue(name: &str) -> Destination {
    Destination::Queue(name.into())
}

fn exchange(name: &str) -> Destination {
    Destination::Exchange(name.into())
}

fn bound(source: &str, destination: Destination, key: &str) -> Binding {
    Binding { source: source.into(), destination, routing_key: key.into(), arguments: Args::new() }
}

fn public(name: &str, kind: &str, arguments: Args) -> Write {
    Write::PutExchange(Exchange { name: name.into(), kind: kind.into(), internal: false, arguments })
}

fn classic(name: &str, arguments: Args) -> Write {
    let kind = ("x-queue-type".to_owned(), "classic".into());
    let arguments = arguments.into_iter().chain([kind]).collect();
    Write::PutQueue(Queue { name: name.into(), kind: QueueType::Classic, arguments })
}

fn write(lab: &mut Lab, write: &Write) {
    lab.world.write(write).expect("the write is taken");
}

fn blocked(lab: &Lab, spec: &Spec) -> Vec<(BlockedBy, String)> {
    let blocked = lab.diff(&checked(spec)).plan.blocked;
    blocked.into_iter().map(|found| (found.by, found.object)).collect()
}

fn policy_on_billing(key: &str) -> Write {
    Write::PutPolicy(Policy {
        name: "theirs".into(),
        pattern: "^billing".into(),
        apply_to: ApplyTo::All,
        priority: 1,
        definition: [(key.to_owned(), "orders.exchange".into())].into(),
    })
}

#[test]
fn markers_tell_whose_an_object_is() {
    let us = identity("orders");
    let recreated = Identity { uid: "uid-2".into(), ..us.clone() };
    let other = identity("billing");
    let stands = |marks: &[Binding]| {
        let mut world = World::default();
        world.write(&Write::PutExchange(owner_exchange())).expect("the owner exchange");
        world.write(&classic("q", Args::new())).expect("a queue");
        for mark in marks {
            world.write(&Write::Bind(mark.clone())).expect("a marker");
        }
        standing(&world.observed, &queue("q"), &us)
    };
    let mark = |owner: &Identity| marker(owner, queue("q"));
    assert_eq!(stands(&[]), Standing::Unmarked);
    assert_eq!(stands(&[mark(&us)]), Standing::Ours { adopted: false, others: vec![] });
    assert_eq!(stands(&[adopted_marker(&us, queue("q"))]), Standing::Ours { adopted: true, others: vec![] });
    assert_eq!(
        stands(&[mark(&us), mark(&other)]),
        Standing::Ours { adopted: false, others: vec![other.clone()] }
    );
    assert_eq!(
        stands(&[mark(&recreated)]),
        Standing::Inherited { adopted: false, stale: vec![mark(&recreated)], others: vec![] }
    );
    assert_eq!(stands(&[mark(&other)]), Standing::Foreign { adopted: false, owners: vec![other] });
    let unreadable = bound(OWNER_EXCHANGE, queue("q"), "odd");
    assert!(matches!(stands(&[unreadable]), Standing::Foreign { .. }));
    assert_eq!(owner_of(&mark(&us)), Some(us.clone()));
}

#[test]
fn the_older_claim_wins_and_then_the_smaller_uid() {
    let claim = |created, uid: &str| Claim { created, uid: uid.into(), who: "x".into() };
    let claims = [claim(5, "a"), claim(4, "c"), claim(4, "b")];
    assert_eq!(winner(&claims).map(|claim| claim.uid.as_str()), Some("b"));
}

#[test]
fn a_resource_that_was_created_anew_takes_its_objects_over() {
    let mut lab = Lab::with(NEW, &checked(&orders()));
    lab.inventory.clear();
    let anew = Identity { uid: "uid-2".into(), ..identity("orders") };
    let pipeline = validate(anew.clone(), orders()).expect("a pipeline");
    let diff = lab.settle(&pipeline);
    assert_eq!(diff.plan.blocked, []);
    let stands = standing(&lab.world.observed, &queue("orders.dlq"), &anew);
    assert_eq!(stands, Standing::Ours { adopted: false, others: vec![] });
}

#[test]
fn what_was_adopted_stays_adopted_when_the_status_is_lost() {
    let pipeline = checked(&orders());
    let mut lab = Lab::new(NEW);
    write(&mut lab, &public("orders.exchange", "topic", Args::new()));
    lab.adopt = true;
    lab.settle(&pipeline);
    lab.inventory.clear();
    lab.adopt = false;
    lab.settle(&pipeline);
    let key = ObjectKey::Exchange("orders.exchange".into());
    assert_eq!(lab.state(&key), Some(State::Adopted));
    let plan = lab.removal(false, |removal| removal.delete());
    assert!(!plan.steps.iter().any(|p| p.step == Step::DeleteExchange("orders.exchange".into())));
}

#[test]
fn an_adoption_that_was_cut_short_is_still_an_adoption() {
    let pipeline = checked(&orders());
    let mut lab = Lab::new(NEW);
    write(&mut lab, &public("orders.exchange", "topic", Args::new()));
    lab.adopt = true;
    lab.crash(&pipeline, 1, false);
    lab.settle(&pipeline);
    assert_eq!(lab.state(&ObjectKey::Exchange("orders.exchange".into())), Some(State::Adopted));
}

#[test]
fn what_was_declared_again_by_hand_is_used_and_never_deleted() {
    let pipeline = checked(&orders());
    let mut lab = Lab::with(NEW, &pipeline);
    let parked = lab.world.observed.queues["orders.dlq"].clone();
    write(&mut lab, &Write::DeleteQueue("orders.dlq".into()));
    lab.world.observed.queues.insert("orders.dlq".into(), parked);
    lab.settle(&pipeline);
    assert_eq!(lab.state(&ObjectKey::Queue("orders.dlq".into())), Some(State::Adopted));
    assert!(!lab.removal(false, |removal| removal.delete()).to_string().contains("- queue    orders.dlq"));
}

#[test]
fn a_second_owner_of_a_queue_blocks_who_has_not_recorded_it() {
    let pipeline = checked(&orders());
    let mut lab = Lab::with(NEW, &pipeline);
    write(&mut lab, &Write::Bind(marker(&identity("billing"), queue("orders.dlq"))));
    assert_eq!(blocked(&lab, &orders()), [], "who has recorded it keeps it");
    let plan = lab.removal(false, |removal| removal.delete());
    assert!(!plan.to_string().contains("- queue    orders.dlq"), "and deletes only what is its own");
    lab.inventory.clear();
    assert_eq!(blocked(&lab, &orders()), [(BlockedBy::Conflict, "queue orders.dlq".into())]);
}

// A shared exchange

fn two_pipelines() -> (Lab, Lab) {
    let first = Lab::with(NEW, &checked(&orders()));
    let spec = with(|spec| spec.source.queue = "billing".into());
    let pipeline = validate(identity("billing"), spec).expect("a pipeline");
    let mut second = Lab::new(NEW);
    second.world = first.world.clone();
    second.settle(&pipeline);
    (first, second)
}

#[test]
fn an_equal_exchange_is_shared_and_goes_with_its_last_owner() {
    let (mut first, second) = two_pipelines();
    first.world = second.world.clone();
    let plan = first.removal(false, |removal| removal.delete());
    assert!(!plan.to_string().contains("- exchange orders.exchange"), "{plan}");
    first.world.apply(&plan);
    let us = identity("billing");
    let stands = standing(&first.world.observed, &exchange("orders.exchange"), &us);
    assert_eq!(stands, Standing::Ours { adopted: false, others: vec![] });
}

#[test]
fn an_exchange_of_somebody_else_with_other_settings_is_a_conflict() {
    let (first, _) = two_pipelines();
    let spec = with(|spec| {
        spec.source.queue = "billing".into();
        spec.source.exchange = Some(SourceExchange { name: "orders.exchange".into(), kind: "direct".into() });
    });
    let pipeline = validate(identity("billing"), spec).expect("a pipeline");
    let mut second = Lab::new(NEW);
    second.world = first.world;
    let plan = second.diff(&pipeline).plan;
    assert!(plan.steps.is_empty());
    assert!(
        plan.to_string().contains("belongs to shop/orders as well, and type is topic where direct"),
        "{plan}"
    );
}

#[test]
fn an_exchange_that_was_there_before_its_first_owner_outlives_the_last() {
    let mut first = Lab::new(NEW);
    write(&mut first, &public("orders.exchange", "topic", Args::new()));
    first.adopt = true;
    first.settle(&checked(&orders()));
    let spec = with(|spec| spec.source.queue = "billing".into());
    let pipeline = validate(identity("billing"), spec).expect("a pipeline");
    let mut second = Lab::new(NEW);
    second.world = first.world.clone();
    second.settle(&pipeline);
    assert_eq!(second.state(&ObjectKey::Exchange("orders.exchange".into())), Some(State::Adopted));
}

// Removal guards

fn deletes_exchange(lab: &Lab, name: &str) -> bool {
    let plan = lab.removal(false, |removal| removal.delete());
    plan.steps.iter().any(|planned| planned.step == Step::DeleteExchange(name.into()))
}

#[test]
fn an_exchange_that_somebody_dead_letters_to_stays_with_all_that_it_leads_to() {
    let mut lab = Lab::with(NEW, &checked(&orders()));
    assert!(deletes_exchange(&lab, "orders.dlx"));
    let way = Args::from([("x-dead-letter-exchange".to_owned(), "orders.dlx".into())]);
    write(&mut lab, &classic("foreign", way));
    for name in ["orders.dlx", "orders.dlx.alt", "orders.dlx.fallback", "orders.dlx.dead", "orders.dlx.rest"]
    {
        assert!(!deletes_exchange(&lab, name), "{name}");
    }
    assert!(deletes_exchange(&lab, "orders.return.0"));
}

#[test]
fn an_exchange_that_a_policy_leads_to_stays() {
    for key in ["dead-letter-exchange", "alternate-exchange"] {
        let mut lab = Lab::with(NEW, &checked(&orders()));
        write(&mut lab, &policy_on_billing(key));
        assert!(!deletes_exchange(&lab, "orders.exchange"), "{key}");
    }
}

#[test]
fn an_exchange_that_is_an_alternate_or_bound_by_others_stays() {
    let mut lab = Lab::with(NEW, &checked(&orders()));
    assert!(deletes_exchange(&lab, "orders.exchange"));
    let mut alternate = lab.clone();
    let arguments = Args::from([("alternate-exchange".to_owned(), "orders.exchange".into())]);
    write(&mut alternate, &public("billing", "topic", arguments));
    assert!(!deletes_exchange(&alternate, "orders.exchange"));
    let mut leading = lab.clone();
    write(&mut leading, &public("billing", "topic", Args::new()));
    write(&mut leading, &Write::Bind(bound("billing", exchange("orders.exchange"), "#")));
    assert!(!deletes_exchange(&leading, "orders.exchange"));
    write(&mut lab, &classic("archive", Args::new()));
    write(&mut lab, &Write::Bind(bound("orders.exchange", queue("archive"), "#")));
    assert!(!deletes_exchange(&lab, "orders.exchange"));
}

#[test]
fn an_obsolete_queue_waits_for_its_messages_its_bindings_and_its_senders() {
    let shorter = checked(&with(|spec| spec.delays = Delays::List(vec![5_000])));
    let mut lab = Lab::with(NEW, &checked(&orders()));
    lab.round(&shorter, |_, _| {});
    lab.round(&shorter, |_, _| {});
    let proven: BTreeSet<String> = ["orders.retry.1".to_owned()].into();
    let deletes = |lab: &Lab| lab.plan(&shorter).contains("- queue    orders.retry.1");
    lab.proven_empty = proven.clone();
    assert!(deletes(&lab));
    let mut unproven = lab.clone();
    unproven.proven_empty.clear();
    assert!(!deletes(&unproven));
    let mut reached = lab.clone();
    write(&mut reached, &public("billing", "topic", Args::new()));
    write(&mut reached, &Write::Bind(bound("billing", queue("orders.retry.1"), "#")));
    assert!(!deletes(&reached));
    let way = [("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", "orders.retry.1")];
    let way = way.map(|(key, value)| (key.to_owned(), value.into()));
    write(&mut lab, &classic("foreign", way.into()));
    assert!(!deletes(&lab));
}

/// QQ-07: 4.0 shows no binding of a queue that lies on nodes which were down when the others started.
#[test]
fn a_queue_whose_nodes_are_down_is_neither_forgotten_nor_taken_for_empty() {
    let hide = |lab: &mut Lab, name: &str| {
        let markers: Vec<Binding> = lab.world.observed.bindings_to(&queue(name)).cloned().collect();
        markers.into_iter().for_each(|binding| write(lab, &Write::Unbind(binding)));
        lab.world.observed.unavailable.insert(name.to_owned());
    };
    // All of them must be proven empty before the pipeline goes.
    let mut lab = Lab::with(NEW, &checked(&orders()));
    hide(&mut lab, "orders.dlq");
    let _ = lab.removal(false, |removal| {
        assert!(!removal.queues().contains(&"orders.dlq"), "not seen to be ours");
        assert!(removal.queues_to_prove().contains(&"orders.dlq"));
        Plan::default()
    });
    // And one that is not wanted any more is still waited for.
    let shorter = checked(&with(|spec| spec.delays = Delays::List(vec![5_000])));
    let mut lab = Lab::with(NEW, &checked(&orders()));
    lab.round(&shorter, |_, _| {});
    lab.round(&shorter, |_, _| {});
    hide(&mut lab, "orders.retry.1");
    lab.proven_empty = ["orders.retry.1".to_owned()].into();
    let plan = lab.diff(&shorter).plan;
    assert!(plan.draining.contains(&"orders.retry.1".to_owned()), "{plan}");
    assert!(lab.diff(&shorter).forgotten.is_empty());
}

#[test]
fn bindings_that_were_there_before_us_are_let_go_and_not_unbound() {
    let mut spec = orders();
    spec.source.ownership = Ownership::External;
    spec.source.exchange = None;
    let mut lab = Lab::new(NEW);
    write(&mut lab, &public("orders.exchange", "topic", Args::new()));
    let kind = Args::from([("x-queue-type".to_owned(), "quorum".into())]);
    write(
        &mut lab,
        &Write::PutQueue(Queue { name: "orders".into(), kind: QueueType::Quorum, arguments: kind }),
    );
    let theirs = bound("orders.exchange", queue("orders"), "orders.created");
    write(&mut lab, &Write::Bind(theirs.clone()));
    lab.settle(&checked(&spec));
    assert!(lab.removal(false, |removal| removal.unbind()).steps.is_empty());
    spec.source.bindings.clear();
    lab.settle(&checked(&spec));
    assert!(lab.world.observed.has_binding(&theirs));
}

#[test]
fn an_unbound_inflow_can_be_put_back() {
    let mut lab = Lab::with(NEW, &checked(&orders()));
    let before = lab.world.shape();
    let plan = lab.removal(false, |removal| removal.unbind());
    lab.world.apply(&plan);
    let plan = lab.removal(false, |removal| removal.rebind());
    lab.world.apply(&plan);
    assert_eq!(lab.world.shape(), before);
}
