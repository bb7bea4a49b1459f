//! Queues are made anew under their names while messages travel, and the operator dies after every
//! step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::topology::model::Args;
use rstest::rstest;

use crate::edits::{CALM, Load, edit, fails, objects, spec};
use crate::lab::{Act, Audit, Background, Broker, Lab, Publisher, Seen, pipeline};

/// Type, size and numbers of all that ends the line, back and forth, while messages die.
#[rstest]
#[case::by_a_steady_operator("43", usize::MAX)]
#[case::by_an_operator_that_dies_after_every_step("40", 1)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_that_end_the_line_are_made_anew_under_load(#[case] version: &str, #[case] steps: usize) {
    let poison = "quarantine: [{category: late, reasons: [expired]}], parkingLot: true";
    let of = |dead: &str| spec("delays: [100ms]") + &format!("deadLetter: {{{poison}{dead}}}\n");
    let first = of("");
    let lab = Lab::new(Broker::of_version(version), "anew", &first).await;
    let before = objects(&lab).await;
    let parked: Vec<String> = (0..30).map(|number| format!("parked-{number}")).collect();
    let publisher = Publisher::new(lab.connect().await).await.expect("a publisher");
    publisher.send_all("", "orders.dlq.parking", &parked).await;
    let load = Load::start(&lab).await;
    let repair = lab.repair(Duration::from_millis(20), steps);
    for wanted in [of(", queueType: classic"), of(", queueType: quorum, groupSize: 1"), first] {
        edit(&lab, &wanted).await;
        let queues = lab.counts().await;
        assert!(queues.keys().any(|queue| queue.contains(".moving")), "one stands in: {queues:?}");
        // The one before is not done yet when the next one comes.
        tokio::time::sleep(Duration::from_secs(8)).await;
    }
    load.finish(&lab, repair, 2, &format!("{version}, {steps} steps a look")).await;
    assert_eq!(objects(&lab).await, before, "nothing stands in any more");
    let mut audit = Audit::of(&parked);
    audit.found("orders.dlq.parking", &lab.drain("orders.dlq.parking").await);
    audit.assert_exactly_once();
}

/// Waits until a specification is carried out whole, with what it takes allowed.
async fn edit_with_consent(lab: &Lab, spec: &str) {
    let wanted = pipeline(spec);
    lab.operator.lock().await.allow(wanted).await.expect("a look");
    lab.settled(CALM).await;
}

/// Waits until every message has ended, and accounts for each; nothing is left of the changes.
async fn account(lab: &Lab, mut load: Load, repair: Background, before: (usize, usize), what: &str) {
    let all = load.ended(lab, &["orders.dlq"]).await;
    lab.settled(CALM).await;
    lab.rest(repair).await;
    println!("{what}: {} messages", all.len());
    load.audit(lab, &all, &["orders.dlq"]).await;
    assert_eq!(objects(lab).await, before, "nothing stands in any more");
}

/// What the source was declared with.
async fn source_arguments(lab: &Lab) -> Args {
    let observed = lab.management.snapshot(&lab.vhost).await.expect("a snapshot");
    observed.queues["orders"].arguments.clone()
}

/// What the consumer does with a message that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Rejects,
    /// So that mode Native delays it.
    Requeues,
    /// As a client library does in mode Application.
    Retries,
}

/// Mode Native comes and goes. Its source differs in its arguments, and holds what it delays.
#[rstest]
#[case::by_a_steady_operator(usize::MAX)]
#[case::by_an_operator_that_dies_after_every_step(1)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mode_native_comes_and_goes_under_load(#[case] steps: usize) {
    let first = spec("delays: [300ms, 400ms]");
    let lab = Lab::new(Broker::of_version("43"), "to-native", &first).await;
    let before = objects(&lab).await;
    let client = Arc::new(Mutex::new(Client::Rejects));
    let acts = Arc::clone(&client);
    let consumer = move |seen: &Seen| match (*acts.lock().unwrap(), seen.before) {
        _ if !fails(seen) => Act::Ack,
        (Client::Requeues, _) => Act::Requeue,
        (Client::Retries, tier @ 0..2) => Act::Retry(tier),
        (Client::Rejects | Client::Retries, _) => Act::Reject,
    };
    let load = Load::of(&lab, 25, consumer).await;
    let repair = lab.repair(Duration::from_millis(20), steps);
    let native = spec("mode: Native, native: {min: 300ms, max: 600ms, attempts: 4}");
    let application = spec("mode: Application, delays: [300ms, 400ms]");
    for (wanted, then) in [
        (native.clone(), Client::Requeues),
        (application, Client::Retries),
        (native, Client::Requeues),
        (first, Client::Rejects),
    ] {
        // A client library stops to publish to retry queues before they go.
        {
            let mut now = client.lock().unwrap();
            if *now == Client::Retries {
                *now = Client::Rejects;
            }
        }
        edit_with_consent(&lab, &wanted).await;
        *client.lock().unwrap() = then;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    account(&lab, load, repair, before, &format!("43, {steps} steps a look")).await;
}

/// A client library's consumer in mode Application, one that only rejects in the others.
fn retries(application: &Arc<AtomicBool>) -> impl Fn(&Seen) -> Act + Send + Sync + 'static {
    let application = Arc::clone(application);
    move |seen: &Seen| match seen.before {
        _ if !fails(seen) => Act::Ack,
        tier @ 0..2 if application.load(Ordering::Relaxed) => Act::Retry(tier),
        _ => Act::Reject,
    }
}

/// Changes of mode, settings and a client's delay, in both directions.
#[rstest]
#[case::by_a_steady_operator("43", usize::MAX)]
#[case::by_an_operator_that_dies_after_every_step("40", 1)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_that_others_know_are_made_anew_under_load(#[case] version: &str, #[case] steps: usize) {
    let first = spec("delays: [300ms, 400ms]");
    let lab = Lab::new(Broker::of_version(version), "known", &first).await;
    let before = objects(&lab).await;
    let application = Arc::new(AtomicBool::new(false));
    let load = Load::of(&lab, 25, retries(&application)).await;
    let repair = lab.repair(Duration::from_millis(20), steps);
    let in_application = spec("mode: Application, delays: [300ms, 400ms]");
    // On 4.0 the limit is the broker's own, so that no number moves into a policy.
    let has_number = version == "43";
    for (wanted, retries, changes_source) in [
        (in_application, true, true),
        (spec("mode: Application, delays: [200ms, 400ms]"), true, false),
        (first.clone() + "settings: {arguments: {}}\n", false, true),
        (first, false, has_number),
    ] {
        // The client is there before its mode, and goes after it.
        application.fetch_or(retries, Ordering::Relaxed);
        let arguments = source_arguments(&lab).await;
        edit_with_consent(&lab, &wanted).await;
        assert_eq!(source_arguments(&lab).await != arguments, changes_source, "{wanted}");
        application.store(retries, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    account(&lab, load, repair, before, version).await;
}
