//! Who may let messages move, and how many.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::support::replays::{DLQ, SOURCE, text_of, verdict_of};
use crate::support::world::World;

#[tokio::test]
async fn a_replay_above_the_budget_waits_whole_for_a_second_person() {
    let policy = json!({"requireApproval": true, "messagesWithoutApproval": 3});
    let world = World::with_dead_letters("rc-wait", policy, 8).await;
    world.replay("r", json!({})).await;
    let waiting = world.until_phase("r", "AwaitingApproval").await;
    let hash = waiting.status.clone().unwrap().plan.unwrap().hash;
    let text = text_of(&waiting, "Succeeded");
    let command = format!("`redrive approve r -n {}`", world.namespace);
    assert!(text.starts_with("8 messages are more than") && text.contains(&hash), "{text}");
    assert!(text.contains(&command), "{text}");
    assert_eq!(verdict_of(&waiting, "Approved"), "False AwaitingApproval");
    assert_eq!(verdict_of(&waiting, "Stalled"), "False AwaitingApproval");
    assert!(waiting.status.unwrap().admission.is_none());
    world.until_messages(&[(DLQ, 8), (SOURCE, 0)]).await;
    // Never more than was approved.
    world.approve("r", 5).await;
    let replay = world
        .until_replay("r", "has ended", |replay| replay.status.as_ref().unwrap().summary.is_some())
        .await;
    assert_eq!(verdict_of(&replay, "Succeeded"), "True Completed");
    assert_eq!(verdict_of(&replay, "Approved"), "True Approved");
    world.until_messages(&[(DLQ, 3), (SOURCE, 5)]).await;
    let pipeline = world
        .until("orders", "remembers it", |pipeline| !pipeline.status.as_ref().unwrap().replays.is_empty())
        .await;
    let record = &pipeline.status.unwrap().replays[0];
    assert!(record.approved && record.moved == 5, "{record:?}");
    world.leave().await;
}

/// What people may have consented to is not given up because a broker is restarted or a pipeline is
/// edited meanwhile.
#[tokio::test]
async fn a_plan_outlasts_a_pipeline_that_is_not_ready_for_a_while() {
    let policy = json!({"requireApproval": true, "messagesWithoutApproval": 0});
    let world = World::with_dead_letters("rc-away", policy, 8).await;
    world.replay("r", json!({})).await;
    let waiting = world.until_phase("r", "AwaitingApproval").await;
    let plan = waiting.status.unwrap().plan.unwrap();
    tokio::time::sleep(world.settings.replays.patience).await;
    world.edit("orders", json!({"suspend": true})).await;
    let held = world.until_phase("r", "Scheduled").await;
    assert!(text_of(&held, "Succeeded").contains("suspended"), "{held:?}");
    world.edit("orders", json!({"suspend": false})).await;
    let waiting = world.until_phase("r", "AwaitingApproval").await;
    assert_eq!(waiting.status.unwrap().plan.unwrap().hash, plan.hash);
    world.approve("r", 8).await;
    world.until_phase("r", "Completed").await;
    world.until_messages(&[(DLQ, 0), (SOURCE, 8)]).await;
    world.leave().await;
}

#[tokio::test]
async fn an_approval_of_another_plan_does_not_count() {
    let world = World::with_dead_letters("rc-plan", json!({"requireApproval": true}), 60).await;
    world.replay("r", json!({})).await;
    world.until_phase("r", "AwaitingApproval").await;
    let approval = json!({"approvedBy": "b@example.com", "maxMessages": 60, "planHash": "another"});
    world.edit_replay("r", json!({"approval": approval})).await;
    let replay = world.until_phase("r", "ApprovalMismatch").await;
    assert!(text_of(&replay, "Succeeded").contains("planHash"), "{replay:?}");
    world.until_messages(&[(DLQ, 60), (SOURCE, 0)]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_pace_that_changes_before_the_approval_takes_another_plan() {
    let world = World::with_dead_letters("rc-pace", json!({"requireApproval": true}), 60).await;
    world.replay("r", json!({})).await;
    let first = world.until_phase("r", "AwaitingApproval").await.status.unwrap().plan.unwrap();
    world.edit_replay("r", json!({"pace": {"messagesPerSecond": 90}})).await;
    let other = |replay: &redrive::api::DlqReplay| {
        let plan = replay.status.as_ref().and_then(|status| status.plan.as_ref());
        plan.is_some_and(|plan| plan.hash != first.hash)
    };
    world.until_replay("r", "has another plan", other).await;
    // Whoever approves the plan with the slower pace does not approve the faster one, even
    // where both come at once.
    let second = world.until_phase("r", "AwaitingApproval").await.status.unwrap().plan.unwrap();
    let approval = json!({"approvedBy": "b@example.com", "maxMessages": 60, "planHash": second.hash});
    world.edit_replay("r", json!({"approval": approval, "pace": {"messagesPerSecond": 95}})).await;
    let replay = world.until_phase("r", "ApprovalMismatch").await;
    assert!(text_of(&replay, "Succeeded").contains("spec.pace"), "{replay:?}");
    world.until_messages(&[(DLQ, 60), (SOURCE, 0)]).await;
    world.leave().await;
}

#[tokio::test]
async fn an_approval_that_has_become_old_does_not_count() {
    let mut world = World::for_replays("rc-old").await;
    world.start();
    world.create_ready("orders", json!({"replayPolicy": {"messagesWithoutApproval": 0}})).await;
    world.broker.fill(&world.vhost, DLQ, 2).await;
    world.replay("r", json!({"suspend": true})).await;
    world.until_phase("r", "AwaitingApproval").await;
    world.approve("r", 2).await;
    let held = world.until_phase("r", "Paused").await;
    assert_eq!(verdict_of(&held, "Approved"), "True Approved");
    assert_eq!(verdict_of(&held, "Suspended"), "True Paused");
    // As if that had been two days ago.
    let mut conditions = held.status.unwrap().conditions;
    let approved = conditions.iter_mut().find(|one| one.type_ == "Approved").unwrap();
    approved.last_transition_time.0 -= Duration::from_secs(48 * 3_600);
    let earlier = Patch::Merge(json!({"status": {"conditions": conditions}}));
    world.replays().patch_status("r", &PatchParams::default(), &earlier).await.unwrap();
    world.edit_replay("r", json!({"suspend": false})).await;
    let replay = world.until_phase("r", "ApprovalExpired").await;
    assert!(text_of(&replay, "Succeeded").contains("have a new replay approved"), "{replay:?}");
    world.until_messages(&[(DLQ, 2), (SOURCE, 0)]).await;
    world.leave().await;
}

#[tokio::test]
async fn the_budget_is_exact_over_all_replays_of_a_day() {
    let world = World::with_dead_letters("rc-budget", json!({"messagesWithoutApproval": 10}), 30).await;
    let ask = async |name: &str, limit: u32| world.replay(name, json!({"select": {"limit": limit}})).await;
    ask("six", 6).await;
    let six = world.until_phase("six", "Completed").await;
    assert_eq!(verdict_of(&six, "Approved"), "True WithinBudget");
    world.until_replay("six", "is remembered", |replay| replay.metadata.finalizers.is_none()).await;
    ask("five", 5).await;
    world.until_phase("five", "AwaitingApproval").await;
    ask("four", 4).await;
    world.until_phase("four", "Completed").await;
    world.until_replay("four", "is remembered", |replay| replay.metadata.finalizers.is_none()).await;
    ask("one", 1).await;
    world.until_phase("one", "AwaitingApproval").await;
    // With a second person it is no question of the budget, and takes nothing from it.
    world.approve("five", 5).await;
    world.until_phase("five", "Completed").await;
    world.until_messages(&[(DLQ, 15), (SOURCE, 15)]).await;
    world.leave().await;
}

#[tokio::test]
async fn deleting_messages_always_takes_an_approval() {
    let policy = json!({"allowedTargets": ["Discard"]});
    let world = World::with_dead_letters("rc-discard", policy, 3).await;
    world.replay("r", json!({"to": {"discard": {}}})).await;
    let waiting = world.until_phase("r", "AwaitingApproval").await;
    let text = text_of(&waiting, "Succeeded");
    assert!(text.starts_with("deleting messages always takes an approval: "), "{text}");
    world.until_messages(&[(DLQ, 3), (SOURCE, 0)]).await;
    world.approve("r", 2).await;
    world.until_phase("r", "Completed").await;
    world.until_messages(&[(DLQ, 1), (SOURCE, 0)]).await;
    world.leave().await;
}
