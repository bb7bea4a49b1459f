//! What policies do, and which ones the broker takes.

use redrive::broker::{BrokerError, Declared};
use redrive::topology::model::{ApplyTo, Arg, Policy, QueueType};
use redrive::topology::names::exact_pattern;
use rstest::rstest;
use serde_json::json;

use super::support::Version::{self, V40, V43};
use super::support::*;

fn policy<const N: usize>(pattern: &str, definition: [(&str, Arg); N]) -> Policy {
    Policy {
        name: "p".to_owned(),
        pattern: pattern.to_owned(),
        apply_to: ApplyTo::Queues,
        priority: 10,
        definition: args(definition),
    }
}

/// The policy that the broker itself sees in effect; 4.0 tells it at once with
/// totals only.
async fn in_effect(v: &Vhost, queue: &str) -> Option<String> {
    v.raw_queue(queue, "?disable_stats=true&enable_queue_totals=true").await["policy"]
        .as_str()
        .map(str::to_owned)
}

/// POL-01 to POL-04.
#[rstest]
#[tokio::test]
async fn an_exact_pattern_applies_to_exactly_that_queue(#[values(V43, V40)] version: Version) {
    in_vhost(version, "exact", async |v| {
        let names = [
            "orders.retry.1",
            "orders.retry.10",
            "ordersXretry.1",
            "xorders.retry.1",
            "a+b",
            "aab",
            "a(b)",
            "ab",
            "a[b]",
            "a$b",
            "a^b",
            "a?b",
            "a*b",
            "a{2}b",
            "a\\b",
            "a|b",
            "a",
            "b",
            "zakaz-é",
            "zakaz-e",
            "注文",
            "a#b",
            "a b",
            "a%b",
            "a/b",
            "a~b",
            "a\"b",
            "a'b",
            "a&b",
            "a<b",
            "a-b",
            "a_b",
        ];
        for name in names {
            v.queue(name, QueueType::Classic, []).await;
        }
        for name in names {
            let written = v
                .management
                .put_policy(&v.name, &policy(&exact_pattern(name), [("max-length", 5.into())]))
                .await;
            assert!(written.is_ok(), "{name}: {written:?}");
            let mut hit = Vec::new();
            for other in names {
                if in_effect(&v, other).await.is_some() {
                    hit.push(other);
                }
            }
            assert_eq!(hit, [name], "pattern {}", exact_pattern(name));
        }
    })
    .await;
}

/// POL-08: stored and listed, and in effect nowhere.
#[rstest]
#[tokio::test]
async fn one_key_that_a_queue_type_does_not_know_disables_the_policy(#[values(V43, V40)] version: Version) {
    in_vhost(version, "unknown-key", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        let mixed = policy("^q\\z", [("max-age", "1D".into()), ("max-length", 5.into())]);
        assert_eq!(v.management.put_policy(&v.name, &mixed).await.unwrap(), Declared::Created);
        assert_eq!(in_effect(&v, "q").await, None);
        let plain = policy("^q\\z", [("max-length", 5.into())]);
        assert_eq!(v.management.put_policy(&v.name, &plain).await.unwrap(), Declared::Existed);
        eventually("it applies", async || in_effect(&v, "q").await.as_deref() == Some("p")).await;
    })
    .await;
}

/// POL-10, IMM-02, IMM-03.
#[rstest]
#[tokio::test]
async fn unknown_keys_and_untyped_numbers_are_refused(#[values(V43, V40)] version: Version) {
    in_vhost(version, "refused", async |v| {
        for (key, value) in [
            ("ha-mode", Arg::from("all")),
            ("message_ttl", 5.into()),
            ("message-ttl", "5".into()),
            ("message-ttl", Arg::Other("3e4".to_owned())),
        ] {
            let error = v.management.put_policy(&v.name, &policy("^q\\z", [(key, value)])).await.unwrap_err();
            assert!(matches!(error, BrokerError::Refused { status: 400, .. }), "{key}: {error:?}");
            assert!(!error.to_string().contains("&lt;"), "{error}");
        }
    })
    .await;
}

/// POL-11.
#[rstest]
#[tokio::test]
async fn delayed_retry_keys_are_refused_by_4_0_and_taken_by_4_3(#[values(V43, V40)] version: Version) {
    in_vhost(version, "delayed-keys", async |v| {
        let delayed = policy(
            "^q\\z",
            [
                ("delayed-retry-type", "failed".into()),
                ("delayed-retry-min", 1_000.into()),
                ("delayed-retry-max", 5_000.into()),
            ],
        );
        let result = v.management.put_policy(&v.name, &delayed).await;
        match version {
            V43 => assert_eq!(result.unwrap(), Declared::Created),
            V40 => assert!(matches!(result, Err(BrokerError::Refused { status: 400, .. })), "{result:?}"),
        }
    })
    .await;
}

/// POL-17: the argument wins for the exchange, the policy's key stays.
#[rstest]
#[tokio::test]
async fn a_policy_routing_key_mixes_with_an_argument_exchange(#[values(V43, V40)] version: Version) {
    in_vhost(version, "mix", async |v| {
        for name in ["xd", "xp"] {
            v.exchange(name, "fanout", []).await;
            v.queue(&format!("from-{name}"), QueueType::Quorum, []).await;
            v.bind(name, &format!("from-{name}"), "", []).await;
        }
        let definition = [("dead-letter-exchange", "xp".into()), ("dead-letter-routing-key", "rk1".into())];
        v.policy("p", "^q\\z", ApplyTo::Queues, definition).await;
        v.queue("q", QueueType::Quorum, [("x-dead-letter-exchange", "xd".into())]).await;
        v.publish("", "q").await;
        v.reject("q").await;
        assert_eq!(v.wait("from-xd").await.routing_key.as_str(), "rk1");
        assert_eq!(v.ready("from-xp").await, 0);
    })
    .await;
}

/// POL-18: quorum queues follow the policy, classic queues the argument.
#[rstest]
#[tokio::test]
async fn overflow_is_decided_differently_by_queue_type(#[values(V43, V40)] version: Version) {
    in_vhost(version, "overflow", async |v| {
        for (argument, policy) in [("drop-head", "reject-publish"), ("reject-publish", "drop-head")] {
            v.policy("p", "", ApplyTo::Queues, [("overflow", policy.into())]).await;
            for (kind, deciding) in [(QueueType::Quorum, policy), (QueueType::Classic, argument)] {
                let name = format!("{kind}-{argument}");
                v.queue(&name, kind, [("x-max-length", 1.into()), ("x-overflow", argument.into())]).await;
                let mut refused = 0;
                for _ in 0..10 {
                    refused += u32::from(v.publish("", &name).await == Published::Nacked);
                }
                assert_eq!(refused > 0, deciding == "reject-publish", "{name} under {policy}: {refused}");
            }
        }
    })
    .await;
}

/// POL-29: at once, or within a tick.
#[rstest]
#[tokio::test]
async fn a_policy_with_expires_takes_the_queue_away(#[values(V43, V40)] version: Version) {
    in_vhost(version, "expires", async |v| {
        v.policy("p", "^q", ApplyTo::Queues, [("expires", 2.into())]).await;
        for (name, kind) in [("q-classic", QueueType::Classic), ("q-quorum", QueueType::Quorum)] {
            v.queue(name, kind, []).await;
            eventually("it is gone", async || {
                !v.management.snapshot(&v.name).await.unwrap().queues.contains_key(name)
            })
            .await;
        }
    })
    .await;
}

/// Operator policies are read; 4.3 and 4.0 take the same keys there.
#[rstest]
#[tokio::test]
async fn operator_policies_are_part_of_the_snapshot(#[values(V43, V40)] version: Version) {
    in_vhost(version, "operator", async |v| {
        let body = json!({"pattern": "^q", "definition": {"message-ttl": 1000}, "apply-to": "queues", "priority": 1});
        let path = format!("/operator-policies/{}/op", encode(&v.name));
        assert_eq!(v.raw("PUT", &path, Some(body)).await.0, 201);
        let observed = v.management.snapshot(&v.name).await.unwrap();
        let found = &observed.operator_policies.unwrap()[0];
        assert_eq!((found.name.as_str(), found.priority, found.apply_to), ("op", 1, ApplyTo::Queues));
        assert_eq!(found.definition["message-ttl"], Arg::Int(1_000));
    })
    .await;
}

/// POL-22: odd priorities are stored, and must not stop the decoder.
#[rstest]
#[tokio::test]
async fn odd_priorities_of_others_are_read(#[values(V43, V40)] version: Version) {
    in_vhost(version, "priorities", async |v| {
        for (name, priority, read) in [
            ("half", json!(5.5), 5),
            ("negative", json!(-3), -3),
            ("huge", json!(1_099_511_627_776_i64), 1_099_511_627_776),
        ] {
            let body = json!({"pattern": "", "definition": {"max-length": 5}, "priority": priority, "apply-to": "all"});
            let path = format!("/policies/{}/{name}", encode(&v.name));
            assert_eq!(v.raw("PUT", &path, Some(body)).await.0, 201, "{name}");
            let observed = v.management.snapshot(&v.name).await.unwrap();
            let policy = observed.policy(name).unwrap();
            assert_eq!((policy.priority, policy.pattern.as_str(), policy.apply_to), (read, "", ApplyTo::All));
        }
    })
    .await;
}
