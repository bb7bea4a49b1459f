//! Facts behind further lines of docs/cases.md.

use lapin::options::{BasicGetOptions, BasicPublishOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation};
use redrive::broker::{BrokerError, Declared, Removed};
use redrive::topology::model::{ApplyTo, Args, Exchange, Queue, QueueType};
use redrive::topology::validate::MAX_TTL;
use rstest::rstest;
use serde_json::json;

use super::support::Version::{self, V40, V43};
use super::support::*;

async fn operator_policy(v: &Vhost, pattern: &str, definition: serde_json::Value) -> u16 {
    let body = json!({"pattern": pattern, "definition": definition, "apply-to": "queues", "priority": 1});
    v.raw("PUT", &format!("/operator-policies/{}/op", encode(&v.name)), Some(body)).await.0
}

async fn waiting(v: &Vhost, queue: &str) -> Option<i64> {
    v.management.queue_totals(&v.name, queue).await.unwrap().unwrap().waiting_dead_letters()
}

/// POL-14, DLX-16: an overflow from elsewhere switches at-least-once off, and what waited is lost.
#[rstest]
#[tokio::test]
async fn an_overflow_by_policy_destroys_the_dead_letters_that_wait(#[values(V43, V40)] version: Version) {
    in_vhost(version, "drop-head", async |v| {
        v.safe_queue("q", "dlx", [("x-message-ttl", 50.into())]).await;
        for _ in 0..3 {
            v.publish("", "q").await;
        }
        eventually("three wait", async || waiting(&v, "q").await == Some(3)).await;
        assert_eq!(operator_policy(&v, "^q", json!({"overflow": "drop-head"})).await, 201);
        eventually("none waits", async || waiting(&v, "q").await == Some(0)).await;
        v.queue("dlq", QueueType::Quorum, []).await;
        v.exchange("dlx", "fanout", []).await;
        v.bind("dlx", "dlq", "", []).await;
        throughout(2.0, "they are gone", async || v.ready("dlq").await == 0).await;
    })
    .await;
}

/// POL-13: an operator policy can't lead dead letters elsewhere, but it can do harm.
#[rstest]
#[tokio::test]
async fn an_operator_policy_takes_limits_and_no_dead_letter_keys(#[values(V43, V40)] version: Version) {
    in_vhost(version, "operator-keys", async |v| {
        for definition in [
            json!({"dead-letter-exchange": "x"}),
            json!({"dead-letter-routing-key": "x"}),
            json!({"dead-letter-strategy": "at-least-once"}),
        ] {
            assert_eq!(operator_policy(&v, "^q", definition.clone()).await, 400, "{definition}");
        }
        for definition in [
            json!({"message-ttl": 1000}),
            json!({"max-length": 5}),
            json!({"expires": 60_000}),
            json!({"delivery-limit": 5}),
        ] {
            let status = operator_policy(&v, "^q", definition.clone()).await;
            assert!(status == 201 || status == 204, "{definition}: {status}");
        }
    })
    .await;
}

/// POL-15, TTL-06: a well-meant limit for all queues empties a DLQ; what came before it stays, and
/// so does what waits behind that.
#[rstest]
#[tokio::test]
async fn an_operator_policy_with_a_ttl_empties_a_queue_that_set_none(#[values(V43, V40)] version: Version) {
    in_vhost(version, "operator-ttl", async |v| {
        for name in ["empty.dlq", "filled.dlq"] {
            let limit = ("x-delivery-limit", (-1).into());
            v.queue(name, QueueType::Quorum, [limit, ("x-overflow", "reject-publish".into())]).await;
        }
        assert_eq!(v.publish("", "filled.dlq").await, Published::Routed);
        assert_eq!(operator_policy(&v, "dlq$", json!({"message-ttl": 1500})).await, 201);
        for name in ["empty.dlq", "filled.dlq"] {
            assert_eq!(v.publish("", name).await, Published::Routed);
        }
        v.wait_ready("filled.dlq", 2).await;
        v.wait_ready("empty.dlq", 0).await;
        throughout(3.0, "the first has no limit", async || v.ready("filled.dlq").await == 2).await;
    })
    .await;
}

/// POL-16: the shortest of argument, policy and operator policy counts.
#[rstest]
#[tokio::test]
async fn the_shortest_ttl_counts_wherever_it_stands(#[values(V43, V40)] version: Version) {
    in_vhost(version, "ttl", async |v| {
        let is_gone_soon = async |queue: &str| {
            v.publish("", queue).await;
            v.wait_ready(queue, 0).await;
        };
        v.queue("by-argument", QueueType::Quorum, [("x-message-ttl", 300.into())]).await;
        v.queue("by-policy", QueueType::Quorum, [("x-message-ttl", 60_000.into())]).await;
        v.policy("a", "^by-argument", ApplyTo::Queues, [("message-ttl", 60_000.into())]).await;
        v.policy("p", "^by-policy", ApplyTo::Queues, [("message-ttl", 300.into())]).await;
        is_gone_soon("by-argument").await;
        is_gone_soon("by-policy").await;
        v.queue("by-operator", QueueType::Quorum, [("x-message-ttl", 60_000.into())]).await;
        v.policy("o", "^by-operator", ApplyTo::Queues, [("message-ttl", 50_000.into())]).await;
        assert_eq!(operator_policy(&v, "^by-operator", json!({"message-ttl": 300})).await, 201);
        is_gone_soon("by-operator").await;
    })
    .await;
}

/// POL-19: with reject-publish a limit below the depth drops nothing; without it the backlog goes.
#[rstest]
#[tokio::test]
async fn a_limit_below_the_depth_keeps_the_backlog_of_a_queue_that_refuses(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "backlog", async |v| {
        v.queue("ours", QueueType::Quorum, [("x-overflow", "reject-publish".into())]).await;
        v.queue("theirs", QueueType::Quorum, []).await;
        for queue in ["ours", "theirs"] {
            for _ in 0..10 {
                v.publish("", queue).await;
            }
            v.wait_ready(queue, 10).await;
        }
        v.policy("p", "", ApplyTo::Queues, [("max-length", 3.into())]).await;
        v.wait_ready("theirs", 3).await;
        throughout(1.0, "the backlog stays", async || v.ready("ours").await == 10).await;
    })
    .await;
}

/// DLX-14: dead letters that have no way fill their source, though nothing in it is ready.
#[rstest]
#[tokio::test]
async fn stuck_dead_letters_make_their_queue_refuse_publishers(#[values(V43, V40)] version: Version) {
    in_vhost(version, "stuck", async |v| {
        v.safe_queue("q", "dlx", [("x-max-length", 3.into()), ("x-message-ttl", 100.into())]).await;
        for _ in 0..3 {
            v.publish("", "q").await;
        }
        v.wait_ready("q", 0).await;
        eventually("three wait", async || waiting(&v, "q").await == Some(3)).await;
        let mut refused = 0;
        for _ in 0..10 {
            refused += u32::from(v.publish("", "q").await == Published::Nacked);
        }
        assert!(refused >= 5, "{refused} of 10");
    })
    .await;
}

/// IMM-14: of several declarations at once one wins, and the others learn what is there.
#[rstest]
#[tokio::test]
async fn of_declarations_that_race_one_wins_and_the_others_are_told(#[values(V43, V40)] version: Version) {
    in_vhost(version, "race", async |v| {
        let queue = |ttl: i64| Queue {
            name: "q".to_owned(),
            kind: QueueType::Quorum,
            arguments: args([("x-message-ttl", ttl.into())]),
        };
        let wishes = [queue(1_000), queue(2_000), queue(1_000), queue(2_000)];
        let puts = wishes.iter().map(|queue| v.management.put_queue(&v.name, queue));
        let answers = futures::future::join_all(puts).await;
        let observed = v.management.snapshot(&v.name).await.unwrap();
        let found = &observed.queues["q"].arguments;
        for (wish, answer) in wishes.iter().zip(answers) {
            let equal = wish.arguments == *found;
            match answer {
                Ok(_) => assert!(equal),
                Err(BrokerError::Inequivalent { key, .. }) => assert!(!equal && key == "x-message-ttl"),
                Err(error) => panic!("{error:?}"),
            }
        }
    })
    .await;
}

/// TTL-01: ten years is the longest time that the broker takes, and the longest that we write.
#[rstest]
#[tokio::test]
async fn the_longest_ttl_is_ten_years(#[values(V43, V40)] version: Version) {
    in_vhost(version, "ten-years", async |v| {
        v.queue("longest", QueueType::Quorum, [("x-message-ttl", MAX_TTL.into())]).await;
        let put = async |ttl: i64| {
            let arguments = args([("x-message-ttl", ttl.into())]);
            let queue = Queue { name: "longer".to_owned(), kind: QueueType::Quorum, arguments };
            v.management.put_queue(&v.name, &queue).await
        };
        for ttl in [MAX_TTL + 1, -1] {
            let result = put(ttl).await;
            assert!(matches!(result, Err(BrokerError::Refused { status: 400, .. })), "{ttl}: {result:?}");
        }
    })
    .await;
}

/// TTL-07: a message that its publisher lets expire leaves as a dead letter, without the expiration.
#[rstest]
#[tokio::test]
async fn an_expiration_of_the_publisher_ends_in_the_dlq_and_is_taken_off(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "expiration", async |v| {
        v.exchange("dlx", "fanout", []).await;
        v.queue("dlq", QueueType::Quorum, []).await;
        v.bind("dlx", "dlq", "", []).await;
        v.safe_queue("q", "dlx", []).await;
        let properties = BasicProperties::default().with_delivery_mode(2).with_expiration("300".into());
        let options = BasicPublishOptions::default();
        let confirm = v.channel.basic_publish("".into(), "q".into(), options, b"body", properties).await;
        assert!(matches!(confirm.unwrap().await.unwrap(), Confirmation::Ack(None)));
        let dead = v.wait("dlq").await;
        assert_eq!(header(&dead, "x-last-death-reason").as_deref(), Some("expired"));
        assert!(dead.properties.expiration().is_none());
        ack(dead).await;
    })
    .await;
}

/// QQ-05: `basic.get` fails on such a queue, the count that Redrive asks for does not.
#[rstest]
#[tokio::test]
async fn a_queue_with_a_single_active_consumer_is_counted_without_a_get(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "single", async |v| {
        v.queue("q", QueueType::Quorum, [("x-single-active-consumer", true.into())]).await;
        v.publish("", "q").await;
        v.wait_ready("q", 1).await;
        let channel = v.connection.create_channel().await.unwrap();
        let got = channel.basic_get("q".into(), BasicGetOptions { no_ack: false }).await;
        assert!(got.is_err(), "{got:?}");
        let without = Queue { name: "q".to_owned(), kind: QueueType::Quorum, arguments: Args::new() };
        let error = v.management.put_queue(&v.name, &without).await.unwrap_err();
        assert!(matches!(error, BrokerError::Inequivalent { .. }), "{error:?}");
    })
    .await;
}

/// QQ-06: more members than nodes are accepted and kept as wanted, so that nothing differs later.
#[rstest]
#[tokio::test]
async fn a_group_larger_than_the_cluster_is_accepted_and_stays_as_wanted(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "group", async |v| {
        let arguments = args([("x-quorum-initial-group-size", 3.into())]);
        let queue = Queue { name: "q".to_owned(), kind: QueueType::Quorum, arguments: arguments.clone() };
        assert_eq!(v.management.put_queue(&v.name, &queue).await.unwrap(), Declared::Created);
        assert_eq!(v.management.put_queue(&v.name, &queue).await.unwrap(), Declared::Existed);
        assert_eq!(v.management.snapshot(&v.name).await.unwrap().queues["q"].arguments, arguments);
        let members = v.raw_queue("q", "").await["members"].as_array().map(Vec::len);
        assert_eq!(members, Some(1));
    })
    .await;
}

/// QQ-13: a count that a publisher writes reaches the consumer and shortens no life.
#[rstest]
#[tokio::test]
async fn a_delivery_count_of_the_publisher_does_not_count(#[values(V43, V40)] version: Version) {
    in_vhost(version, "count", async |v| {
        v.queue("q", QueueType::Quorum, [("x-delivery-limit", 3.into())]).await;
        let mut headers = FieldTable::default();
        headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(25));
        v.publish_with("", "q", headers).await;
        for _ in 0..4 {
            requeue_by_reject(v.wait("q").await).await;
        }
        throughout(0.5, "gone", async || v.ready("q").await == 0).await;
    })
    .await;
}

/// NAM-12, NAM-15: names that look like ids or like parts of a path, in a vhost that does.
#[rstest]
#[tokio::test]
async fn names_like_ids_and_sub_resources_are_names(#[values(V43, V40)] version: Version) {
    in_vhost(version, "v@1", async |v| {
        let names = ["gate@site#1", "get", "contents", "bindings", "status", "actions", "Orders", "orders"];
        for name in names {
            let queue = Queue { name: name.to_owned(), kind: QueueType::Classic, arguments: Args::new() };
            assert_eq!(v.management.put_queue(&v.name, &queue).await.unwrap(), Declared::Created, "{name}");
            assert_eq!(v.publish("", name).await, Published::Routed);
            v.wait_ready(name, 1).await;
        }
        let observed = v.management.snapshot(&v.name).await.unwrap();
        assert_eq!(observed.queues.len(), names.len());
        for name in names {
            assert!(v.management.queue_totals(&v.name, name).await.unwrap().is_some(), "{name}");
            assert_eq!(v.management.delete_queue(&v.name, name).await.unwrap(), Removed::Gone, "{name}");
            assert_eq!(v.management.delete_queue(&v.name, name).await.unwrap(), Removed::Absent, "{name}");
        }
    })
    .await;
}

/// NAM-04: the broker drops a line break from a name, which is why such names are refused.
#[rstest]
#[tokio::test]
async fn a_line_break_in_a_name_is_dropped(#[values(V43, V40)] version: Version) {
    in_vhost(version, "break", async |v| {
        let exchange = Exchange {
            name: "or\nders".to_owned(),
            kind: "topic".to_owned(),
            internal: false,
            arguments: Args::new(),
        };
        v.management.put_exchange(&v.name, &exchange).await.unwrap();
        let observed = v.management.snapshot(&v.name).await.unwrap();
        assert!(observed.exchanges.contains_key("orders") && !observed.exchanges.contains_key("or\nders"));
    })
    .await;
}

/// VHO-01, VHO-03: a queue that names its type does not follow the vhost's default, also when that
/// flips; and what the broker fills in by itself is no argument.
#[rstest]
#[tokio::test]
async fn the_default_type_of_a_vhost_changes_nothing_of_ours(#[values(V43, V40)] version: Version) {
    in_vhost(version, "default-type", async |v| {
        let default_type = async |kind: &str| {
            let path = format!("/vhosts/{}", encode(&v.name));
            let (status, text) = v.raw("PUT", &path, Some(json!({"default_queue_type": kind}))).await;
            assert!(status == 201 || status == 204, "{text}");
        };
        let ours = [("quorum", QueueType::Quorum), ("classic", QueueType::Classic)]
            .map(|(name, kind)| Queue { name: name.to_owned(), kind, arguments: Args::new() });
        for (default, expected) in [("quorum", Declared::Created), ("classic", Declared::Existed)] {
            default_type(default).await;
            for queue in &ours {
                let declared = v.management.put_queue(&v.name, queue).await.unwrap();
                assert_eq!(declared, expected, "{} under {default}", queue.name);
            }
        }
        default_type("quorum").await;
        let untyped = async |name: &str, body| {
            let path = format!("/queues/{}/{name}", encode(&v.name));
            assert_eq!(v.raw("PUT", &path, Some(body)).await.0, 201, "{name}");
        };
        untyped("durable", json!({"durable": true})).await;
        untyped("empty", json!({})).await;
        let observed = v.management.snapshot(&v.name).await.unwrap();
        for (name, kind, durable) in [
            ("quorum", QueueType::Quorum, true),
            ("classic", QueueType::Classic, true),
            ("durable", QueueType::Quorum, true),
            ("empty", QueueType::Classic, false),
        ] {
            let found = &observed.queues[name];
            assert_eq!((found.kind, found.durable, found.arguments.len()), (kind, durable, 0), "{name}");
        }
    })
    .await;
}
