//! Plans as text, one file per scenario in `tests/golden/topology`.
//!
//! `UPDATE_GOLDEN=1 cargo test --test topology_golden` writes them anew; read the
//! difference before you commit it.

#[path = "support/lab.rs"]
mod lab;
#[path = "support/world.rs"]
mod world;

use std::fmt::Write as _;
use std::path::PathBuf;

use lab::{Lab, checked, identity, orders};
use redrive::topology::diff::client_contract;
use redrive::topology::model::{
    ApplyTo, Arg, Args, Binding, Destination, Exchange, ObjectKey, Policy, Queue, QueueType,
};
use redrive::topology::names::OWNER_EXCHANGE;
use redrive::topology::ownership::{marker, owner_exchange};
use redrive::topology::spec::{Category, Delays, Jitter, Mode, Ownership, Settings, Spec};
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

#[test]
fn create_in_mode_broker() {
    golden("create-broker-4.3", &created(NEW, &orders()));
    golden("create-broker-4.0", &created(OLD, &orders()));
}

#[test]
fn create_in_mode_application() {
    golden("create-application", &created(NEW, &with(|spec| spec.mode = Mode::Application)));
}

#[test]
fn create_in_mode_native() {
    let native = with(|spec| spec.mode = Mode::Native { min: 5_000, max: 600_000, attempts: 8 });
    golden("create-native", &created(NEW, &native));
}

#[test]
fn create_in_mode_none() {
    golden("create-none", &created(NEW, &with(|spec| spec.mode = Mode::None)));
}

#[test]
fn create_with_everything() {
    let spec = with(|spec| {
        spec.jitter = Some(Jitter { percent: 10, shards: 2 });
        spec.dead_letter.quarantine = categories();
        spec.dead_letter.parking_lot = true;
        spec.dead_letter.retention = Some(1_209_600_000);
        spec.dead_letter.max_length = Some(1_000_000);
        spec.source.max_length = Some(50_000);
        spec.source.single_active_consumer = true;
    });
    golden("create-everything", &created(NEW, &spec));
}

#[test]
fn create_with_settings_as_arguments() {
    let spec = with(|spec| {
        spec.settings = Settings::Arguments;
        spec.dead_letter.retention = Some(1_209_600_000);
        spec.source.delivery_limit = Some(5);
    });
    golden("create-arguments", &created(NEW, &spec));
}

#[test]
fn create_around_an_external_source() {
    let lab = lab_with(&[queue("orders", QueueType::Quorum, &[])]);
    golden("create-external", &lab.plan(&checked(&external())));
    golden("create-external-missing", &created(NEW, &external()));
    let own_way = [("x-dead-letter-exchange", Arg::from("legacy"))];
    let lab = lab_with(&[queue("orders", QueueType::Quorum, &own_way)]);
    golden("create-external-own-way", &lab.plan(&checked(&external())));
}

#[test]
fn create_behind_classic_queues() {
    let spec = with(|spec| {
        spec.source.kind = QueueType::Classic;
        spec.source.max_length = Some(1_000);
        spec.retry_type = QueueType::Classic;
        spec.dead_letter.kind = QueueType::Classic;
    });
    golden("create-classic", &created(NEW, &spec));
}

#[test]
fn a_delay_is_changed() {
    golden("edit-delay", &edit(&orders(), &with(|spec| spec.delays = Delays::List(vec![5_000, 60_000]))));
}

#[test]
fn a_tier_is_added() {
    let longer = with(|spec| spec.delays = Delays::List(vec![5_000, 30_000, 120_000]));
    golden("edit-tier-added", &edit(&orders(), &longer));
}

#[test]
fn a_tier_is_removed() {
    golden("edit-tier-removed", &edit(&orders(), &with(|spec| spec.delays = Delays::List(vec![5_000]))));
}

#[test]
fn a_tier_is_removed_while_messages_are_on_their_way() {
    let mut lab = Lab::with(NEW, &checked(&orders()));
    let shorter = checked(&with(|spec| spec.delays = Delays::List(vec![5_000])));
    lab.world.fill("orders", 3);
    lab.world.fill("orders.retry.1", 2);
    lab.round(&shorter, |_, _| {});
    lab.round(&shorter, |_, _| {});
    golden("edit-tier-draining", &lab.plan(&shorter));
}

#[test]
fn a_category_is_added() {
    golden("edit-category-added", &edit(&orders(), &with(|spec| spec.dead_letter.quarantine = categories())));
}

#[test]
fn a_reason_is_added_to_a_category() {
    let before = with(|spec| spec.dead_letter.quarantine = categories());
    let mut after = before.clone();
    after.dead_letter.quarantine[0].reasons.push("maxlen".into());
    golden("edit-category-reason", &edit(&before, &after));
}

#[test]
fn the_dlq_is_renamed() {
    golden(
        "edit-dlq-renamed",
        &edit(&orders(), &with(|spec| spec.dead_letter.template = "{queue}_error".into())),
    );
}

#[test]
fn the_ladder_is_switched_off() {
    golden("edit-broker-to-none", &edit(&orders(), &with(|spec| spec.mode = Mode::None)));
}

#[test]
fn broker_to_application_waits_for_a_person() {
    golden("edit-broker-to-application", &edit(&orders(), &with(|spec| spec.mode = Mode::Application)));
}

#[test]
fn a_binding_is_removed_from_the_list() {
    golden("edit-binding-removed", &edit(&orders(), &with(|spec| spec.source.bindings.clear())));
}

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
fn dangerous_policies_are_refused() {
    let keys: [(&str, Arg); 11] = [
        ("expires", 60_000.into()),
        ("message-ttl", 1_000.into()),
        ("max-length", 10.into()),
        ("max-length-bytes", 10.into()),
        ("dead-letter-exchange", "elsewhere".into()),
        ("dead-letter-routing-key", "elsewhere".into()),
        ("dead-letter-strategy", "at-most-once".into()),
        ("overflow", "drop-head".into()),
        ("delivery-limit", 3.into()),
        ("consumer-timeout", 60_000.into()),
        ("alternate-exchange", "elsewhere".into()),
    ];
    for (key, value) in keys {
        let mut lab = Lab::new(NEW);
        let mut foreign = policy("theirs", 5, &[(key, value)]);
        foreign.apply_to = if key == "alternate-exchange" { ApplyTo::Exchanges } else { ApplyTo::Queues };
        lab.world.observed.policies.push(foreign.clone());
        let mut text = format!("# as a user policy\n{}", lab.plan(&checked(&orders())));
        lab.world.observed.policies.clear();
        lab.world.observed.operator_policies = Some(vec![foreign]);
        write!(text, "# as an operator policy\n{}", lab.plan(&checked(&orders()))).expect("text");
        let refused = text.lines().filter(|line| line.starts_with('!') || line.starts_with('#'));
        let refused: Vec<&str> = refused.collect();
        golden(&format!("danger-{key}"), &format!("{}\n", refused.join("\n")));
    }
}

#[test]
fn a_policy_that_hides_ours_is_refused_at_first_and_reported_later() {
    let mut lab = Lab::new(NEW);
    let theirs =
        Policy { pattern: "^orders$".into(), ..policy("theirs", 10, &[("consumer-timeout", 60_000.into())]) };
    lab.world.observed.policies.push(theirs.clone());
    let mut text = format!("# at first\n{}", lab.plan(&checked(&orders())));
    let mut lab = Lab::with(NEW, &checked(&orders()));
    lab.world.observed.policies.push(theirs);
    write!(text, "# later\n{}", lab.plan(&checked(&orders()))).expect("text");
    golden("policy-hidden", &text);
}

#[test]
fn an_external_source_with_a_policy_of_its_own() {
    let own = Policy { pattern: "^orders$".into(), ..policy("theirs", 1, &[("max-length", 1_000.into())]) };
    let mut lab = lab_with(&[queue("orders", QueueType::Quorum, &[]), Write::PutPolicy(own)]);
    let mut text = format!("# refused\n{}", lab.plan(&checked(&external())));
    let merging = Spec { merge_policy: true, ..external() };
    write!(text, "# merged\n{}", lab.plan(&checked(&merging))).expect("text");
    for (key, value) in [("overflow", Arg::from("drop-head")), ("expires", 1_000.into())] {
        lab.world.observed.policies[0].definition = [(key.to_owned(), value)].into();
        write!(text, "# with {key}\n{}", lab.plan(&checked(&merging))).expect("text");
    }
    golden("merge-policy", &text);
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

#[test]
fn the_client_contract_lists_what_applications_may_declare() {
    let mut text = String::new();
    for (title, spec) in [
        ("broker", orders()),
        ("application", with(|spec| spec.mode = Mode::Application)),
        ("external", external()),
    ] {
        let pipeline = checked(&spec);
        let desired = Lab::new(NEW).diff(&pipeline).desired;
        writeln!(text, "# {title}").expect("text");
        for queue in client_contract(&pipeline, &desired) {
            writeln!(text, "{}", serde_json::to_string(&queue).expect("JSON")).expect("text");
        }
    }
    golden("client-contract", &text);
}
