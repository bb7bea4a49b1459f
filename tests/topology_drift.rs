//! What somebody changes by hand is found, each cause once, and named for what it is.

#[path = "support/lab.rs"]
mod lab;
#[path = "support/world.rs"]
mod world;

use lab::{Lab, checked, identity, orders};
use redrive::topology::desired::policy_name;
use redrive::topology::model::{
    ApplyTo, Arg, Args, Binding, Destination, Exchange, Policy, Queue, QueueType,
};
use redrive::topology::names::OWNER_EXCHANGE;
use redrive::topology::ownership::marker;
use redrive::topology::spec::{Category, Ownership, Spec};
use redrive::topology::watch::{Seen, troubles};
use world::Write;

const NEW: (u32, u32, u32) = (4, 3, 6);

fn spec() -> Spec {
    let mut spec = orders();
    spec.dead_letter.retention = Some(86_400_000);
    spec.dead_letter.parking_lot = true;
    let poison =
        Category { name: "poison".into(), reasons: vec!["delivery_limit".into()], headers: Args::new() };
    spec.dead_letter.quarantine = vec![poison];
    spec
}

fn lab() -> Lab {
    let mut lab = Lab::with(NEW, &checked(&spec()));
    let spy = Args::from([("x-queue-type".to_owned(), "classic".into())]);
    write(
        &mut lab,
        &[Write::PutQueue(Queue { name: "spy".into(), kind: QueueType::Classic, arguments: spy })],
    );
    lab
}

fn write(lab: &mut Lab, writes: &[Write]) {
    for write in writes {
        lab.world.write(write).expect("the write is taken");
    }
}

/// What is found after these writes; everything but what is blocked is repaired then.
#[track_caller]
fn finds(writes: &[Write]) -> Vec<String> {
    let mut lab = lab();
    assert_eq!(lab.drift(&checked(&spec())), [""; 0], "nothing differs before");
    write(&mut lab, writes);
    let found = lab.drift(&checked(&spec()));
    lab.settle(&checked(&spec()));
    assert_eq!(lab.drift(&checked(&spec())), [""; 0], "nothing differs after the repair");
    found
}

fn queue(name: &str) -> Destination {
    Destination::Queue(name.into())
}

fn exchange(name: &str) -> Destination {
    Destination::Exchange(name.into())
}

fn bound(source: &str, destination: Destination) -> Binding {
    Binding { source: source.into(), destination, routing_key: String::new(), arguments: Args::new() }
}

/// Deletes a queue and declares it again as it was, or with one argument more.
fn queue_again(name: &str, other: Option<(&str, Arg)>) -> Vec<Write> {
    let found = lab().world.observed.queues[name].clone();
    let kind = ("x-queue-type".to_owned(), Arg::from(found.kind.as_str()));
    let mut arguments: Args = found.arguments.into_iter().chain([kind]).collect();
    arguments.extend(other.map(|(key, value)| (key.to_owned(), value)));
    let again = Queue { name: name.into(), kind: found.kind, arguments };
    vec![Write::DeleteQueue(name.into()), Write::PutQueue(again)]
}

fn exchange_again(name: &str, kind: Option<&str>) -> Vec<Write> {
    let found = lab().world.observed.exchanges[name].clone();
    let kind = kind.map_or(found.kind, str::to_owned);
    let again = Exchange { name: name.into(), kind, internal: found.internal, arguments: found.arguments };
    vec![Write::DeleteExchange(name.into()), Write::PutExchange(again)]
}

#[test]
fn a_queue_that_was_deleted_says_that_its_messages_are_gone() {
    for name in ["orders", "orders.retry.1", "orders.dlq", "orders.dlq.parking"] {
        let expected = format!("queue {name} is missing; the messages that it held are gone");
        assert_eq!(finds(&[Write::DeleteQueue(name.into())]), [expected]);
    }
}

#[test]
fn a_queue_that_was_declared_again_bare_is_one_finding_and_says_so_too() {
    for name in ["orders", "orders.retry.1", "orders.dlq"] {
        let expected = format!(
            "queue {name} was deleted and declared again by somebody else; the messages that it held are gone"
        );
        assert_eq!(finds(&queue_again(name, None)), [expected]);
    }
    // Nothing is ever bound to it, so that nobody can tell.
    assert_eq!(
        finds(&queue_again("orders.dlq.parking", None)),
        [
            "queue orders.dlq.parking has lost its owner marker; if it was deleted and declared again, the messages that it held are gone"
        ]
    );
}

#[test]
fn an_exchange_that_was_declared_again_bare_is_one_finding() {
    for name in
        ["orders.dlx", "orders.dlx.guard", "orders.dlx.fallback", "orders.return.0", "orders.exchange"]
    {
        let expected =
            format!("exchange {name} was deleted and declared again by somebody else, without its bindings");
        assert_eq!(finds(&exchange_again(name, None)), [expected], "{name}");
    }
}

#[test]
fn a_part_of_the_chain_that_was_replaced_is_named_with_what_it_is_now() {
    assert_eq!(
        finds(&exchange_again("orders.dlx.guard", Some("direct"))),
        [
            "exchange orders.dlx.guard was replaced by somebody else's: type is direct where headers is wanted; it can't be changed in place and is left alone, and another takes its place"
        ]
    );
    assert_eq!(
        finds(&queue_again("orders.retry.0", Some(("x-message-ttl", 77_000.into())))),
        [
            "queue orders.retry.0 was replaced by somebody else's; the messages that it held are gone: x-message-ttl is 77000 where 5000 is wanted; it can't be changed in place and is left alone, and another takes its place"
        ]
    );
}

#[test]
fn what_can_not_be_replaced_is_blocked_and_no_finding_of_its_own() {
    let replaced = [
        (exchange_again("orders.dlx", Some("topic")), "exchange orders.dlx"),
        (exchange_again("orders.return.1", Some("topic")), "exchange orders.return.1"),
        (exchange_again("orders.exchange", Some("direct")), "exchange orders.exchange"),
        (queue_again("orders.dlq", Some(("x-max-length", 5.into()))), "queue orders.dlq"),
        (queue_again("orders", Some(("x-max-length", 5.into()))), "queue orders"),
    ];
    for (writes, object) in replaced {
        let mut lab = lab();
        write(&mut lab, &writes);
        let blocked = lab.diff(&checked(&spec())).plan.blocked;
        assert!(blocked.iter().any(|blocked| blocked.object == object), "{object}: {blocked:?}");
        let found = lab.drift(&checked(&spec()));
        assert!(found.iter().all(|found| !found.starts_with(&format!("{object} "))), "{found:?}");
    }
}

#[test]
fn a_binding_that_is_gone_is_named() {
    let lab = lab();
    let rules =
        ["orders.dlx.ladder", "orders.dlx.first", "orders.dlx.rest", "orders.return.0", "orders.exchange"];
    for source in rules {
        let rule = lab.world.observed.bindings_from(source).next().expect("a rule").clone();
        assert_eq!(finds(&[Write::Unbind(rule.clone())]), [format!("binding {rule} is missing")]);
    }
    let slot = bound("orders.dlx", exchange("orders.dlx.dead"));
    assert_eq!(finds(&[Write::Unbind(slot.clone())]), [format!("binding {slot} is missing")]);
}

#[test]
fn a_rule_that_was_bound_elsewhere_is_named_both_ways() {
    let lab = lab();
    let rule = lab.world.observed.bindings_from("orders.dlx.first").next().expect("a rule").clone();
    let elsewhere = Binding { destination: queue("spy"), ..rule.clone() };
    let found = finds(&[Write::Unbind(rule.clone()), Write::Bind(elsewhere.clone())]);
    assert_eq!(
        found,
        [
            format!("binding {elsewhere} is there and changes the way of messages"),
            format!("binding {rule} is missing"),
        ]
    );
}

#[test]
fn a_binding_that_leaks_loops_or_leads_past_the_source_goes() {
    let strange = [
        // To somebody's queue, back to the source, and round the chain once more.
        bound("orders.return.0", queue("spy")),
        bound("orders.dlx.first", queue("spy")),
        bound("orders.dlx", queue("spy")),
        bound("orders.dlx.rest", queue("orders")),
        bound("orders.dlx.fallback", queue("orders")),
        bound("orders.dlx.ladder", exchange("orders.return.0")),
        bound("orders.dlx.rest", exchange("orders.dlx.dead")),
        // Into the middle of it: one message more, that never failed.
        bound("orders.exchange", queue("orders.retry.0")),
        bound("orders.exchange", exchange("orders.return.1")),
        bound("orders.exchange", exchange("orders.dlx")),
        bound("orders.exchange", exchange("orders.dlx.rest")),
    ];
    for binding in strange {
        let expected = format!("binding {binding} is there and changes the way of messages");
        assert_eq!(finds(&[Write::Bind(binding)]), [expected]);
    }
    for harmless in [bound("orders.exchange", queue("orders")), bound("orders.exchange", queue("orders.dlq"))]
    {
        assert_eq!(finds(&[Write::Bind(harmless)]), [""; 0], "the application's own");
    }
}

#[test]
fn policies_that_were_removed_or_edited_are_named() {
    let source = policy_name(&identity("orders"), "source");
    let dlq = policy_name(&identity("orders"), "dlq");
    let changed = |name: &str| format!("policy {name} is missing or was changed");
    assert_eq!(finds(&[Write::DeletePolicy(source.clone())]), [changed(&source)]);
    let edited = Policy {
        name: dlq.clone(),
        pattern: ".*".into(),
        apply_to: ApplyTo::Queues,
        priority: 10,
        definition: Args::new(),
    };
    assert_eq!(finds(&[Write::PutPolicy(edited)]), [changed(&dlq)]);
}

#[test]
fn markers_that_are_gone_are_one_finding_where_all_of_them_are() {
    let of_dlq = marker(&identity("orders"), queue("orders.dlq"));
    assert_eq!(
        finds(&[Write::Unbind(of_dlq)]),
        [
            "queue orders.dlq has lost its owner marker; if it was deleted and declared again, the messages that it held are gone"
        ]
    );
    let owner = || Write::DeleteExchange(OWNER_EXCHANGE.into());
    assert_eq!(finds(&[owner()]), ["exchange redrive.owner is missing"]);
    let again = Exchange {
        name: OWNER_EXCHANGE.into(),
        kind: "headers".into(),
        internal: true,
        arguments: Args::new(),
    };
    let found = finds(&[owner(), Write::PutExchange(again)]);
    assert!(
        found.len() == 1 && found[0].starts_with("exchange redrive.owner has lost the markers of "),
        "{found:?}"
    );
}

#[test]
fn what_is_lost_together_is_named_once_each() {
    let found = finds(&[
        Write::DeleteQueue("orders.retry.0".into()),
        Write::DeleteExchange("orders.dlx.ladder".into()),
        Write::DeletePolicy(policy_name(&identity("orders"), "source")),
    ]);
    assert_eq!(found.len(), 3, "{found:#?}");
}

#[test]
fn a_consumer_on_a_retry_queue_and_dead_letters_that_do_not_move_are_told() {
    let lab = lab();
    let desired = lab.diff(&checked(&spec())).desired;
    let users = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let seen = Seen {
        consumers: [
            ("orders".to_owned(), users(&["shop"])),
            ("orders.dlq".to_owned(), users(&["shop"])),
            ("orders.retry.0".to_owned(), users(&["billing", "shop"])),
            ("orders.retry.1".to_owned(), users(&[""])),
            ("spy".to_owned(), users(&["billing"])),
        ]
        .into(),
        stuck: users(&["orders", "spy", "orders.retry.7"]),
    };
    let found = troubles(&desired, &["orders.retry.7".to_owned()], &seen);
    let told: Vec<(&str, Option<&str>)> =
        found.iter().map(|trouble| (trouble.blocked.object.as_str(), trouble.by.as_deref())).collect();
    assert_eq!(
        told,
        [
            ("queue orders.retry.0", Some("billing, shop")),
            ("queue orders.retry.1", None),
            ("queue orders", None),
            ("queue orders.retry.7", None),
        ]
    );
    assert!(found.iter().all(|trouble| trouble.blocked.by.concerns_messages_alone()));
    assert_eq!(troubles(&desired, &[], &Seen::default()), []);
}

#[test]
fn an_external_source_that_was_declared_again_is_one_finding() {
    let mut spec = orders();
    spec.source.ownership = Ownership::External;
    let arguments = Args::from([("x-queue-type".to_owned(), "quorum".into())]);
    let source = || Queue { name: "orders".into(), kind: QueueType::Quorum, arguments: arguments.clone() };
    let mut lab = Lab::new(NEW);
    write(&mut lab, &[Write::PutQueue(source())]);
    lab.settle(&checked(&spec));
    assert_eq!(lab.drift(&checked(&spec)), [""; 0]);
    write(&mut lab, &[Write::DeleteQueue("orders".into())]);
    assert_eq!(lab.drift(&checked(&spec)), [""; 0], "its application's to declare: the plan is blocked");
    assert_eq!(lab.diff(&checked(&spec)).plan.blocked[0].object, "queue orders");
    write(&mut lab, &[Write::PutQueue(source())]);
    assert_eq!(
        lab.drift(&checked(&spec)),
        ["queue orders was deleted and declared again by somebody else; the messages that it held are gone"]
    );
    // One that can't be served is not put right, so that the obstacle is all there is to tell.
    let led = [("x-dead-letter-exchange".to_owned(), Arg::from("elsewhere"))];
    let led = Queue { arguments: arguments.clone().into_iter().chain(led).collect(), ..source() };
    write(&mut lab, &[Write::DeleteQueue("orders".into()), Write::PutQueue(led)]);
    assert_eq!(lab.drift(&checked(&spec)), [""; 0]);
}
