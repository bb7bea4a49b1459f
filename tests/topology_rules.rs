//! Rules of the topology, one by one.

#[path = "support/lab.rs"]
mod lab;
#[path = "support/world.rs"]
mod world;

use lab::{Lab, checked, facts, orders};
use redrive::topology::desired::{DEFAULT_DELIVERY_LIMIT, delivery_limit};
use redrive::topology::model::{ApplyTo, Args, ObjectKey, Policy, Queue, QueueType};
use redrive::topology::plan::BlockedBy;
use redrive::topology::spec::{Delays, Mode, Settings, Spec};
use world::Write;

const NEW: (u32, u32, u32) = (4, 3, 6);
const OLD: (u32, u32, u32) = (4, 0, 5);

fn with(change: impl FnOnce(&mut Spec)) -> Spec {
    let mut spec = orders();
    change(&mut spec);
    spec
}

fn classic(name: &str, arguments: Args) -> Write {
    let kind = ("x-queue-type".to_owned(), "classic".into());
    let arguments = arguments.into_iter().chain([kind]).collect();
    Write::PutQueue(Queue { name: name.into(), kind: QueueType::Classic, arguments })
}

fn write(lab: &mut Lab, write: &Write) {
    lab.world.write(write).expect("the write is taken");
}

fn steps(lab: &Lab, spec: &Spec) -> Vec<String> {
    lab.diff(&checked(spec)).plan.steps.iter().map(|planned| planned.step.to_string()).collect()
}

fn blocked(lab: &Lab, spec: &Spec) -> Vec<(BlockedBy, String)> {
    let blocked = lab.diff(&checked(spec)).plan.blocked;
    blocked.into_iter().map(|found| (found.by, found.object)).collect()
}

// Delivery limits

#[test]
fn on_4_3_the_limit_covers_the_whole_walk() {
    let limit = |limit, delays: Vec<i64>| {
        let spec = with(|spec| (spec.source.delivery_limit, spec.delays) = (limit, Delays::List(delays)));
        delivery_limit(&checked(&spec), &facts(NEW))
    };
    assert_eq!(limit(Some(5), vec![1, 2, 3]), Some(23));
    assert_eq!(limit(None, vec![1]), Some(DEFAULT_DELIVERY_LIMIT * 2 + 1));
    assert_eq!(limit(Some(100_000), (1..=32).collect()), Some(3_300_032));
}

#[test]
fn before_4_3_and_without_a_ladder_the_limit_is_per_stay() {
    let spec = |limit, mode| with(|spec| (spec.source.delivery_limit, spec.mode) = (limit, mode));
    let limit = |version, spec: &Spec| delivery_limit(&checked(spec), &facts(version));
    assert_eq!(limit(OLD, &spec(Some(5), Mode::Broker)), Some(5));
    assert_eq!(limit(OLD, &spec(None, Mode::Broker)), None, "the broker's default is right");
    assert_eq!(limit(NEW, &spec(Some(20), Mode::None)), None);
    assert_eq!(limit(NEW, &spec(Some(7), Mode::Application)), Some(7));
    let native = Mode::Native { min: 1, max: 2, attempts: 8 };
    assert_eq!(limit(NEW, &spec(None, native)), Some(8));
}

#[test]
fn an_upgrade_to_4_3_raises_the_limit_by_policy_and_is_told_where_an_argument_holds_it() {
    let upgraded = |settings: Settings| {
        let spec = with(|spec| spec.settings = settings);
        let mut lab = Lab::new(OLD);
        lab.settle(&checked(&spec));
        lab.facts = facts(NEW);
        (steps(&lab, &spec), blocked(&lab, &spec))
    };
    let (written, blocked) = upgraded(Settings::Policy { priority: 10 });
    assert_eq!(written.len(), 1, "{written:?}");
    assert!(written[0].contains("delivery-limit"), "{written:?}");
    assert_eq!(blocked, []);
    let (written, blocked) = upgraded(Settings::Arguments);
    assert_eq!(written, [""; 0]);
    assert_eq!(blocked, [(BlockedBy::ArgumentMismatch, "queue orders".to_owned())]);
}

#[test]
fn classic_queues_have_no_limit() {
    let spec = with(|spec| spec.source.kind = QueueType::Classic);
    assert_eq!(delivery_limit(&checked(&spec), &facts(NEW)), None);
}

// Policies of others

fn theirs(pattern: &str, priority: i64, definition: &[(&str, i64)]) -> Policy {
    Policy {
        name: "theirs".into(),
        pattern: pattern.into(),
        apply_to: ApplyTo::Queues,
        priority,
        definition: definition.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect(),
    }
}

#[test]
fn a_limit_above_ours_is_harmless_and_one_below_is_not() {
    let spec = with(|spec| spec.dead_letter.retention = Some(60_000));
    let found = |pattern: &str, key, value| {
        let mut lab = Lab::new(NEW);
        lab.world.observed.operator_policies = Some(vec![theirs(pattern, 1, &[(key, value)])]);
        blocked(&lab, &spec)
    };
    assert_eq!(found("dlq", "message-ttl", 60_000), []);
    assert_eq!(found("dlq", "message-ttl", 59_999), [(BlockedBy::PolicyShadowed, "queue orders.dlq".into())]);
    assert_eq!(found("retry.0", "message-ttl", 5_000), []);
    assert_eq!(found("retry.0", "message-ttl", 4_999).len(), 1);
    assert_eq!(found("dlq", "delivery-limit", -1), []);
    // 20 for each of three stays, and the two retries themselves.
    assert_eq!(found("^orders$", "delivery-limit", 62), []);
    assert_eq!(found("^orders$", "delivery-limit", -1), []);
    assert_eq!(found("^orders$", "delivery-limit", 61).len(), 1);
}

#[test]
fn a_policy_of_lower_priority_than_ours_does_no_harm() {
    let spec = with(|spec| spec.dead_letter.retention = Some(60_000));
    let mut lab = Lab::new(NEW);
    lab.world.observed.policies.push(theirs("dlq", 9, &[("expires", 1)]));
    assert_eq!(blocked(&lab, &spec), []);
    lab.world.observed.policies[0].priority = 10;
    assert!(blocked(&lab, &spec).contains(&(BlockedBy::PolicyShadowed, "queue orders.dlq".into())));
}

#[test]
fn a_danger_that_appears_later_is_reported_and_stops_no_repair() {
    let mut lab = Lab::with(NEW, &checked(&orders()));
    lab.world.observed.policies.push(theirs("retry", 1, &[("expires", 60_000)]));
    write(&mut lab, &Write::DeleteQueue("orders.dlq".into()));
    let both = "queues orders.retry.0, orders.retry.1".to_owned();
    assert_eq!(blocked(&lab, &orders()), [(BlockedBy::PolicyShadowed, both)], "one cause, one line");
    assert!(steps(&lab, &orders()).iter().any(|step| step.starts_with("+ queue    orders.dlq")));
}

#[test]
fn a_policy_stays_until_its_queue_is_what_replaces_it() {
    let mut lab = Lab::with(NEW, &checked(&with(|spec| spec.dead_letter.retention = Some(60_000))));
    let arguments = with(|spec| {
        spec.dead_letter.retention = Some(60_000);
        spec.settings = Settings::Arguments;
    });
    lab.settle(&checked(&arguments));
    assert!(lab.world.observed.policy("redrive:c1:shop:orders:dlq").is_some());
    assert_eq!(blocked(&lab, &arguments), [(BlockedBy::AwaitsConsent, "spec.settings".into())]);
    // The same where an operator of before has taken it for carried out.
    lab.applied = Some(arguments.clone());
    lab.settle(&checked(&arguments));
    assert!(lab.world.observed.policy("redrive:c1:shop:orders:dlq").is_some());
    assert_eq!(blocked(&lab, &arguments).len(), 2);
}

// Generations

#[test]
fn a_reverted_edit_returns_to_what_is_still_there() {
    let longer = with(|spec| spec.delays = Delays::List(vec![5_000, 60_000]));
    let mut lab = Lab::with(NEW, &checked(&orders()));
    lab.world.fill("orders.retry.1", 1);
    lab.round(&checked(&longer), |_, _| {});
    let back = lab.diff(&checked(&orders()));
    assert!(back.desired.queues.iter().any(|queue| queue.queue.name == "orders.retry.1"));
    assert_eq!(back.desired.slots.map(|slots| slots.entry).as_deref(), Some("orders.dlx.dead"));
}

#[test]
fn an_edit_that_was_only_intended_leaves_nothing_behind() {
    let longer = with(|spec| spec.delays = Delays::List(vec![5_000, 60_000]));
    let mut lab = Lab::with(NEW, &checked(&orders()));
    lab.crash(&checked(&longer), 0, true);
    let diff = lab.settle(&checked(&orders()));
    assert!(diff.plan.is_empty(), "{}", diff.plan);
    assert!(!lab.inventory.contains_key(&ObjectKey::Queue("orders.retry.1.g2".into())));
}

#[test]
fn names_of_generations_that_are_gone_are_used_again() {
    let mut lab = Lab::with(NEW, &checked(&orders()));
    for delay in 1..10 {
        let spec = with(|spec| spec.delays = Delays::List(vec![5_000, 60_000 * delay]));
        lab.settle(&checked(&spec));
    }
    assert!(lab.world.observed.queues.keys().all(|name| !name.ends_with(".g3")), "names stay short");
}

#[test]
fn in_mode_application_names_stay_and_a_change_waits() {
    let application =
        |delay| with(|spec| (spec.mode, spec.delays) = (Mode::Application, Delays::List(vec![delay])));
    let lab = Lab::with(NEW, &checked(&application(5_000)));
    assert_eq!(blocked(&lab, &application(6_000)), [(BlockedBy::AwaitsConsent, "spec.retry.delays".into())]);
}

#[test]
fn nothing_begins_to_flow_into_a_pipeline_that_is_not_whole() {
    let mut lab = Lab::new(NEW);
    write(&mut lab, &classic("orders.retry.1", Args::new()));
    for _ in 0..3 {
        let diff = lab.round(&checked(&orders()), |_, _| {});
        assert!(!diff.plan.to_string().contains("orders.exchange -> queue"), "{}", diff.plan);
    }
    write(&mut lab, &Write::DeleteQueue("orders.retry.1".into()));
    assert!(lab.diff(&checked(&orders())).plan.to_string().contains("orders.exchange -> queue"));
}

#[test]
fn what_was_taken_away_is_named_and_what_was_edited_is_not() {
    let mut lab = Lab::with(NEW, &checked(&orders()));
    let missing = |lab: &Lab, spec: &Spec| -> Vec<String> {
        lab.diff(&checked(spec)).missing.iter().map(ToString::to_string).collect()
    };
    let shorter = with(|spec| spec.delays = Delays::List(vec![5_000]));
    assert_eq!(missing(&lab, &shorter), Vec::<String>::new());
    let user = lab.world.observed.bindings_from("orders.exchange").next().expect("a binding").clone();
    for damage in [
        Write::DeleteExchange("orders.dlx.guard".into()),
        Write::DeleteQueue("orders.retry.0".into()),
        Write::DeletePolicy("redrive:c1:shop:orders:source".into()),
        Write::Unbind(user),
    ] {
        write(&mut lab, &damage);
    }
    assert_eq!(
        missing(&lab, &orders()),
        [
            "queue orders.retry.0",
            "exchange orders.dlx.guard",
            "policy redrive:c1:shop:orders:source",
            "binding orders.exchange key \"orders.created\""
        ]
    );
}
