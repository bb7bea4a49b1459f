//! A whole plan from real dead letters.

use lapin::options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation};
use redrive::replay::judge::RunJudge;
use redrive::replay::plan::preflight::{Asked, Severity};
use redrive::replay::plan::sketch::Bucket;
use redrive::replay::plan::survey::Survey;
use redrive::replay::plan::{Plan, Request};
use redrive::replay::rewrite::Wire;
use redrive::replay::run::{Fence, Left, OnFailure, Pace, Rewriting, Target};
use redrive::replay::selection::{Criteria, Selection};
use redrive::topology::model::QueueType;
use rstest::rstest;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::facts::{guard_settings, observe};
use super::reading::{examine, readable};
use super::support::Version::{self, V40, V43};
use super::support::*;

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

fn from_shop() -> Target {
    Target::Origin { exchanges: vec!["shop".into()] }
}

fn judge(criteria: Criteria, target: &Target, keep_expiration: bool) -> RunJudge {
    let rewriting = Rewriting {
        request: "shop/run".into(),
        run: "uid".into(),
        on_failure: OnFailure::DeadLetter,
        keep_expiration,
        idempotency: None,
        max_replays: 3,
        replay_limit_queue: None,
    };
    let wire = Wire { frame_max: 131_072, max_body: None };
    RunJudge::new(Selection::new(criteria, false).unwrap(), target.clone(), rewriting, wire, Box::new(now))
}

async fn plan(v: &Vhost, criteria: Criteria) -> Plan {
    plan_to(v, criteria, &from_shop(), false).await
}

async fn plan_to(v: &Vhost, criteria: Criteria, target: &Target, keep_expiration: bool) -> Plan {
    let fence = Fence { count: u64::from(v.ready("dlq").await), time: now() + 1_000 };
    let mut survey =
        Survey::new(judge(criteria, target, keep_expiration), "uid", fence, &["x-tenant-id".into()]);
    examine(v, "dlq", 1_000, |message| survey.observe(message)).await.unwrap();
    let facts = observe(v, "dlq", target).await;
    let pace = Pace { per_second: 10, batch: 5, pause: Duration::from_secs(1), ramp: None, window: 500 };
    let asked = Asked { allow_fanout: false, keep_expiration, deadline: Duration::from_secs(60) };
    let guard = guard_settings();
    let request = Request { spec: "{}", pace: &pace, guard: &guard, asked, limit: None, scan: 1_000 };
    Plan::new(&request, &facts, Some(survey.summary()))
}

fn tenant(name: &str) -> lapin::types::FieldTable {
    let mut headers = lapin::types::FieldTable::default();
    headers.insert("x-tenant-id".into(), lapin::types::AMQPValue::LongString(name.into()));
    headers
}

#[rstest]
#[tokio::test]
async fn real_dead_letters_are_counted_by_reason_origin_and_allowed_header(
    #[values(V43, V40)] version: Version,
    #[values(QueueType::Quorum, QueueType::Classic)] kind: QueueType,
) {
    in_vhost(version, "plan", async |v| {
        readable(&v, "dlq", kind).await;
        v.exchange("shop", "topic", []).await;
        v.exchange("dlx", "fanout", []).await;
        v.bind("dlx", "dlq", "", []).await;
        v.safe_queue("work", "dlx", []).await;
        v.bind("shop", "work", "orders.*", []).await;
        for (key, name) in [("orders.created", "a"), ("orders.created", "b"), ("orders.paid", "a")] {
            v.publish_with("shop", key, tenant(name)).await;
            v.reject("work").await;
        }
        v.publish_with("", "dlq", tenant("c")).await;
        v.wait_ready("dlq", 4).await;

        let plan = plan(&v, Criteria::default()).await;
        let summary = plan.summary.as_ref().unwrap();
        let bucket = |value: &str, count| Bucket { value: value.to_owned(), count };
        assert_eq!((plan.in_source, summary.examined, summary.matching), (4, 4, 4));
        assert_eq!(summary.histogram.reasons.values, [bucket("rejected", 3)]);
        let origins =
            [bucket("shop: orders.created", 2), bucket("shop: orders.paid", 1), bucket("unknown origin", 1)];
        assert_eq!(summary.histogram.origins.values, origins);
        let tenants = [bucket("a", 2), bucket("b", 1), bucket("c", 1)];
        assert_eq!(summary.histogram.headers[0].1.values, tenants);
        // Three go back where they came from, at 10 a second.
        assert_eq!(plan.expected, Some(Duration::from_millis(300)));
        let checks: Vec<&str> = plan.findings.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, ["UnknownOrigin", "NoErrorTypes"]);
        assert!(!plan.is_refused());
        v.wait_ready("dlq", 4).await;
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_second_plan_of_the_same_queue_has_the_same_hash(#[values(V43, V40)] version: Version) {
    in_vhost(version, "hash", async |v| {
        readable(&v, "dlq", QueueType::Quorum).await;
        v.exchange("shop", "topic", []).await;
        v.publish_with("", "dlq", tenant("c")).await;
        let first = plan(&v, Criteria::default()).await;
        v.publish_with("", "dlq", tenant("d")).await;
        let second = plan(&v, Criteria::default()).await;
        assert_ne!(first.summary, second.summary);
        assert_eq!(first.hash, second.hash);
    })
    .await;
}

fn checks(plan: &Plan) -> Vec<&'static str> {
    plan.findings.iter().map(|finding| finding.check).collect()
}

async fn put(channel: &Channel, properties: BasicProperties, body: &[u8]) {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let confirm = channel.basic_publish("".into(), "dlq".into(), options, body, properties).await.unwrap();
    assert!(matches!(confirm.await.unwrap(), Confirmation::Ack(None)), "it was routed");
}

/// T6
#[rstest]
#[tokio::test]
async fn a_time_to_live_that_is_kept_is_warned_of(#[values(V43, V40)] version: Version) {
    in_vhost(version, "kept", async |v| {
        readable(&v, "dlq", QueueType::Quorum).await;
        v.queue("work", QueueType::Quorum, []).await;
        for expiration in ["600000", "900000"] {
            put(&v.channel, BasicProperties::default().with_expiration(expiration.into()), b"body").await;
        }
        put(&v.channel, BasicProperties::default(), b"body").await;
        v.wait_ready("dlq", 3).await;
        let work = Target::Queue("work".into());
        let kept = plan_to(&v, Criteria::default(), &work, true).await;
        assert_eq!(checks(&kept), ["ExpirationKept", "NoErrorTypes"]);
        let warning = &kept.findings[0];
        assert_eq!(warning.severity, Severity::Warning);
        for part in ["keep their own time to live", "(2 in all)", "use expiration Drop"] {
            assert!(warning.message.contains(part), "{part:?} in {:?}", warning.message);
        }
        let dropped = plan_to(&v, Criteria::default(), &work, false).await;
        assert_eq!(checks(&dropped), ["NoErrorTypes"]);
        v.wait_ready("dlq", 3).await;
    })
    .await;
}

/// T32: the address that the broker makes of it, for a channel that is gone by now.
#[rstest]
#[tokio::test]
async fn an_answer_that_nobody_gets_is_noted(#[values(V43, V40)] version: Version) {
    in_vhost(version, "stale", async |v| {
        readable(&v, "dlq", QueueType::Quorum).await;
        v.queue("work", QueueType::Quorum, []).await;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let answers = "amq.rabbitmq.reply-to";
        let channel = v.connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let consumer = channel.basic_consume(answers.into(), "".into(), options, FieldTable::default()).await;
        put(&channel, BasicProperties::default().with_reply_to(answers.into()), b"body").await;
        drop(consumer);
        channel.close(200, "OK".into()).await.unwrap();
        put(&v.channel, BasicProperties::default().with_reply_to("a queue".into()), b"body").await;
        v.wait_ready("dlq", 2).await;
        let plan = plan_to(&v, Criteria::default(), &Target::Queue("work".into()), false).await;
        let note = plan.findings.iter().find(|finding| finding.check == "StaleReplyTo").unwrap();
        assert_eq!(note.severity, Severity::Info);
        assert!(note.message.contains("nobody gets the answer"), "{}", note.message);
        assert_eq!(plan.summary.unwrap().stale_replies, 1);
        assert!(plan.findings.iter().all(|finding| finding.severity == Severity::Info));
    })
    .await;
}

/// T38: deaths as texts, lists of texts and nothing, and what the client libraries write.
#[rstest]
#[tokio::test]
async fn origins_are_grouped_by_who_names_them_and_unknown_without_anybody(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "witnesses", async |v| {
        readable(&v, "dlq", QueueType::Quorum).await;
        v.exchange("shop", "topic", []).await;
        let text = |value: &str| AMQPValue::LongString(value.into());
        let with = |pairs: &[(&str, AMQPValue)]| {
            let mut headers = FieldTable::default();
            for (name, value) in pairs {
                headers.insert((*name).into(), value.clone());
            }
            BasicProperties::default().with_headers(headers)
        };
        let list = AMQPValue::FieldArray(FieldArray::from(vec![text("orders")]));
        let spring = [("x-original-exchange", text("shop")), ("x-original-routingKey", text("spring"))];
        let kit = [
            ("x-rabbitkit-original-exchange", text("shop")),
            ("x-rabbitkit-original-routing-key", text("kit")),
        ];
        let masstransit = [("MT-Fault-InputAddress", text("rabbitmq://broker/vhost/shop?bind=true"))];
        let envelope = BasicProperties::default().with_type("EasyNetQ.SystemMessages.Error, EasyNetQ".into());
        let messages: [(BasicProperties, &[u8]); 9] = [
            (with(&spring), b""),
            (with(&kit), b""),
            (with(&masstransit), b""),
            (envelope.clone(), br#"{"RoutingKey":"easynetq","Exchange":"shop"}"#),
            (envelope, b"{"),
            (with(&[("x-death", text("orders died"))]), b""),
            (with(&[("x-death", list)]), b""),
            (with(&[("x-death", AMQPValue::Void)]), b""),
            (BasicProperties::default(), b""),
        ];
        for (properties, body) in messages {
            put(&v.channel, properties, body).await;
        }
        v.wait_ready("dlq", 9).await;
        let plan = plan(&v, Criteria::default()).await;
        let summary = plan.summary.as_ref().unwrap();
        let bucket = |value: &str, count| Bucket { value: value.to_owned(), count };
        let expected = [
            bucket("unknown origin", 5),
            bucket("shop: ", 1),
            bucket("shop: easynetq", 1),
            bucket("shop: kit", 1),
            bucket("shop: spring", 1),
        ];
        assert_eq!(summary.histogram.origins.values, expected);
        // An envelope is not the message that could go back.
        assert_eq!(summary.left, [(Left::UnknownOrigin, 6)].into());
        v.wait_ready("dlq", 9).await;
    })
    .await;
}
