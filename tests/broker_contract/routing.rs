//! How dead letters find their way: headers exchanges, alternate exchanges,
//! internal exchanges, and what holds a message that has no way.

use redrive::topology::model::{Destination, QueueType};
use rstest::rstest;

use super::support::Version::{self, V40, V43};
use super::support::*;

const ALL: &str = "all-with-x";

/// The guarded chain of one tier, as topology.md draws it: dlx -> ladder ->
/// guard -> first -> rest. `q.return.0` is where the tier returns to.
async fn guarded_chain(v: &Vhost) {
    v.internal_exchange("q.dlx.rest", "fanout", []).await;
    v.internal_exchange("q.dlx.first", "headers", [("alternate-exchange", "q.dlx.rest".into())]).await;
    v.internal_exchange("q.dlx.guard", "headers", [("alternate-exchange", "q.dlx.first".into())]).await;
    v.internal_exchange("q.dlx.ladder", "headers", [("alternate-exchange", "q.dlx.guard".into())]).await;
    v.internal_exchange("q.dlx", "headers", [("alternate-exchange", "q.dlx.ladder".into())]).await;
    v.internal_exchange("q.return.0", "fanout", []).await;
    v.queue("q.dlq", QueueType::Quorum, [("x-delivery-limit", (-1).into())]).await;
    v.safe_queue(
        "q.retry.0",
        "q.return.0",
        [("x-message-ttl", 200.into()), ("x-delivery-limit", (-1).into())],
    )
    .await;
    v.safe_queue("q", "q.dlx", [("x-delivery-limit", 20.into())]).await;
    v.bind("q.return.0", "q", "", []).await;
    let returned = || {
        [
            ("x-match", ALL.into()),
            ("x-last-death-reason", "rejected".into()),
            ("x-last-death-exchange", "q.return.0".into()),
        ]
    };
    v.bind_exchange("q.dlx.guard", "q.dlx.rest", "", returned()).await;
    v.bind("q.dlx.ladder", "q.dlq", "", returned()).await;
    v.bind(
        "q.dlx.first",
        "q.retry.0",
        "",
        [("x-match", ALL.into()), ("x-last-death-reason", "rejected".into())],
    )
    .await;
}

#[rstest]
#[tokio::test]
async fn a_rejected_message_walks_the_guarded_chain_with_its_key(#[values(V43, V40)] version: Version) {
    in_vhost(version, "chain", async |v| {
        guarded_chain(&v).await;
        v.bind("q.dlx.rest", "q.dlq", "", []).await;
        v.exchange("orders", "topic", []).await;
        v.bind("orders", "q", "orders.#", []).await;
        assert_eq!(v.publish("orders", "orders.created").await, Published::Routed);
        v.reject("q").await;
        let again = v.wait("q").await;
        assert_eq!(again.routing_key.as_str(), "orders.created");
        assert_eq!(again.exchange.as_str(), "q.return.0");
        assert_eq!(header(&again, "x-last-death-reason").as_deref(), Some("expired"));
        requeue_false(again).await;
        let dead = v.wait("q.dlq").await;
        assert_eq!(dead.routing_key.as_str(), "orders.created");
        assert_eq!(header(&dead, "x-last-death-reason").as_deref(), Some("rejected"));
        assert_eq!(header(&dead, "x-last-death-exchange").as_deref(), Some("q.return.0"));
        assert_eq!(header(&dead, "x-first-death-exchange").as_deref(), Some("orders"));
    })
    .await;
}

async fn requeue_false(delivery: lapin::message::Delivery) {
    delivery.acker.reject(lapin::options::BasicRejectOptions { requeue: false }).await.unwrap();
}

#[rstest]
#[tokio::test]
async fn without_its_ladder_binding_a_returned_message_goes_by_the_guard_to_rest(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "guard", async |v| {
        guarded_chain(&v).await;
        v.bind("q.dlx.rest", "q.dlq", "", []).await;
        remove_ladder_binding(&v).await;
        v.publish("", "q").await;
        v.reject("q").await;
        v.reject("q").await;
        ack(v.wait("q.dlq").await).await;
        assert_eq!(v.ready("q.retry.0").await, 0);
    })
    .await;
}

async fn remove_ladder_binding(v: &Vhost) {
    let observed = v.management.snapshot(&v.name).await.unwrap();
    for binding in observed.bindings_from("q.dlx.ladder") {
        v.management.unbind(&v.name, binding).await.unwrap();
    }
}

/// The guard's binding leads to a fanout without a queue: that is a route, so
/// the guard's alternate is not taken, and with no queue at the end of any
/// route the message is unroutable and stays where it died.
#[rstest]
#[tokio::test]
async fn a_guard_whose_target_has_no_queue_holds_the_message_and_does_not_fall_through(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "hold", async |v| {
        guarded_chain(&v).await;
        remove_ladder_binding(&v).await;
        v.publish("", "q").await;
        v.reject("q").await;
        v.reject("q").await;
        // Falling through to first would bring it back every 200 ms.
        throughout(3.0, "held in the source", async || {
            v.ready("q").await == 0 && v.ready("q.retry.0").await == 0 && v.ready("q.dlq").await == 0
        })
        .await;
        eventually("the source counts it as waiting", async || {
            let totals = v.management.queue_totals(&v.name, "q").await.unwrap().unwrap();
            totals.waiting_dead_letters() == Some(1) && !totals.says_empty()
        })
        .await;
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_fanout_without_bindings_falls_to_its_alternate_and_with_one_it_does_not(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "fanout", async |v| {
        v.queue("main", QueueType::Quorum, []).await;
        v.queue("spare", QueueType::Quorum, []).await;
        v.exchange("spares", "fanout", []).await;
        v.exchange("f", "fanout", [("alternate-exchange", "spares".into())]).await;
        v.bind("spares", "spare", "", []).await;
        assert_eq!(v.publish("f", "k").await, Published::Routed);
        v.wait_ready("spare", 1).await;
        v.bind("f", "main", "", []).await;
        assert_eq!(v.publish("f", "k").await, Published::Routed);
        v.wait_ready("main", 1).await;
        assert_eq!(v.ready("spare").await, 1);
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn an_exchange_binding_that_leads_nowhere_counts_as_a_route(#[values(V43, V40)] version: Version) {
    in_vhost(version, "nowhere", async |v| {
        v.queue("spare", QueueType::Quorum, []).await;
        v.exchange("spares", "fanout", []).await;
        v.exchange("nowhere", "fanout", []).await;
        v.exchange("f", "fanout", [("alternate-exchange", "spares".into())]).await;
        v.bind("spares", "spare", "", []).await;
        v.bind_exchange("f", "nowhere", "", []).await;
        assert_eq!(v.publish("f", "k").await, Published::Unroutable);
        assert_eq!(v.ready("spare").await, 0);
        // Deleting the target takes the binding along, and opens the way.
        v.management.delete_exchange(&v.name, "nowhere", false).await.unwrap();
        assert_eq!(v.publish("f", "k").await, Published::Routed);
        v.wait_ready("spare", 1).await;
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_target_exchange_uses_its_own_alternate(#[values(V43, V40)] version: Version) {
    in_vhost(version, "alternate", async |v| {
        v.queue("spare", QueueType::Quorum, []).await;
        v.exchange("spares", "fanout", []).await;
        v.exchange("second", "headers", [("alternate-exchange", "spares".into())]).await;
        v.exchange("first", "fanout", []).await;
        v.bind("spares", "spare", "", []).await;
        v.bind_exchange("first", "second", "", []).await;
        assert_eq!(v.publish("first", "k").await, Published::Routed);
        v.wait_ready("spare", 1).await;
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_random_exchange_behind_another_spreads_and_falls_to_its_own_alternate(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "random", async |v| {
        v.exchange("spares", "fanout", []).await;
        v.queue("spare", QueueType::Quorum, []).await;
        v.bind("spares", "spare", "", []).await;
        v.internal_exchange("shards", "x-random", [("alternate-exchange", "spares".into())]).await;
        v.exchange("first", "fanout", []).await;
        v.bind_exchange("first", "shards", "", []).await;
        assert_eq!(v.publish("first", "k").await, Published::Routed);
        v.wait_ready("spare", 1).await;
        for shard in ["s0", "s1"] {
            v.queue(shard, QueueType::Quorum, []).await;
            v.bind("shards", shard, "", []).await;
        }
        for _ in 0..40 {
            assert_eq!(v.publish("first", "the same key").await, Published::Routed);
        }
        eventually("40 in the shards", async || v.ready("s0").await + v.ready("s1").await == 40).await;
        assert!(v.ready("s0").await > 0 && v.ready("s1").await > 0);
        assert_eq!(v.ready("spare").await, 1);
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn clients_cannot_publish_to_an_internal_exchange_but_dead_letters_can(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "internal", async |v| {
        v.internal_exchange("dlx", "fanout", []).await;
        v.queue("dlq", QueueType::Quorum, []).await;
        v.bind("dlx", "dlq", "", []).await;
        v.safe_queue("q", "dlx", []).await;
        v.publish("", "q").await;
        v.reject("q").await;
        v.wait_ready("dlq", 1).await;
        let path = format!("/exchanges/{}/dlx/publish", encode(&v.name));
        let body = serde_json::json!({"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"});
        let (status, text) = v.raw("POST", &path, Some(body)).await;
        assert!(status == 400 && text.contains("ACCESS_REFUSED"), "{status} {text}");
        let observed = v.management.snapshot(&v.name).await.unwrap();
        assert!(observed.exchanges["dlx"].internal);
        assert_eq!(observed.bindings_to(&Destination::Queue("dlq".to_owned())).count(), 1);
    })
    .await;
}

/// What a producer writes into these headers does not survive a death.
#[rstest]
#[tokio::test]
async fn the_broker_overwrites_forged_death_headers_before_it_routes(#[values(V43, V40)] version: Version) {
    in_vhost(version, "forged", async |v| {
        v.internal_exchange("dlx", "headers", []).await;
        v.queue("right", QueueType::Quorum, []).await;
        v.queue("wrong", QueueType::Quorum, []).await;
        v.bind(
            "dlx",
            "right",
            "",
            [
                ("x-match", ALL.into()),
                ("x-last-death-reason", "rejected".into()),
                ("x-last-death-exchange", "in".into()),
            ],
        )
        .await;
        v.bind("dlx", "wrong", "", [("x-match", ALL.into()), ("x-last-death-exchange", "forged".into())])
            .await;
        v.safe_queue("q", "dlx", []).await;
        v.exchange("in", "fanout", []).await;
        v.bind("in", "q", "", []).await;
        let mut headers = lapin::types::FieldTable::default();
        for name in ["x-last-death-exchange", "x-last-death-reason", "x-last-death-queue"] {
            headers.insert(name.into(), lapin::types::AMQPValue::LongString("forged".into()));
        }
        v.publish_with("in", "k", headers).await;
        v.reject("q").await;
        v.wait_ready("right", 1).await;
        assert_eq!(v.ready("wrong").await, 0);
    })
    .await;
}
