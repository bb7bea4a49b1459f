//! Brokers, Secrets and users that are not as they should be.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use crate::support::broker::Broker;
use crate::support::proxy::{Action, Proxy};
use crate::support::world::{POLL, World, condition, describe, inventory, is_ready, message, verdict};

#[tokio::test]
async fn a_broker_that_is_down_at_the_start_is_found_when_it_comes() {
    let mut world = World::new("start").await;
    world.proxy.rule(|_| Action::Cut);
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "BrokerUnreachable").await;
    assert_eq!(verdict(&pipeline, "Stalled"), "False Progressing");
    assert_eq!(verdict(&pipeline, "Reconciling"), "True BrokerUnreachable");
    assert_eq!(pipeline.status.as_ref().unwrap().observed_generation, None);
    world.proxy.heal();
    world.ready("orders").await;
    world.leave().await;
}

/// Breaks the connections off after nine writes, and then they hold again.
async fn check_broken_off(purpose: &str, ninth: Action) {
    let mut world = World::new(purpose).await;
    world.proxy.rule(move |request| match request.writes_before {
        8 if request.is_write() => ninth.clone(),
        9.. => Action::Cut,
        _ => Action::Pass,
    });
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "BrokerUnreachable").await;
    assert!(!inventory(&pipeline, "Intended").is_empty(), "{}", describe(&pipeline));
    world.proxy.heal();
    let pipeline = world.ready("orders").await;
    assert!(pipeline.status.unwrap().drift.is_none(), "a first declaration is no drift");
    world.leave().await;
}

#[tokio::test]
async fn an_apply_that_breaks_off_in_the_middle_goes_on_later() {
    check_broken_off("middle", Action::Cut).await;
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_found_done() {
    check_broken_off("answer", Action::CutAnswer).await;
}

#[tokio::test]
async fn a_wrong_password_is_told_apart_and_its_correction_is_found() {
    let mut world = World::new("password").await;
    let mut secret = world.secret();
    secret.insert("password", "wrong".to_owned());
    world.write_secret(&secret).await;
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "Unauthorized").await;
    assert_eq!(verdict(&pipeline, "Stalled"), "True Unauthorized");
    assert!(!message(&pipeline, "Ready").contains("wrong"), "no secret in a status");
    world.write_secret(&world.secret()).await;
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn a_rotated_password_costs_one_refusal() {
    let mut world = World::new("rotated").await;
    world.settings.poll_interval = Duration::from_secs(3_600);
    world.as_user("first", "policymaker", ".*").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    world.as_user("second", "policymaker", ".*").await;
    world.edit("orders", json!({"source": {"deliveryLimit": 3}})).await;
    world.ready("orders").await;
    let seen = world.proxy.seen();
    assert!(seen.iter().any(|request| request.answer == Some(401)), "the old password was refused once");
    world.assert_no_event("orders", "Unauthorized").await;
    world.leave().await;
}

#[tokio::test]
async fn a_secret_or_key_that_is_missing_is_named_until_it_is_there() {
    let mut world = World::new("secret").await;
    world.delete_secret().await;
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "SecretNotFound").await;
    assert!(
        message(&pipeline, "Ready").contains("\"rabbit-connection\" does not exist"),
        "{}",
        describe(&pipeline)
    );
    let mut secret = world.secret();
    secret.remove("password");
    world.write_secret(&secret).await;
    world
        .until("orders", "names the key", |pipeline| {
            verdict(pipeline, "Ready") == "False SecretNotFound"
                && message(pipeline, "Ready").contains("password")
        })
        .await;
    world.write_secret(&world.secret()).await;
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn a_vhost_that_is_missing_is_waited_for_and_never_made() {
    let mut world = World::new("vhost").await;
    world.broker.delete(&["vhosts", &world.vhost]).await;
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "VhostNotFound").await;
    assert_eq!(verdict(&pipeline, "Stalled"), "True VhostNotFound");
    assert!(world.proxy.writes().is_empty());
    world.broker.create_vhost(&world.vhost).await;
    world.let_in(&world.broker).await;
    world.ready("orders").await;
    // Lost with all that was in it, it is not made again either.
    world.broker.delete(&["vhosts", &world.vhost]).await;
    world.until_reason("orders", "VhostNotFound").await;
    let (status, _) = world.broker.call(Method::GET, &["vhosts", &world.vhost], json!(null)).await;
    assert_eq!(status, 404);
    world.broker.create_vhost(&world.vhost).await;
    world.let_in(&world.broker).await;
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn a_user_without_policymaker_is_forbidden_before_anything_is_written() {
    let mut world = World::new("tags").await;
    world.as_user("pass", "management", ".*").await;
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "Forbidden").await;
    assert!(message(&pipeline, "Ready").contains(&world.namespace), "{}", describe(&pipeline));
    assert_eq!(verdict(&pipeline, "Stalled"), "True Forbidden");
    assert!(world.proxy.writes().is_empty(), "{:#?}", world.proxy.writes());
    world.broker.create_user(&world.namespace, "pass", "policymaker").await;
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn a_name_that_the_user_may_not_configure_is_named() {
    let mut world = World::new("rights").await;
    // All but one of the derived names.
    let most = "^(redrive|orders\\.(exchange|queue($|\\.dl|\\.return|\\.retry\\.0)))";
    world.as_user("pass", "policymaker", most).await;
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "Forbidden").await;
    assert!(
        message(&pipeline, "Ready").contains("queue \"orders.queue.retry.1\""),
        "{}",
        describe(&pipeline)
    );
    assert!(!world.broker.exists("queues", &world.vhost, "orders.queue").await, "the source comes last");
    world.broker.grant(&world.vhost, &world.namespace, ".*").await;
    let pipeline = world.ready("orders").await;
    assert!(pipeline.status.unwrap().drift.is_none());
    world.leave().await;
}

#[tokio::test]
async fn a_broker_that_never_answers_costs_its_own_pipelines_only() {
    let mut world = World::new("silence").await;
    let silent = Proxy::start(&world.broker.address).await;
    silent.rule(|_| Action::Silence);
    let mut secret = world.secret();
    secret.insert("uri", format!("http://{}", silent.address));
    world.write_secret(&secret).await;
    world.start();
    let started = Instant::now();
    world.create(world.manifest("slow", json!({}))).await;
    // One more Secret, for the broker that answers.
    let second = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "second"}, "stringData": world.secret(),
    });
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> =
        kube::Api::namespaced(world.client.clone(), &world.namespace);
    secrets.create(&Default::default(), &serde_json::from_value(second).unwrap()).await.unwrap();
    world.create_ready("fast", json!({"broker": {"secretRef": {"name": "second"}}})).await;
    let slow = world.get("slow").await;
    // Only on a machine on which that took longer than the broker is waited for.
    if verdict(&slow, "Ready") != "- -" {
        assert!(started.elapsed() > Duration::from_secs(29), "its lane waits: {}", describe(&slow));
    }
    world.until_reason("slow", "Timeout").await;
    assert!(silent.seen().len() <= 2, "it is not asked again and again: {:#?}", silent.seen());
    world.broker.delete(&["queues", &world.vhost, "fast.queue.dlq"]).await;
    world.until_event("fast", "queue fast.queue.dlq is missing").await;
    let took = world.stop().await;
    assert!(took < Duration::from_secs(29), "{took:?}");
    world.leave().await;
}

#[tokio::test]
async fn something_that_is_no_rabbitmq_is_not_believed() {
    let html = "<html><h1>Welcome</h1><p>the secret is xyzzy</p></html>";
    let answers: [(&str, Action); 5] = [
        ("UnsupportedBroker", Action::Answer(200, "Content-Type: text/html", html)),
        ("UnsupportedBroker", Action::Answer(302, "Location: http://127.0.0.1:1/", "")),
        ("UnsupportedBroker", Action::Answer(401, "WWW-Authenticate: Basic", html)),
        (
            "UnsupportedBroker",
            Action::Answer(200, "Content-Type: application/json", "{\"secret\": \"xyzzy\"}"),
        ),
        ("BrokerUnreachable", Action::Answer(500, "Content-Type: text/html", html)),
    ];
    let mut world = World::new("foreign").await;
    world.proxy.rule(|_| Action::Cut);
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    world.until_reason("orders", "BrokerUnreachable").await;
    for (reason, answer) in answers {
        let with = answer.clone();
        world.proxy.rule(move |_| with.clone());
        world.proxy.forget();
        world
            .until("orders", &format!("{answer:?}"), |pipeline| {
                let text = message(pipeline, "Ready");
                assert!(
                    !text.contains("xyzzy") && !text.contains("Welcome"),
                    "foreign words in a status: {text}"
                );
                let seen = !world.proxy.seen().is_empty();
                seen && condition(pipeline, "Ready")["reason"] == reason && !text.contains("can't be reached")
            })
            .await;
        assert!(world.proxy.writes().is_empty());
    }
    world.proxy.heal();
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn another_broker_behind_the_same_secret_is_not_written_to() {
    let mut world = World::new("swapped").await;
    let other = Broker::of("40");
    other.create_vhost(&world.vhost).await;
    world.let_in(&other).await;
    world.start();
    world.create_ready("orders", json!({})).await;
    world.proxy.forget();
    world.proxy.lead_to(&other.address);
    let pipeline = world.until_reason("orders", "BrokerChanged").await;
    assert_eq!(verdict(&pipeline, "Stalled"), "True BrokerChanged");
    world.writes_nothing("nothing is written to another broker", POLL * 3).await;
    assert!(other.names("queues", &world.vhost).await.is_empty());
    // A deletion does not take the other broker's objects for ours either.
    world.edit("orders", json!({"deletionPolicy": "Delete"})).await;
    world.proxy.lead_to(&world.broker.address);
    world.ready("orders").await;
    other.delete(&["vhosts", &world.vhost]).await;
    other.delete(&["users", &world.namespace]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_queue_with_other_arguments_is_named_and_left_alone_while_all_else_is_made() {
    let mut world = World::new("mismatch").await;
    let body = json!({"durable": true, "arguments": {"x-queue-type": "quorum", "x-message-ttl": 7}});
    world.broker.put(&["queues", &world.vhost, "orders.queue.retry.1"], body).await;
    let before = world.broker.queue(&world.vhost, "orders.queue.retry.1").await["arguments"].clone();
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "ArgumentMismatch").await;
    let text = message(&pipeline, "Ready");
    for part in ["queue orders.queue.retry.1", "x-message-ttl is 7 where 2000 is wanted"] {
        assert!(text.contains(part), "{text}");
    }
    let queues = world.broker.names("queues", &world.vhost).await;
    assert_eq!(queues, ["orders.queue", "orders.queue.dlq", "orders.queue.retry.0", "orders.queue.retry.1"]);
    assert_eq!(world.broker.queue(&world.vhost, "orders.queue.retry.1").await["arguments"], before);
    let bindings = world.broker.bindings(&world.vhost).await;
    assert!(!bindings.iter().any(|binding| binding.contains("-> orders.queue.retry.1 ")), "{bindings:#?}");
    let feeds = |binding: &String| binding.starts_with("binding orders.exchange -> orders.queue");
    assert!(!bindings.iter().any(feeds), "nothing flows into a pipeline that is not whole");
    world.broker.delete(&["queues", &world.vhost, "orders.queue.retry.1"]).await;
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn the_queue_limit_of_the_vhost_is_told_and_nothing_flows() {
    let mut world = World::new("limit").await;
    world.broker.put(&["vhost-limits", &world.vhost, "max-queues"], json!({"value": 2})).await;
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    let pipeline = world.until_reason("orders", "Blocked").await;
    assert!(message(&pipeline, "Ready").contains("limit"), "{}", describe(&pipeline));
    assert!(!world.broker.exists("queues", &world.vhost, "orders.queue").await, "the source comes last");
    world.broker.delete(&["vhost-limits", &world.vhost, "max-queues"]).await;
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn a_suspended_pipeline_is_left_alone() {
    let mut world = World::new("suspend").await;
    world.start();
    world.create(world.manifest("first", json!({"suspend": true}))).await;
    let pipeline = world
        .until("first", "is suspended", |pipeline| verdict(pipeline, "Suspended") == "True Suspended")
        .await;
    assert_eq!(verdict(&pipeline, "Ready"), "Unknown Suspended", "conditions are set on first sight");
    assert!(world.proxy.seen().is_empty());
    world.create_ready("orders", json!({})).await;
    world.edit("orders", json!({"suspend": true})).await;
    let pipeline = world
        .until("orders", "is suspended", |pipeline| verdict(pipeline, "Suspended") == "True Suspended")
        .await;
    assert_eq!(verdict(&pipeline, "Ready"), "True Reconciled", "Ready stays as it was");
    world.proxy.forget();
    world.broker.delete(&["queues", &world.vhost, "orders.queue.dlq"]).await;
    world.writes_nothing("nothing is touched", POLL * 4).await;
    world.edit("orders", json!({"suspend": false})).await;
    world.ready("orders").await;
    assert!(world.broker.exists("queues", &world.vhost, "orders.queue.dlq").await);
    let pipeline = world.get("orders").await;
    assert_eq!(verdict(&pipeline, "Suspended"), "False Reconciled");
    world.leave().await;
}

#[tokio::test]
async fn the_operator_says_what_it_was_not_told_to_do() {
    // Mode Native needs 4.3.1.
    let mut world = World::on("40", "unsupported").await;
    world.start();
    let native =
        json!({"mode": "Native", "delays": null, "native": {"min": "1s", "max": "5s", "attempts": 3}});
    world.create(world.manifest("orders", json!({"retry": native}))).await;
    let pipeline = world.until_reason("orders", "UnsupportedBroker").await;
    assert!(message(&pipeline, "Ready").contains("4.3.1"), "{}", describe(&pipeline));
    assert!(world.proxy.writes().is_empty());
    // An External source that nobody has declared.
    let external = json!({"source": {"ownership": "External", "exchange": null, "bindings": null}});
    let mut manifest = world.manifest("shipping", external);
    let source = manifest["spec"]["source"].as_object_mut().unwrap();
    source.retain(|_, value| !value.is_null());
    world.create(manifest).await;
    let pipeline = world.until_reason("shipping", "Blocked").await;
    assert!(message(&pipeline, "Ready").contains("must declare"), "{}", describe(&pipeline));
    assert!(world.broker.names("queues", &world.vhost).await.is_empty());
    let body = json!({"durable": true, "arguments": {"x-queue-type": "quorum"}});
    world.broker.put(&["queues", &world.vhost, "shipping.queue"], body).await;
    world.ready("shipping").await;
    let policies = world.broker.get(&["policies", &world.vhost]).await;
    assert_eq!(policies[0]["definition"]["dead-letter-exchange"], "shipping.queue.dlx", "{policies}");
    assert!(is_ready(&world.get("shipping").await));
    world.leave().await;
}
