//! Limits of time, place and size, and addresses that are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redrive::broker::{AddressGuard, BrokerError, Management, amqp};
use rstest::rstest;

use super::fake::{Answer, Fake, OVERVIEW};
use super::{client, client_within, endpoint, local};

const LIMIT: Duration = Duration::from_millis(500);

#[rstest]
#[case::silence(Answer::Silence)]
#[case::half_a_body(Answer::Half(OVERVIEW.to_owned()))]
#[tokio::test]
async fn a_server_that_does_not_finish_is_left_in_time(#[case] answer: Answer) {
    let fake = Fake::http(move |_, _| answer.clone());
    let start = Instant::now();
    let error = client_within(fake.address, LIMIT).overview().await.unwrap_err();
    assert!(matches!(error, BrokerError::Timeout { .. }), "{error:?}");
    assert!(error.is_transient() && error.reason() == "Timeout");
    assert!(start.elapsed() < 60 * LIMIT, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_list_that_does_not_finish_is_left_in_time() {
    let fake = Fake::rabbit(|_, _| Answer::Half(format!("[{}]", r#"{"name":"q"},"#.repeat(99))));
    let error = client_within(fake.address, 4 * LIMIT).snapshot("/").await.unwrap_err();
    assert!(matches!(error, BrokerError::Timeout { .. }), "{error:?}");
}

#[rstest]
#[case(b"" as &[u8])]
#[case(b"SSH-2.0-OpenSSH_10.0\r\n")]
#[case(b"AMQP\x00\x00\x09\x01")]
#[tokio::test]
async fn a_port_that_does_not_speak_http_is_unreachable(#[case] bytes: &'static [u8]) {
    let fake = Fake::http(move |_, _| Answer::Raw(bytes.to_vec()));
    let error = client(fake.address).overview().await.unwrap_err();
    assert!(matches!(error, BrokerError::Unreachable { .. }), "{error:?}");
    assert!(!format!("{error}").contains("OpenSSH"));
}

#[tokio::test]
async fn a_closed_port_and_an_unknown_name_are_unreachable() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = client(address).overview().await.unwrap_err();
    assert!(error.to_string().contains("connection refused"), "{error}");
    let unknown = Management::new(&endpoint("http://no-such-host.invalid:1"), local()).unwrap();
    let error = unknown.overview().await.unwrap_err();
    assert!(matches!(error, BrokerError::Unreachable { .. }), "{error:?}");
    let error = amqp::connect(&endpoint(&format!("http://{address}")), &local(), "/", "t").await.unwrap_err();
    assert!(matches!(error, BrokerError::Unreachable { .. } | BrokerError::Timeout { .. }), "{error:?}");
}

#[tokio::test]
async fn an_endless_answer_is_not_read_to_its_end() {
    let fake = Fake::http(|_, _| Answer::json(200, &format!("[{}]", "0,".repeat(4 << 20))));
    let error = client(fake.address).overview().await.unwrap_err();
    assert!(matches!(error, BrokerError::NotRabbit { .. }), "{error:?}");
    let fake = Fake::rabbit(|_, _| Answer::json(200, &format!("[{{\"a\":\"{}\"}}]", "x".repeat(4 << 20))));
    let error = client(fake.address).snapshot("/").await.unwrap_err();
    assert!(matches!(error, BrokerError::NotRabbit { .. }), "{error:?}");
}

#[tokio::test]
async fn no_more_calls_than_allowed_are_under_way() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let fake = Fake::rabbit(move |_, _| {
        seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(40));
        now.fetch_sub(1, Ordering::SeqCst);
        Answer::json(204, "")
    });
    let management = client(fake.address);
    let calls = (0..20).map(|_| management.delete_queue("/", "q"));
    for result in futures::future::join_all(calls).await {
        result.unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

/// Both the literal address and the name that leads to it, for HTTP and AMQP.
#[tokio::test]
async fn a_refused_address_is_never_connected_to() {
    let fake = Fake::rabbit(|_, _| Answer::json(200, "[]"));
    let strict = AddressGuard::new(false, []);
    let port = fake.address.port();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "0.0.0.0"] {
        let endpoint = endpoint(&format!("http://{host}:{port}"));
        let error = Management::new(&endpoint, strict.clone()).unwrap().overview().await.unwrap_err();
        assert!(matches!(error, BrokerError::AddressRefused { .. }), "{host}: {error:?}");
        assert_eq!(error.reason(), "Forbidden");
        let error = amqp::connect(&endpoint, &strict, "/", "t").await.unwrap_err();
        assert!(matches!(error, BrokerError::AddressRefused { .. }), "{host}: {error:?}");
    }
    assert!(fake.requests().is_empty());
    assert_eq!(fake.connections(), 0);
}

#[tokio::test]
async fn an_api_servers_address_is_refused() {
    let guard = AddressGuard::new(false, ["203.0.113.9".parse().unwrap()]);
    let management = Management::new(&endpoint("http://203.0.113.9:15672"), guard).unwrap();
    let error = management.overview().await.unwrap_err();
    assert!(error.to_string().contains("API server"), "{error}");
}

/// A thousand pipelines: 8,000 queues and 45,000 bindings.
#[tokio::test]
async fn a_large_vhost_is_read_whole() {
    let fake = Fake::rabbit(|_, path| Answer::json(200, &large(path)));
    let endpoint = endpoint(&format!("http://{}", fake.address));
    let management = Management::new(&endpoint, local()).unwrap();
    let observed = management.snapshot("/").await.unwrap();
    assert_eq!(observed.queues.len(), 8_000);
    assert_eq!(observed.bindings().len(), 45_000);
}

fn large(path: &str) -> String {
    let queue = |index: usize| {
        format!(
            r#"{{"arguments":{{"x-queue-type":"quorum","x-message-ttl":5000}},"auto_delete":false,"durable":true,
            "exclusive":null,"messages":0,"messages_ready":0,"messages_unacknowledged":0,"name":"queue-{index}",
            "online":["a"],"online":["a"],"type":"quorum","vhost":"/"}}"#
        )
    };
    let binding = |index: usize| {
        let source = if index < 45_000 { "x" } else { "" };
        format!(
            r#"{{"source":"{source}","vhost":"/","destination":"queue-{index}","destination_type":"queue",
            "routing_key":"k","arguments":{{"x-match":"all-with-x","n":{index}}},"properties_key":"k~abc"}}"#
        )
    };
    let rows: Vec<String> = match path {
        "/api/queues/%2F" => (0..8_000).map(queue).collect(),
        "/api/bindings/%2F" => (0..53_000).map(binding).collect(),
        _ => Vec::new(),
    };
    format!("[{}]", rows.join(","))
}
