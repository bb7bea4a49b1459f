//! No pipeline has weaker replay guardrails than its namespace's floor, unless a guard wants it.

use redrive::api::annotations::REPLAY_FLOOR;
use serde_json::{Value, json};

use crate::people::Person;
use crate::place::{Place, pipeline};

const EDITOR: &str = "editor@example.com";
const GUARD: &str = "guard@example.com";
const FULL: &str = "requireApproval=true,messagesWithoutApproval=50,maxRate=200,\
                    allowedTargets=WorkQueue|Quarantine,allowBody=false,audit=Required";

/// Guardrails, and what the editor of pipelines is told to do; nothing where they are enough.
type Row = (Value, Option<&'static str>);

fn weaker(namespace: &str, todo: &str) -> String {
    format!(
        "spec.replayPolicy is weaker than the floor of namespace {namespace}: {todo}; or ask somebody who holds \
         the verb guard on retrypipelines"
    )
}

fn unreadable(namespace: &str) -> String {
    format!(
        "the annotation redrive.dev/replay-floor of namespace {namespace} can't be read, so no replayPolicy is \
         known to be strong enough: correct it, such as {FULL}"
    )
}

/// An editor and a guard of pipelines, in a namespace that has this floor from its first moment.
async fn under_floor(place: &Place, number: usize, floor: &str) -> (Person, Person) {
    let namespace = format!("{}-{number}", place.namespace);
    place.add_namespace(&namespace, &json!({REPLAY_FLOOR: floor})).await;
    (
        place.person_in(&namespace, EDITOR, &["redrive-pipeline-editor"]).await,
        place.person_in(&namespace, GUARD, &["redrive-pipeline-guard"]).await,
    )
}

/// Guardrails under a floor that has all entries.
fn under_all_entries() -> Vec<Row> {
    let strict = json!({"requireApproval": true, "allowedTargets": ["WorkQueue"], "audit": "Required"});
    vec![
        (strict, None),
        (
            Value::Null,
            Some(
                "set requireApproval to true, set messagesWithoutApproval to 50 at most, set \
                 allowedTargets to no more than WorkQueue and Quarantine, set audit to Required",
            ),
        ),
        (
            json!({
                "requireApproval": true, "allowBody": true, "maxRate": 201, "audit": "Required",
                "allowedTargets": ["WorkQueue", "Discard"],
            }),
            Some(
                "set maxRate to 200 at most, set allowedTargets to no more than WorkQueue and \
                 Quarantine, leave out allowBody",
            ),
        ),
    ]
}

/// Floors in all shapes, each with guardrails that are enough and such that are not.
fn floors() -> Vec<(&'static str, Vec<Row>)> {
    vec![
        (FULL, under_all_entries()),
        (
            "messagesWithoutApproval=50",
            vec![
                (Value::Null, Some("set messagesWithoutApproval to 50 at most")),
                (json!({"messagesWithoutApproval": 51}), Some("set messagesWithoutApproval to 50 at most")),
                (json!({"messagesWithoutApproval": 50}), None),
                (json!({"requireApproval": true}), None),
            ],
        ),
        (
            "messagesWithoutApproval=0",
            vec![
                (json!({"requireApproval": true}), Some("set messagesWithoutApproval to 0 at most")),
                (json!({"requireApproval": true, "messagesWithoutApproval": 0}), None),
            ],
        ),
        (
            "maxRate=99",
            vec![
                (Value::Null, Some("set maxRate to 99 at most")),
                (json!({"maxRate": 99}), None),
                (json!({"maxRate": 100}), Some("set maxRate to 99 at most")),
            ],
        ),
        // Blanks, another order, and entries that ask for nothing.
        (
            " maxRate=100 , requireApproval=false,allowBody=true , audit=BestEffort",
            vec![
                (Value::Null, None),
                (json!({"allowBody": true}), None),
                (json!({"maxRate": 101}), Some("set maxRate to 100 at most")),
            ],
        ),
        (
            "allowedTargets=WorkQueue|Quarantine|ParkingLot|Origin",
            vec![
                (Value::Null, None),
                (json!({"allowedTargets": []}), None),
                (json!({"allowedTargets": ["Origin"]}), None),
                (
                    json!({"allowedTargets": ["Queue"]}),
                    Some(
                        "set allowedTargets to no more than WorkQueue and Quarantine and ParkingLot and Origin",
                    ),
                ),
            ],
        ),
    ]
}

#[tokio::test]
async fn guardrails_below_the_floor_are_refused_and_told_all_at_once() {
    let place = Place::new("floors").await;
    let mut wrong = Vec::new();
    for (number, (floor, rows)) in floors().into_iter().enumerate() {
        let (editor, guard) = under_floor(&place, number, floor).await;
        for (policy, todo) in rows {
            let expected =
                todo.map_or(Ok(()), |todo| Err(weaker(&format!("{}-{number}", place.namespace), todo)));
            let found = editor.try_create(&pipeline("orders", &policy)).await.map(drop);
            if found != expected {
                wrong.push(format!("{floor}: {policy}\n  expected {expected:?}\n  found    {found:?}"));
            }
            guard.try_create(&pipeline("orders", &policy)).await.unwrap();
        }
    }
    place.leave().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_floor_that_can_not_be_read_counts_as_the_strictest() {
    let place = Place::new("unreadable").await;
    let strictest = json!({
        "requireApproval": true, "messagesWithoutApproval": 0, "maxRate": 1, "allowedTargets": [],
        "audit": "Required",
    });
    let long = format!("maxRate=10{}", " ".repeat(1_024));
    let many = ",".repeat(1_024);
    let huge = "x".repeat(200_000);
    let floors = [
        "",
        "requireAproval=true",
        "requireApproval",
        "requireApproval=yes",
        "requireApproval=true,",
        "requireApproval=true;maxRate=10",
        "maxRate=10,maxRate=20",
        "maxRate=-1",
        "maxRate=10.5",
        "maxRate=10000000",
        "allowedTargets=",
        "allowedTargets=WorkQueue,Quarantine",
        "allowedTargets=workQueue",
        "allowBody=no",
        "audit=required",
        &long,
        &many,
        &huge,
    ];
    for (number, floor) in floors.into_iter().enumerate() {
        let (editor, guard) = under_floor(&place, number, floor).await;
        let found = editor.try_create(&pipeline("orders", &strictest)).await;
        let expected = unreadable(&format!("{}-{number}", place.namespace));
        assert_eq!(found.err(), Some(expected), "{floor:?}");
        guard.try_create(&pipeline("orders", &strictest)).await.unwrap();
    }
    place.leave().await;
}

#[tokio::test]
async fn a_pipeline_changed_or_recreated_weaker_takes_a_guard() {
    let place = Place::new("recreated").await;
    let (editor, guard) = under_floor(&place, 0, "requireApproval=true").await;
    let refusal = weaker(&format!("{}-0", place.namespace), "set requireApproval to true");
    let strong = pipeline("orders", &json!({"requireApproval": true}));
    editor.create(&strong).await.unwrap();
    for policy in [json!({"requireApproval": false}), json!({"requireApproval": null}), Value::Null] {
        let weakened = editor.edit_pipeline("orders", json!({"spec": {"replayPolicy": policy}})).await;
        assert_eq!(weakened.err().as_ref(), Some(&refusal));
    }
    editor.delete_pipeline("orders").await;
    for policy in [json!({}), json!({"requireApproval": false}), Value::Null] {
        assert_eq!(editor.create(&pipeline("orders", &policy)).await.err().as_ref(), Some(&refusal));
    }
    editor.create(&strong).await.unwrap();

    // What a guard weakened, an editor may go on with, strengthen, and then not weaken again.
    guard.edit_pipeline("orders", json!({"spec": {"replayPolicy": null}})).await.unwrap();
    editor.edit_pipeline("orders", json!({"spec": {"retry": {"delays": ["1s"]}}})).await.unwrap();
    let other = json!({"spec": {"replayPolicy": {"maxRate": 5}}});
    assert_eq!(editor.edit_pipeline("orders", other).await.err(), Some(refusal));
    editor
        .edit_pipeline("orders", json!({"spec": {"replayPolicy": {"requireApproval": true}}}))
        .await
        .unwrap();
    place.leave().await;
}

#[tokio::test]
async fn a_namespace_without_a_floor_has_the_clusters_or_none() {
    let place = Place::new("nofloor").await;
    let editor = place.person(EDITOR, &["redrive-pipeline-editor"]).await;
    let anything = json!({"allowBody": true, "maxRate": 100_000, "allowedTargets": ["Discard"]});
    editor.try_create(&pipeline("orders", &anything)).await.unwrap();
    place.leave().await;

    let (from, to) = (
        r#"{"expression":"''","name":"clusterFloor"}"#,
        r#"{"expression":"'maxRate=50'","name":"clusterFloor"}"#,
    );
    let place = Place::with("clusterfloor", from, to).await;
    let editor = place.person(EDITOR, &["redrive-pipeline-editor"]).await;
    let found = editor.try_create(&pipeline("orders", &anything)).await;
    assert_eq!(found.err(), Some(weaker(&place.namespace, "set maxRate to 50 at most")));
    // The namespace's own floor replaces it.
    let (editor, _) = under_floor(&place, 0, "audit=BestEffort").await;
    editor.try_create(&pipeline("orders", &anything)).await.unwrap();
    place.leave().await;
}
