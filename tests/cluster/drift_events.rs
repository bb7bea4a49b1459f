//! Drift that the broker itself tells of: found long before any poll, with who did it.

use std::time::{Duration, Instant};

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::amqp::Wire;
use crate::support::broker::Broker;
use crate::support::eventually;
use crate::support::proxy::Action;
use crate::support::scene::{Scene, storm};
use crate::support::steadily;
use crate::support::world::{message, verdict};

fn spec() -> Value {
    json!({"source": {"deliveryLimit": 5}, "deadLetter": {"retention": "14d"}})
}

/// The policy of this role.
async fn policy(broker: &Broker, vhost: &str, role: &str) -> String {
    let names = broker.names("policies", vhost).await;
    names.into_iter().find(|name| name.ends_with(role)).unwrap()
}

#[rstest]
#[case("43")]
#[case("40")]
#[tokio::test]
async fn what_is_changed_by_hand_is_found_without_a_poll_with_who_did_it(#[case] version: &str) {
    let scene = Scene::settled(version, "ev-kinds", spec()).await;
    let (alice, vhost) = (scene.alice.clone(), scene.world.vhost.clone());
    alice.put(&["queues", &vhost, "spy"], json!({"durable": true})).await;

    alice.delete(&["queues", &vhost, "orders.queue.dlq"]).await;
    scene.repairs("queue orders.queue.dlq is missing").await;
    alice.delete(&["exchanges", &vhost, "orders.exchange"]).await;
    scene.repairs("exchange orders.exchange is missing").await;

    alice.unbind(&vhost, "orders.queue.return.0", "q", "orders.queue").await;
    scene.repairs("binding orders.queue.return.0 -> queue orders.queue is missing").await;
    alice.bind(&vhost, "orders.queue.return.1", "q", "spy", "").await;
    scene.repairs("binding orders.queue.return.1 -> queue spy").await;
    alice.unbind(&vhost, "redrive.owner", "q", "orders.queue.retry.0").await;
    scene.repairs("queue orders.queue.retry.0 has lost its owner marker").await;

    let dlq = policy(&alice, &vhost, ":dlq").await;
    let mut edited = alice.get(&["policies", &vhost, &dlq]).await;
    edited["definition"]["message-ttl"] = json!(1_000);
    alice.put(&["policies", &vhost, &dlq], edited).await;
    scene.repairs(":dlq is missing or was changed").await;
    alice.delete(&["policies", &vhost, &policy(&alice, &vhost, ":source").await]).await;
    scene.repairs(":source is missing or was changed").await;
    scene.leave().await;
}

/// The status of an edit is on its way, and the broker was looked at before the change.
#[rstest]
#[case("43")]
#[case("40")]
#[tokio::test]
async fn what_is_changed_while_a_status_is_written_is_found_when_that_is_done(#[case] version: &str) {
    let mut scene = Scene::settled(version, "ev-busy", spec()).await;
    scene.world.stop().await;
    scene.world.proxy_kubernetes().await;
    scene.world.start();
    scene.hears("orders").await;
    scene.is_quiet().await;
    scene.world.proxy.rule(|request| {
        let is_status = request.to_kubernetes && request.is_write() && request.path.contains("/status");
        if is_status { Action::Delay(Duration::from_secs(6)) } else { Action::Pass }
    });
    scene.world.edit("orders", json!({"deadLetter": {"parkingLot": true}})).await;
    let (vhost, looks) = (scene.world.vhost.clone(), scene.looks());
    eventually("the edit is carried out", async || {
        let is_there = scene.world.broker.exists("queues", &vhost, "orders.queue.dlq.parking").await;
        if is_there { Ok(()) } else { Err("no parking lot".to_owned()) }
    })
    .await;
    scene.alice.delete(&["queues", &vhost, "orders.queue.retry.0"]).await;
    eventually("the change is looked at while the status is on its way", async || {
        if scene.looks() > looks { Ok(()) } else { Err("nobody looks".to_owned()) }
    })
    .await;
    scene.world.proxy.heal();
    scene.repairs("queue orders.queue.retry.0 is missing").await;
    scene.leave().await;
}

#[rstest]
#[case("43")]
#[case("40")]
#[tokio::test]
async fn a_queue_that_is_declared_again_bare_is_bound_again_without_a_poll(#[case] version: &str) {
    let scene = Scene::settled(version, "ev-bare", json!({})).await;
    let (alice, vhost) = (scene.alice.clone(), scene.world.vhost.clone());
    let before = alice.bindings(&vhost).await;
    let arguments = alice.queue(&vhost, "orders.queue").await["arguments"].clone();
    alice.delete(&["queues", &vhost, "orders.queue"]).await;
    // Whoever is faster: its bindings come back, and it is said who did it.
    let body = json!({"durable": true, "arguments": arguments});
    alice.call(Method::PUT, &["queues", &vhost, "orders.queue"], body).await;
    scene.repairs("queue orders.queue ").await;
    let after = alice.bindings(&vhost).await;
    let unmarked = |bindings: &[String]| -> Vec<String> {
        bindings.iter().filter(|binding| !binding.contains("redrive.owner")).cloned().collect()
    };
    assert_eq!(unmarked(&after), unmarked(&before));
    scene.leave().await;
}

#[rstest]
#[case("43")]
#[case("40")]
#[tokio::test]
async fn policies_of_others_are_found_and_found_gone_without_a_poll(#[case] version: &str) {
    let scene = Scene::settled(version, "ev-policies", spec()).await;
    let (alice, vhost) = (scene.alice.clone(), scene.world.vhost.clone());
    let dangers = [
        ("policies", json!({"expires": 3_600_000}), "\"wildcard\" sets expires"),
        ("operator-policies", json!({"message-ttl": 1_000}), "operator policy \"wildcard\" sets message-ttl"),
    ];
    for (kind, definition, text) in dangers {
        let policy =
            json!({"pattern": "dlq", "definition": definition, "priority": 99, "apply-to": "queues"});
        alice.put(&[kind, &vhost, "wildcard"], policy).await;
        scene.finds(text, "; blocked").await;
        let pipeline = scene.world.until_reason("orders", "PolicyShadowed").await;
        assert_eq!(verdict(&pipeline, "Drifted"), "True PolicyShadowed");
        alice.delete(&[kind, &vhost, "wildcard"]).await;
        scene.world.ready("orders").await;
    }
    scene.leave().await;
}

#[tokio::test]
async fn what_the_operator_writes_itself_leads_to_no_look() {
    let scene = Scene::settled("43", "ev-own", spec()).await;
    let before = scene.looks();
    scene.world.create(scene.world.on_cluster(&scene.owner, "stock", spec())).await;
    scene.hears("stock").await;
    scene.is_quiet().await;
    // The one before it was declared; a write that met a conflict takes another. Its own writes are
    // more than twenty changes.
    assert!((1..=3).contains(&(scene.looks() - before)), "{}", scene.looks() - before);
    assert_eq!(scene.world.get("orders").await.status.unwrap().drift, None);

    // With a repair it is the look that the change leads to, and the one before the repair.
    let before = scene.looks();
    scene.alice.delete(&["queues", &scene.world.vhost, "orders.queue.dlq"]).await;
    scene.repairs("queue orders.queue.dlq is missing").await;
    scene.is_quiet().await;
    assert!((2..=6).contains(&(scene.looks() - before)), "{}", scene.looks() - before);

    let before = scene.looks();
    scene.world.edit("stock", json!({"deletionPolicy": "Delete"})).await;
    scene.world.ready("stock").await;
    scene.world.delete("stock").await;
    scene.world.until_gone("stock").await;
    scene.is_quiet().await;
    assert!(scene.looks() - before <= 8, "{} looks for a deletion", scene.looks() - before);
    scene.leave().await;
}

#[tokio::test]
async fn what_concerns_no_pipeline_leads_to_no_look() {
    let scene = Scene::settled("43", "ev-others", json!({})).await;
    let (alice, vhost) = (scene.alice.clone(), scene.world.vhost.clone());
    let before = scene.looks();
    for number in 0..20 {
        let (queue, exchange) = (format!("other.{number}"), format!("other.exchange.{number}"));
        alice.put(&["queues", &vhost, &queue], json!({"durable": true})).await;
        alice.put(&["exchanges", &vhost, &exchange], json!({"type": "topic"})).await;
        alice.bind(&vhost, &exchange, "q", &queue, "k").await;
        // Others subscribe to the pipeline's exchange as well.
        alice.bind(&vhost, "orders.exchange", "q", &queue, "k").await;
        alice.delete(&["queues", &vhost, &queue]).await;
        alice.delete(&["exchanges", &vhost, &exchange]).await;
    }
    // In another vhost it may even have the same name.
    let other = format!("{vhost}-other");
    alice.create_vhost(&other).await;
    alice.put(&["queues", &other, "orders.queue"], json!({"durable": true})).await;
    alice.delete(&["vhosts", &other]).await;
    assert!(scene.looks() <= before + 2, "{} looks for 120 changes", scene.looks() - before);
    // All of that was told before this is.
    alice.delete(&["queues", &vhost, "orders.queue.dlq"]).await;
    scene.repairs("queue orders.queue.dlq is missing").await;
    scene.is_quiet().await;
    assert!((2..=8).contains(&(scene.looks() - before)), "{}", scene.looks() - before);
    scene.leave().await;
}

/// Each of them concerns the pipeline, and none of them changes anything.
#[tokio::test]
async fn a_storm_of_10_000_changes_makes_few_looks_and_a_last_one() {
    let mut scene = Scene::settled("43", "ev-storm", json!({})).await;
    scene.calm = None;
    let _turn = storm().await;
    let before = scene.looks();
    let wire = Wire::open(&scene.world).await;
    let began = Instant::now();
    wire.bind_again("orders.exchange", "orders.queue", "created", 10_000).await;
    scene.alice.delete(&["queues", &scene.world.vhost, "orders.queue.dlq"]).await;
    scene.world.until_event("orders", "queue orders.queue.dlq is missing").await;
    scene.world.ready("orders").await;
    scene.is_quiet().await;
    let (looks, seconds) = (scene.looks() - before, began.elapsed().as_secs());
    // One a second at the most, and the repair's own.
    assert!(looks <= usize::try_from(seconds).unwrap() + 3, "{looks} looks in {seconds} s");
    assert!(looks >= 2, "{looks}");
    let mut writes = scene.world.proxy.writes();
    writes.retain(|request| request.at > began && !request.path.contains("orders.queue.dlq"));
    assert!(writes.is_empty(), "nothing but what is gone is written: {writes:#?}");
    scene.leave().await;
}

/// Report tells and repairs nothing, at once as well.
#[tokio::test]
async fn report_tells_at_once_and_writes_nothing() {
    let scene = Scene::settled("43", "ev-report", json!({"driftPolicy": "Report"})).await;
    scene.world.proxy.forget();
    scene.alice.delete(&["queues", &scene.world.vhost, "orders.queue.dlq"]).await;
    scene.finds("queue orders.queue.dlq is missing", "; left as it is").await;
    let pipeline = scene.world.until_reason("orders", "DriftFound").await;
    assert!(
        message(&pipeline, "Ready").contains("queue orders.queue.dlq"),
        "{}",
        message(&pipeline, "Ready")
    );
    steadily("nothing is written", Duration::from_secs(2), async || {
        let writes = scene.world.proxy.writes();
        if writes.is_empty() { Ok(()) } else { Err(format!("{writes:#?}")) }
    })
    .await;
    scene.leave().await;
}
