//! What a moved message looks like, for every message that there can be.

use std::collections::BTreeSet;

use proptest::prelude::*;
use redrive::replay::message::{Message, Outgoing, Properties, Table, Value};
use redrive::replay::rewrite::{
    Address, Purpose, RETRY_COUNTERS, STRIPPED, Unmovable, Wire, header, replays, rewrite,
};
use redrive::replay::run::{Idempotency, OnFailure, Rewriting};
use redrive::replay::{origin, size};

const NOW: u64 = 1_764_460_800_123;
const WIRE: Wire = Wire { frame_max: 131_072, max_body: None };
const TO: Address<'static> = Address { exchange: "", routing_key: "orders.queue" };

fn rewriting() -> Rewriting {
    Rewriting {
        request: "shop/orders-1".into(),
        run: "uid-1".into(),
        on_failure: OnFailure::DeadLetter,
        keep_expiration: false,
        idempotency: None,
        max_replays: 3,
        replay_limit_queue: None,
    }
}

fn moved(message: Message, rewriting: &Rewriting) -> Result<Outgoing, Unmovable> {
    rewrite(message, TO, Purpose::Replay, rewriting, WIRE, NOW)
}

fn with_headers(headers: impl IntoIterator<Item = (&'static str, Value)>) -> Message {
    let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Message {
        properties: Properties { headers: Some(headers), ..Properties::default() },
        ..Message::default()
    }
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn header_value(outgoing: &Outgoing, name: &str) -> Option<Value> {
    outgoing.properties.header(name).cloned()
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(Value::I8),
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u16>().prop_map(Value::U16),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(Value::U32),
        any::<i64>().prop_map(Value::I64),
        (-1e30_f32..1e30).prop_map(Value::F32),
        (-1e300..1e300).prop_map(Value::F64),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| Value::Decimal { scale, value }),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Value::Text),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Value::Bytes),
        any::<u64>().prop_map(Value::Timestamp),
        Just(Value::Void),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map("[a-zé-]{0,8}", inner, 0..4).prop_map(Value::Table),
        ]
    })
}

/// Names that some list knows, and others.
fn name() -> impl Strategy<Value = String> {
    let ours = [header::ID, header::COUNT, header::AT, header::REQUEST];
    let origins = [origin::header::QUEUE, origin::header::EXCHANGE, origin::header::KEYS];
    let kept = ["traceparent", "x-tenant-id", "x-deaths"];
    let known = [&STRIPPED[..], &RETRY_COUNTERS[..], &ours[..], &origins[..], &kept[..]].concat();
    prop_oneof![prop::sample::select(texts(&known)), "[a-z-]{1,12}"]
}

fn properties() -> impl Strategy<Value = Properties> {
    let text = || prop::option::of("[ -~é]{0,20}");
    let headers = prop::option::of(prop::collection::btree_map(name(), value(), 0..8));
    let texts = (text(), text(), text(), text(), text(), text(), text(), text());
    let numbers = (prop::option::of(1..=2_u8), prop::option::of(any::<u8>()), prop::option::of(any::<u64>()));
    let expiration = prop::option::of("[0-9]{1,6}");
    (headers, texts, numbers, expiration).prop_map(|(headers, texts, numbers, expiration)| Properties {
        content_type: texts.0,
        content_encoding: texts.1,
        headers,
        delivery_mode: numbers.0,
        priority: numbers.1,
        correlation_id: texts.2,
        reply_to: texts.3,
        expiration,
        message_id: texts.4,
        timestamp: numbers.2,
        kind: texts.5,
        user_id: texts.6,
        app_id: texts.7,
        cluster_id: None,
    })
}

fn message() -> impl Strategy<Value = Message> {
    let body = prop::collection::vec(any::<u8>(), 0..64);
    (properties(), body, any::<bool>()).prop_map(|(properties, body, redelivered)| Message {
        exchange: "shop".into(),
        routing_key: "orders.created".into(),
        redelivered,
        properties,
        body,
    })
}

/// Headers that a replay may change or add.
fn touched() -> BTreeSet<String> {
    let ours = [header::ID, header::COUNT, header::AT, header::REQUEST];
    let origins = origin::header::USER_ID;
    let all = [&STRIPPED[..], &RETRY_COUNTERS[..], &ours[..], &[origins][..]].concat();
    texts(&all).into_iter().collect()
}

/// Headers that a replay adds where there were none.
fn kept_origins() -> BTreeSet<String> {
    use origin::header::{EXCHANGE, KEYS, QUEUE, REASON, TIME};
    texts(&[QUEUE, EXCHANGE, KEYS, REASON, TIME]).into_iter().collect()
}

proptest! {
    #[test]
    fn everything_stays_but_what_the_lists_name(message in message(), keep in any::<bool>()) {
        let rewriting = Rewriting { keep_expiration: keep, ..rewriting() };
        let outgoing = moved(message.clone(), &rewriting).expect("it fits");
        let (touched, origins) = (touched(), kept_origins());
        let before = message.properties.headers.clone().unwrap_or_default();
        let after = outgoing.properties.headers.clone().unwrap_or_default();
        for (name, value) in &before {
            prop_assert!(touched.contains(name) || after.get(name) == Some(value), "{name} changed");
        }
        for name in after.keys() {
            let added = touched.contains(name) || origins.contains(name);
            prop_assert!(added || before.contains_key(name), "{name} came from nowhere");
        }
        let expected = Properties {
            headers: outgoing.properties.headers.clone(),
            delivery_mode: Some(2),
            user_id: None,
            expiration: message.properties.expiration.clone().filter(|_| keep),
            ..message.properties.clone()
        };
        prop_assert_eq!(&outgoing.properties, &expected);
        prop_assert_eq!(&outgoing.body, &message.body);
        prop_assert_eq!((outgoing.exchange.as_str(), outgoing.routing_key.as_str()), ("", "orders.queue"));
    }

    #[test]
    fn no_header_that_is_stripped_or_counts_retries_gets_through(message in message()) {
        let outgoing = moved(message, &rewriting()).expect("it fits");
        for name in STRIPPED.iter().chain(&RETRY_COUNTERS).filter(|name| **name != header::ON_FAILURE) {
            prop_assert_eq!(header_value(&outgoing, name), None, "{}", name);
        }
        prop_assert_eq!(header_value(&outgoing, header::ON_FAILURE), Some(Value::from("dead-letter")));
    }

    #[test]
    fn what_comes_out_fits_into_the_frame_whatever_the_limit(message in message(), frame_max in 64..1_024_u32) {
        let wire = Wire { frame_max, max_body: None };
        let outgoing = rewrite(message, TO, Purpose::Replay, &rewriting(), wire, NOW);
        if let Ok(outgoing) = outgoing {
            prop_assert!(size::header_frame(&outgoing.properties) <= frame_max as usize);
            prop_assert!(outgoing.properties.header(header::ID).is_some());
        }
    }
}

#[test]
fn each_replay_counts_although_the_broker_starts_over() {
    let first = moved(Message::default(), &rewriting()).expect("moved");
    let back = Message { properties: first.properties, ..Message::default() };
    assert_eq!(replays(&back), 1);
    let second = moved(back, &rewriting()).expect("moved");
    assert_eq!(header_value(&second, header::COUNT), Some(Value::I64(2)));
    assert_eq!(header_value(&second, header::AT), Some(Value::I64(1_764_460_800_123)));
    assert_eq!(header_value(&second, header::REQUEST), Some(Value::from("shop/orders-1")));
}

#[test]
fn putting_aside_is_no_replay_and_asks_for_no_dead_letter() {
    let message = with_headers([(header::COUNT, Value::I64(3))]);
    let outgoing = rewrite(message, TO, Purpose::PutAside, &rewriting(), WIRE, NOW).expect("moved");
    assert_eq!(header_value(&outgoing, header::COUNT), Some(Value::I64(3)));
    assert_eq!(header_value(&outgoing, header::ON_FAILURE), None);
}

#[test]
fn a_count_that_is_none_counts_as_never() {
    for odd in [Value::from("3"), Value::I64(-1), Value::Void, Value::F64(2.0)] {
        assert_eq!(replays(&with_headers([(header::COUNT, odd)])), 0);
    }
}

fn died(exchange: &str) -> (&'static str, Value) {
    let entry = Table::from([
        ("queue".to_owned(), Value::from("orders")),
        ("reason".to_owned(), Value::from("rejected")),
        ("exchange".to_owned(), Value::from(exchange)),
        ("routing-keys".to_owned(), Value::Array(vec![Value::from("orders.created"), Value::from("copy")])),
        ("time".to_owned(), Value::Timestamp(77)),
    ]);
    ("x-death", Value::Array(vec![Value::Table(entry)]))
}

#[test]
fn the_first_origin_stays_through_every_further_death() {
    let first = moved(with_headers([died("a")]), &rewriting()).expect("moved");
    assert_eq!(header_value(&first, origin::header::EXCHANGE), Some(Value::from("a")));
    assert_eq!(header_value(&first, origin::header::TIME), Some(Value::Timestamp(77)));
    let keys = Value::Array(vec![Value::from("orders.created"), Value::from("copy")]);
    assert_eq!(header_value(&first, origin::header::KEYS), Some(keys));
    let mut back = Message { properties: first.properties, ..Message::default() };
    back.properties
        .headers
        .get_or_insert_default()
        .extend([died("b")].map(|(name, value)| (name.to_owned(), value)));
    let second = moved(back, &rewriting()).expect("moved");
    assert_eq!(header_value(&second, origin::header::EXCHANGE), Some(Value::from("a")));
}

#[test]
fn the_publisher_is_kept_where_the_broker_does_not_compare_it() {
    let mut message = Message::default();
    message.properties.user_id = Some("app".into());
    let outgoing = moved(message, &rewriting()).expect("moved");
    assert_eq!(outgoing.properties.user_id, None);
    assert_eq!(header_value(&outgoing, origin::header::USER_ID), Some(Value::from("app")));
}

#[test]
fn an_answer_on_the_publishing_channel_is_refused_and_a_stored_address_stays() {
    let mut message = Message::default();
    message.properties.reply_to = Some("amq.rabbitmq.reply-to".into());
    assert_eq!(moved(message.clone(), &rewriting()), Err(Unmovable::DirectReply));
    message.properties.reply_to = Some("amq.rabbitmq.reply-to.g1h2AA.abc==".into());
    let outgoing = moved(message.clone(), &rewriting()).expect("moved");
    assert_eq!(outgoing.properties.reply_to, message.properties.reply_to);
}

#[test]
fn a_time_to_live_that_is_none_is_refused_where_it_would_be_kept() {
    let keep = Rewriting { keep_expiration: true, ..rewriting() };
    for (text, fine) in
        [("300", true), ("0", true), ("10s", false), ("", false), ("-1", false), ("315360000001", false)]
    {
        let mut message = Message::default();
        message.properties.expiration = Some(text.into());
        assert_eq!(moved(message.clone(), &keep).is_ok(), fine, "{text}");
        let dropped = moved(message, &rewriting()).expect("moved");
        assert_eq!(dropped.properties.expiration, None);
    }
}

#[test]
fn what_is_too_large_is_told_before_it_is_published() {
    let message = with_headers([("big", Value::Text(vec![b'x'; 140_000]))]);
    assert!(matches!(moved(message, &rewriting()), Err(Unmovable::Headers { bytes }) if bytes > 140_000));
    let wire = Wire { frame_max: 0, max_body: Some(3) };
    let message = Message { body: vec![0; 4], ..Message::default() };
    let refused = rewrite(message, TO, Purpose::Replay, &rewriting(), wire, NOW);
    assert_eq!(refused, Err(Unmovable::Body { bytes: 4 }));
}

#[test]
fn the_origin_gives_way_where_all_of_it_does_not_fit() {
    let message = with_headers([died(&"e".repeat(200))]);
    let whole = moved(message.clone(), &rewriting()).expect("moved");
    let bytes = u32::try_from(size::header_frame(&whole.properties)).expect("small");
    let wire = Wire { frame_max: bytes - 1, max_body: None };
    let less = rewrite(message, TO, Purpose::Replay, &rewriting(), wire, NOW).expect("it fits without");
    assert_eq!(header_value(&less, origin::header::EXCHANGE), None);
    assert_eq!(header_value(&less, header::ID), header_value(&whole, header::ID));
}

#[test]
fn an_idempotency_header_is_made_only_where_it_is_asked_for_and_missing() {
    let asks = |generate| Rewriting {
        idempotency: Some(Idempotency { header: "x-deduplication-header".into(), generate }),
        ..rewriting()
    };
    let name = "x-deduplication-header";
    let made = moved(Message::default(), &asks(true)).expect("moved");
    assert_eq!(header_value(&made, name), header_value(&made, header::ID));
    assert_eq!(header_value(&moved(Message::default(), &asks(false)).expect("moved"), name), None);
    let there = with_headers([(name, Value::from("mine"))]);
    for generate in [true, false] {
        let outgoing = moved(there.clone(), &asks(generate)).expect("moved");
        assert_eq!(header_value(&outgoing, name), Some(Value::from("mine")));
    }
}
