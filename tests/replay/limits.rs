//! Publishes that the broker itself refuses.

use redrive::replay::outcome::{Activity, Outcome};
use redrive::topology::model::QueueType;

use crate::asked::{Asked, numbered, put, take_all};
use crate::lab::{self, DLQ, Setting, Start, WORK, nothing_held, on_both, queues};
use crate::support::{Version, Vhost, encode};

/// Far above every other body in these tests, which share the broker.
const LOWERED: usize = 1 << 20;

/// Lowers the largest body that a broker takes, for as long as it lives. What the configuration
/// says is read when the broker starts, and looked up here.
fn lower_the_limit(version: Version) -> Setting {
    let back = "persistent_term:put(max_message_size, \
                element(2, application:get_env(rabbit, max_message_size))).";
    Setting::change(version, "persistent_term:put(max_message_size, 1048576).", back)
}

async fn fill(vhost: &Vhost, sizes: &[usize]) {
    for (number, size) in sizes.iter().enumerate() {
        put(&vhost.channel, DLQ, numbered(number), &vec![b'x'; *size]).await;
    }
    vhost.wait_ready(DLQ, u32::try_from(sizes.len()).unwrap()).await;
}

/// T23
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_by_now_stays_and_the_others_move() {
    on_both("replay-large", async |vhost| {
        queues(&vhost, QueueType::Quorum).await;
        let sizes = [10, LOWERED, LOWERED + 1, 10, 2 * LOWERED, 10];
        fill(&vhost, &sizes).await;
        let lowered = lower_the_limit(vhost.version);
        let (outcome, counts) = Asked::all().go(&vhost).finishes().await;
        drop(lowered);
        assert_eq!(outcome, Outcome::CompletedWithFailures);
        assert_eq!((counts.unmovable, counts.unroutable), (2, 0), "{counts:?}");
        assert_eq!(counts.unmovable_messages, ["2", "4"]);
        nothing_held(&vhost, DLQ, 2).await;
        let left = take_all(&vhost, DLQ).await;
        assert_eq!(left.iter().map(|message| message.body.len()).collect::<Vec<_>>(), [sizes[2], sizes[4]]);
        let moved = take_all(&vhost, WORK).await;
        let mut ids: Vec<String> =
            moved.iter().map(|message| message.properties.message_id.clone().unwrap()).collect();
        ids.sort();
        let sent = ids.len() as u64;
        ids.dedup();
        assert_eq!(ids, ["0", "1", "3", "5"]);
        // The broker closes the channel, once, and what was under way on it is in doubt.
        assert!(counts.replayed <= 4 && counts.replayed + counts.duplicates_possible >= 4, "{counts:?}");
        assert!(sent - 4 <= counts.duplicates_possible && counts.duplicates_possible <= 6, "{counts:?}");
    })
    .await;
}

/// Takes the target's exchange away in the midst of a run, and puts another one there or none.
async fn loses_its_target(vhost: Vhost, internal: bool, refusal: &str) {
    queues(&vhost, QueueType::Quorum).await;
    vhost.exchange("shop", "fanout", []).await;
    vhost.bind("shop", WORK, "", []).await;
    lab::fill(&vhost, DLQ, 300).await;
    let mut start = Start::all(50).paced(10, 10);
    start.to = ("shop".to_owned(), "key".to_owned());
    let mut worker = start.go(&vhost);
    worker.shows("messages moved", |report| report.counts.replayed >= 20).await;
    // Only a pause keeps it from meeting what is between the two.
    worker.orders.send_modify(|orders| orders.hold = Some("suspended".to_owned()));
    worker.shows("a pause", |report| matches!(report.activity, Activity::Paused(_))).await;
    crate::support::eventually("nothing is under way", async || {
        vhost.ready(DLQ).await == 300 - u32::try_from(worker.counts().replayed).unwrap()
    })
    .await;
    let path = format!("/exchanges/{}/shop", encode(&vhost.name));
    assert_eq!(vhost.raw("DELETE", &path, None).await.0, 204);
    if internal {
        vhost.internal_exchange("shop", "fanout", []).await;
        vhost.bind("shop", WORK, "", []).await;
    }
    worker.orders.send_modify(|orders| orders.hold = None);
    let (outcome, counts) = worker.finishes().await;
    let Outcome::Failed(why) = outcome else { panic!("{outcome:?}") };
    assert!(why.contains(refusal) && why.contains("with a new replay"), "{why}");
    assert!(counts.duplicates_possible <= 50, "one window: {counts:?}");
    let moved = lab::empty(&vhost, WORK).await;
    nothing_held(&vhost, DLQ, 300 - u32::try_from(moved.len()).unwrap()).await;
    // What was held comes back with its connection, and stands where the broker puts it.
    let mut all = [moved, lab::empty(&vhost, DLQ).await].concat();
    all.sort_unstable();
    assert_eq!(all, (0..300).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_goes_ends_the_run_and_the_rest_stays() {
    on_both("replay-gone", |vhost| loses_its_target(vhost, false, "no exchange 'shop'")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_takes_no_more_publishes_ends_the_run_and_the_rest_stays() {
    on_both("replay-internal", |vhost| loses_its_target(vhost, true, "internal exchange 'shop'")).await;
}
