//! What the bulk read shows, how fresh it is, and which keys carry counts.

use redrive::broker::BrokerError;
use redrive::topology::model::{ApplyTo, Arg, Destination, QueueType};
use rstest::rstest;

use super::support::Version::{self, V40, V43};
use super::support::*;

#[rstest]
#[tokio::test]
async fn the_overview_proves_a_rabbit_and_names_its_version(#[values(V43, V40)] version: Version) {
    let management = version.management();
    let overview = management.overview().await.unwrap();
    assert_eq!(overview.facts.counts_deliveries_across_queues(), version == V43);
    assert_eq!(overview.facts.has_delayed_retry(), version == V43);
    for kind in ["direct", "fanout", "headers", "topic", "x-random"] {
        assert!(overview.facts.exchange_types.contains(kind), "{kind}");
    }
    assert!(!overview.statistics_disabled);
    let id = management.internal_cluster_id().await.unwrap();
    assert_eq!(id, management.internal_cluster_id().await.unwrap());
    assert!(id.is_some());
    assert!(management.alarms().await.unwrap().is_empty());
}

#[rstest]
#[tokio::test]
async fn a_snapshot_shows_configuration_at_once_and_typed(#[values(V43, V40)] version: Version) {
    in_vhost(version, "fresh", async |v| {
        v.exchange("x", "topic", [("alternate-exchange", "y".into())]).await;
        v.queue("q", QueueType::Quorum, [("x-message-ttl", 1_000.into())]).await;
        v.bind("x", "q", "a.#", [("n", 1.into()), ("s", "1".into()), ("b", true.into())]).await;
        v.policy("p", "^q\\z", ApplyTo::QuorumQueues, [("max-length", 5.into())]).await;
        let observed = v.management.snapshot(&v.name).await.unwrap();
        let queue = &observed.queues["q"];
        assert_eq!(queue.kind, QueueType::Quorum);
        assert_eq!(queue.arguments, args([("x-message-ttl", 1_000.into())]));
        assert_eq!(observed.exchanges["x"].arguments, args([("alternate-exchange", "y".into())]));
        assert!(!observed.exchanges.contains_key(""));
        assert_eq!(observed.bindings().len(), 1, "without the default exchange's");
        let binding = observed.bindings_to(&Destination::Queue("q".to_owned())).next().unwrap();
        assert_eq!(binding.arguments, args([("n", 1.into()), ("s", "1".into()), ("b", true.into())]));
        let policy = observed.policy("p").unwrap();
        assert_eq!((policy.pattern.as_str(), policy.priority), ("^q\\z", 10));
        assert_eq!(policy.apply_to, ApplyTo::QuorumQueues);
        assert_eq!(policy.definition["max-length"], Arg::Int(5));
        assert_eq!(observed.operator_policies, Some(vec![]));
    })
    .await;
}

/// API-01, API-04: 4.3 shows the policy in effect and what it says; 4.0 shows
/// its name, with totals only. The plain form shows it seconds later.
#[rstest]
#[tokio::test]
async fn without_statistics_the_policy_in_effect_shows_at_once(#[values(V43, V40)] version: Version) {
    in_vhost(version, "policy-field", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        v.policy("p", "^q\\z", ApplyTo::Queues, [("max-length", 5.into())]).await;
        let with_totals = "?disable_stats=true&enable_queue_totals=true";
        eventually("the policy shows", async || v.raw_queue("q", with_totals).await["policy"] == "p").await;
        let without = v.raw_queue("q", "?disable_stats=true").await;
        match version {
            V43 => {
                assert_eq!(without["policy"], "p");
                assert_eq!(without["effective_policy_definition"]["max-length"], 5);
            }
            V40 => assert!(without["policy"].is_null() && without["effective_policy_definition"].is_null()),
        }
    })
    .await;
}

/// One binding with arguments and a tilde in its key is created with a 500,
/// and no list that holds it can be read until it is gone.
#[rstest]
#[tokio::test]
async fn a_tilde_in_the_key_of_a_binding_with_arguments_breaks_the_list(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "tilde", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        let path = format!("/bindings/{}/e/amq.topic/q/q", encode(&v.name));
        let body = serde_json::json!({"routing_key": "a~b", "arguments": {"x": 1}});
        assert_eq!(v.raw("POST", &path, Some(body)).await.0, 500);
        let error = v.management.snapshot(&v.name).await.unwrap_err();
        assert!(matches!(error, BrokerError::Unlistable { .. }), "{error:?}");
        v.management.delete_queue(&v.name, "q").await.unwrap();
        v.management.snapshot(&v.name).await.unwrap();
    })
    .await;
}

/// A key that repeats must not stop the decoder (API-22).
#[rstest]
#[tokio::test]
async fn every_form_of_the_queue_list_is_decoded(#[values(V43, V40)] version: Version) {
    in_vhost(version, "forms", async |v| {
        v.queue("quorum", QueueType::Quorum, []).await;
        v.queue("classic", QueueType::Classic, []).await;
        let body = serde_json::json!({"durable": true, "auto_delete": false, "arguments": {"x-queue-type": "stream"}});
        assert_eq!(v.raw("PUT", &format!("/queues/{}/stream", encode(&v.name)), Some(body)).await.0, 201);
        let observed = v.management.snapshot(&v.name).await.unwrap();
        for (name, kind) in
            [("quorum", QueueType::Quorum), ("classic", QueueType::Classic), ("stream", QueueType::Stream)]
        {
            assert_eq!(observed.queues[name].kind, kind);
            assert!(observed.queues[name].durable);
        }
    })
    .await;
}

/// API-02: totals of classic queues are current, those of quorum queues as of
/// the last tick, and a passive declaration is exact.
#[rstest]
#[tokio::test]
async fn a_passive_count_is_exact_and_quorum_totals_lag_by_a_tick(#[values(V43, V40)] version: Version) {
    in_vhost(version, "lag", async |v| {
        for (name, kind) in [("classic", QueueType::Classic), ("quorum", QueueType::Quorum)] {
            v.queue(name, kind, []).await;
            for _ in 0..3 {
                assert_eq!(v.publish("", name).await, Published::Routed);
            }
            assert_eq!(v.ready(name).await, 3, "{name}");
        }
        let ready =
            async |name: &str| v.management.snapshot(&v.name).await.unwrap().queues[name].totals.ready;
        assert_eq!(ready("classic").await, Some(3));
        eventually("the totals follow", async || ready("quorum").await == Some(3)).await;
    })
    .await;
}

/// API-05: stuck dead letters are in no ready count, in `messages` of the
/// totals, and in `messages_dlx` of the statistics.
#[rstest]
#[tokio::test]
async fn a_stuck_dead_letter_is_seen(#[values(V43, V40)] version: Version) {
    in_vhost(version, "stuck", async |v| {
        v.safe_queue("q", "no-such-exchange", [("x-message-ttl", 50.into())]).await;
        for _ in 0..3 {
            v.publish("", "q").await;
        }
        v.wait_ready("q", 0).await;
        let totals = async || v.management.queue_totals(&v.name, "q").await.unwrap().unwrap();
        eventually("the totals show them", async || totals().await.waiting_dead_letters() == Some(3)).await;
        assert!(!totals().await.says_empty());
        assert_eq!(totals().await.totals.ready, Some(0));
        eventually("the statistics show them", async || totals().await.dead_lettering == Some(3)).await;
        let delayed = totals().await.delayed;
        assert_eq!(delayed, if version == V43 { Some(0) } else { None });
        assert_eq!(v.management.queue_totals(&v.name, "lost").await.unwrap(), None);
    })
    .await;
}

/// Messages in delayed retry are not ready, and count in `messages`.
#[tokio::test]
async fn a_delayed_message_is_seen() {
    in_vhost(V43, "delayed", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        let definition = [
            ("delayed-retry-type", "failed".into()),
            ("delayed-retry-min", 60_000.into()),
            ("delayed-retry-max", 60_000.into()),
        ];
        v.policy("p", "^q\\z", ApplyTo::QuorumQueues, definition).await;
        v.publish("", "q").await;
        requeue_by_reject(v.wait("q").await).await;
        assert_eq!(v.ready("q").await, 0);
        let totals = async || v.management.queue_totals(&v.name, "q").await.unwrap().unwrap();
        eventually("the totals show it", async || totals().await.totals.messages == Some(1)).await;
        assert!(!totals().await.says_empty());
        eventually("the statistics show it", async || totals().await.delayed == Some(1)).await;
        assert_eq!(totals().await.waiting_dead_letters(), Some(0));
    })
    .await;
}
