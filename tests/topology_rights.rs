//! What a namespace may use of a shared broker holds for every name that a pipeline ever has.

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

use std::collections::{BTreeMap, BTreeSet};

use bench::check;
use lab::{Lab, checked, identity, orders};
use proptest::prelude::*;
use redrive::topology::desired::Desired;
use redrive::topology::model::{Arg, Args};
use redrive::topology::names::{OWNER_EXCHANGE, exact_pattern};
use redrive::topology::rights::{Grants, Reach, Use, encode, uses};
use redrive::topology::spec::{SourceBinding, SourceExchange, Spec};
use redrive::topology::validate::validate;
use rstest::rstest;
use specs::{edits, version};

/// The arguments and policy keys whose value is a name.
const NAMING: [&str; 5] = [
    "alternate-exchange",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "dead-letter-exchange",
    "dead-letter-routing-key",
];

fn names_in(arguments: &Args) -> impl Iterator<Item = String> {
    arguments.iter().filter(|(key, _)| NAMING.contains(&key.as_str())).filter_map(|(_, value)| match value {
        Arg::Str(name) => Some(name.clone()),
        _ => None,
    })
}

/// Every name that something on the broker is called by, or leads to.
fn names_of(desired: &Desired) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for queue in &desired.queues {
        names.insert(queue.queue.name.clone());
        names.extend(names_in(&queue.queue.arguments));
    }
    for exchange in &desired.exchanges {
        names.insert(exchange.exchange.name.clone());
        names.extend(names_in(&exchange.exchange.arguments));
    }
    for binding in &desired.bindings {
        names.insert(binding.binding.source.clone());
        names.insert(binding.binding.destination.name().to_owned());
    }
    for policy in &desired.policies {
        assert_eq!(policy.policy.pattern, exact_pattern(&policy.queue), "a policy matches one queue");
        names.insert(policy.queue.clone());
        names.extend(names_in(&policy.policy.definition));
    }
    if let Some(slots) = &desired.slots {
        names.extend([slots.head.clone(), slots.alternate.clone(), slots.entry.clone()]);
    }
    // The default exchange is nobody's.
    names.remove("");
    names
}

/// The reach that is just enough for what a pipeline uses.
fn just_enough(all: &[Use]) -> Reach {
    let missing = Grants::default().missing("shop", "/shop", all).expect("nothing is granted yet");
    let grants = Grants::parse(&missing.remedy("shop", "/shop")).expect("a remedy can be read");
    assert_eq!(grants.missing("shop", "/shop", all), None, "a remedy is enough");
    grants.reach("shop", "/shop").expect("a reach").clone()
}

#[test]
fn whoever_may_use_what_a_pipeline_names_may_use_all_that_derives_from_it() {
    let strategy = (version(), edits(3));
    check(96, &strategy, |(version, (_, specs))| {
        let mut lab = Lab::new(version);
        let mut allowed = Vec::new();
        for spec in &specs {
            let pipeline = checked(spec);
            // Queues of before drain under the names that they had.
            allowed.extend(uses(&pipeline));
            let reach = just_enough(&allowed);
            for _ in 0..3 {
                // An External source of another type is not there, and nothing is built then.
                let diff = lab.diff(&pipeline);
                for name in names_of(&diff.desired) {
                    assert!(reach.covers(&name), "{name} is beyond {reach:?} of {spec:?}");
                }
                lab.world.apply(&diff.plan);
                lab.inventory = diff.inventory;
            }
            for name in lab.world.observed.queues.keys().chain(lab.world.observed.exchanges.keys()) {
                assert!(reach.covers(name) || name == OWNER_EXCHANGE, "{name} was declared");
            }
        }
    });
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z./]{1,12}", "[%,;:=+ é\\t/a-z]{1,12}"].prop_filter("blanks at the ends go", |text| {
        // `encode` keeps them, but no object may have such a name.
        !text.is_empty()
    })
}

fn grants() -> impl Strategy<Value = BTreeMap<String, BTreeMap<String, Option<BTreeSet<String>>>>> {
    let prefixes = proptest::option::of(proptest::collection::btree_set(text(), 1..4));
    let vhosts = proptest::collection::btree_map(text(), prefixes, 1..4);
    proptest::collection::btree_map("[a-z][a-z0-9-]{0,8}", vhosts, 0..4)
}

fn written(grants: &BTreeMap<String, BTreeMap<String, Option<BTreeSet<String>>>>) -> String {
    let vhost = |(vhost, prefixes): (&String, &Option<BTreeSet<String>>)| match prefixes {
        None => encode(vhost),
        Some(prefixes) => {
            let prefixes: Vec<String> = prefixes.iter().map(|prefix| encode(prefix)).collect();
            format!("{}:{}", encode(vhost), prefixes.join("+"))
        }
    };
    let entry = |(namespace, vhosts): (&String, &BTreeMap<_, _>)| {
        format!("{namespace}={}", vhosts.iter().map(vhost).collect::<Vec<_>>().join(","))
    };
    grants.iter().map(entry).collect::<Vec<_>>().join("; ")
}

#[test]
fn what_is_written_is_read_and_nothing_else() {
    check(256, &(grants(), text(), text()), |(meant, vhost, name)| {
        let text = written(&meant);
        let read = Grants::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(Grants::parse(&read.to_string()), Ok(read.clone()), "{text}");
        for namespace in meant.keys().map(String::as_str).chain(["another"]) {
            let vhosts = meant.get(namespace);
            for vhost in vhosts.into_iter().flat_map(BTreeMap::keys).chain([&vhost]) {
                let wanted = match vhosts.and_then(|vhosts| vhosts.get(vhost)) {
                    None => false,
                    Some(None) => true,
                    Some(Some(prefixes)) => prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())),
                };
                let found = read.reach(namespace, vhost).is_some_and(|reach| reach.covers(&name));
                assert_eq!(found, wanted, "{name:?} on {vhost:?} for {namespace} by {text}");
            }
        }
    });
}

#[test]
fn no_text_makes_the_reader_panic_or_grant_more_than_it_says() {
    check(512, &"[a-z/%,;:=+ *0-9A-Fé-]{0,40}", |text| {
        let Ok(grants) = Grants::parse(&text) else { return };
        // Whatever was read can be written, and then means the same.
        assert_eq!(Grants::parse(&grants.to_string()), Ok(grants.clone()), "{text}");
        for namespace in ["shop", "*", ""] {
            if !text.contains(namespace) || !namespace.starts_with('s') {
                assert_eq!(grants.reach(namespace, "/"), None, "{text}");
            }
        }
    });
}

/// A specification within `orders.`, with one field changed.
fn tenant(change: impl FnOnce(&mut Spec)) -> Vec<String> {
    let mut spec = orders();
    spec.source.queue = "orders.queue".to_owned();
    change(&mut spec);
    let pipeline = validate(identity("orders"), spec).expect("a valid specification");
    let grants = Grants::parse("shop=/shop:orders.; billing=/billing,/shop:bills.").expect("grants");
    let missing = grants.missing("shop", "/shop", &uses(&pipeline));
    missing.into_iter().flat_map(|missing| missing.uses).map(|one| one.to_string()).collect()
}

fn bound_to(exchange: &str) -> SourceBinding {
    SourceBinding { exchange: exchange.to_owned(), routing_key: "#".to_owned() }
}

#[test]
fn a_pipeline_within_its_grant_lacks_nothing() {
    assert_eq!(tenant(|_| {}), [""; 0]);
}

/// Each field by which a name gets into a pipeline.
#[rstest]
#[case::source(|spec: &mut Spec| spec.source.queue = "bills.queue".into(), "queue \"bills.queue\" (source.queue.name)")]
#[case::source_without_the_dot(|spec: &mut Spec| spec.source.queue = "orders".into(), "queue \"orders\" (source.queue.name)")]
#[case::capitals(|spec: &mut Spec| spec.source.queue = "Orders.queue".into(), "queue \"Orders.queue\" (source.queue.name)")]
#[case::exchange(
    |spec: &mut Spec| spec.source.exchange = Some(SourceExchange { name: "bills.exchange".into(), kind: "topic".into() }),
    "exchange \"bills.exchange\" (source.exchange.name)"
)]
#[case::binding(
    |spec: &mut Spec| spec.source.bindings.push(bound_to("bills.exchange")),
    "exchange \"bills.exchange\" (source.bindings[1].exchange)"
)]
#[case::binding_to_what_all_share(
    |spec: &mut Spec| spec.source.bindings.push(bound_to("amq.topic")),
    "exchange \"amq.topic\" (source.bindings[1].exchange)"
)]
#[case::retry_template(
    |spec: &mut Spec| spec.retry_template = "bills.{attempt}".into(),
    "queue \"bills.0\" (retry.naming.template)"
)]
#[case::retry_template_around_the_queue(
    |spec: &mut Spec| spec.retry_template = "bills.{queue}.{attempt}".into(),
    "queue \"bills.orders.queue.0\" (retry.naming.template)"
)]
#[case::dead_letters(
    |spec: &mut Spec| spec.dead_letter.template = "bills.dlq".into(),
    "queue \"bills.dlq\" (deadLetter.name)"
)]
fn another_tenants_names_are_refused_in_every_field(
    #[case] change: impl FnOnce(&mut Spec),
    #[case] refused: &str,
) {
    let found = tenant(change);
    assert!(found.iter().any(|found| found == refused), "{found:#?}");
}
