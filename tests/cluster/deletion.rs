//! The end of a pipeline: never stuck, never a message lost unasked.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::DeleteParams;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::proxy::{Action, Request};
use crate::support::world::{World, condition, describe, message, verdict};

pub(crate) async fn queue_names(world: &World) -> Vec<String> {
    world.broker.names("queues", &world.vhost).await
}

/// What stays of a pipeline that was deleted whole: the exchange that all markers hang on.
pub(crate) async fn nothing_is_left(world: &World) {
    let left = world.broker.contents(&world.vhost).await;
    assert!(left.iter().all(|line| line.starts_with("exchange redrive.owner ")), "{left:#?}");
}

pub(crate) fn deletion(policy: &str) -> Value {
    json!({"deletionPolicy": policy, "retry": {"delays": ["1s", "2s"]}, "source": {"deliveryLimit": 5}})
}

#[tokio::test]
async fn delete_removes_everything_with_its_messages() {
    let mut world = World::new("delete").await;
    world.start();
    let pipeline = world.create_ready("orders", deletion("Delete")).await;
    assert_eq!(pipeline.metadata.finalizers.as_deref(), Some(&["redrive.dev/cleanup".to_owned()][..]));
    world.broker.fill(&world.vhost, "orders.queue.dlq", 3).await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.assert_no_event("orders", "Orphaned").await;
    world.leave().await;
}

#[tokio::test]
async fn delete_if_empty_waits_for_messages_with_the_bindings_in_place() {
    let mut world = World::new("ifempty").await;
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    let contents = world.broker.contents(&world.vhost).await;
    world.broker.fill(&world.vhost, "orders.queue.dlq", 2).await;
    world.delete("orders").await;
    // The broker's totals, which are late, may show one of them first.
    let pipeline = world
        .until("orders", "waits for two", |pipeline| {
            message(pipeline, "Ready").contains("orders.queue.dlq holds 2 messages")
        })
        .await;
    assert_eq!(verdict(&pipeline, "Ready"), "False QueueNotEmpty");
    assert_eq!(verdict(&pipeline, "Reconciling"), "True QueueNotEmpty");
    assert_eq!(verdict(&pipeline, "Stalled"), "False QueueNotEmpty");
    assert_eq!(world.broker.contents(&world.vhost).await, contents);

    // A message that arrives while the inflow is cut puts it back.
    world.broker.purge(&world.vhost, "orders.queue.dlq").await;
    let is_cut = async || {
        let bindings = world.broker.bindings(&world.vhost).await;
        !bindings.iter().any(|binding| binding.starts_with("binding orders.exchange -> orders.queue"))
    };
    eventually("the inflow is cut", async || if is_cut().await { Ok(()) } else { Err("not yet".to_owned()) })
        .await;
    world.broker.fill(&world.vhost, "orders.queue", 1).await;
    world.until_reason_of_deletion("QueueNotEmpty").await;
    assert_eq!(world.broker.contents(&world.vhost).await, contents, "the bindings are back");

    world.broker.purge(&world.vhost, "orders.queue").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn an_empty_pipeline_goes_and_says_how_far_it_is() {
    let mut world = World::new("empty").await;
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    let started = Instant::now();
    world.delete("orders").await;
    let pipeline = world
        .until("orders", "is under way", |pipeline| verdict(pipeline, "Ready") == "False Progressing")
        .await;
    assert_eq!(verdict(&pipeline, "Reconciling"), "True Progressing", "{}", describe(&pipeline));
    assert!(message(&pipeline, "Ready").contains("is being deleted"), "{}", describe(&pipeline));
    assert_eq!(condition(&pipeline, "Ready")["observedGeneration"], json!(pipeline.metadata.generation));
    world.until_gone("orders").await;
    // Proven empty twice, ten seconds apart, before and after the longest delay.
    assert!(started.elapsed() >= Duration::from_secs(22), "{:?}", started.elapsed());
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn a_deletion_that_was_interrupted_proves_again_before_it_goes_on() {
    let mut world = World::new("interrupted").await;
    world.settings.release_after = Duration::from_secs(600);
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    world.delete("orders").await;
    // The broker fails in the middle of the deleting.
    world.proxy.rule(|request| {
        let deletes = request.method == Method::DELETE && request.path.contains("/queues/");
        if deletes { Action::Cut } else { Action::Pass }
    });
    let deletes = |request: &Request| request.method == Method::DELETE && request.path.contains("/queues/");
    eventually("it begins to delete", async || {
        let writes = world.proxy.writes();
        if writes.iter().any(deletes) { Ok(()) } else { Err(format!("{writes:#?}")) }
    })
    .await;
    world.stop().await;
    world.broker.fill(&world.vhost, "orders.queue.dlq", 1).await;
    world.proxy.heal();
    world.start();
    let pipeline = world.until_reason_of_deletion("QueueNotEmpty").await;
    assert!(message(&pipeline, "Ready").contains("orders.queue.dlq holds 1"), "{}", describe(&pipeline));
    assert!(queue_names(&world).await.contains(&"orders.queue.dlq".to_owned()));
    world.patch("orders", json!({"metadata": {"annotations": {"redrive.dev/release": "true"}}})).await;
    world.until_gone("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn a_change_to_delete_ends_the_waiting() {
    let mut world = World::new("todelete").await;
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    world.broker.fill(&world.vhost, "orders.queue", 1).await;
    world.delete("orders").await;
    world.until_reason_of_deletion("QueueNotEmpty").await;
    world.edit("orders", json!({"deletionPolicy": "Delete"})).await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn a_secret_that_is_deleted_first_does_not_stop_the_cleanup() {
    let mut world = World::new("nosecret").await;
    world.start();
    world.create_ready("orders", deletion("Delete")).await;
    world.delete_secret().await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn without_the_secret_and_its_memory_a_deletion_ends_after_a_while() {
    let mut world = World::new("forgotten").await;
    world.settings.release_after = Duration::from_secs(20);
    world.start();
    world.create_ready("orders", deletion("Delete")).await;
    world.stop().await;
    world.delete_secret().await;
    world.delete("orders").await;
    world.start();
    world.until_reason_of_deletion("SecretNotFound").await;
    world.until_gone("orders").await;
    let event = world.until_event("orders", "Orphaned").await;
    assert!(
        event.starts_with("Warning Orphaned: the Secret") && event.contains("queue orders.queue"),
        "{event}"
    );
    assert!(queue_names(&world).await.contains(&"orders.queue".to_owned()));
    world.leave().await;
}

#[tokio::test]
async fn a_whole_namespace_goes_with_what_is_on_the_broker() {
    let mut world = World::new("namespace").await;
    world.start();
    world.create_ready("orders", deletion("Delete")).await;
    let namespaces = Api::<Namespace>::all(world.client.clone());
    namespaces.delete(&world.namespace, &DeleteParams::default()).await.unwrap();
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn a_vhost_that_is_deleted_first_leaves_nothing_to_do() {
    let mut world = World::new("novhost").await;
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    world.create_ready("carts", deletion("Delete")).await;
    world.broker.delete(&["vhosts", &world.vhost]).await;
    world.delete("orders").await;
    world.delete("carts").await;
    world.until_gone("orders").await;
    world.until_gone("carts").await;
    world.assert_no_event("orders", "Orphaned").await;
    world.leave().await;
}

#[tokio::test]
async fn a_broker_that_is_down_is_waited_for_and_then_let_go() {
    let mut world = World::new("down").await;
    world.settings.release_after = Duration::from_secs(15);
    world.start();
    world.create_ready("orders", deletion("Delete")).await;
    world.proxy.rule(|_| Action::Cut);
    let started = Instant::now();
    world.delete("orders").await;
    let pipeline = world.until_reason_of_deletion("BrokerUnreachable").await;
    assert_eq!(verdict(&pipeline, "Reconciling"), "True BrokerUnreachable");
    world.until_gone("orders").await;
    assert!(started.elapsed() >= Duration::from_secs(14), "{:?}", started.elapsed());
    let event = world.until_event("orders", "Orphaned").await;
    assert!(event.starts_with("Warning") && event.contains("queue orders.queue.retry.0"), "{event}");
    world.leave().await;
}

#[tokio::test]
async fn a_broker_that_comes_back_in_time_is_cleaned_up() {
    let mut world = World::new("back").await;
    world.settings.release_after = Duration::from_secs(600);
    world.start();
    world.create_ready("orders", deletion("Delete")).await;
    world.proxy.rule(|_| Action::Answer(500, "Content-Type: text/html", "<html>oops</html>"));
    world.delete("orders").await;
    world.until_reason_of_deletion("BrokerUnreachable").await;
    world.proxy.heal();
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn created_and_deleted_at_once_leaves_nothing() {
    let mut world = World::new("atonce").await;
    world.start();
    for number in 0..50 {
        let name = format!("orders-{number}");
        world.create(world.manifest(&name, deletion("Delete"))).await;
        // Each at another moment of the declaration.
        tokio::time::sleep(Duration::from_millis(number * 7 % 120)).await;
        world.delete(&name).await;
    }
    for number in 0..50 {
        world.until_gone(&format!("orders-{number}")).await;
    }
    let left = world.broker.names("exchanges", &world.vhost).await;
    for name in left.iter().filter(|name| *name != "redrive.owner") {
        let of_it = name.split('.').next().unwrap_or_default();
        let writes = world.proxy.writes().into_iter().filter(|write| write.path.contains(of_it));
        writes.for_each(|write| println!("{} {} {:?}", write.method, write.path, write.answer));
    }
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn a_specification_that_does_not_hold_can_still_be_deleted() {
    let mut world = World::new("invalid").await;
    world.start();
    world.create_ready("orders", deletion("Delete")).await;
    // The exchange called "orders.queue.dlx" would stand for two things.
    world.edit("orders", json!({"source": {"exchange": {"name": "orders.queue.dlx"}}})).await;
    world.until_reason("orders", "InvalidSpec").await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn a_suspended_pipeline_can_still_be_deleted() {
    let mut world = World::new("suspended").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    world.edit("orders", json!({"suspend": true})).await;
    world
        .until("orders", "is suspended", |pipeline| verdict(pipeline, "Suspended") == "True Suspended")
        .await;
    world.edit("orders", json!({"deletionPolicy": "Delete"})).await;
    world.until("orders", "has its finalizer", |pipeline| pipeline.metadata.finalizers.is_some()).await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test]
async fn what_was_removed_by_hand_is_no_obstacle() {
    let mut world = World::new("byhand").await;
    world.start();
    world.create_ready("orders", deletion("Delete")).await;
    world.stop().await;
    for queue in queue_names(&world).await {
        world.broker.delete(&["queues", &world.vhost, &queue]).await;
    }
    for exchange in ["orders.queue.dlx", "orders.exchange", "redrive.owner"] {
        world.broker.delete(&["exchanges", &world.vhost, exchange]).await;
    }
    world.delete("orders").await;
    world.start();
    world.until_gone("orders").await;
    assert!(queue_names(&world).await.is_empty());
    world.leave().await;
}

#[tokio::test]
async fn a_deletion_that_has_waited_long_survives_a_short_failure_of_the_broker() {
    let mut world = World::new("patient").await;
    world.settings.release_after = Duration::from_secs(20);
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    world.broker.fill(&world.vhost, "orders.queue.dlq", 1).await;
    world.delete("orders").await;
    world.until_reason_of_deletion("QueueNotEmpty").await;
    // Longer than it would wait for a broker.
    tokio::time::sleep(world.settings.release_after + Duration::from_secs(1)).await;
    world.proxy.rule(|_| Action::Cut);
    world.until_reason_of_deletion("BrokerUnreachable").await;
    world.proxy.heal();
    world.until_reason_of_deletion("QueueNotEmpty").await;
    world.broker.purge(&world.vhost, "orders.queue.dlq").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}
