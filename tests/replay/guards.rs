//! When a replay pauses or stops by itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redrive::replay::outcome::{Activity, Outcome};
use redrive::replay::run::Canary;
use redrive::topology::model::QueueType;

use crate::lab::{DLQ, Setting, Start, WORK, empty, failing_consumer, fill, nothing_held, on_both, queues};
use crate::support::{Version, Vhost, eventually, in_vhost, throughout};

/// A work queue whose rejected messages come back to the dead-letter queue.
async fn failing_work(vhost: &Vhost) {
    vhost.queue(DLQ, QueueType::Quorum, [("x-delivery-limit", (-1i64).into())]).await;
    let arguments = [("x-dead-letter-exchange", "".into()), ("x-dead-letter-routing-key", DLQ.into())];
    vhost.queue(WORK, QueueType::Quorum, arguments).await;
}

/// T17
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_fails_everything_gets_each_message_once() {
    on_both("replay-fence", async |vhost| {
        failing_work(&vhost).await;
        fill(&vhost, DLQ, 2_000).await;
        let consumer = failing_consumer(&vhost).await;
        let worker = Start::all(200).go(&vhost);
        let memory = worker.memory.clone();
        let (outcome, counts) = worker.finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.examined, counts.replayed), (2_000, 2_000));
        assert_eq!(memory.recorded(), 2_000);
        nothing_held(&vhost, DLQ, 2_000).await;
        consumer.close(200, "OK".into()).await.unwrap();
    })
    .await;
}

/// T18
#[tokio::test(flavor = "multi_thread")]
async fn returns_pause_it_and_a_failed_test_stops_it() {
    on_both("replay-breaker", async |vhost| {
        failing_work(&vhost).await;
        fill(&vhost, DLQ, 1_000).await;
        let consumer = failing_consumer(&vhost).await;
        let mut start = Start::all(50).paced(5, 10);
        let guard = &mut start.orders.guard;
        (guard.stop_on_return_percent, guard.sample, guard.min_returns) = (20, 50, 10);
        guard.canary = Canary { messages: 5, after: Duration::from_secs(5), tries: 1 };
        let mut worker = start.go(&vhost);
        worker
            .shows(
                "a pause",
                |report| matches!(&report.activity, Activity::Paused(why) if why.contains("came back")),
            )
            .await;
        let moved = worker.counts().replayed;
        assert!(moved <= 60, "within the sample and one batch: {moved}");
        let (outcome, counts) = worker.finishes().await;
        let Outcome::Stopped(why) = outcome else { panic!("{outcome:?}") };
        assert!(why.ends_with("test messages came back, after 1 test"), "{why}");
        assert!(counts.replayed <= 65, "{counts:?}");
        nothing_held(&vhost, DLQ, 1_000).await;
        consumer.close(200, "OK".into()).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_that_goes_well_lets_it_go_on() {
    on_both("replay-canary", async |vhost| {
        failing_work(&vhost).await;
        fill(&vhost, DLQ, 300).await;
        let consumer = failing_consumer(&vhost).await;
        let mut start = Start::all(50).paced(5, 5);
        let guard = &mut start.orders.guard;
        (guard.stop_on_return_percent, guard.sample, guard.min_returns) = (20, 50, 10);
        guard.canary = Canary { messages: 5, after: Duration::from_secs(5), tries: 3 };
        let mut worker = start.go(&vhost);
        worker
            .shows(
                "a pause",
                |report| matches!(&report.activity, Activity::Paused(why) if why.contains("came back")),
            )
            .await;
        // The fix is rolled out: nothing fails any more.
        consumer.close(200, "OK".into()).await.unwrap();
        worker.shows("a test", |report| report.activity == Activity::Canary).await;
        worker.orders.send_modify(|orders| orders.pace.per_second = 1_000);
        let (outcome, counts) = worker.finishes().await;
        assert_eq!((outcome, counts.replayed), (Outcome::Completed, 300));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_a_consumer_and_for_room_in_the_target() {
    on_both("replay-target", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 100).await;
        let mut start = Start::all(10).paced(200, 10);
        start.orders.guard.require_consumers = true;
        let mut worker = start.go(&vhost);
        let paused = |what: &'static str| {
            move |report: &redrive::broker::replay::Report| {
                matches!(&report.activity, Activity::Paused(why) if why.contains(what))
            }
        };
        worker.shows("a pause", paused("no consumer")).await;
        assert_eq!(vhost.ready(WORK).await, 0);
        worker.orders.send_modify(|orders| {
            orders.guard.require_consumers = false;
            orders.guard.pause_above_target_depth = Some(30);
        });
        worker.shows("a pause", paused("more than 30")).await;
        let there = vhost.ready(WORK).await;
        assert!((31..100).contains(&there), "{there}");
        empty(&vhost, WORK).await;
        worker.orders.send_modify(|orders| orders.guard.pause_above_target_depth = None);
        let (outcome, counts) = worker.finishes().await;
        assert_eq!((outcome, counts.replayed), (Outcome::Completed, 100));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaves_while_the_audit_trail_fails() {
    on_both("replay-audit", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 200).await;
        let start = Start::all(50);
        start.memory.fails.store(true, Ordering::SeqCst);
        let mut worker = start.go(&vhost);
        worker
            .shows(
                "a pause",
                |report| matches!(&report.activity, Activity::Paused(why) if why.contains("audit")),
            )
            .await;
        assert_eq!(worker.counts().replayed, 0);
        worker.memory.fails.store(false, Ordering::SeqCst);
        let memory = worker.memory.clone();
        let (outcome, counts) = worker.finishes().await;
        assert_eq!((outcome, counts.replayed), (Outcome::Completed, 200));
        assert_eq!((memory.recorded(), vhost.ready(WORK).await), (200, 200));
    })
    .await;
}

/// T25
#[tokio::test(flavor = "multi_thread")]
async fn a_memory_alarm_pauses_it_and_counts_as_no_failure() {
    in_vhost(Version::V43, "replay-alarm", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 2_000).await;
        // So slow that it can't end before the broker knows of its shortage.
        let mut worker = Start::all(100).paced(20, 10).go(&vhost);
        worker.shows("messages moved", |report| report.counts.replayed >= 10).await;
        // Goes back whatever happens: until then no test on this broker can publish.
        let mark = "set_vm_memory_high_watermark";
        let alarm = Setting::by(Version::V43, &[mark, "absolute", "1MB"], &[mark, "absolute", "2GB"]);
        worker
            .shows(
                "a pause",
                |report| matches!(&report.activity, Activity::Paused(why) if why.contains("short of memory")),
            )
            .await;
        let before = vhost.ready(WORK).await;
        // Without a pause sixty would; a batch may have been on its way.
        throughout(3.0, "nothing moves", async || vhost.ready(WORK).await <= before + 10).await;
        drop(alarm);
        worker.orders.send_modify(|orders| orders.pace.per_second = 100_000);
        let (outcome, counts) = worker.finishes().await;
        assert_eq!(outcome, Outcome::Completed);
        assert_eq!((counts.replayed, counts.duplicates_possible, counts.nacked), (2_000, 0, 0));
        assert_eq!(vhost.ready(WORK).await, 2_000);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_it_with_nothing_held() {
    on_both("replay-deadline", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        fill(&vhost, DLQ, 500).await;
        let mut start = Start::all(50).paced(5, 5);
        start.limits.deadline = Duration::from_secs(20);
        let (outcome, counts) = start.go(&vhost).finishes().await;
        assert_eq!(outcome, Outcome::DeadlineExceeded);
        assert!(counts.replayed > 0);
        let left = 500 - u32::try_from(counts.replayed).unwrap();
        eventually("the rest is there", async || vhost.ready(DLQ).await == left).await;
    })
    .await;
}
