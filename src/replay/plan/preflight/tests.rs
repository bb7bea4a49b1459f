use std::collections::BTreeMap;

use super::super::facts::{ExchangeFacts, Kind, QueueFacts, Routes, TargetFacts};
use super::*;
use crate::replay::run::{Canary, Left};

fn queue(name: &str) -> QueueFacts {
    QueueFacts {
        name: name.to_owned(),
        kind: Kind::Quorum,
        available: true,
        exclusive: false,
        single_active_consumer: false,
        delivery_limit: Some(-1),
        consumers: Some(0),
        ready: Some(100),
        max_length: None,
        max_length_bytes: None,
        rejects: false,
        message_ttl: None,
        consumer_timeout: None,
    }
}

fn facts() -> Facts {
    let target = QueueFacts { consumers: Some(2), ..queue("orders") };
    Facts {
        origin: "orders.dlq".to_owned(),
        origin_queue: Some(queue("orders.dlq")),
        target: TargetFacts::Queue("orders".to_owned(), Some(target)),
        limit_queue: None,
        alarms: Vec::new(),
        own_timeout: true,
        frame_max: 131_072,
    }
}

fn asked() -> Asked {
    Asked { allow_fanout: false, keep_expiration: false, deadline: Duration::from_secs(3_600) }
}

fn guard() -> Guard {
    Guard {
        stop_on_return_percent: 20,
        sample: 50,
        min_returns: 10,
        canary: Canary { messages: 5, after: Duration::from_secs(300), tries: 3 },
        pause_above_target_depth: None,
        require_consumers: true,
        max_unroutable: 1,
    }
}

fn found(facts: &Facts) -> Vec<(Severity, &'static str)> {
    let findings = findings(facts, &asked(), &guard(), None);
    assert!(
        findings.iter().all(|finding| finding.message.contains(':')),
        "each says what to do: {findings:?}"
    );
    findings.into_iter().map(|finding| (finding.severity, finding.check)).collect()
}

fn with_origin(change: impl FnOnce(&mut QueueFacts)) -> Facts {
    let mut facts = facts();
    if let Some(queue) = &mut facts.origin_queue {
        change(queue);
    }
    facts
}

fn with_target(change: impl FnOnce(&mut QueueFacts)) -> Facts {
    let mut facts = facts();
    if let TargetFacts::Queue(_, Some(queue)) = &mut facts.target {
        change(queue);
    }
    facts
}

fn exchange(alternate: Option<&str>, routes: &[&str]) -> TargetFacts {
    let shop =
        ExchangeFacts { name: "shop".to_owned(), internal: false, alternate: alternate.map(str::to_owned) };
    let queues: BTreeMap<_, _> = routes
        .iter()
        .map(|name| ((*name).to_owned(), Some(QueueFacts { consumers: Some(1), ..queue(name) })))
        .collect();
    TargetFacts::Exchange("shop".to_owned(), Some(shop), Routes { queues, unknown: None })
}

#[test]
fn nothing_speaks_against_a_queue_that_is_right() {
    assert_eq!(found(&facts()), []);
}

#[test]
fn each_trap_of_the_origin_queue_is_found() {
    use Severity::{Error, Info, Warning};
    let missing = Facts { origin_queue: None, ..facts() };
    let cases: [(Facts, Severity, &str); 13] = [
        (missing, Error, "OriginMissing"),
        (with_origin(|queue| queue.available = false), Error, "OriginUnavailable"),
        (with_origin(|queue| queue.kind = Kind::Stream), Error, "OriginIsStream"),
        (with_origin(|queue| queue.delivery_limit = None), Error, "OriginDeliveryLimit"),
        (with_origin(|queue| queue.delivery_limit = Some(20)), Error, "OriginDeliveryLimit"),
        (with_origin(|queue| queue.exclusive = true), Error, "OriginExclusive"),
        (with_origin(|queue| queue.single_active_consumer = true), Error, "OriginSingleActiveConsumer"),
        (with_origin(|queue| queue.max_length = Some(5)), Error, "OriginDropsHead"),
        (with_origin(|queue| queue.max_length_bytes = Some(5)), Error, "OriginDropsHead"),
        (with_origin(|queue| queue.message_ttl = Some(5)), Info, "OriginExpires"),
        (with_origin(|queue| queue.consumers = Some(1)), Warning, "OriginHasConsumers"),
        (with_origin(|queue| queue.ready = Some(0)), Info, "OriginEmpty"),
        (Facts { own_timeout: false, ..facts() }, Info, "ConsumerTimeout"),
    ];
    for (facts, severity, check) in cases {
        assert_eq!(found(&facts), [(severity, check)]);
    }
}

#[test]
fn a_classic_origin_has_no_delivery_limit_and_a_rejecting_one_drops_nothing() {
    let classic = |queue: &mut QueueFacts| {
        (queue.kind, queue.delivery_limit) = (Kind::Classic, None);
        queue.consumer_timeout = Some(Duration::from_secs(7_200));
    };
    assert_eq!(found(&with_origin(classic)), []);
    let rejecting = |queue: &mut QueueFacts| (queue.max_length, queue.rejects) = (Some(5), true);
    assert_eq!(found(&with_origin(rejecting)), []);
}

#[test]
fn the_deadline_is_compared_with_the_consumers_timeout() {
    let old = |timeout| Facts {
        own_timeout: false,
        ..with_origin(|queue| queue.consumer_timeout = Some(Duration::from_secs(timeout)))
    };
    assert_eq!(found(&old(3_601)), []);
    assert_eq!(found(&old(3_600)), [(Severity::Info, "ConsumerTimeout")]);
    // A classic queue takes no timeout from its consumer, whatever the broker.
    let classic = |queue: &mut QueueFacts| (queue.kind, queue.delivery_limit) = (Kind::Classic, None);
    assert_eq!(found(&with_origin(classic)), [(Severity::Info, "ConsumerTimeout")]);
}

#[test]
fn each_trap_of_the_target_is_found() {
    use Severity::{Error, Warning};
    let target = |target| Facts { target, ..facts() };
    let internal = || {
        let mut target = exchange(None, &["a"]);
        if let TargetFacts::Exchange(_, Some(exchange), _) = &mut target {
            exchange.internal = true;
        }
        target
    };
    let unknown = || {
        let mut target = exchange(None, &[]);
        if let TargetFacts::Exchange(_, _, routes) = &mut target {
            routes.unknown = Some("it looks at headers".to_owned());
        }
        target
    };
    let limit_queue = Some(("orders.dlq.quarantine.replay-limit".to_owned(), None));
    let cases: [(Facts, Severity, &str); 15] = [
        (target(TargetFacts::Queue("typo".to_owned(), None)), Error, "TargetMissing"),
        (target(TargetFacts::Exchange("typo".to_owned(), None, Routes::default())), Error, "TargetMissing"),
        (target(TargetFacts::Origin(Vec::new())), Error, "TargetMissing"),
        (target(internal()), Error, "TargetInternal"),
        (target(exchange(None, &[])), Error, "TargetUnroutable"),
        (target(unknown()), Warning, "RoutesUnknown"),
        (target(exchange(Some("unrouted"), &["a"])), Warning, "TargetAlternateExchange"),
        (target(exchange(None, &["a", "b"])), Error, "TargetFanout"),
        (with_target(|queue| queue.available = false), Error, "TargetUnavailable"),
        (with_target(|queue| queue.consumers = Some(0)), Warning, "TargetNoConsumers"),
        (with_target(|queue| queue.max_length = Some(5)), Warning, "TargetDropsHead"),
        (with_target(|queue| (queue.max_length, queue.rejects) = (Some(100), true)), Warning, "TargetFull"),
        (with_target(|queue| queue.message_ttl = Some(300)), Warning, "TargetExpires"),
        (Facts { alarms: vec!["memory on rabbit@a".to_owned()], ..facts() }, Warning, "BrokerAlarm"),
        (Facts { limit_queue, ..facts() }, Error, "LimitQueueMissing"),
    ];
    for (facts, severity, check) in cases {
        assert_eq!(found(&facts), [(severity, check)]);
    }
}

#[test]
fn a_target_that_leads_back_is_refused() {
    let back = Facts { target: exchange(None, &["orders.dlq"]), ..facts() };
    assert_eq!(found(&back), [(Severity::Error, "TargetIsOrigin")]);
}

#[test]
fn an_alternate_exchange_hides_that_nothing_arrives() {
    let hidden = Facts { target: exchange(Some("unrouted"), &[]), ..facts() };
    let expected = [(Severity::Error, "TargetUnroutable"), (Severity::Warning, "TargetAlternateExchange")];
    assert_eq!(found(&hidden), expected);
}

#[test]
fn fanout_that_is_asked_for_is_told_only() {
    let asked = Asked { allow_fanout: true, ..asked() };
    let wide = Facts { target: exchange(None, &["a", "b"]), ..facts() };
    let findings = findings(&wide, &asked, &guard(), None);
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].severity, findings[0].check), (Severity::Info, "TargetFanout"));
    assert!(findings[0].message.contains("2 queues (a, b)"), "{}", findings[0].message);
}

#[test]
fn depth_counts_only_where_a_limit_is_set() {
    let guard = Guard { pause_above_target_depth: Some(99), ..guard() };
    let deep = findings(&facts(), &asked(), &guard, None);
    assert_eq!(deep.iter().map(|finding| finding.check).collect::<Vec<_>>(), ["TargetDepth"]);
}

#[test]
fn a_run_without_need_of_consumers_does_not_ask_for_them() {
    let guard = Guard { require_consumers: false, ..guard() };
    let idle = with_target(|queue| queue.consumers = Some(0));
    assert_eq!(findings(&idle, &asked(), &guard, None), []);
}

#[test]
fn what_messages_have_against_it_is_counted() {
    let summary = Summary {
        examined: 50,
        matching: 40,
        over_limit: 1,
        left: BTreeMap::from([
            (Left::Unmovable, 2),
            (Left::UnknownOrigin, 3),
            (Left::TooManyReplays, 4),
            (Left::NotSelected, 10),
        ]),
        failures: 5,
        colliding: 6,
        expiring: 7,
        stale_replies: 8,
        ..Summary::default()
    };
    let keep = Asked { keep_expiration: true, ..asked() };
    let findings = findings(&facts(), &keep, &guard(), Some(&summary));
    let expected = [
        ("Unmovable", " (2 in all)"),
        ("UnknownOrigin", " (3 in all)"),
        ("TooManyReplays", " (4 in all)"),
        ("ReplayLimit", " (1 in all)"),
        ("CollidingIds", " (6 in all)"),
        ("ExpressionFailed", " (5 in all)"),
        ("ExpirationKept", " (7 in all)"),
        ("StaleReplyTo", ""),
        ("NoErrorTypes", ""),
    ];
    assert_eq!(findings.len(), expected.len(), "{findings:?}");
    for (finding, (check, end)) in findings.iter().zip(expected) {
        assert_eq!(finding.check, check);
        assert!(finding.message.ends_with(end), "{}", finding.message);
    }
    let dropped = super::findings(&facts(), &asked(), &guard(), Some(&summary));
    assert!(dropped.iter().all(|finding| finding.check != "ExpirationKept"));
}

#[test]
fn a_target_that_will_fill_up_is_told_beforehand() {
    let nearly = with_target(|queue| (queue.max_length, queue.rejects) = (Some(120), true));
    let asks = |matching| {
        let summary = Summary { matching, ..Summary::default() };
        findings(&nearly, &asked(), &guard(), Some(&summary))
            .iter()
            .any(|finding| finding.check == "TargetFills")
    };
    assert!(!asks(20));
    assert!(asks(21));
}

#[test]
fn headers_that_nearly_fill_a_frame_are_told() {
    let asks = |largest_headers, frame_max| {
        let summary = Summary { largest_headers, ..Summary::default() };
        let facts = Facts { frame_max, ..facts() };
        !findings(&facts, &asked(), &guard(), Some(&summary)).is_empty()
    };
    assert!(!asks(100_000, 131_072));
    assert!(asks(131_000, 131_072));
    assert!(!asks(131_000, 0), "no limit");
}
