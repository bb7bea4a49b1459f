//! Failures known from other tools that touch the topology alone; docs/cases.md
//! lists them all, with the tests of the others.

#[path = "support/lab.rs"]
mod lab;
#[path = "support/world.rs"]
mod world;

use std::collections::BTreeSet;

use lab::{Lab, checked, identity, orders};
use redrive::topology::desired::{self, policy_name};
use redrive::topology::effective::{PolicyIndex, Subject};
use redrive::topology::generations::Generations;
use redrive::topology::model::{ApplyTo, Arg, Args, Binding, Exchange, Policy, Queue, QueueType};
use redrive::topology::names::exact_pattern;
use redrive::topology::plan::{BlockedBy, Step};
use redrive::topology::policy_check::is_own;
use redrive::topology::spec::{
    Category, Delays, Identity, Jitter, Mode, Settings, SourceBinding, SourceExchange, Spec,
};
use redrive::topology::validate::validate;
use world::Write;

const NEW: (u32, u32, u32) = (4, 3, 6);

fn with(change: impl FnOnce(&mut Spec)) -> Spec {
    let mut spec = orders();
    change(&mut spec);
    spec
}

/// Which objects are in the way, and how.
fn blocked(lab: &Lab, spec: &Spec) -> Vec<(BlockedBy, String)> {
    let blocked = lab.diff(&checked(spec)).plan.blocked;
    blocked.into_iter().map(|found| (found.by, found.object)).collect()
}

fn deletes(lab: &Lab, spec: &Spec) -> bool {
    let plan = lab.diff(&checked(spec)).plan;
    plan.steps.iter().any(|planned| matches!(planned.step, Step::DeleteQueue(_) | Step::DeleteExchange(_)))
}

/// IMM-07, DEL-08: durable, auto-delete and exclusive are compared as arguments are.
#[test]
fn a_queue_that_does_not_last_is_a_mismatch_and_stays() {
    for (what, text) in [
        ("durable", "durable is false where true is wanted"),
        ("auto_delete", "auto_delete is true where false is wanted"),
        ("exclusive", "exclusive is true where false is wanted"),
    ] {
        let mut lab = Lab::with(NEW, &checked(&orders()));
        let queue = lab.world.observed.queues.get_mut("orders.dlq").expect("the DLQ");
        match what {
            "durable" => queue.durable = false,
            "auto_delete" => queue.auto_delete = true,
            _ => queue.exclusive = true,
        }
        assert_eq!(blocked(&lab, &orders()), [(BlockedBy::ArgumentMismatch, "queue orders.dlq".into())]);
        assert!(lab.plan(&checked(&orders())).contains(text), "{}", lab.plan(&checked(&orders())));
        assert!(!deletes(&lab, &orders()));
    }
}

/// Where names stay, since applications know them.
fn application() -> Spec {
    with(|spec| spec.mode = Mode::Application)
}

/// IMM-11: what counts is the type that the broker shows, whatever it answered to a declaration.
#[test]
fn a_queue_of_another_type_is_a_mismatch_though_all_arguments_are_equal() {
    let spec = application();
    let mut lab = Lab::with(NEW, &checked(&spec));
    lab.world.observed.queues.get_mut("orders.retry.0").expect("a tier").kind = QueueType::Classic;
    assert_eq!(blocked(&lab, &spec), [(BlockedBy::ArgumentMismatch, "queue orders.retry.0".into())]);
    assert!(lab.plan(&checked(&spec)).contains("x-queue-type is classic where quorum is wanted"));
    assert!(!deletes(&lab, &spec));
}

/// IMM-12: an exchange of the user with other settings is named and never replaced.
#[test]
fn an_exchange_with_other_settings_is_a_mismatch_and_stays() {
    for (what, text) in [
        ("type", "spec.source.exchange.type: from topic to direct is not supported yet"),
        ("durable", "durable is false where true is wanted"),
        ("alternate-exchange", "alternate-exchange is \"x\" where none is wanted"),
    ] {
        let mut lab = Lab::with(NEW, &checked(&orders()));
        let found = lab.world.observed.exchanges.get_mut("orders.exchange").expect("the exchange");
        let mut spec = orders();
        match what {
            "type" => {
                let exchange = SourceExchange { name: "orders.exchange".into(), kind: "direct".into() };
                spec.source.exchange = Some(exchange);
            }
            "durable" => found.durable = false,
            _ => {
                found.arguments.insert("alternate-exchange".into(), "x".into());
            }
        }
        // Only the first is somebody's wish.
        let (by, object) = match what {
            "type" => (BlockedBy::NotSupportedYet, "spec.source.exchange.type"),
            _ => (BlockedBy::ArgumentMismatch, "exchange orders.exchange"),
        };
        assert_eq!(blocked(&lab, &spec), [(by, object.into())]);
        assert!(lab.plan(&checked(&spec)).contains(text), "{}", lab.plan(&checked(&spec)));
        assert!(!deletes(&lab, &spec));
    }
}

/// IMM-13: two tiers with one delay are two queues, and a change of their order gives no
/// queue that is there another delay.
#[test]
fn equal_delays_have_a_queue_each_and_reordering_re_points_none() {
    let before = checked(&with(|spec| spec.delays = Delays::List(vec![30_000, 100_000, 100_000])));
    let mut lab = Lab::with(NEW, &before);
    let delay = |lab: &Lab, name: &str| lab.world.observed.queues[name].arguments["x-message-ttl"].clone();
    assert_eq!(delay(&lab, "orders.retry.1"), Arg::Int(100_000));
    assert_eq!(delay(&lab, "orders.retry.2"), Arg::Int(100_000));
    let after = checked(&with(|spec| spec.delays = Delays::List(vec![100_000, 30_000])));
    for name in ["orders.retry.0", "orders.retry.1", "orders.retry.2"] {
        lab.world.fill(name, 1);
    }
    lab.settle(&after);
    for (name, expected) in
        [("orders.retry.0", 30_000), ("orders.retry.1", 100_000), ("orders.retry.2", 100_000)]
    {
        assert_eq!(delay(&lab, name), Arg::Int(expected), "{name} holds a message and stays as it is");
    }
    assert_eq!(delay(&lab, "orders.retry.0.g2"), Arg::Int(100_000));
    assert_eq!(delay(&lab, "orders.retry.1.g2"), Arg::Int(30_000));
}

fn everything() -> Spec {
    with(|spec| {
        spec.source.max_length = Some(1_000);
        spec.jitter = Some(Jitter { percent: 10, shards: 2 });
        spec.dead_letter.max_length = Some(1_000);
        spec.dead_letter.parking_lot = true;
        spec.dead_letter.quarantine = vec![Category {
            name: "poison".into(),
            reasons: vec!["delivery_limit".into()],
            headers: Args::new(),
        }];
    })
}

/// POL-24, POL-26: strategy, overflow and exchange stand together in the arguments of every
/// queue that dead-letters, and no policy brings a part of them.
#[test]
fn what_at_least_once_needs_stands_together_in_the_arguments() {
    let native = Mode::Native { min: 1_000, max: 5_000, attempts: 5 };
    for mode in [Mode::Broker, Mode::Application, native, Mode::None] {
        for settings in [Settings::Policy { priority: 10 }, Settings::Arguments] {
            let mut spec = everything();
            (spec.mode, spec.settings) = (mode, settings);
            if !mode.has_tiers() {
                spec.jitter = None;
            }
            let wanted = desired::build(&checked(&spec), &lab::facts(NEW), &Generations::default());
            let mut dead_lettering = 0;
            for queue in wanted.queues.iter().map(|queue| &queue.queue) {
                let argument = |key: &str| queue.arguments.get(key);
                assert_eq!(argument("x-overflow"), Some(&"reject-publish".into()), "{}", queue.name);
                if argument("x-dead-letter-exchange").is_some() {
                    dead_lettering += 1;
                    let strategy = argument("x-dead-letter-strategy");
                    assert_eq!(strategy, Some(&"at-least-once".into()), "{}", queue.name);
                } else {
                    let parts = ["x-dead-letter-strategy", "x-dead-letter-routing-key"];
                    assert!(parts.iter().all(|key| argument(key).is_none()), "{}", queue.name);
                }
                assert!(argument("x-expires").is_none(), "{}", queue.name);
            }
            assert!(dead_lettering > 0, "the source, at least");
            let policies = wanted.policies.iter().map(|policy| &policy.policy.definition);
            let keys: BTreeSet<&str> =
                policies.flat_map(|args: &Args| args.keys()).map(String::as_str).collect();
            let others =
                ["dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy", "overflow"];
            assert!(others.iter().all(|key| !keys.contains(key)), "{keys:?}");
        }
    }
}

/// POL-21: each of a policy's four parts is compared, its numbers with their type.
#[test]
fn a_policy_that_differs_in_one_part_is_written_again() {
    let spec = with(|spec| spec.dead_letter.retention = Some(60_000));
    let settled = Lab::with(NEW, &checked(&spec));
    let name = policy_name(&identity("orders"), "dlq");
    type Change = (&'static str, fn(&mut Policy));
    let changes: [Change; 5] = [
        ("pattern", |policy| policy.pattern = "^orders.dlq$".into()),
        ("priority", |policy| policy.priority += 1),
        ("apply-to", |policy| policy.apply_to = ApplyTo::Queues),
        ("a number as text", |policy| {
            policy.definition.insert("message-ttl".into(), "60000".into());
        }),
        ("one key more", |policy| {
            policy.definition.insert("consumer-timeout".into(), 90_000.into());
        }),
    ];
    for (what, change) in changes {
        let mut lab = settled.clone();
        let policies = &mut lab.world.observed.policies;
        let policy = policies.iter_mut().find(|policy| policy.name == name).expect("the DLQ's policy");
        let before = policy.clone();
        change(policy);
        lab.settle(&checked(&spec));
        assert_eq!(lab.world.observed.policy(&name), Some(&before), "{what}");
    }
}

/// POL-23: the broker takes this value for a quorum queue and does not do what it says.
#[test]
fn an_overflow_that_quorum_queues_do_not_know_is_a_danger() {
    let mut lab = Lab::new(NEW);
    lab.world.observed.operator_policies = Some(vec![Policy {
        name: "theirs".into(),
        pattern: "dlq".into(),
        apply_to: ApplyTo::Queues,
        priority: 1,
        definition: [("overflow".to_owned(), "reject-publish-dlx".into())].into(),
    }]);
    assert_eq!(blocked(&lab, &orders()), [(BlockedBy::PolicyShadowed, "queue orders.dlq".into())]);
}

/// POL-22: a priority is a whole number within a range.
#[test]
fn a_priority_out_of_range_is_refused() {
    for (priority, fine) in [(-1, false), (0, true), (1_000_000, true), (1_000_001, false), (i64::MAX, false)]
    {
        let spec = with(|spec| spec.settings = Settings::Policy { priority });
        let found = validate(identity("orders"), spec).err().unwrap_or_default();
        assert_eq!(found.is_empty(), fine, "{priority}: {found:?}");
        assert!(found.iter().all(|problem| problem.field == "settings.policy.priority"), "{found:?}");
    }
}

/// NAM-13, POL-20: no two resources have a policy name in common, however their own names join.
#[test]
fn policy_names_of_two_resources_never_meet() {
    let of = |namespace: &str, name: &str| Identity {
        cluster: "c1".into(),
        namespace: namespace.into(),
        name: name.into(),
        uid: "uid".into(),
    };
    // Names of Kubernetes hold letters, digits, '-' and '.', so none holds the separator.
    let resources =
        [of("a-b", "c"), of("a", "b-c"), of("a", "b"), of("a.b", "c"), of("a", "b.c"), of("ab", "c")];
    for one in &resources {
        for other in &resources {
            let policy = Policy {
                name: policy_name(other, "source"),
                pattern: String::new(),
                apply_to: ApplyTo::Queues,
                priority: 0,
                definition: Args::new(),
            };
            assert_eq!(is_own(one, &policy), one == other, "{one:?} and {}", policy.name);
        }
    }
}

/// NAM-09, NAM-11: a name is its bytes. Twins are two queues, and nothing of one touches the other.
#[test]
fn names_that_look_alike_are_different_names() {
    let twins = ["orders", "Orders", "ORDERS", "caf\u{e9}", "cafe\u{301}", "cafe"];
    for one in twins {
        let pipeline = checked(&with(|spec| spec.source.queue = one.into()));
        assert!(pipeline.claimed_queues().all(|name| name.starts_with(one)));
        let policy = Policy {
            name: "p".into(),
            pattern: exact_pattern(one),
            apply_to: ApplyTo::Queues,
            priority: 0,
            definition: Args::new(),
        };
        let policies = [policy];
        let index = PolicyIndex::new(&policies, None);
        for other in twins {
            let hit = !index.user(other, Subject::Queue(QueueType::Quorum)).is_empty();
            assert_eq!(hit, one == other, "{one} and {other}");
        }
    }
}

/// NAM-16: the default exchange is never declared, bound or marked.
#[test]
fn the_default_exchange_is_nobodys_to_change() {
    for mode in [Mode::Broker, Mode::Application] {
        let wanted = desired::build(
            &checked(&with(|spec| spec.mode = mode)),
            &lab::facts(NEW),
            &Generations::default(),
        );
        let is_default = |name: &str| name.is_empty() || name == "amq.default";
        assert!(wanted.exchanges.iter().all(|exchange| !is_default(&exchange.exchange.name)));
        assert!(wanted.bindings.iter().all(|binding| !is_default(&binding.binding.source)));
    }
    let spec = with(|spec| {
        spec.source.exchange = None;
        spec.source.bindings = vec![SourceBinding { exchange: String::new(), routing_key: "a".into() }];
    });
    let found = validate(identity("orders"), spec).err().unwrap_or_default();
    assert_eq!(found.len(), 1, "{found:?}");
}

/// VHO-01: a type that the broker fills in by itself is no difference, and is said all the same.
#[test]
fn every_queue_says_its_type_and_an_injected_one_is_no_drift() {
    let pipeline = checked(&everything());
    let mut lab = Lab::with(NEW, &pipeline);
    let wanted = desired::build(&pipeline, &lab.facts, &Generations::default());
    for queue in &wanted.queues {
        assert_eq!(queue.queue.arguments.get("x-queue-type"), Some(&"quorum".into()), "{}", queue.queue.name);
    }
    // The observed queue holds the type apart from the arguments, injected or not.
    assert!(lab.world.observed.queues.values().all(|queue| !queue.arguments.contains_key("x-queue-type")));
    assert!(lab.settle(&pipeline).plan.is_empty());
}

/// T-2: the exchange is deleted and declared again by hand, without any binding.
#[test]
fn an_exchange_that_was_declared_again_bare_gets_its_bindings_back() {
    let pipeline = checked(&orders());
    let mut lab = Lab::with(NEW, &pipeline);
    let bindings = |lab: &Lab| {
        let user: BTreeSet<Binding> = lab.world.observed.bindings_from("orders.exchange").cloned().collect();
        user
    };
    let before = bindings(&lab);
    assert!(!before.is_empty());
    let bare = Exchange {
        name: "orders.exchange".into(),
        kind: "topic".into(),
        internal: false,
        arguments: Args::new(),
    };
    for write in [Write::DeleteExchange("orders.exchange".into()), Write::PutExchange(bare)] {
        lab.world.write(&write).expect("the write is taken");
    }
    assert!(bindings(&lab).is_empty() && !lab.diff(&pipeline).plan.is_empty());
    lab.settle(&pipeline);
    assert_eq!(bindings(&lab), before);
}

/// MSG-05: nothing makes a DLQ dead-letter by itself.
#[test]
fn what_ends_the_line_leads_nowhere() {
    let wanted = desired::build(&checked(&everything()), &lab::facts(NEW), &Generations::default());
    let is_end = |name: &str| name.starts_with("orders.dlq");
    let ends: Vec<&Queue> =
        wanted.queues.iter().map(|queue| &queue.queue).filter(|queue| is_end(&queue.name)).collect();
    assert_eq!(ends.len(), 4, "DLQ, two quarantines and the parking lot");
    for queue in ends {
        assert!(!queue.arguments.contains_key("x-dead-letter-exchange"), "{}", queue.name);
        assert!(!queue.arguments.contains_key("x-message-ttl"), "{}", queue.name);
    }
    let mut lab = Lab::new(NEW);
    lab.world.observed.policies.push(Policy {
        name: "drain".into(),
        pattern: exact_pattern("orders.dlq"),
        apply_to: ApplyTo::Queues,
        priority: 1,
        definition: [("dead-letter-exchange".to_owned(), "".into()), ("message-ttl".to_owned(), 200.into())]
            .into(),
    });
    let found = lab.diff(&checked(&orders())).plan.blocked;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|found| found.by == BlockedBy::PolicyShadowed));
}

/// IMM-02, IMM-03: a number that another tool wrote as text or as a float is another argument.
#[test]
fn a_number_of_another_type_is_told_apart() {
    let spec = application();
    for (value, text) in [
        (Arg::from("5000"), "x-message-ttl is \"5000\" where 5000 is wanted"),
        (Arg::Other("5.0e3".into()), "x-message-ttl is 5.0e3 where 5000 is wanted"),
    ] {
        let mut lab = Lab::with(NEW, &checked(&spec));
        let queue = lab.world.observed.queues.get_mut("orders.retry.0").expect("a tier");
        queue.arguments.insert("x-message-ttl".into(), value);
        assert_eq!(blocked(&lab, &spec), [(BlockedBy::ArgumentMismatch, "queue orders.retry.0".into())]);
        assert!(lab.plan(&checked(&spec)).contains(text), "{}", lab.plan(&checked(&spec)));
    }
}

/// DLX-08: the exchange that dead letters go to comes back, whole.
#[test]
fn a_missing_dead_letter_exchange_is_declared_again() {
    let pipeline = checked(&orders());
    let mut lab = Lab::with(NEW, &pipeline);
    let before = lab.world.shape();
    lab.world.write(&Write::DeleteExchange("orders.dlx".into())).expect("deleted");
    lab.settle(&pipeline);
    assert_eq!(lab.world.shape(), before);
}
