//! What a specification must not say, and what the user is told instead.

#[path = "support/lab.rs"]
mod lab;
#[path = "support/world.rs"]
mod world;

use lab::{checked, facts, identity, orders};
use redrive::topology::model::Args;
use redrive::topology::spec::{
    Category, Delays, Jitter, Mode, Settings, SourceBinding, SourceExchange, Spec,
};
use redrive::topology::validate::{Unsupported, check_broker, validate};

fn with(change: impl FnOnce(&mut Spec)) -> Spec {
    let mut spec = orders();
    change(&mut spec);
    spec
}

fn problems(spec: Spec) -> Vec<String> {
    match validate(identity("orders"), spec) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

#[track_caller]
fn assert_problem(spec: Spec, field: &str, instruction: &str) {
    let found = problems(spec);
    let fits = |text: &String| text.starts_with(&format!("spec.{field}: ")) && text.contains(instruction);
    assert!(found.iter().any(fits), "{field} … {instruction} in {found:#?}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let spec = with(|spec| {
        spec.source.queue = "amq.orders".into();
        spec.source.delivery_limit = Some(0);
        spec.source.bindings = vec![
            SourceBinding { exchange: String::new(), routing_key: "a".into() },
            SourceBinding { exchange: "x".into(), routing_key: "#.a.#.b.#".into() },
        ];
        spec.delays = Delays::List(vec![0, i64::MAX]);
        spec.jitter = Some(Jitter { percent: 101, shards: 0 });
        spec.retry_template = "{queue}.retry".into();
        spec.number_from = u32::MAX;
        spec.dead_letter.max_length = Some(0);
        spec.dead_letter.quarantine =
            vec![Category { name: "X".into(), reasons: vec![], headers: Args::new() }];
    });
    for (field, instruction) in [
        ("source.queue.name", "use another name"),
        ("source.deliveryLimit", "write 1 to 100000"),
        ("source.bindings[0]", "bind another exchange"),
        ("source.bindings[1]", "use at most two"),
        ("retry.delays[0]", "write at least 1ms"),
        ("retry.delays[1]", "write at most 3650d"),
        ("retry.jitter.percent", "write 0 to 100"),
        ("retry.jitter.shards", "write 1 to 64"),
        ("retry.naming.template", "add one"),
        ("retry.naming.numberFrom", "write 0 to 1000"),
        ("deadLetter.maxLength", "write 1 to"),
        ("deadLetter.quarantine[0]", "use 1 to 40 of a-z"),
    ] {
        assert_problem(spec.clone(), field, instruction);
    }
}

#[test]
fn names_that_the_broker_or_http_cannot_take_are_refused() {
    let named = |name: &str| with(|spec| spec.source.queue = name.into());
    for (name, instruction) in [
        ("", "give it a name"),
        ("a\nb", "remove it"),
        ("a\u{7}", "remove it"),
        (" a", "remove it"),
        (".", "use another name"),
        ("..", "use another name"),
        ("amq.orders", "use another name"),
        ("redrive.orders", "use another name"),
    ] {
        assert_problem(named(name), "source.queue.name", instruction);
    }
    assert_problem(named(&"x".repeat(256)), "source.queue.name", "shorten");
    assert_problem(named(&"é".repeat(128)), "source.queue.name", "shorten");
    for name in
        ["a/b", "a?b", "100%", "a+b", "gate@site#1", "Orders", "é", "e\u{301}", "get", "AMQ.mine", "amqp"]
    {
        assert_eq!(problems(named(name)), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn names_that_derive_from_others_are_measured_with_room_for_generations() {
    let long = |length| with(|spec| spec.source.queue = "x".repeat(length));
    assert_eq!(problems(long(225)), Vec::<String>::new());
    assert_problem(long(246), "source.queue.name", "shorten");
}

#[test]
fn names_that_stand_in_each_others_way_are_refused() {
    let renamed = |dlq: &str| with(|spec| spec.dead_letter.template = dlq.into());
    assert_problem(renamed("{queue}"), "source.queue.name", "choose other names");
    assert_problem(renamed("{queue}.retry.0"), "deadLetter.name", "choose other names");
    assert_problem(renamed("{queue}.retry.0.g2"), "deadLetter.name", "later generation");
    assert_problem(renamed("{queue}.retry.1.s0"), "deadLetter.name", "later generation");
    assert_problem(renamed("{queue}.{attempt}"), "deadLetter.name", "use {queue} alone");
    let twice = with(|spec| {
        spec.retry_template = "{queue}.{delay}".into();
        spec.delays = Delays::List(vec![1_000, 1_000]);
    });
    assert_problem(twice, "retry.naming.template", "{attempt}");
    for reserved in ["orders.dlx", "orders.dlx.mine", "orders.return.7", "orders.retry.0.g2.shards"] {
        let exchange = with(|spec| {
            spec.source.exchange = Some(SourceExchange { name: reserved.into(), kind: "topic".into() });
        });
        assert_problem(exchange, "source.exchange.name", "use another name");
        let binding = with(|spec| spec.source.bindings[0].exchange = reserved.into());
        assert_problem(binding, "source.bindings[0]", "use another name");
    }
    let free = with(|spec| {
        spec.source.exchange =
            Some(SourceExchange { name: "orders.return.requests".into(), kind: "topic".into() });
    });
    assert_eq!(problems(free), Vec::<String>::new());
}

/// NAM-16: the broker refuses it, but only when all else is declared.
#[test]
fn nothing_is_bound_to_the_default_exchange() {
    for exchange in ["", "amq.default"] {
        let spec = with(|spec| spec.source.bindings[0].exchange = exchange.into());
        assert_problem(spec, "source.bindings[0]", "the default exchange leads to every queue by its name");
    }
    for key in ["", ".", "..", "~", "a~b", "a/..", "%2E"] {
        let spec = with(|spec| {
            spec.source.bindings[0] = SourceBinding { exchange: "amq.topic".into(), routing_key: key.into() };
        });
        assert_eq!(problems(spec), Vec::<String>::new(), "{key:?} can be bound, listed and unbound");
    }
}

/// Status lists all names, so together they must not become too long for it.
#[test]
fn names_that_are_too_long_together_are_refused_with_the_part_that_takes_most() {
    let bindings = |count: u32, bytes: usize| {
        with(|spec| {
            let number = |number: u32| format!("{number:03}{}", "x".repeat(bytes - 3));
            let bind = |n| SourceBinding { exchange: number(n), routing_key: number(n) };
            spec.source.bindings = (0..count).map(bind).collect();
        })
    };
    assert_eq!(problems(bindings(64, 255)), Vec::<String>::new());
    assert_problem(bindings(90, 255), "source.bindings", "for 90 bindings: shorten those, or list fewer");
    // A quote takes two bytes in JSON.
    let mut quotes = bindings(64, 255);
    quotes.source.bindings.iter_mut().for_each(|one| one.routing_key = one.routing_key.replace('x', "\""));
    assert_problem(quotes, "source.bindings", "64 bindings");
    let tiers = with(|spec| {
        spec.delays = Delays::List(vec![1_000; 32]);
        spec.jitter = Some(Jitter { percent: 10, shards: 2 });
        spec.retry_template = format!("{{attempt}}{}", "x".repeat(230));
    });
    assert_problem(tiers, "retry.naming.template", "for 64 retry queues: shorten those");
    let categories = with(|spec| {
        let category = |number: usize| Category {
            name: format!("c{number}"),
            reasons: vec!["expired".into()],
            headers: Args::new(),
        };
        spec.dead_letter.template = "d".repeat(200);
        spec.dead_letter.quarantine = (0..99).map(category).collect();
    });
    assert_problem(categories, "deadLetter.quarantine", "for 100 quarantine queues: shorten those");
}

#[test]
fn categories_that_could_not_work_are_refused() {
    let category = |reasons: &[&str], header: Option<&str>| {
        with(|spec| {
            let headers = header.map(|key| (key.to_owned(), "x".into())).into_iter().collect();
            let reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
            spec.dead_letter.quarantine = vec![Category { name: "c".into(), reasons, headers }];
        })
    };
    let field = "deadLetter.quarantine[0]";
    assert_problem(category(&[], None), field, "add one");
    assert_problem(category(&["rejected"], None), field, "add headers");
    assert_problem(category(&["Rejected"], None), field, "use rejected, expired, maxlen, delivery_limit");
    assert_problem(category(&[], Some("x-match")), field, "use reasons");
    assert_problem(category(&[], Some("x-last-death-reason")), field, "use reasons");
    assert_eq!(problems(category(&["rejected", "rejected"], Some("tenant"))), Vec::<String>::new());
}

#[test]
fn numbers_at_the_ends_of_their_ranges_are_refused_and_never_panic() {
    let delays = [
        Delays::List(vec![]),
        Delays::List(vec![i64::MIN, i64::MAX, 0, -1]),
        Delays::List(vec![1; 100_000]),
        Delays::Backoff { initial: i64::MAX, factor: 1e308, max: i64::MAX, steps: u32::MAX },
        Delays::Backoff { initial: i64::MIN, factor: f64::NAN, max: i64::MIN, steps: 0 },
        Delays::Backoff { initial: 0, factor: f64::INFINITY, max: 0, steps: 32 },
        Delays::Backoff { initial: 1, factor: -1.0, max: -1, steps: 32 },
    ];
    let jitters = [
        None,
        Some(Jitter { percent: u32::MAX, shards: u32::MAX }),
        Some(Jitter { percent: 100, shards: 64 }),
    ];
    for delays in &delays {
        for jitter in jitters {
            for number_from in [0, 1_000, u32::MAX] {
                let spec = with(|spec| {
                    spec.delays = delays.clone();
                    spec.jitter = jitter;
                    spec.number_from = number_from;
                    spec.source.delivery_limit = Some(i64::MAX);
                    spec.source.message_ttl = Some(i64::MIN);
                    spec.settings = Settings::Policy { priority: i64::MAX };
                });
                assert!(problems(spec).len() >= 4);
            }
        }
    }
    let native = with(|spec| spec.mode = Mode::Native { min: i64::MAX, max: i64::MIN, attempts: i64::MAX });
    assert_problem(native.clone(), "retry.native.min", "write 1 to");
    assert_problem(native, "retry.native.max", "write 1 to");
}

#[test]
fn the_broker_must_know_what_a_pipeline_asks_for() {
    let spec = with(|spec| {
        spec.mode = Mode::Native { min: 1, max: 2, attempts: 3 };
        spec.source.exchange = Some(SourceExchange { name: "x".into(), kind: "x-delayed-message".into() });
    });
    let found = check_broker(&checked(&spec), &facts((3, 13, 0)));
    assert_eq!(found.iter().filter(|found| matches!(found, Unsupported::Version(_))).count(), 2);
    assert!(found.iter().any(|found| matches!(found, Unsupported::Plugin(why) if why.contains("x-delayed"))));
    let jitter = with(|spec| spec.jitter = Some(Jitter { percent: 10, shards: 2 }));
    let mut plain = facts((4, 3, 6));
    plain.exchange_types.remove("x-random");
    assert_eq!(check_broker(&checked(&jitter), &plain).len(), 1);
    assert_eq!(check_broker(&checked(&jitter), &facts((4, 0, 5))), []);
}
