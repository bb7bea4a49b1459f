use proptest::prelude::*;

use super::*;

fn values() -> impl Strategy<Value = Value> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(Value::I8),
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u16>().prop_map(Value::U16),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(Value::U32),
        any::<i64>().prop_map(Value::I64),
        (-1e30f32..1e30).prop_map(Value::F32),
        (-1e300f64..1e300).prop_map(Value::F64),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| Value::Decimal { scale, value }),
        "[a-zäß]{0,20}".prop_map(Value::Short),
        bytes().prop_map(Value::Text),
        any::<u64>().prop_map(Value::Timestamp),
        bytes().prop_map(Value::Bytes),
        Just(Value::Void),
    ];
    leaf.prop_recursive(3, 30, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::btree_map("[a-z-]{1,12}", inner, 0..5).prop_map(Value::Table),
        ]
    })
}

proptest! {
    #[test]
    fn every_header_and_property_comes_back_as_it_was(
        headers in prop::option::of(prop::collection::btree_map("[a-z-]{1,30}", values(), 0..8)),
        texts in prop::collection::vec(prop::option::of("[ -~]{0,60}"), 10),
        mode in prop::option::of(any::<u8>()),
        priority in prop::option::of(any::<u8>()),
        timestamp in prop::option::of(any::<u64>()),
    ) {
        let text = |n: usize| texts[n].clone();
        let before = Properties {
            content_type: text(0),
            content_encoding: text(1),
            headers,
            delivery_mode: mode,
            priority,
            correlation_id: text(2),
            reply_to: text(3),
            expiration: text(4),
            message_id: text(5),
            timestamp,
            kind: text(6),
            user_id: text(7),
            app_id: text(8),
            cluster_id: text(9),
        };
        let wire = to_properties(before.clone()).expect("nothing is too long");
        prop_assert_eq!(properties(&wire), before);
    }
}

#[test]
fn a_text_that_fits_no_frame_is_refused() {
    let long = Properties { message_id: Some("x".repeat(256)), ..Properties::default() };
    assert_eq!(to_properties(long), Err(TooLong));
}

fn every_type() -> Table {
    let inner = Table::from([
        ("deep".to_owned(), Value::Array(vec![Value::Void, Value::Table(Table::new())])),
        ("ключ".to_owned(), Value::from("значение")),
    ]);
    let values = [
        Value::Bool(true),
        Value::I8(-8),
        Value::U8(200),
        Value::I16(-16),
        Value::U16(60_000),
        Value::I32(-32),
        Value::U32(4_000_000_000),
        Value::I64(i64::MIN),
        Value::F32(-1.5),
        Value::F64(f64::MIN_POSITIVE),
        Value::Decimal { scale: 3, value: 12_345 },
        Value::Short("short".to_owned()),
        Value::Text(vec![0xFF, 0x00, 0xFE]),
        Value::Array(vec![Value::I32(1), Value::from("two"), Value::Array(Vec::new())]),
        Value::Timestamp(u64::MAX),
        Value::Table(inner),
        Value::Bytes(vec![0, 1, 2, 255]),
        Value::Void,
    ];
    values.into_iter().enumerate().map(|(index, value)| (format!("h{index}"), value)).collect()
}

fn full() -> Properties {
    let text = |text: &str| Some(text.to_owned());
    Properties {
        content_type: text("application/json"),
        content_encoding: text("gzip"),
        headers: Some(every_type()),
        delivery_mode: Some(1),
        priority: Some(4),
        correlation_id: text("c"),
        reply_to: text("r"),
        expiration: text("300"),
        message_id: text("m"),
        timestamp: Some(1_700_000_000),
        kind: text("k"),
        user_id: text("u"),
        app_id: text("a"),
        cluster_id: text("cl"),
    }
}

#[test]
fn every_property_and_every_type_of_header_survives() {
    for whole in [full(), Properties::default()] {
        assert_eq!(properties(&to_properties(whole.clone()).unwrap()), whole);
    }
}

#[test]
fn the_size_that_is_computed_is_the_size_that_is_sent() {
    use lapin::protocol::basic::gen_properties;
    // Type, channel and length of the frame, class, weight and size of the body, the end.
    const AROUND: usize = 7 + 12 + 1;
    for whole in [full(), Properties::default()] {
        let basic = to_properties(whole.clone()).unwrap();
        let (sent, _) = gen_properties(&basic)(Vec::new().into()).unwrap().into_inner();
        assert_eq!(crate::replay::size::header_frame(&whole), AROUND + sent.len());
    }
}

#[test]
fn an_empty_table_is_not_the_same_as_none() {
    let empty = Properties { headers: Some(Table::new()), ..Properties::default() };
    assert_eq!(properties(&to_properties(empty).unwrap()).headers, Some(Table::new()));
}

#[test]
fn what_is_too_long_for_amqp_is_an_error_and_no_panic() {
    let long = "é".repeat(128);
    let id = Properties { message_id: Some(long.clone()), ..Properties::default() };
    assert_eq!(to_properties(id), Err(TooLong));
    let header = Table::from([(long, Value::Void)]);
    assert_eq!(to_table(header), Err(TooLong));
}

#[test]
fn a_delivery_becomes_a_message() {
    let mut delivery = Delivery::mock(1, "ex".into(), "key".into(), true, vec![1, 2]);
    delivery.properties = to_properties(full()).unwrap();
    let expected = Message {
        exchange: "ex".to_owned(),
        routing_key: "key".to_owned(),
        redelivered: true,
        properties: full(),
        body: vec![1, 2],
    };
    assert_eq!(message(delivery), expected);
}
