//! Who asked, who approved: tried with several people.

use serde_json::{Value, json};

use crate::people::{APPROVER, Person, REQUESTER};
use crate::place::{Place, replay, until};

const FROZEN: &str = "spec: an approval never changes once set: set cancel, and create a new DlqReplay";
const IMMUTABLE: &str = "spec: only suspend, cancel, pace, guard and approval may change: create a new DlqReplay \
                         for anything else";

fn refused(answer: Result<Value, String>, sentence: &str) {
    assert_eq!(answer.map(|object| object["spec"].clone()), Err(sentence.to_owned()));
}

fn approval() -> Value {
    json!({"approvedBy": APPROVER, "maxMessages": 500, "planHash": "abc"})
}

/// One who may ask, and one who may approve and ask.
async fn two(place: &Place) -> (Person, Person) {
    (
        place.person(REQUESTER, &["redrive-requester"]).await,
        place.person(APPROVER, &["redrive-requester", "redrive-approver"]).await,
    )
}

#[tokio::test]
async fn the_requester_is_the_one_who_creates() {
    let place = Place::new("asks").await;
    let (requester, _) = two(&place).await;
    refused(
        requester.create(&replay("forged", json!({"requestedBy": APPROVER}))).await,
        "spec.requestedBy is approver@example.com, who is somebody else: set it to requester@example.com, the \
         user who creates the replay",
    );
    requester.create(&replay("own", json!({"requestedBy": REQUESTER}))).await.unwrap();
    let stamped = requester.create(&replay("stamped", json!({"requestedBy": null}))).await.unwrap();
    assert_eq!(stamped["spec"]["requestedBy"], REQUESTER);
    for change in [json!(APPROVER), Value::Null] {
        refused(requester.edit("own", json!({"spec": {"requestedBy": change}})).await, IMMUTABLE);
    }
    refused(
        requester.create(&replay("approved", json!({"approval": approval()}))).await,
        "spec: a DlqReplay can't be created with its approval: leave it out, and let a second person add it to \
         the plan",
    );
    place.leave().await;
}

#[tokio::test]
async fn where_the_cluster_does_not_stamp_the_requester_people_write_it() {
    let place = Place::without("unstamped", "Mutating").await;
    let (requester, _) = two(&place).await;
    refused(
        requester.create(&replay("mine", json!({"requestedBy": null}))).await,
        "spec.requestedBy is missing: set it to requester@example.com, the user who creates the replay",
    );
    requester.create(&replay("mine", json!({"requestedBy": REQUESTER}))).await.unwrap();
    place.leave().await;
}

#[tokio::test]
async fn an_approval_is_given_by_a_second_person_who_may() {
    let place = Place::new("approves").await;
    let (requester, approver) = two(&place).await;
    let other = place.person("other@example.com", &["redrive-requester"]).await;
    requester.create(&replay("orders", json!({}))).await.unwrap();
    refused(
        requester.approve_as("orders", APPROVER).await,
        "spec.approval.approvedBy is approver@example.com, who is somebody else: set it to \
         requester@example.com, the user who approves",
    );
    refused(
        approver.approve_as("orders", "other@example.com").await,
        "spec.approval.approvedBy is other@example.com, who is somebody else: set it to approver@example.com, \
         the user who approves",
    );
    refused(
        other.approve("orders").await,
        &format!(
            "other@example.com may not approve replays in namespace {}: ask somebody who may, or let the role \
             redrive-approver be bound to other@example.com",
            place.namespace
        ),
    );
    approver.approve("orders").await.unwrap();
    // One who may approve what others ask for, still not what they asked for themselves.
    approver.create(&replay("own", json!({"requestedBy": APPROVER}))).await.unwrap();
    refused(
        approver.approve("own").await,
        "spec: nobody approves what they asked for themselves: let a second person approve",
    );
    place.leave().await;
}

#[tokio::test]
async fn an_approval_is_frozen_for_everybody() {
    let place = Place::new("frozen").await;
    let (requester, approver) = two(&place).await;
    requester.create(&replay("orders", json!({}))).await.unwrap();
    approver.approve("orders").await.unwrap();
    for person in [&requester, &approver] {
        for change in [
            json!({"approvedBy": "other@example.com"}),
            json!({"maxMessages": 501}),
            json!({"maxMessages": 499}),
            json!({"planHash": "def"}),
            json!({"comment": "small batch first"}),
            Value::Null,
        ] {
            refused(person.try_edit("orders", json!({"spec": {"approval": change}})).await, FROZEN);
        }
        // The same again is no change, and the rest may still be touched.
        for change in [json!({"approval": approval()}), json!({"suspend": true}), json!({"cancel": true})] {
            person.try_edit("orders", json!({"spec": change})).await.unwrap();
        }
        person.try_edit("orders", json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    }
    place.leave().await;
}

#[tokio::test]
async fn a_replay_from_before_the_policies_without_a_requester_is_never_approved() {
    let place = Place::bare("before").await;
    let (requester, approver) = two(&place).await;
    requester.create(&replay("orders", json!({"requestedBy": null}))).await.unwrap();
    place.install().await;
    refused(
        approver.approve("orders").await,
        "nobody is known to have asked for this replay: create a new DlqReplay, with spec.requestedBy",
    );
    // Which is no reason not to end it.
    requester.edit("orders", json!({"spec": {"cancel": true}})).await.unwrap();
    place.leave().await;
}

#[tokio::test]
async fn what_gitops_creates_a_person_approves() {
    let place = Place::new("gitops").await;
    let (_, approver) = two(&place).await;
    let gitops = place.account("gitops", &["redrive-requester"]).await;
    let created = gitops.create(&replay("orders", json!({"requestedBy": null}))).await.unwrap();
    assert_eq!(created["spec"]["requestedBy"], format!("system:serviceaccount:{}:gitops", place.namespace));
    let approved = approver.approve("orders").await.unwrap();
    assert_eq!(approved["spec"]["approval"]["approvedBy"], APPROVER);
    place.leave().await;
}

/// What `kubectl apply` of one manifest leads to, again and again, while another person approves.
#[tokio::test]
async fn a_manifest_is_applied_again_and_again() {
    let place = Place::new("applies").await;
    let (requester, approver) = two(&place).await;
    if requester.kubeconfig.is_none() {
        // kubectl has no certificates for a cluster that isn't ours.
        return place.leave().await;
    }
    for (name, way) in [("client", "--server-side=false"), ("server", "--server-side=true")] {
        let manifest = replay(name, json!({"requestedBy": null}));
        let done = |verb: &str| format!("dlqreplay.redrive.dev/{name} {verb}");
        let (first, again) = if name == "client" {
            ("created", "unchanged")
        } else {
            ("serverside-applied", "serverside-applied")
        };
        assert_eq!(requester.kubectl(&["apply", way], &manifest), done(first));
        assert_eq!(requester.kubectl(&["apply", way], &manifest), done(again));
        approver.approve(name).await.unwrap();
        assert_eq!(requester.kubectl(&["apply", way], &manifest), done(again));
        let kept = requester.edit(name, json!({})).await.unwrap();
        assert_eq!(kept["spec"]["requestedBy"], REQUESTER);
        assert_eq!(kept["spec"]["approval"], approval());
    }
    place.leave().await;
}

/// The schema has some of these rules as well, and speaks first. The policies stand without it: a
/// definition of another version must not open what they close.
#[tokio::test]
async fn the_policies_hold_where_the_schema_has_no_rules() {
    let place = Place::without_rules("ruleless").await;
    let (requester, approver) = two(&place).await;
    place.allow_copies().await;
    until("the role is in effect", || async {
        approver.try_edit("none", json!({})).await.is_err_and(is_missing)
    })
    .await;
    refused(
        requester.create(&replay("approved", json!({"approval": approval()}))).await,
        "a DlqReplay can't be created with its approval: leave it out, and let a second person add it to the plan",
    );
    requester.create(&replay("orders", json!({}))).await.unwrap();
    for change in [json!(APPROVER), Value::Null] {
        refused(
            requester.edit("orders", json!({"spec": {"requestedBy": change}})).await,
            "spec.requestedBy never changes: create a new DlqReplay",
        );
    }
    approver.create(&replay("own", json!({"requestedBy": APPROVER}))).await.unwrap();
    refused(
        approver.approve("own").await,
        "nobody approves what they asked for themselves: let a second person approve",
    );
    approver.approve("orders").await.unwrap();
    for change in [
        json!({"approvedBy": REQUESTER}),
        json!({"maxMessages": 501}),
        json!({"planHash": "def"}),
        json!({"comment": "small batch first"}),
        Value::Null,
    ] {
        refused(
            approver.edit("orders", json!({"spec": {"approval": change}})).await,
            "an approval never changes once set: set cancel, and create a new DlqReplay",
        );
    }
    place.leave().await;
}

fn is_missing(complaint: String) -> bool {
    complaint.contains("not found")
}

/// Rules cost the API server time, of which it grants only so much.
#[tokio::test]
async fn the_largest_replay_is_not_too_costly_to_judge() {
    let place = Place::new("largest").await;
    let (requester, approver) = two(&place).await;
    let texts = |count: usize| (0..count).map(|number| format!("{number:0>255}")).collect::<Vec<_>>();
    let select = json!({
        "messageIds": texts(500), "routingKeys": texts(64), "firstDeathQueues": texts(64),
        "expression": "x".repeat(1_024),
    });
    let largest = json!({"select": select, "justification": "x".repeat(1_024)});
    requester.create(&replay("orders", largest)).await.unwrap();
    approver.approve("orders").await.unwrap();
    requester.edit("orders", json!({"spec": {"pace": {"batch": 1}}})).await.unwrap();
    place.leave().await;
}
