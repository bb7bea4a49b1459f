//! What declaring, binding and deleting answer.

use redrive::broker::{AddressGuard, BrokerError, Declared, Management, Meter, Removed, Supervision};
use redrive::ops::term::Term;
use redrive::topology::model::{Arg, Binding, Destination, Exchange, Queue, QueueType};
use rstest::rstest;
use serde_json::json;

use super::support::Version::{self, V40, V43};
use super::support::*;

fn queue<const N: usize>(name: &str, kind: QueueType, arguments: [(&str, Arg); N]) -> Queue {
    Queue { name: name.to_owned(), kind, arguments: args(arguments) }
}

fn exchange<const N: usize>(name: &str, kind: &str, arguments: [(&str, Arg); N]) -> Exchange {
    Exchange { name: name.to_owned(), kind: kind.to_owned(), internal: false, arguments: args(arguments) }
}

/// The differing key and both values, or the error itself.
fn difference(result: Result<Declared, BrokerError>) -> (String, String, String) {
    match result {
        Err(BrokerError::Inequivalent { key, wanted, found, .. }) => (key, wanted, found),
        other => panic!("{other:?}"),
    }
}

fn three(key: &str, wanted: &str, found: &str) -> (String, String, String) {
    (key.to_owned(), wanted.to_owned(), found.to_owned())
}

#[rstest]
#[tokio::test]
async fn declaring_tells_created_existing_and_different_apart(#[values(V43, V40)] version: Version) {
    in_vhost(version, "declare", async |v| {
        let put = async |queue: &Queue| v.management.put_queue(&v.name, queue).await;
        let base = queue("q", QueueType::Quorum, [("x-message-ttl", 30_000.into())]);
        assert_eq!(put(&base).await.unwrap(), Declared::Created);
        assert_eq!(put(&base).await.unwrap(), Declared::Existed);
        let edited = queue("q", QueueType::Quorum, [("x-message-ttl", 60_000.into())]);
        assert_eq!(difference(put(&edited).await), three("x-message-ttl", "60000", "30000"));
        let dropped = queue("q", QueueType::Quorum, []);
        assert_eq!(difference(put(&dropped).await), three("x-message-ttl", "none", "30000 (long)"));
        let other_type = queue("q", QueueType::Classic, [("x-message-ttl", 30_000.into())]);
        assert_eq!(difference(put(&other_type).await), three("x-queue-type", "classic", "quorum"));
        let text = queue("q", QueueType::Quorum, [("x-message-ttl", "30000".into())]);
        let error = put(&text).await.unwrap_err();
        assert!(error.to_string().contains("of another type"), "{error}");
        assert!(!error.is_transient());
        let fresh = put(&queue("other", QueueType::Quorum, [("x-message-ttl", "30000".into())])).await;
        assert!(matches!(fresh, Err(BrokerError::Refused { status: 400, .. })), "{fresh:?}");
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn an_exchange_of_another_kind_is_different_and_an_unknown_kind_is_refused(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "exchange", async |v| {
        let put = async |exchange: &Exchange| v.management.put_exchange(&v.name, exchange).await;
        let base = exchange("x", "topic", []);
        assert_eq!(put(&base).await.unwrap(), Declared::Created);
        assert_eq!(put(&base).await.unwrap(), Declared::Existed);
        assert_eq!(difference(put(&exchange("x", "direct", [])).await), three("type", "direct", "topic"));
        let internal = Exchange { internal: true, ..base.clone() };
        assert_eq!(difference(put(&internal).await), three("internal", "true", "false"));
        let alternate = exchange("x", "topic", [("alternate-exchange", "y".into())]);
        assert_eq!(difference(put(&alternate).await), three("alternate-exchange", "y (longstr)", "none"));
        let unknown = put(&exchange("d", "x-delayed-message", [])).await.unwrap_err();
        assert!(unknown.to_string().contains("unknown exchange type 'x-delayed-message'"), "{unknown}");
    })
    .await;
}

/// IMM-08, IMM-09: what a body leaves out makes a transient classic queue, so
/// ours leave nothing out.
#[rstest]
#[tokio::test]
async fn a_partial_body_makes_a_transient_classic_queue_and_ours_does_not(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "bodies", async |v| {
        for (name, body) in [
            ("empty", json!({})),
            ("type", json!({"type": "quorum"})),
            ("exclusive", json!({"durable": true, "exclusive": true, "arguments": {}})),
        ] {
            let (status, _) = v.raw("PUT", &format!("/queues/{}/{name}", encode(&v.name)), Some(body)).await;
            assert_eq!(status, 201);
        }
        v.queue("ours", QueueType::Classic, []).await;
        v.queue("quorum", QueueType::Quorum, []).await;
        let observed = v.management.snapshot(&v.name).await.unwrap();
        for name in ["empty", "type", "exclusive"] {
            let queue = &observed.queues[name];
            assert!(!queue.durable && queue.kind == QueueType::Classic, "{name}: {queue:?}");
        }
        for (name, kind) in [("ours", QueueType::Classic), ("quorum", QueueType::Quorum)] {
            let queue = &observed.queues[name];
            assert!(queue.durable && !queue.auto_delete && !queue.exclusive && queue.kind == kind);
        }
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn what_lossless_queues_need_is_accepted_and_read_back_typed(#[values(V43, V40)] version: Version) {
    in_vhost(version, "safe", async |v| {
        v.safe_queue("q", "dlx", [("x-delivery-limit", (-1).into()), ("x-message-ttl", 300.into())]).await;
        let observed = v.management.snapshot(&v.name).await.unwrap();
        let wanted = args([
            ("x-dead-letter-exchange", "dlx".into()),
            ("x-dead-letter-strategy", "at-least-once".into()),
            ("x-overflow", "reject-publish".into()),
            ("x-delivery-limit", (-1).into()),
            ("x-message-ttl", 300.into()),
        ]);
        assert_eq!(observed.queues["q"].arguments, wanted);
    })
    .await;
}

/// DEL-01, DEL-07: a vhost that is gone took everything along.
#[rstest]
#[tokio::test]
async fn deleting_what_is_not_there_is_success_even_without_the_vhost(#[values(V43, V40)] version: Version) {
    in_vhost(version, "delete", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        assert_eq!(v.management.delete_queue(&v.name, "q").await.unwrap(), Removed::Gone);
        for vhost in [v.name.as_str(), "no-such-vhost"] {
            assert_eq!(v.management.delete_queue(vhost, "q").await.unwrap(), Removed::Absent);
            assert_eq!(v.management.delete_exchange(vhost, "x", true).await.unwrap(), Removed::Absent);
            assert_eq!(v.management.delete_policy(vhost, "p").await.unwrap(), Removed::Absent);
            let binding = Binding {
                source: "x".to_owned(),
                destination: Destination::Queue("q".to_owned()),
                routing_key: String::new(),
                arguments: args([]),
            };
            assert_eq!(v.management.unbind(vhost, &binding).await.unwrap(), Removed::Absent);
        }
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn an_exchange_in_use_stays_and_a_quorum_queue_knows_no_if_empty(#[values(V43, V40)] version: Version) {
    in_vhost(version, "in-use", async |v| {
        v.exchange("x", "fanout", []).await;
        v.queue("q", QueueType::Quorum, []).await;
        v.bind("x", "q", "", []).await;
        let kept = v.management.delete_exchange(&v.name, "x", true).await;
        assert!(matches!(kept, Err(BrokerError::InUse { .. })), "{kept:?}");
        let path = format!("/queues/{}/q?if-empty=true", encode(&v.name));
        let (status, text) = v.raw("DELETE", &path, None).await;
        assert!(status == 400 && text.contains("not supported by quorum queues"), "{status} {text}");
        assert_eq!(v.management.delete_exchange(&v.name, "x", false).await.unwrap(), Removed::Gone);
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn binding_without_an_end_names_what_is_missing(#[values(V43, V40)] version: Version) {
    in_vhost(version, "ends", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        let bind = async |source: &str, queue: &str| {
            let binding = Binding {
                source: source.to_owned(),
                destination: Destination::Queue(queue.to_owned()),
                routing_key: "k".to_owned(),
                arguments: args([]),
            };
            v.management.bind(&v.name, &binding).await
        };
        let error = bind("amq.topic", "lost").await.unwrap_err();
        assert!(matches!(&error, BrokerError::NotFound { reason, .. } if reason.contains("no queue 'lost'")));
        let error = bind("lost", "q").await.unwrap_err();
        assert!(
            matches!(&error, BrokerError::NotFound { reason, .. } if reason.contains("no exchange 'lost'"))
        );
        bind("amq.topic", "q").await.unwrap();
        bind("amq.topic", "q").await.unwrap();
        assert_eq!(v.management.snapshot(&v.name).await.unwrap().bindings().len(), 1);
    })
    .await;
}

/// VHO-04.
#[rstest]
#[tokio::test]
async fn a_reached_queue_limit_is_a_quota_and_redeclaring_still_works(#[values(V43, V40)] version: Version) {
    in_vhost(version, "limit", async |v| {
        let path = format!("/vhost-limits/{}/max-queues", encode(&v.name));
        let (status, text) = v.raw("PUT", &path, Some(json!({"value": 1}))).await;
        assert_eq!(status, 204, "{text}");
        let one = queue("one", QueueType::Quorum, []);
        assert_eq!(v.management.put_queue(&v.name, &one).await.unwrap(), Declared::Created);
        let error = v.management.put_queue(&v.name, &queue("two", QueueType::Quorum, [])).await.unwrap_err();
        assert!(matches!(error, BrokerError::QuotaExceeded { .. }), "{error:?}");
        assert_eq!(v.management.put_queue(&v.name, &one).await.unwrap(), Declared::Existed);
    })
    .await;
}

#[tokio::test]
async fn nothing_is_written_once_the_term_is_over() {
    in_vhost(V43, "term", async |v| {
        let term = Term::unlimited();
        let supervision = Supervision { term: term.clone(), meter: Meter::default() };
        let guard = AddressGuard::new(true, []);
        let leader = Management::supervised(&V43.endpoint(), guard, supervision).unwrap();
        leader.put_queue(&v.name, &queue("before", QueueType::Quorum, [])).await.unwrap();
        term.end();
        let refused = leader.put_queue(&v.name, &queue("after", QueueType::Quorum, [])).await;
        assert!(matches!(refused, Err(BrokerError::TermOver)), "{refused:?}");
        let refused = leader.delete_queue(&v.name, "before").await;
        assert!(matches!(refused, Err(BrokerError::TermOver)), "{refused:?}");
        // Reading harms nobody.
        let observed = leader.snapshot(&v.name).await.unwrap();
        assert_eq!(observed.queues.keys().collect::<Vec<_>>(), ["before"]);
    })
    .await;
}
