//! Foreign, odd and broken answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use redrive::broker::{BrokerError, Names, Removed};
use redrive::topology::model::{Args, Queue, QueueType};
use redrive::topology::observed::Totals;
use rstest::rstest;

use super::fake::{Answer, Fake, OVERVIEW};
use super::{client, endpoint, local};

const FOREIGN: &str = "words of a foreign server";

fn queue() -> Queue {
    Queue { name: "q".to_owned(), kind: QueueType::Quorum, arguments: Args::new() }
}

#[rstest]
#[case::a_page(Answer::Body(200, "text/html", format!("<html>{FOREIGN}</html>")))]
#[case::json_of_something_else(Answer::json(200, &format!(r#"{{"text":"{FOREIGN}"}}"#)))]
#[case::another_broker(Answer::json(200, &OVERVIEW.replace("\"RabbitMQ\"", &format!("\"{FOREIGN}\""))))]
#[case::a_list(Answer::json(200, &format!(r#"["{FOREIGN}"]"#)))]
#[case::no_such_page(Answer::Body(404, "text/html", FOREIGN.to_owned()))]
#[case::no_such_object(Answer::json(404, &format!(r#"{{"error":"Object Not Found","reason":"{FOREIGN}"}}"#)))]
#[case::bad_request(Answer::json(400, &format!(r#"{{"error":"bad_request","reason":"{FOREIGN}"}}"#)))]
#[case::a_login_page(Answer::Body(401, "text/html", FOREIGN.to_owned()))]
#[case::a_teapot(Answer::json(418, &format!(r#"{{"error":"{FOREIGN}","reason":"{FOREIGN}"}}"#)))]
#[tokio::test]
async fn a_foreign_server_is_called_so_in_our_words(#[case] answer: Answer) {
    let fake = Fake::http(move |_, _| answer.clone());
    let error = client(fake.address).overview().await.unwrap_err();
    assert!(matches!(error, BrokerError::NotRabbit { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains(FOREIGN), "{error:?}");
    assert_eq!(error.reason(), "UnsupportedBroker");
}

#[tokio::test]
async fn a_refusal_before_the_proof_is_told_without_its_words() {
    let body = format!(r#"{{"error":"not_authorised","reason":"{FOREIGN}"}}"#);
    let fake = Fake::http(move |_, _| Answer::json(401, &body));
    let error = client(fake.address).overview().await.unwrap_err();
    assert!(matches!(error, BrokerError::Forbidden { .. }), "{error:?}");
    assert!(!format!("{error:?}").contains(FOREIGN), "{error:?}");
}

#[tokio::test]
async fn nothing_but_a_probe_is_sent_before_the_proof() {
    let fake = Fake::http(|_, _| Answer::json(200, "{}"));
    let management = client(fake.address);
    assert!(management.put_queue("/", &queue()).await.is_err());
    assert!(management.delete_queue("/", "q").await.is_err());
    assert_eq!(fake.requests(), ["GET /api/overview", "GET /api/overview"]);
}

/// As 4.3.6 answered where a queue was deleted while a binding to it was made.
const CRASH: &str = r#"{"error":"bad_request","reason":"Request to node rabbit@a failed with {'EXIT',\n {{badmatch,\n {error,\n {khepri,\n keep_while_conditions_not_met"}"#;

#[rstest]
#[case::a_crash(CRASH, true)]
#[case::a_refusal(r#"{"error":"bad_request","reason":"Request to node rabbit@a failed with {'EXIT',\n {amqp_error,not_allowed"}"#, false)]
#[case::a_refusal_in_words(r#"{"error":"bad_request","reason":"invalid name"}"#, false)]
#[tokio::test]
async fn a_call_that_crashed_inside_the_broker_is_tried_again(
    #[case] body: &'static str,
    #[case] again: bool,
) {
    let fake = Fake::rabbit(move |_, _| Answer::json(400, body));
    let error = client(fake.address).put_queue("/", &queue()).await.unwrap_err();
    assert_eq!(matches!(error, BrokerError::ServerError { status: 400, .. }), again, "{error:?}");
    assert_eq!(error.is_transient(), again, "{error:?}");
}

#[tokio::test]
async fn the_proof_is_asked_for_once() {
    let fake = Fake::rabbit(|_, _| Answer::json(204, ""));
    let management = client(fake.address);
    for _ in 0..3 {
        management.delete_queue("/", "q").await.unwrap();
    }
    assert_eq!(fake.requests().iter().filter(|request| request.ends_with("/overview")).count(), 1);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let target = Fake::rabbit(|_, _| Answer::json(200, "[]"));
    let location = format!("http://{}/api/overview", target.address);
    let head = format!("HTTP/1.1 302 X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
    let fake = Fake::http(move |_, _| Answer::Raw(head.clone().into_bytes()));
    let error = client(fake.address).overview().await.unwrap_err();
    assert!(matches!(error, BrokerError::NotRabbit { .. }), "{error:?}");
    assert!(target.requests().is_empty());
}

/// API-15.
#[tokio::test]
async fn a_path_prefix_precedes_every_path() {
    let fake = Fake::http(|_, path| match path {
        "/rmq/a%20b/api/overview" => Answer::json(200, OVERVIEW),
        _ => Answer::json(204, ""),
    });
    for slash in ["", "/"] {
        let endpoint = endpoint(&format!("http://{}/rmq/a%20b{slash}", fake.address));
        let management = redrive::broker::Management::new(&endpoint, local()).unwrap();
        management.delete_queue("/", "a/b").await.unwrap();
    }
    assert_eq!(fake.requests()[1], "DELETE /rmq/a%20b/api/queues/%2F/a%2Fb");
    assert_eq!(fake.requests()[3], fake.requests()[1]);
}

/// An ingress whose broker is down answers 404 as well.
#[tokio::test]
async fn a_404_that_is_not_the_brokers_is_no_absence() {
    for body in ["default backend - 404", r#"{"error":"no route"}"#, ""] {
        let fake = Fake::rabbit(move |_, _| Answer::json(404, body));
        let management = client(fake.address);
        for error in [
            management.delete_queue("/", "q").await.unwrap_err(),
            management.vhost_exists("/").await.unwrap_err(),
            management.snapshot("/").await.unwrap_err(),
        ] {
            assert!(error.is_transient(), "{error:?}");
        }
    }
}

#[rstest]
#[case(r#"{"error":"Object Not Found","reason":"Not Found"}"#)]
#[case(r#"{"error":"not_found","reason":"vhost_not_found"}"#)]
#[case(r#"{"error":"not_found","reason":"vhost_or_user_not_found"}"#)]
#[tokio::test]
async fn the_brokers_ways_to_say_absent_are_known(#[case] body: &'static str) {
    let fake = Fake::rabbit(move |_, _| Answer::json(404, body));
    assert_eq!(client(fake.address).delete_queue("/", "q").await.unwrap(), Removed::Absent);
}

#[rstest]
#[case(429)]
#[case(500)]
#[case(502)]
#[case(503)]
#[case(504)]
#[tokio::test]
async fn a_failing_server_is_worth_a_retry_and_gets_none_from_us(#[case] status: u16) {
    let fake = Fake::rabbit(move |_, _| Answer::Body(status, "text/html", FOREIGN.to_owned()));
    let error = client(fake.address).delete_queue("/", "q").await.unwrap_err();
    assert!(matches!(error, BrokerError::ServerError { .. }) && error.is_transient(), "{error:?}");
    assert_eq!(fake.requests().len(), 2, "the probe and one try");
}

#[tokio::test]
async fn an_alarm_is_named() {
    let body = r#"{"status":"failed","reason":"There are alarms in effect in the cluster",
        "alarms":[{"node":"rabbit@a","resource":"memory"}]}"#;
    let fake = Fake::rabbit(move |_, _| Answer::json(503, body));
    assert_eq!(client(fake.address).alarms().await.unwrap(), ["memory on rabbit@a"]);
    let fake = Fake::rabbit(|_, _| Answer::Body(503, "text/html", FOREIGN.to_owned()));
    assert!(client(fake.address).alarms().await.is_err());
}

#[rstest]
#[case::not_a_list(r#"{"items":[]}"#)]
#[case::cut_off(r#"[{"name":"q"}"#)]
#[case::rows_that_are_no_objects("[1,2]")]
#[tokio::test]
async fn a_list_of_another_shape_is_an_error_and_no_empty_vhost(#[case] body: &'static str) {
    let fake = Fake::rabbit(move |_, path| match path {
        "/api/queues/%2F" => Answer::json(200, body),
        _ => Answer::json(200, "[]"),
    });
    let error = client(fake.address).snapshot("/").await.unwrap_err();
    assert!(matches!(error, BrokerError::NotRabbit { .. }), "{error:?}");
}

#[tokio::test]
async fn operator_policies_that_may_not_be_read_are_unknown() {
    let fake = Fake::rabbit(|_, path| match path {
        "/api/operator-policies/%2F" => {
            Answer::json(401, r#"{"error":"not_authorised","reason":"Not policymaker user"}"#)
        }
        _ => Answer::json(200, "[]"),
    });
    let observed = client(fake.address).snapshot("/").await.unwrap();
    assert_eq!(observed.operator_policies, None);
    assert_eq!(fake.requests().len(), 6, "the probe and five lists");
}

/// QQ-07: what 4.0.5 and 4.3.6 answer while a queue has lost too many of its nodes.
#[tokio::test]
async fn a_queue_that_the_list_with_counts_leaves_out_is_there_and_unknown() {
    let row = |state: &str| {
        let counts = r#""messages":0,"messages_ready":0,"messages_unacknowledged":0"#;
        format!(r#"{{"name":"q","type":"quorum","durable":true,"state":"{state}",{counts}}}"#)
    };
    let lists = AtomicUsize::new(0);
    let fake = Fake::rabbit(move |_, path| match path {
        "/api/queues/%2F" if lists.fetch_add(1, Ordering::SeqCst) == 0 => Answer::json(200, "[]"),
        "/api/queues/%2F" => Answer::json(200, &format!("[{}]", row("minority"))),
        "/api/queues/%2F/q" => Answer::json(200, &row("down")),
        "/api/bindings/%2F" => Answer::json(
            200,
            r#"[{"source":"","destination":"q","destination_type":"queue","routing_key":"q","arguments":{}}]"#,
        ),
        _ => Answer::json(200, "[]"),
    });
    let names = Names { queues: ["q".to_owned()].into(), ..Names::default() };
    let client = client(fake.address);
    for observed in [client.snapshot("/").await.unwrap(), client.look("/", &names).await.unwrap()] {
        assert_eq!(observed.queues["q"].totals, Totals::default(), "no count is believed");
        assert!(observed.unavailable.contains("q"));
        assert!(observed.bindings().is_empty());
    }
}
