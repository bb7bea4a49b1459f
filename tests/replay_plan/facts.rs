//! What is observed before a replay, and what speaks against it.

use std::time::Duration;

use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use redrive::broker::replay::preflight::{Look, Touched};
use redrive::replay::death;
use redrive::replay::plan::facts::{Facts, Kind};
use redrive::replay::plan::preflight::{Asked, Finding, Severity, findings};
use redrive::replay::run::{Canary, Guard, Target};
use redrive::topology::model::{ApplyTo, QueueType};
use rstest::rstest;

use super::reading::{examine, fill, readable};
use super::support::Version::{self, V40, V43};
use super::support::*;

pub(crate) fn guard_settings() -> Guard {
    Guard {
        stop_on_return_percent: 20,
        sample: 50,
        min_returns: 10,
        canary: Canary { messages: 5, after: Duration::from_secs(300), tries: 3 },
        pause_above_target_depth: None,
        require_consumers: false,
        max_unroutable: 1,
    }
}

pub(crate) async fn observe(v: &Vhost, origin: &str, target: &Target) -> Facts {
    let endpoint = v.version.endpoint();
    let broker = v.management.overview().await.unwrap().facts;
    let look =
        Look { management: &v.management, connection: &v.connection, endpoint: &endpoint, vhost: &v.name };
    look.facts(&broker, Touched { origin, target, limit_queue: None }).await.unwrap()
}

/// The errors and warnings, as names of checks.
async fn found(v: &Vhost, target: &Target) -> Vec<&'static str> {
    all_findings(v, target).await.iter().map(|found| found.check).collect()
}

/// That there is this finding, with a sentence that holds all of this.
async fn says(v: &Vhost, target: &Target, check: &str, parts: &[&str]) {
    let findings = all_findings(v, target).await;
    let found = findings.iter().find(|found| found.check == check);
    let text = &found.unwrap_or_else(|| panic!("{check} in {findings:?}")).message;
    for part in parts {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

/// The errors and warnings.
async fn all_findings(v: &Vhost, target: &Target) -> Vec<Finding> {
    let facts = observe(v, "dlq", target).await;
    let asked = Asked { allow_fanout: false, keep_expiration: false, deadline: Duration::from_secs(60) };
    let mut findings = findings(&facts, &asked, &guard_settings(), None);
    findings.retain(|found| found.severity > Severity::Info);
    findings
}

fn work() -> Target {
    Target::Queue("work".to_owned())
}

#[rstest]
#[tokio::test]
async fn nothing_speaks_against_what_a_pipeline_declares(#[values(V43, V40)] version: Version) {
    in_vhost(version, "right", async |v| {
        v.policy("p", "^dlq$", ApplyTo::Queues, [("delivery-limit", (-1).into())]).await;
        v.queue("dlq", QueueType::Quorum, []).await;
        v.queue("work", QueueType::Quorum, []).await;
        fill(&v, "dlq", 2).await;
        assert_eq!(found(&v, &work()).await, Vec::<&str>::new());
        let facts = observe(&v, "dlq", &work()).await;
        let origin = facts.origin_queue.unwrap();
        assert_eq!((origin.ready, origin.consumers, origin.kind), (Some(2), Some(0), Kind::Quorum));
        assert_eq!((facts.own_timeout, facts.frame_max), (version == V43, 131_072));
    })
    .await;
}

/// T1: what the policy in effect says counts, also a foreign one of higher priority.
#[rstest]
#[tokio::test]
async fn a_delivery_limit_forbids_reading(#[values(V43, V40)] version: Version) {
    in_vhost(version, "limit", async |v| {
        v.queue("dlq", QueueType::Quorum, []).await;
        v.queue("work", QueueType::Quorum, []).await;
        assert_eq!(found(&v, &work()).await, ["OriginDeliveryLimit"]);
        v.queue("other", QueueType::Quorum, [("x-delivery-limit", (-1).into())]).await;
        v.policy("p", "^dlq$", ApplyTo::Queues, [("delivery-limit", 5.into())]).await;
        assert_eq!(found(&v, &work()).await, ["OriginDeliveryLimit"]);
    })
    .await;
}

/// A message that died of 21 rejects, in a dead-letter queue whose limit is the default.
async fn died_of_its_deliveries(v: &Vhost) {
    v.queue("dlq", QueueType::Quorum, []).await;
    v.exchange("dlx", "fanout", []).await;
    v.bind("dlx", "dlq", "", []).await;
    v.safe_queue("work", "dlx", [("x-delivery-limit", 20.into())]).await;
    v.publish("", "work").await;
    for _ in 0..21 {
        requeue_by_reject(v.wait("work").await).await;
    }
    v.wait_ready("dlq", 1).await;
}

/// T1: the queue is not read before it has no limit, and then a dry run leaves the message.
#[rstest]
#[tokio::test]
async fn what_died_of_its_deliveries_survives_a_dry_run(#[values(V43, V40)] version: Version) {
    in_vhost(version, "killed", async |v| {
        died_of_its_deliveries(&v).await;
        let parts =
            ["\"dlq\"", "the broker's default of 20", "reading would destroy", "delivery-limit to -1"];
        says(&v, &work(), "OriginDeliveryLimit", &parts).await;
        assert_eq!(all_findings(&v, &work()).await[0].severity, Severity::Error);
        v.wait_ready("dlq", 1).await;

        v.policy("p", "^dlq$", ApplyTo::Queues, [("delivery-limit", (-1).into())]).await;
        assert_eq!(found(&v, &work()).await, Vec::<&str>::new());
        for _ in 0..25 {
            let mut reasons = Vec::new();
            let read = examine(&v, "dlq", u64::MAX, |message| reasons.push(death::class(&message).reason));
            assert_eq!(read.await.unwrap(), 1);
            assert_eq!(reasons, [Some("delivery_limit".to_owned())]);
            v.wait_ready("dlq", 1).await;
        }
    })
    .await;
}

/// Whether a message is ready, at once or soon: the count follows a return.
async fn comes_back(v: &Vhost, queue: &str) -> bool {
    for _ in 0..30 {
        if v.ready(queue).await == 1 {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}

/// T1: what the refusal is good for. The count comes along on 4.3, so that one look is enough.
#[rstest]
#[tokio::test]
async fn looking_at_what_died_of_its_deliveries_destroys_it(#[values(V43, V40)] version: Version) {
    in_vhost(version, "destroyed", async |v| {
        died_of_its_deliveries(&v).await;
        let mut looks = 0;
        while comes_back(&v, "dlq").await {
            requeue_by_reject(v.wait("dlq").await).await;
            looks += 1;
        }
        assert_eq!(looks, if version == V43 { 1 } else { 21 });
    })
    .await;
}

/// T24, and the other queues that can't be read.
#[rstest]
#[tokio::test]
async fn streams_and_single_active_consumers_are_refused(#[values(V43, V40)] version: Version) {
    in_vhost(version, "kinds", async |v| {
        v.queue("work", QueueType::Quorum, []).await;
        let (status, body) = v
            .raw(
                "PUT",
                &format!("/queues/{}/dlq", encode(&v.name)),
                Some(serde_json::json!({"durable": true, "arguments": {"x-queue-type": "stream"}})),
            )
            .await;
        assert_eq!(status, 201, "{body}");
        assert_eq!(found(&v, &work()).await, ["OriginIsStream"]);
        let parts = ["\"dlq\" is a stream", "look at it with redrive inspect"];
        says(&v, &work(), "OriginIsStream", &parts).await;
        v.raw("DELETE", &format!("/queues/{}/dlq", encode(&v.name)), None).await;
        let arguments = [("x-single-active-consumer", true.into()), ("x-delivery-limit", (-1).into())];
        v.queue("dlq", QueueType::Quorum, arguments).await;
        assert_eq!(found(&v, &work()).await, ["OriginSingleActiveConsumer"]);
        let parts = ["wait for ever", "declare it without x-single-active-consumer"];
        says(&v, &work(), "OriginSingleActiveConsumer", &parts).await;
    })
    .await;
}

/// T20 and T36.
#[rstest]
#[tokio::test]
async fn queues_that_drop_messages_and_foreign_consumers_are_reported(#[values(V43, V40)] version: Version) {
    in_vhost(version, "drops", async |v| {
        v.queue("dlq", QueueType::Classic, [("x-max-length", 5.into())]).await;
        v.policy("p", "^work$", ApplyTo::Queues, [("max-length", 5.into()), ("message-ttl", 900_000.into())])
            .await;
        v.queue("work", QueueType::Quorum, []).await;
        let _consumer = v
            .channel
            .basic_consume(
                "dlq".into(),
                "other".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .unwrap();
        let expected = ["OriginDropsHead", "OriginHasConsumers", "TargetDropsHead", "TargetExpires"];
        assert_eq!(found(&v, &work()).await, expected);
        let parts = ["\"dlq\" drops its oldest", "also those that come back from reading", "reject-publish"];
        says(&v, &work(), "OriginDropsHead", &parts).await;
        let parts = ["somebody else reads the queue \"dlq\" (1 consumers)", "stop them during the replay"];
        says(&v, &work(), "OriginHasConsumers", &parts).await;
    })
    .await;
}

/// T3, T4 and T21: where nothing would arrive, and where that would not even show.
#[rstest]
#[tokio::test]
async fn targets_that_lead_nowhere_are_found_and_never_created(#[values(V43, V40)] version: Version) {
    in_vhost(version, "nowhere", async |v| {
        readable(&v, "dlq", QueueType::Quorum).await;
        assert_eq!(found(&v, &Target::Queue("typo".to_owned())).await, ["TargetMissing"]);
        let to =
            |name: &str| Target::Exchange { name: name.to_owned(), routing_key: "orders.created".to_owned() };
        assert_eq!(found(&v, &to("typo")).await, ["TargetMissing"]);
        v.exchange("bare", "topic", []).await;
        assert_eq!(found(&v, &to("bare")).await, ["TargetUnroutable"]);
        v.exchange("unrouted", "fanout", []).await;
        v.queue("lost", QueueType::Classic, []).await;
        v.bind("unrouted", "lost", "", []).await;
        v.exchange("hiding", "topic", [("alternate-exchange", "unrouted".into())]).await;
        let hidden = found(&v, &to("hiding")).await;
        assert!(hidden.contains(&"TargetAlternateExchange"), "{hidden:?}");
        v.policy("ae", "^bare$", ApplyTo::Exchanges, [("alternate-exchange", "unrouted".into())]).await;
        let hidden = found(&v, &to("bare")).await;
        assert!(hidden.contains(&"TargetAlternateExchange"), "{hidden:?}");
        let queues = v.management.snapshot(&v.name).await.unwrap().queues;
        assert_eq!(queues.keys().collect::<Vec<_>>(), ["dlq", "lost"], "nothing was created");
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn routes_are_followed_through_exchanges_and_counted(#[values(V43, V40)] version: Version) {
    in_vhost(version, "routes", async |v| {
        readable(&v, "dlq", QueueType::Quorum).await;
        for queue in ["work", "copy", "other"] {
            v.queue(queue, QueueType::Quorum, []).await;
        }
        v.exchange("shop", "topic", []).await;
        v.exchange("inner", "direct", []).await;
        v.bind("shop", "work", "orders.*", []).await;
        v.bind("shop", "other", "carts.#", []).await;
        let target = Target::Exchange { name: "shop".to_owned(), routing_key: "orders.created".to_owned() };
        assert_eq!(found(&v, &target).await, Vec::<&str>::new());
        assert_eq!(observe(&v, "dlq", &target).await.target.routes(), ["work"]);
        v.bind_exchange("shop", "inner", "#", []).await;
        v.bind_exchange("inner", "shop", "orders.created", []).await;
        v.bind("inner", "copy", "orders.created", []).await;
        assert_eq!(observe(&v, "dlq", &target).await.target.routes(), ["copy", "work"]);
        assert_eq!(found(&v, &target).await, ["TargetFanout"]);
        v.bind("inner", "dlq", "orders.created", []).await;
        assert_eq!(found(&v, &target).await, ["TargetIsOrigin", "TargetFanout"]);
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn an_origin_queue_that_is_gone_is_told(#[values(V43, V40)] version: Version) {
    in_vhost(version, "gone", async |v| {
        v.queue("work", QueueType::Quorum, []).await;
        assert_eq!(found(&v, &work()).await, ["OriginMissing"]);
        let parts = ["there is no queue \"dlq\"", "wait until the pipeline is Ready, or correct spec.from"];
        says(&v, &work(), "OriginMissing", &parts).await;
    })
    .await;
}
