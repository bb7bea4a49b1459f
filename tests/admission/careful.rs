//! After an approval a replay may only become more careful.

use rstest::rstest;
use serde_json::{Value, json};

use crate::people::{APPROVER, REQUESTER};
use crate::place::{Place, replay};

/// What was approved, a change, and what is said against it; nothing where it is allowed.
type Row<Text = String> = (&'static str, Value, Value, Option<Text>);

fn owned(rows: Vec<Row<&str>>) -> Vec<Row> {
    let own = |(what, before, change, told): Row<&str>| (what, before, change, told.map(str::to_owned));
    rows.into_iter().map(own).collect()
}

/// Numbers: lower or equal. The default counts where a field is left out.
fn numbers() -> Vec<Row> {
    let fields = [
        ("pace.messagesPerSecond", 10),
        ("pace.batch", 50),
        ("pace.window", 500),
        ("guard.stopOnReturnPercent", 20),
        ("guard.minReturns", 10),
        ("guard.canary.messages", 5),
        ("guard.canary.tries", 3),
        ("guard.maxUnroutable", 1),
    ];
    let mut rows = Vec::new();
    for (path, default) in fields {
        let at = |number: i64| at(path, json!(number));
        let told = |most: i64| Some(format!("spec.{path} may be {most} at most"));
        rows.extend([
            ("set higher", at(default), at(default + 1), told(default)),
            ("added above the default", json!({}), at(default + 1), told(default)),
            ("added as the default", json!({}), at(default), None),
            ("removed at the default", at(default), removed(path), None),
            ("lowered", at(default + 1), at(default), None),
            ("removed above the default", at(default + 1), removed(path), None),
        ]);
        if default > 1 {
            let below = default - 1;
            rows.extend([
                ("removed below the default", at(below), removed(path), told(below)),
                ("added below the default", json!({}), at(below), None),
            ]);
        }
    }
    rows
}

fn at(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |inner, part| json!({part: inner}))
}

fn removed(path: &str) -> Value {
    at(path, Value::Null)
}

fn ramp(from: i64, every: &str, factor: i64) -> Value {
    json!({"pace": {"ramp": {"from": from, "every": every, "factor": factor}}})
}

fn ramps() -> Vec<Row> {
    owned(vec![
        ("a ramp is added", json!({}), ramp(1, "30s", 2), None),
        (
            "a ramp is removed",
            ramp(1, "30s", 2),
            removed("pace.ramp"),
            Some(
                "spec.pace.ramp.from may be 1 at most, spec.pace.ramp.factor may be 2 at most, \
                 spec.pace.ramp.every may be 30s at least",
            ),
        ),
        (
            "it starts faster",
            ramp(1, "30s", 2),
            ramp(2, "30s", 2),
            Some("spec.pace.ramp.from may be 1 at most"),
        ),
        ("it starts slower", ramp(2, "30s", 2), ramp(1, "30s", 2), None),
        (
            "it grows faster",
            ramp(1, "30s", 2),
            ramp(1, "30s", 3),
            Some("spec.pace.ramp.factor may be 2 at most"),
        ),
        ("it grows slower", ramp(1, "30s", 3), ramp(1, "30s", 2), None),
        (
            "its steps are shorter",
            ramp(1, "30s", 2),
            ramp(1, "29s", 2),
            Some("spec.pace.ramp.every may be 30s at least"),
        ),
        ("its steps are longer", ramp(1, "30s", 2), ramp(1, "31s", 2), None),
    ])
}

fn pause(text: &str) -> Value {
    at("pace.pauseBetweenBatches", json!(text))
}

fn after(text: &str) -> Value {
    at("guard.canary.after", json!(text))
}

/// Spans: longer or equal, by value and not by spelling.
fn spans() -> Vec<Row> {
    const PAUSE: &str = "spec.pace.pauseBetweenBatches may be 10s at least";
    const AFTER: &str = "spec.guard.canary.after may be 5m at least";
    owned(vec![
        ("a pause is added", json!({}), pause("10s"), None),
        ("a pause is removed", pause("10s"), removed("pace.pauseBetweenBatches"), Some(PAUSE)),
        ("a shorter pause", pause("10s"), pause("9999ms"), Some(PAUSE)),
        ("the same pause", pause("90s"), pause("1m30s"), None),
        ("a longer pause", pause("10s"), pause("11s"), None),
        ("the same in days", pause("24h"), pause("1d"), None),
        ("longer in days", pause("1d1h"), pause("2d"), None),
        (
            "shorter in days",
            pause("1d"),
            pause("23h59m"),
            Some("spec.pace.pauseBetweenBatches may be 1d at least"),
        ),
        ("the default spelt out", json!({}), after("5m"), None),
        ("a shorter wait than the default", json!({}), after("4m"), Some(AFTER)),
        ("a longer wait", json!({}), after("6m"), None),
        (
            "back to the default",
            after("6m"),
            removed("guard.canary"),
            Some("spec.guard.canary.after may be 6m at least"),
        ),
        ("a longer one by default", after("4m"), removed("guard.canary"), None),
    ])
}

fn others() -> Vec<Row> {
    const DEPTH: &str = "spec.guard.pauseAboveTargetDepth may be 5000 at most";
    const CONSUMERS: &str = "spec.guard.requireConsumers has to stay true";
    const SAMPLE: &str = "spec.guard.sample has to stay 50";
    let depth = |number: i64| at("guard.pauseAboveTargetDepth", json!(number));
    let consumers = |flag: bool| at("guard.requireConsumers", json!(flag));
    let sample = |number: i64| at("guard.sample", json!(number));
    owned(vec![
        ("a depth is added", json!({}), depth(5_000), None),
        ("a depth is removed", depth(5_000), removed("guard.pauseAboveTargetDepth"), Some(DEPTH)),
        ("the whole guard is removed", depth(5_000), removed("guard"), Some(DEPTH)),
        ("a greater depth", depth(5_000), depth(5_001), Some(DEPTH)),
        ("a smaller depth", depth(5_000), depth(4_999), None),
        ("consumers are not required any more", json!({}), consumers(false), Some(CONSUMERS)),
        ("the same, said before", consumers(true), consumers(false), Some(CONSUMERS)),
        ("consumers are required by default", consumers(false), removed("guard.requireConsumers"), None),
        ("consumers are required", consumers(false), consumers(true), None),
        ("a smaller sample", json!({}), sample(49), Some(SAMPLE)),
        ("a greater sample", json!({}), sample(51), Some(SAMPLE)),
        ("the sample that it is", json!({}), sample(50), None),
        (
            "another sample by default",
            sample(60),
            removed("guard.sample"),
            Some("spec.guard.sample has to stay 60"),
        ),
        (
            "several at once, all told",
            json!({}),
            json!({"pace": {"batch": 51}, "guard": {"sample": 51, "requireConsumers": false, "canary": {"after": "1s"}}}),
            Some(
                "spec.pace.batch may be 50 at most, spec.guard.canary.after may be 5m at least, \
                 spec.guard.sample has to stay 50, spec.guard.requireConsumers has to stay true",
            ),
        ),
    ])
}

fn refusal(complaint: &str) -> String {
    format!(
        "an approved replay may only become more careful: {complaint}; for anything else set cancel, and create \
         a new DlqReplay"
    )
}

#[rstest]
#[case("numbers", numbers())]
#[case("ramps", ramps())]
#[case("spans", spans())]
#[case("others", others())]
#[tokio::test]
async fn every_field_may_only_be_tightened(#[case] purpose: &str, #[case] rows: Vec<Row>) {
    let place = Place::new(purpose).await;
    let requester = place.person(REQUESTER, &["redrive-requester"]).await;
    let approver = place.person(APPROVER, &["redrive-approver"]).await;
    let mut wrong = Vec::new();
    for (number, (what, before, change, complaint)) in rows.into_iter().enumerate() {
        let name = format!("replay-{number}");
        requester.create(&replay(&name, before.clone())).await.unwrap();
        approver.approve(&name).await.unwrap();
        let expected = complaint.map_or(Ok(()), |complaint| Err(refusal(&complaint)));
        for person in [&requester, &approver] {
            let found = person.try_edit(&name, json!({"spec": change})).await.map(drop);
            if found != expected {
                wrong.push(format!(
                    "{what}: {before} -> {change}\n  expected {expected:?}\n  found    {found:?}"
                ));
            }
        }
    }
    place.leave().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn before_the_approval_everything_is_open_and_the_approval_brings_nothing_along() {
    let place = Place::new("open").await;
    let requester = place.person(REQUESTER, &["redrive-requester"]).await;
    let approver = place.person(APPROVER, &["redrive-approver"]).await;
    requester.create(&replay("orders", json!({}))).await.unwrap();
    requester.edit("orders", json!({"spec": {"pace": {"messagesPerSecond": 50}}})).await.unwrap();
    let approval = json!({"approvedBy": APPROVER, "maxMessages": 500, "planHash": "abc"});
    let bold = json!({"spec": {"approval": approval, "pace": {"messagesPerSecond": 51}}});
    let expected = refusal("spec.pace.messagesPerSecond may be 50 at most");
    assert_eq!(approver.edit("orders", bold).await.map(drop), Err(expected));
    approver.approve("orders").await.unwrap();
    place.leave().await;
}
