//! Two people, the operator and its roles, with the admission policies of the whole cluster.
//!
//! They judge every replay in it, also those of other tests, so nothing else may use the cluster
//! meanwhile: `cargo test --test approvals`. It has to be that of `hack/dev`, which makes the
//! users. What the policies refuse in detail is in `tests/admission`.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod people;
mod policies;
#[allow(dead_code, reason = "written for more tests than these")]
#[path = "../cluster/support/mod.rs"]
mod support;

use serde_json::json;

use people::{APPROVER, Person, REQUESTER};
use policies::Policies;
use support::replays::{DLQ, SOURCE, text_of, verdict_of};
use support::world::World;

/// A world whose operator has no more rights than the roles of `admission/` give it, and asks for
/// a second person for everything.
async fn world() -> World {
    let mut world = World::for_replays("approvals").await;
    world.settings.replays.allow_unverified_approval = false;
    world.operators_client = Some(people::operator(&world).await);
    world.start();
    let policy = json!({"requireApproval": true, "messagesWithoutApproval": 0});
    world.create_ready("orders", json!({"replayPolicy": policy})).await;
    world.broker.fill(&world.vhost, DLQ, 8).await;
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_person_asks_for_another_one_approves_and_the_operator_carries_out() {
    let roles = Policies::roles_alone();
    let world = world().await;
    let requester = Person::new(&world, REQUESTER, &["redrive-requester", "redrive-approver"]).await;
    let approver = Person::new(&world, APPROVER, &["redrive-approver"]).await;
    let ask = |name: &str| {
        let text = "the fix is deployed in 4.2.1";
        requester.redrive(&["replay", "orders", "--name", name, "--without-consumers", "-j", text, "--wait"])
    };

    // Where nothing makes sure who approves, nobody can.
    let asked = ask("before");
    assert_eq!(asked.code, 6, "{asked:?}");
    let refused = world.until_phase("before", "ApprovalUnverifiable").await;
    assert!(text_of(&refused, "Succeeded").contains("is missing"), "{refused:?}");

    let policies = Policies::install(&world.client, roles).await;
    let asked = ask("after");
    assert_eq!(asked.code, 5, "{asked:?}");
    // Without a terminal the last phase is a result, and said once.
    let said = |text: &str| text.matches("AwaitingApproval").count();
    assert_eq!((said(&asked.errors), said(&asked.output)), (0, 1), "{asked:?}");
    let command = format!("`redrive approve after -n {}`", world.namespace);
    assert!(asked.output.contains(&command), "{asked:?}");
    let waiting = world.until_phase("after", "AwaitingApproval").await;
    assert_eq!(waiting.spec.requested_by.as_deref(), Some(REQUESTER));
    assert_eq!(verdict_of(&waiting, "Approved"), "False AwaitingApproval");

    // The same person can't, by our command or past it, in whichever name.
    let own = requester.redrive(&["approve", "after", "--yes"]);
    assert!(
        own.code == 1 && own.errors.contains("nobody approves what they asked for themselves"),
        "{own:?}"
    );
    let hash = waiting.status.unwrap().plan.unwrap().hash;
    for (name, sentence) in [
        (REQUESTER, "nobody approves what they asked for themselves"),
        (APPROVER, "who is somebody else: set it to requester@example.com"),
    ] {
        let why = requester.set_approval("after", name, &hash).await.unwrap_err();
        assert!(why.contains(sentence), "{why}");
    }
    world.until_messages(&[(DLQ, 8), (SOURCE, 0)]).await;

    let approved = approver.redrive(&["approve", "after", "--max-messages", "6", "--yes", "--watch"]);
    assert_eq!(approved.code, 0, "{approved:?}");
    let done = world.until_phase("after", "Completed").await;
    assert_eq!(done.spec.approval.as_ref().unwrap().approved_by, APPROVER);
    assert_eq!(verdict_of(&done, "Approved"), "True Approved");
    world.until_messages(&[(DLQ, 2), (SOURCE, 6)]).await;
    // The operator's own updates pass: the record, and its finalizer, which goes last.
    world.until_replay("after", "is let go", |replay| replay.metadata.finalizers.is_none()).await;
    let pipeline = world.get("orders").await;
    let records = pipeline.status.unwrap().replays;
    let record = records.iter().find(|record| record.name == "after").expect("it is remembered");
    assert!(record.approved && record.moved == 6, "{record:?}");
    drop(policies);
    people::dismiss_operator(&world).await;
    world.leave().await;
}
