//! Names and routing keys that need encoding.

use redrive::broker::{BrokerError, Declared, Removed};
use redrive::topology::model::{Args, Binding, Destination, Queue, QueueType};
use rstest::rstest;

use super::support::Version::{self, V40, V43};
use super::support::*;

const NAMES: [&str; 14] =
    ["a/b", "a?b", "a#b", "100%", "%2F", "a+b", "a&b", "a b", "a;b", "zakaz-é", "注文", "it's", "get", "..."];

#[rstest]
#[tokio::test]
async fn every_name_is_written_and_read_back_as_it_is(#[values(V43, V40)] version: Version) {
    in_vhost(version, "names/ %é", async |v| {
        for name in NAMES {
            let queue = Queue { name: name.to_owned(), kind: QueueType::Classic, arguments: Args::new() };
            assert_eq!(v.management.put_queue(&v.name, &queue).await.unwrap(), Declared::Created, "{name}");
            assert_eq!(v.management.put_queue(&v.name, &queue).await.unwrap(), Declared::Existed, "{name}");
            v.exchange(name, "direct", []).await;
            v.bind(name, name, name, []).await;
            assert_eq!(v.ready(name).await, 0);
        }
        let observed = v.management.snapshot(&v.name).await.unwrap();
        let found: Vec<&str> = observed.queues.keys().map(String::as_str).collect();
        let mut wanted = NAMES.to_vec();
        wanted.sort_unstable();
        assert_eq!(found, wanted);
        assert_eq!(observed.bindings().len(), NAMES.len());
        for name in NAMES {
            assert_eq!(v.management.delete_queue(&v.name, name).await.unwrap(), Removed::Gone, "{name}");
            assert_eq!(v.management.delete_exchange(&v.name, name, false).await.unwrap(), Removed::Gone);
        }
        assert!(v.management.snapshot(&v.name).await.unwrap().queues.is_empty());
    })
    .await;
}

/// NAM-05: a client drops such segments, so the request would hit another
/// resource.
#[rstest]
#[tokio::test]
async fn names_of_dots_are_refused_before_anything_is_sent(#[values(V43, V40)] version: Version) {
    in_vhost(version, "dots", async |v| {
        for name in [".", "..", ""] {
            let result = v.management.delete_queue(&v.name, name).await;
            assert!(matches!(result, Err(BrokerError::Unaddressable { .. })), "{name:?}: {result:?}");
            let result = v.management.delete_queue(name, "q").await;
            assert!(matches!(result, Err(BrokerError::Unaddressable { .. })), "{name:?}: {result:?}");
        }
        let (status, _) = v.raw("PUT", &format!("/queues/{}/..", encode(&v.name)), None).await;
        assert_eq!(status, 405);
    })
    .await;
}

/// NAM-14: each binding is found by key and arguments, and goes alone.
#[rstest]
#[tokio::test]
async fn every_binding_can_be_removed_alone(#[values(V43, V40)] version: Version) {
    in_vhost(version, "unbind", async |v| {
        v.exchange("x", "topic", []).await;
        v.queue("q", QueueType::Quorum, []).await;
        v.exchange("y", "fanout", []).await;
        let keys = [
            "", "a b", "a/b", "~", "a~b", "%2F", "k", "k?#", "é", "a+b", ".", "..", "...", "a.b", "%2E",
            "%2E%2E", "%252E", "./..",
        ];
        let mut bindings = Vec::new();
        for key in keys {
            for arguments in [args([]), args([("x", 1.into())]), args([("x", "1".into())])] {
                if key == "a~b" && !arguments.is_empty() {
                    continue;
                }
                for destination in [Destination::Queue("q".to_owned()), Destination::Exchange("y".to_owned())]
                {
                    bindings.push(Binding {
                        source: "x".to_owned(),
                        destination,
                        routing_key: key.to_owned(),
                        arguments: arguments.clone(),
                    });
                }
            }
        }
        for binding in &bindings {
            v.management.bind(&v.name, binding).await.unwrap();
        }
        assert_eq!(v.management.snapshot(&v.name).await.unwrap().bindings().len(), bindings.len());
        for (index, binding) in bindings.iter().enumerate() {
            assert_eq!(v.management.unbind(&v.name, binding).await.unwrap(), Removed::Gone, "{binding}");
            assert_eq!(v.management.unbind(&v.name, binding).await.unwrap(), Removed::Absent, "{binding}");
            let observed = v.management.snapshot(&v.name).await.unwrap();
            assert!(!observed.has_binding(binding), "{binding}");
            assert_eq!(observed.bindings().len(), bindings.len() - index - 1, "{binding}");
        }
    })
    .await;
}

/// The broker would create it, answer 500, and never list it again.
#[rstest]
#[tokio::test]
async fn a_binding_that_breaks_the_list_is_refused_before_it_is_sent(#[values(V43, V40)] version: Version) {
    in_vhost(version, "tilde-key", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        for (key, arguments, fine) in [
            ("a~b", args([]), true),
            ("~", args([("x", 1.into())]), true),
            ("a~", args([("x", 1.into())]), true),
            ("a~b", args([("x", 1.into())]), false),
            ("~a", args([("x", 1.into())]), false),
        ] {
            let binding = Binding {
                source: "amq.topic".to_owned(),
                destination: Destination::Queue("q".to_owned()),
                routing_key: key.to_owned(),
                arguments,
            };
            let result = v.management.bind(&v.name, &binding).await;
            assert_eq!(result.is_ok(), fine, "{binding}: {result:?}");
        }
        assert_eq!(v.management.snapshot(&v.name).await.unwrap().bindings().len(), 3);
    })
    .await;
}

/// NAM-07: the limit counts bytes.
#[rstest]
#[tokio::test]
async fn a_queue_name_may_have_255_bytes_and_no_more(#[values(V43, V40)] version: Version) {
    in_vhost(version, "long", async |v| {
        v.queue(&"é".repeat(127), QueueType::Quorum, []).await;
        let queue = Queue { name: "é".repeat(128), kind: QueueType::Quorum, arguments: Args::new() };
        let error = v.management.put_queue(&v.name, &queue).await.unwrap_err();
        assert!(matches!(error, BrokerError::Refused { status: 400, .. }), "{error:?}");
    })
    .await;
}
