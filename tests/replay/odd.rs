//! Messages that other libraries, or nobody, can make sense of.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray};
use redrive::replay::message::{Message, Value};
use redrive::replay::outcome::Outcome;
use redrive::replay::run::Target;
use redrive::topology::model::QueueType;

use crate::asked::{Asked, headers, numbered, put, take_all, text};
use crate::lab::{DLQ, Start, WORK, nothing_held, on_both, queues};
use crate::support::Vhost;

fn ids(messages: &[Message]) -> Vec<&str> {
    messages.iter().filter_map(|message| message.properties.message_id.as_deref()).collect()
}

/// What gzip makes of `{"tenant": 42}`.
const PACKED: &[u8] = &[
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0xff, 0xab, 0x56, 0x2a, 0x49, 0xcd, 0x4b, 0xcc,
    0x2b, 0x51, 0xb2, 0x52, 0x30, 0x31, 0xaa, 0x05, 0x00, 0x2d, 0xd7, 0x10, 0x19, 0x0e, 0x00, 0x00, 0x00,
];

/// T34
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_text_match_no_filter_and_arrive_as_they_were() {
    const JSON: &[u8] = br#"{"tenant": 42}"#;
    on_both("replay-bodies", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        let bodies: [&[u8]; 6] = [PACKED, &[0xC3, 0x28, b'"', 0xFF], b"", JSON, br#"{"tenant": 4"#, &[0; 3]];
        for (number, body) in bodies.iter().enumerate() {
            put(&vhost.channel, DLQ, numbered(number), body).await;
        }
        vhost.wait_ready(DLQ, 6).await;
        let json = Asked::matching(r#"string(body).contains("\"tenant\": 42")"#);
        let (outcome, counts) = json.go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.examined, counts.matched, counts.replayed), (6, 1, 1));
        nothing_held(&vhost, DLQ, 5).await;
        let moved = take_all(&vhost, WORK).await;
        assert_eq!((ids(&moved), moved[0].body.as_slice()), (vec!["3"], JSON));

        // Another filter moves them, whatever they are.
        let (outcome, counts) = Asked::matching(r#"properties.messageId != "5""#).go(&vhost).finishes().await;
        assert_eq!((outcome, counts.replayed), (Outcome::Completed, 4));
        let moved = take_all(&vhost, WORK).await;
        assert_eq!(ids(&moved), ["0", "1", "2", "4"]);
        let expected = [bodies[0], bodies[1], bodies[2], bodies[4]];
        assert_eq!(moved.iter().map(|message| message.body.as_slice()).collect::<Vec<_>>(), expected);
        let left = take_all(&vhost, DLQ).await;
        assert_eq!((ids(&left), left[0].body.as_slice()), (vec!["5"], bodies[5]));
    })
    .await;
}

/// T33: what plugins and traces wrote.
#[tokio::test(flavor = "multi_thread")]
async fn headers_of_plugins_go_and_those_of_traces_stay() {
    on_both("replay-plugins", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let written = headers([
            ("x-delay", AMQPValue::LongInt(5_000)),
            ("x-deduplication-header", text("order-1")),
            ("traceparent", text(trace)),
            ("tracestate", text("vendor=1")),
        ]);
        put(&vhost.channel, DLQ, numbered(0).with_headers(written), b"body").await;
        vhost.wait_ready(DLQ, 1).await;
        assert_eq!(Asked::all().go(&vhost).finishes().await.0, Outcome::Completed);
        let arrived = take_all(&vhost, WORK).await.remove(0);
        let header = |name| arrived.properties.header(name);
        assert_eq!((header("x-delay"), header("x-deduplication-header")), (None, None));
        assert_eq!(header("traceparent"), Some(&Value::from(trace)));
        assert_eq!(header("tracestate"), Some(&Value::from("vendor=1")));
    })
    .await;
}

/// An exchange that takes some messages and drops the others, as one that knows duplicates
/// does: both confirm what they drop, and return it where that was asked for.
async fn choosy(vhost: &Vhost) {
    queues(vhost, QueueType::Quorum).await;
    vhost.exchange("choosy", "headers", []).await;
    vhost.bind("choosy", WORK, "", [("x-match", "all".into()), ("kind", "new".into())]).await;
    for number in 0..100 {
        let kind = if number % 2 == 0 { "new" } else { "known" };
        let properties = numbered(number).with_headers(headers([("kind", text(kind))]));
        put(&vhost.channel, DLQ, properties, b"body").await;
    }
    vhost.wait_ready(DLQ, 100).await;
}

fn to_choosy() -> Asked {
    let target = Target::Exchange { name: "choosy".to_owned(), routing_key: "key".to_owned() };
    Asked { target, ..Asked::all() }
}

/// T33
#[tokio::test(flavor = "multi_thread")]
async fn what_an_exchange_drops_is_counted_and_stays() {
    on_both("replay-dropped", async |vhost| {
        choosy(&vhost).await;
        let (outcome, counts) = to_choosy().go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::CompletedWithFailures);
        assert_eq!((counts.replayed, counts.unroutable, counts.duplicates_possible), (50, 50, 0));
        nothing_held(&vhost, DLQ, 50).await;
        let odd: Vec<String> = (1..100).step_by(2).map(|number| number.to_string()).collect();
        assert_eq!(ids(&take_all(&vhost, DLQ).await), odd);
        let even: Vec<String> = (0..100).step_by(2).map(|number| number.to_string()).collect();
        assert_eq!(ids(&take_all(&vhost, WORK).await), even);
        // By default the first one ends the run.
        choosy(&vhost).await;
        let (outcome, counts) = to_choosy().go_as(Start::all(50), &vhost).finishes().await;
        assert_eq!(outcome, Outcome::Unroutable);
        assert!(counts.unroutable >= 1, "{counts:?}");
        let moved = u32::try_from(counts.replayed).unwrap();
        nothing_held(&vhost, DLQ, 100 - moved).await;
        assert_eq!(vhost.ready(WORK).await, moved);
    })
    .await;
}

/// Messages whose past is written down by somebody else, malformed, or not at all.
fn pasts() -> Vec<(BasicProperties, Vec<u8>)> {
    let list = |value| AMQPValue::FieldArray(FieldArray::from(vec![value]));
    let with = |pairs| numbered(0).with_headers(pairs);
    let spring = headers([
        ("x-original-exchange", text("shop")),
        ("x-original-routingKey", text("spring")),
        ("x-exception-message", text("boom")),
        ("x-exception-stacktrace", text("java.lang.IllegalStateException: boom")),
    ]);
    let masstransit = headers([
        ("MT-Fault-InputAddress", text("rabbitmq://broker/vhost/shop?bind=true")),
        ("MT-Fault-Message", text("boom")),
        ("MT-Reason", text("fault")),
    ]);
    let easynetq = numbered(0).with_type("EasyNetQ.SystemMessages.Error, EasyNetQ".into());
    let envelope = br#"{"RoutingKey":"easynetq","Exchange":"shop","Exception":"boom","Message":"{}"}"#;
    let forged = headers([
        ("x-death", list(AMQPValue::FieldTable(headers([("exchange", AMQPValue::LongInt(1))])))),
        ("x-first-death-exchange", AMQPValue::LongString(vec![0xFF_u8].into())),
    ]);
    let all = vec![
        (with(spring), b"body".to_vec()),
        (with(masstransit), b"body".to_vec()),
        (easynetq.clone(), envelope.to_vec()),
        (easynetq, b"{".to_vec()),
        (with(headers([("x-death", text("orders died"))])), b"body".to_vec()),
        (with(headers([("x-death", list(text("orders")))])), b"body".to_vec()),
        (with(headers([("x-death", AMQPValue::Void)])), b"body".to_vec()),
        (with(forged), b"body".to_vec()),
        (BasicProperties::default(), b"body".to_vec()),
    ];
    let number = |(number, (properties, body)): (usize, (BasicProperties, Vec<u8>))| {
        (properties.with_message_id(number.to_string().into()), body)
    };
    all.into_iter().enumerate().map(number).collect()
}

/// T38
#[tokio::test(flavor = "multi_thread")]
async fn what_names_its_origin_goes_back_and_what_does_not_stays() {
    on_both("replay-pasts", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        vhost.exchange("shop", "topic", []).await;
        vhost.bind("shop", WORK, "#", []).await;
        for (properties, body) in pasts() {
            put(&vhost.channel, DLQ, properties, &body).await;
        }
        vhost.wait_ready(DLQ, 9).await;
        let target = Target::Origin { exchanges: vec!["shop".to_owned()] };
        let (outcome, counts) = Asked { target, ..Asked::all() }.go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::CompletedWithFailures);
        assert_eq!((counts.examined, counts.replayed, counts.skipped), (9, 2, 7), "{counts:?}");
        let moved = take_all(&vhost, WORK).await;
        let keys: Vec<&str> = moved.iter().map(|message| message.routing_key.as_str()).collect();
        assert_eq!((ids(&moved), keys), (vec!["0", "1"], vec!["spring", ""]));
        nothing_held(&vhost, DLQ, 7).await;
        // Wherever they came from, they can go to a queue.
        let (outcome, counts) = Asked::all().go(&vhost).finishes().await;
        assert_eq!((outcome, counts.replayed), (Outcome::Completed, 7));
        assert_eq!(ids(&take_all(&vhost, WORK).await), ["2", "3", "4", "5", "6", "7", "8"]);
    })
    .await;
}
