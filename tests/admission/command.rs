//! `redrive replay`, `approve` and `cancel` as several people run them, each with a kubeconfig of
//! their own.

use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use crate::people::{APPROVER, Person, REQUESTER};
use crate::place::{Place, until};

const WHY: &str = "fix for ORD-1123 deployed in 4.2.1";

/// How a command ended, and what it said: standard output, then standard error.
type Ended = (i32, String, String);

fn start(person: &Person, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_redrive"))
        .args(arguments)
        .args(["--namespace", &person.namespace, "--kubeconfig", person.kubeconfig.as_ref().unwrap()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ended(child: Child) -> Ended {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn run(person: &Person, arguments: &[&str]) -> Ended {
    ended(start(person, arguments))
}

/// It failed with this sentence and nothing else.
fn refused(found: Ended, wanted: &str) {
    assert_eq!((found.0, found.2.as_str()), (1, format!("error: {wanted}\n").as_str()), "{}", found.1);
}

fn condition(reason: &str, message: &str) -> Value {
    json!([{
        "type": "Succeeded", "status": "Unknown", "reason": reason, "message": message, "observedGeneration": 1,
        "lastTransitionTime": "2026-11-29T22:00:00Z",
    }])
}

fn planned() -> Value {
    json!({
        "conditions": condition("AwaitingApproval", "a second person looks at status.plan"),
        "plan": {
            "hash": "5f0c1d0e9a", "made": "2026-11-29T22:00:00Z", "inSource": 9, "matching": 7,
            "routes": ["orders.queue"], "routeCount": 1, "collidingIds": 0,
        },
    })
}

fn finished(result: &str) -> Value {
    json!({
        "conditions": condition(result, "how it ended"),
        "summary": {
            "result": result, "message": "how it ended", "finished": "2026-11-29T22:00:00Z", "matched": 7,
            "replayed": 5, "failed": 2, "skipped": 0, "duplicatesPossible": 0,
        },
    })
}

/// The one who asks, the one who approves, and the operator; nothing without kubeconfigs.
async fn people(place: &Place) -> Option<(Person, Person, Person)> {
    let requester = place.person(REQUESTER, &["redrive-requester"]).await;
    let approver = place.person(APPROVER, &["redrive-approver"]).await;
    // A cluster that isn't ours gives nobody a certificate.
    requester.kubeconfig.as_ref()?;
    Some((requester, approver, place.account("redrive", &["redrive-operator"]).await))
}

#[tokio::test]
async fn one_asks_and_another_one_approves() {
    let place = Place::new("command-approve").await;
    let Some((requester, approver, operator)) = people(&place).await else { return place.leave().await };
    let other = place.person("other@example.com", &["redrive-requester"]).await;
    let created = run(&requester, &["replay", "orders", "--name", "orders-1", "--justification", WHY]);
    let said = format!("dlqreplay/orders-1 created in namespace {}\n", place.namespace);
    assert_eq!(created, (0, said, String::new()));
    let stored = requester.edit("orders-1", json!({})).await.unwrap();
    assert_eq!(stored["spec"]["requestedBy"], REQUESTER);

    let approve = ["approve", "orders-1", "--yes"];
    refused(
        run(&approver, &approve),
        "there is no plan to approve yet (waiting for the operator to see it): try again in a moment",
    );
    operator.edit_status("orders-1", planned()).await.unwrap();
    refused(
        run(&requester, &approve),
        "requester@example.com asked for this replay, and nobody approves what they asked for themselves: let a \
         second person approve",
    );
    refused(
        run(&other, &approve),
        &format!(
            "other@example.com may not approve replays in namespace {}: ask somebody who may, or let the role \
             redrive-approver be bound to other@example.com",
            place.namespace
        ),
    );
    refused(
        run(&approver, &["approve", "orders-1"]),
        "nobody is there to be asked: look at the plan, and add --yes",
    );
    refused(
        run(&approver, &["approve", "orders-1", "--yes", "--plan-hash", "other"]),
        "the plan is 5f0c1d0e9a and not other: look at it before you approve it",
    );
    let (code, out, err) =
        run(&approver, &["approve", "orders-1", "--yes", "--comment", "small batch first"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("Plan          5f0c1d0e9a\n"), "{out}");
    assert!(out.ends_with("approved by approver@example.com: at most 7 messages move\n"), "{out}");
    let approval = json!({
        "approvedBy": APPROVER, "maxMessages": 7, "planHash": "5f0c1d0e9a", "comment": "small batch first",
    });
    let stored = requester.edit("orders-1", json!({})).await.unwrap();
    assert_eq!(stored["spec"]["approval"], approval);
    refused(run(&approver, &approve), "approver@example.com has approved it already, for at most 7 messages");
    place.leave().await;
}

#[tokio::test]
async fn waiting_ends_with_what_became_of_the_replay() {
    let place = Place::new("command-wait").await;
    let Some((requester, approver, operator)) = people(&place).await else { return place.leave().await };
    let waiting = start(&requester, &["replay", "orders", "--name", "a", "--wait", "--justification", WHY]);
    until("the replay is there", async || requester.edit("a", json!({})).await.is_ok()).await;
    operator.edit_status("a", planned()).await.unwrap();
    let (code, out, err) = ended(waiting);
    assert_eq!(code, 5, "{out}{err}");
    assert!(out.ends_with("AwaitingApproval: a second person looks at status.plan\n"), "{out}");
    assert!(!err.contains("AwaitingApproval"), "said once: {err}");

    let watching = start(&approver, &["approve", "a", "--yes", "--watch", "--max-messages", "5"]);
    until("the approval is there", async || {
        let stored = requester.edit("a", json!({})).await.unwrap();
        stored["spec"]["approval"]["maxMessages"] == 5
    })
    .await;
    operator.edit_status("a", finished("CompletedWithFailures")).await.unwrap();
    let (code, out, err) = ended(watching);
    assert_eq!(code, 3, "{out}");
    assert!(out.contains("CompletedWithFailures: how it ended\n"), "{out}");
    assert!(!err.contains("CompletedWithFailures"), "said once: {err}");
    refused(
        run(&approver, &["approve", "a", "--yes"]),
        "the replay has ended (CompletedWithFailures: how it ended): create a new one",
    );

    for (name, result, wanted) in [("b", "Completed", 0), ("c", "Stopped", 4), ("d", "PreflightFailed", 6)] {
        let arguments = ["replay", "orders", "--name", name, "--watch", "--justification", WHY];
        let watching = start(&requester, &arguments);
        until("the replay is there", async || requester.edit(name, json!({})).await.is_ok()).await;
        operator.edit_status(name, finished(result)).await.unwrap();
        assert_eq!(ended(watching).0, wanted, "{result}");
    }
    place.leave().await;
}

#[tokio::test]
async fn a_replay_is_held_goes_on_and_is_cancelled() {
    let place = Place::new("command-steer").await;
    let Some((requester, _, operator)) = people(&place).await else { return place.leave().await };
    run(&requester, &["replay", "orders", "--name", "a", "--justification", WHY]);
    for (command, field, value) in [
        ("suspend", "suspend", json!(true)),
        ("resume", "suspend", json!(false)),
        ("cancel", "cancel", json!(true)),
    ] {
        let (code, out, err) = run(&requester, &[command, "a"]);
        assert_eq!(code, 0, "{out}{err}");
        assert_eq!(requester.edit("a", json!({})).await.unwrap()["spec"][field], value, "{command}");
    }
    operator.edit_status("a", finished("Cancelled")).await.unwrap();
    refused(run(&requester, &["suspend", "a"]), "the replay has ended already, Cancelled: how it ended");
    refused(run(&requester, &["cancel", "none"]), "dlqreplays.redrive.dev \"none\" not found");
    place.leave().await;
}

#[tokio::test]
async fn the_api_servers_sentence_is_all_that_is_said() {
    let place = Place::new("command-refused").await;
    let Some((requester, ..)) = people(&place).await else { return place.leave().await };
    let viewer = place.person("viewer@example.com", &["redrive-viewer"]).await;
    let ask = ["replay", "orders", "--name", "a", "--justification", WHY];
    refused(
        run(&viewer, &ask),
        &format!(
            "User \"viewer@example.com\" cannot create resource \"dlqreplays\" in API group \"redrive.dev\" in the \
             namespace \"{}\"",
            place.namespace
        ),
    );
    refused(
        run(&requester, &[&ask[..], &["--from", "parking-lot", "--to", "parking-lot"]].concat()),
        "from and to are the same queue: choose another target",
    );
    let (code, ..) = run(&requester, &ask);
    assert_eq!(code, 0);
    refused(run(&requester, &ask), "dlqreplays.redrive.dev \"a\" already exists");
    place.leave().await;
}
