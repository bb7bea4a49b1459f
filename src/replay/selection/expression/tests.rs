#![allow(clippy::unwrap_used)] // a test fails by panicking

use super::*;
use crate::replay::message::{Properties, Table, Value};

fn message() -> Message {
    let nested = Table::from([("zone".to_owned(), Value::from("eu"))]);
    let headers = Table::from([
        ("x-tenant-id".to_owned(), Value::from("42")),
        ("retries".to_owned(), Value::U32(3)),
        ("share".to_owned(), Value::F32(0.5)),
        ("price".to_owned(), Value::Decimal { scale: 2, value: 1_250 }),
        ("tags".to_owned(), Value::Array(vec![Value::from("a"), Value::from("b")])),
        ("place".to_owned(), Value::Table(nested)),
        ("raw".to_owned(), Value::Text(vec![0xFF, 0xFE])),
        ("none".to_owned(), Value::Void),
    ]);
    Message {
        exchange: "shop".to_owned(),
        routing_key: "orders.created".to_owned(),
        properties: Properties {
            headers: Some(headers),
            content_type: Some("application/json".to_owned()),
            priority: Some(4),
            ..Properties::default()
        },
        body: br#"{"amount": 12}"#.to_vec(),
        ..Message::default()
    }
}

fn holds(source: &str) -> Option<bool> {
    Expression::new(source, true).unwrap_or_else(|error| panic!("{error}")).holds(&message())
}

fn refused(source: &str) -> String {
    Expression::new(source, true).map(|_| "compiled").unwrap_err().to_string()
}

#[test]
fn headers_properties_and_bodies_can_be_compared() {
    for source in [
        r#"headers["x-tenant-id"] == "42" && size(body) < 65536"#,
        "headers.retries > 2 && headers.retries == 3",
        "headers.share == 0.5 && headers.price > 12.0",
        r#"headers.tags.exists(tag, tag == "b")"#,
        r#""a" in headers.tags"#,
        r#"headers.place.zone.startsWith("e")"#,
        "has(headers.retries) && !has(headers.missing)",
        r#"properties.routingKey.matches("^orders\\.")"#,
        r#"properties.contentType == "application/json" && properties.priority == 4"#,
        "!has(properties.messageId)",
        r#"string(body).contains("amount")"#,
        "headers.none == null",
        "headers.missing == 1 || true",
        "true",
    ] {
        assert_eq!(holds(source), Some(true), "{source}");
    }
    assert_eq!(holds(r#"headers["x-tenant-id"] == "43""#), Some(false));
}

#[test]
fn what_fails_on_a_message_neither_holds_nor_panics() {
    for source in [
        "headers.missing == 1",
        "headers.retries > \"2\"",
        "headers.raw.contains(\"a\")",
        "headers.retries / 0 == 1",
        "headers.tags[7] == \"a\"",
        "headers.tags",
        "int(headers[\"place\"]) == 1",
    ] {
        assert_eq!(holds(source), None, "{source}");
    }
}

#[test]
fn bodies_that_are_no_text_match_nothing() {
    let expression = Expression::new("string(body).contains(\"a\")", true).unwrap();
    for body in [vec![0x1F, 0x8B, 0x08, 0xFF], vec![0xC3, 0x28]] {
        assert_eq!(expression.holds(&Message { body, ..Message::default() }), None);
    }
    assert_eq!(expression.holds(&Message::default()), Some(false));
}

#[test]
fn a_syntax_error_shows_its_place() {
    let text = refused("headers.retries == 3 &&\n  headers.share = 0.5");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("the expression is no CEL: "), "{text}");
    assert!(lines[0].ends_with("(line 2, column 17)"), "{text}");
    assert_eq!(lines[1], "    headers.share = 0.5");
    assert_eq!(lines[2].find('^'), lines[1].find('='), "{text}");
    assert!(refused("").starts_with("the expression is no CEL"));
    assert!(refused("headers.retries ==").contains("line 1"));
}

#[test]
fn unknown_names_are_refused_with_what_there_is() {
    let text = refused("header.retries == 3");
    assert!(text.contains(r#"there is no variable "header": there are headers, properties, body"#), "{text}");
    assert!(text.contains("(line 1, column 1)"), "{text}");
    let text = refused("headers.a == 1 && properties.routing_key == \"a\"");
    assert!(text.contains(r#"there is no property "routing_key": there are exchange, routingKey"#), "{text}");
    for source in ["lower(headers.a) == \"a\"", "headers.a.lowerAscii() == \"a\"", "duration(\"1h\") == 1"] {
        assert!(refused(source).contains("there is no function"), "{source}");
    }
    assert!(refused("Shop{a: 1} == 1").contains("there is no type"));
    // A loop's own variable is known inside it alone.
    assert!(refused("headers.tags.all(x, x == \"a\") && x").contains(r#"there is no variable "x""#));
}

#[test]
fn bodies_are_read_only_where_the_pipeline_allows_it() {
    let refused = Expression::new("size(body) < 10", false).unwrap_err();
    assert!(refused.message.contains("replayPolicy.allowBody"), "{refused}");
    assert_eq!((refused.line, refused.column), (1, 6));
    assert!(Expression::new("size(body) < 10", true).unwrap().reads_body());
    assert!(!Expression::new("has(headers.body)", false).unwrap().reads_body());
}

#[test]
fn what_could_take_long_is_refused() {
    let long = format!("headers.a == \"{}\"", "x".repeat(MAX_BYTES));
    assert!(refused(&long).contains("at most 1024"));
    let cases = [
        ("headers.tags.exists(a, headers.tags.exists(b, a == b))", "inside each other"),
        ("headers.tags.map(a, a).exists(b, b == \"a\")", "inside each other"),
        ("string(body).matches(\"a+\")", "may not search bodies"),
        ("(headers.a + string(body)).matches(\"a+\")", "may not search bodies"),
        ("headers.tags.exists(a, a.matches(\"a\"))", "matches may not stand inside"),
        ("headers.tags.exists(a, size(body) > 1)", "body may not be read inside"),
        ("headers.a.matches(headers.b)", "as a text in quotes"),
        ("headers.a.matches(\"(\")", "no regular expression"),
        ("headers.a.matches(\"(a{1000}){1000}\")", "too large"),
        ("size(body+body+body+body+body+body+body+body+body) > 1", "more than 8 times"),
    ];
    for (source, part) in cases {
        let text = refused(source);
        assert!(text.contains(part), "{source}: {text}");
    }
    assert!(refused(&format!("{}true{}", "(".repeat(400), ")".repeat(400))).contains("no CEL"));
}

/// On the stack of a test's thread, which is as small as those of the runtime.
#[test]
fn the_deepest_expressions_that_fit_can_be_evaluated() {
    let deep = [
        format!("headers{} == 1", ".a".repeat(500)),
        format!("{}true", "!".repeat(1_000)),
        format!("0{} == 1", "+1".repeat(500)),
        format!("0{} == 1", "-1".repeat(500)),
        format!("{}true", "true?true:".repeat(100)),
        format!("headers{} == 1", "[0]".repeat(330)),
        format!("true{}", "&&true".repeat(160)),
        format!("headers.a{} == 1", ".size()".repeat(140)),
    ];
    for source in deep {
        assert!(source.len() <= MAX_BYTES);
        if let Ok(expression) = Expression::new(&source, false) {
            let _ = expression.holds(&message());
        }
    }
}

/// As large as headers get in a frame: many values, and one long text.
fn full_of_headers() -> Message {
    let tags = Value::Array(vec![Value::I32(1); 10_000]);
    let headers =
        Table::from([("tags".to_owned(), tags), ("text".to_owned(), Value::Text(vec![b'a'; 60_000]))]);
    let properties = Properties { headers: Some(headers), ..Properties::default() };
    Message { properties, ..Message::default() }
}

#[test]
fn a_loop_that_looks_at_each_value_once_is_no_great_work() {
    let asks = |source: &str| Expression::new(source, false).unwrap().holds(&full_of_headers());
    assert_eq!(asks("headers.tags.exists(tag, tag == 2)"), Some(false));
    assert_eq!(asks("headers.tags.all(tag, tag == 1) && headers.text.endsWith(\"a\")"), Some(true));
    assert_eq!(asks("size(headers.tags) == 10000 && headers.text.contains(\"b\")"), Some(false));
}

/// Each of these would take many minutes on this one message.
#[test]
fn what_could_be_too_much_work_fails_instead_of_taking_long() {
    let compared = vec!["headers.tags == headers.tags"; 30].join(" && ");
    let searched = vec!["headers.text.contains(\"b\")"; 30].join(" || ");
    for source in [
        format!("headers.tags.all(tag, {compared})"),
        format!("headers.tags.exists(tag, {searched})"),
        "headers.tags.all(tag, tag in headers.tags)".to_owned(),
        // No list of ten thousand texts of 60 kB, either.
        "size(headers.tags.map(tag, headers.text + \"b\")) == 1".to_owned(),
    ] {
        let expression = Expression::new(&source, false).unwrap();
        assert_eq!(expression.holds(&full_of_headers()), None, "{source}");
    }
}

#[test]
fn bodies_of_the_largest_messages_can_be_asked_about_but_not_copied_without_end() {
    let message = Message { body: vec![b'a'; 16 << 20], ..Message::default() };
    let asks = |source: &str| Expression::new(source, true).unwrap().holds(&message);
    assert_eq!(asks("size(body) > 65536"), Some(true));
    assert_eq!(asks("string(body).contains(\"b\")"), Some(false));
    let copied = format!("size({}body{}) == 1", "bytes(string(".repeat(40), "))".repeat(40));
    assert_eq!(asks(&copied), None);
}

#[test]
fn what_can_be_neither_true_nor_false_is_refused() {
    for source in ["1", "\"a\"", "headers", "[true]", "{\"a\": 1}", "size(headers)", "1 + 2", "string(1)"] {
        assert!(refused(source).contains("true or false"), "{source}");
    }
}

#[test]
fn an_expression_can_be_handed_to_another_thread() {
    fn is_send<T: Send + Sync>(_: &T) {}
    is_send(&Expression::new("true", false).unwrap());
}

#[test]
fn places_are_counted_in_characters() {
    let refused = Expression::new("headers.a == \"é€\" || nobody", false).unwrap_err();
    assert_eq!((refused.line, refused.column), (1, 22), "{refused}");
    let refused = Expression::new("headers.a == 1 ||\n\tnobody.b", false).unwrap_err();
    assert_eq!((refused.line, refused.column), (2, 2), "{refused}");
    let refused = Expression::new("headers.a == \"é€\" || = 1", false).unwrap_err();
    assert_eq!((refused.line, refused.column), (1, 22), "{refused}");
}

mod any {
    use proptest::prelude::*;

    use super::*;

    /// Pieces that make sense together now and then.
    const PIECES: &str = r#"headers properties body . [ ] ( ) { } : , ? == != < && || ! - + * / % in has
        size string int matches exists map filter all x 1 0 1.5 9223372036854775807 0x 1u " ' "a" b"\xff"
        r"( \ null true type é @ ` tags raw place 1e999 // """"#;

    fn piece() -> impl Strategy<Value = String> {
        let mut pieces: Vec<String> = PIECES.split_whitespace().map(str::to_owned).collect();
        pieces.extend(["\n", " ", "\0"].map(str::to_owned));
        prop_oneof![4 => prop::sample::select(pieces), 1 => ".{0,3}"]
    }

    proptest! {
        #[test]
        fn no_text_makes_the_compiler_or_the_evaluation_panic(
            pieces in prop::collection::vec(piece(), 0..14),
        ) {
            let source = pieces.concat();
            match Expression::new(&source, true) {
                Ok(expression) => {
                    let _ = expression.holds(&message());
                }
                Err(error) => prop_assert!(error.line >= 1 && error.column >= 1, "{}", error),
            }
        }
    }
}
