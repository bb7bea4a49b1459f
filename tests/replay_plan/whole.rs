//! A whole plan from real dead letters.

use redrive::replay::judge::RunJudge;
use redrive::replay::plan::preflight::Asked;
use redrive::replay::plan::sketch::Bucket;
use redrive::replay::plan::survey::Survey;
use redrive::replay::plan::{Plan, Request};
use redrive::replay::rewrite::Wire;
use redrive::replay::run::{Fence, OnFailure, Pace, Rewriting, Target};
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

fn judge(criteria: Criteria) -> RunJudge {
    let rewriting = Rewriting {
        request: "shop/run".into(),
        run: "uid".into(),
        on_failure: OnFailure::DeadLetter,
        keep_expiration: false,
        idempotency: None,
        max_replays: 3,
        replay_limit_queue: None,
    };
    let target = Target::Origin { exchanges: vec!["shop".into()] };
    let wire = Wire { frame_max: 131_072, max_body: None };
    RunJudge::new(Selection::new(criteria, false).unwrap(), target, rewriting, wire, Box::new(now))
}

async fn plan(v: &Vhost, criteria: Criteria) -> Plan {
    let fence = Fence { count: u64::from(v.ready("dlq").await), time: now() + 1_000 };
    let mut survey = Survey::new(judge(criteria), "uid", fence, &["x-tenant-id".into()]);
    examine(v, "dlq", 1_000, |message| survey.observe(message)).await.unwrap();
    let facts = observe(v, "dlq", &Target::Origin { exchanges: vec!["shop".into()] }).await;
    let pace = Pace { per_second: 10, batch: 5, pause: Duration::from_secs(1), ramp: None, window: 500 };
    let asked = Asked { allow_fanout: false, keep_expiration: false, deadline: Duration::from_secs(60) };
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
