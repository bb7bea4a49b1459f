//! Replays that must not begin, each with a sentence that says what to do.

use redrive::api::DlqReplay;
use serde_json::{Value, json};

use crate::support::replays::{DLQ, SOURCE, text_of, verdict_of};
use crate::support::world::World;

/// Checks that a replay ends for this reason, that its message holds all of this, and that
/// nothing has moved.
pub(crate) async fn refused(world: &World, name: &str, reason: &str, texts: &[&str]) -> DlqReplay {
    let replay = world.until_phase(name, reason).await;
    let text = text_of(&replay, "Succeeded");
    for part in texts {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    assert_eq!(verdict_of(&replay, "Succeeded"), format!("False {reason}"));
    assert_eq!(verdict_of(&replay, "Stalled"), format!("True {reason}"));
    assert_eq!(verdict_of(&replay, "Reconciling"), format!("False {reason}"));
    assert_eq!(verdict_of(&replay, "Running"), format!("False {reason}"));
    let status = replay.status.clone().unwrap();
    assert!(status.admission.is_none() && status.progress.is_none(), "{status:?}");
    assert_eq!(status.summary.unwrap().result, reason);
    world.until_event(name, &format!("Warning {reason}")).await;
    replay
}

/// A policy of the pipeline under which a replay with this spec must be refused.
async fn refused_by_policy(purpose: &str, policy: Value, spec: Value, reason: &str, texts: &[&str]) {
    let world = World::with_dead_letters(purpose, policy, 2).await;
    world.replay("r", spec).await;
    refused(&world, "r", reason, texts).await;
    world.until_messages(&[(DLQ, 2), (SOURCE, 0)]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_pipeline_of_that_name_elsewhere_does_not_count() {
    let mut world = World::for_replays("rp-unknown").await;
    let mut other = World::for_replays("rp-other").await;
    world.start();
    other.start();
    other.create_ready("orders", json!({})).await;
    world.replay("r", json!({})).await;
    let namespace = format!("namespace {:?}", world.namespace);
    let texts = ["no RetryPipeline \"orders\"", &namespace, "another namespace does not count"];
    refused(&world, "r", "PipelineNotFound", &texts).await;
    world.leave().await;
    other.leave().await;
}

#[tokio::test]
async fn a_pipeline_that_comes_a_moment_later_is_waited_for() {
    let mut world = World::for_replays("rp-later").await;
    world.settings.replays.patience = std::time::Duration::from_secs(60);
    world.start();
    world.replay("r", json!({"dryRun": true})).await;
    world
        .until_replay("r", "says what it waits for", |replay| {
            verdict_of(replay, "Succeeded") == "Unknown Planning"
                && text_of(replay, "Succeeded").contains("no RetryPipeline")
        })
        .await;
    world.create_ready("orders", json!({})).await;
    world.until_phase("r", "Completed").await;
    world.leave().await;
}

#[tokio::test]
async fn a_suspended_pipeline_is_not_replayed() {
    let world = World::with_dead_letters("rp-suspended", json!({}), 1).await;
    world.edit("orders", json!({"suspend": true})).await;
    world
        .until("orders", "is suspended", |pipeline| {
            crate::support::world::verdict(pipeline, "Suspended").starts_with("True")
        })
        .await;
    world.replay("r", json!({})).await;
    refused(&world, "r", "PreflightFailed", &["\"orders\" is suspended", "spec.suspend to false"]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_pipeline_that_is_not_ready_is_not_replayed() {
    let mut world = World::for_replays("rp-not-ready").await;
    world.start();
    world.delete_secret().await;
    world.create(world.manifest("orders", json!({}))).await;
    world.until_reason("orders", "SecretNotFound").await;
    world.replay("r", json!({})).await;
    refused(&world, "r", "PreflightFailed", &["is not Ready (SecretNotFound)"]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_target_that_the_pipeline_does_not_allow_and_a_rate_above_its_maximum_are_both_named() {
    let spec = json!({"to": {"discard": {}}, "pace": {"messagesPerSecond": 21}});
    let texts = ["WorkQueue", "Discard", "allowedTargets", "at most 20"];
    refused_by_policy("rp-policy", json!({"maxRate": 20}), spec, "InvalidSpec", &texts).await;
}

#[tokio::test]
async fn a_quarantine_that_the_pipeline_has_not_is_named() {
    let spec = json!({"from": {"quarantine": {"category": "schema"}}});
    refused_by_policy("rp-quarantine", json!({}), spec, "InvalidSpec", &["\"schema\""]).await;
}

#[tokio::test]
async fn without_an_audit_stream_nothing_moves_where_one_is_required() {
    let texts = ["requires an audit stream", "--audit-vhost", "BestEffort"];
    refused_by_policy("rp-audit", json!({"audit": "Required"}), json!({}), "PreflightFailed", &texts).await;
}

#[tokio::test]
async fn an_approval_that_nobody_can_verify_does_not_count() {
    let mut world = World::for_replays("rp-verify").await;
    world.settings.replays.allow_unverified_approval = false;
    world.start();
    world
        .create_ready(
            "orders",
            json!({"replayPolicy": {"requireApproval": true, "messagesWithoutApproval": 1}}),
        )
        .await;
    world.broker.fill(&world.vhost, DLQ, 2).await;
    world.replay("r", json!({})).await;
    refused(&world, "r", "ApprovalUnverifiable", &["nobody can tell who approved"]).await;
    // What needs none is not concerned.
    world.replay("small", json!({"select": {"limit": 1}})).await;
    world.until_phase("small", "Completed").await;
    world.leave().await;
}

#[tokio::test]
async fn an_origin_queue_that_is_gone_is_a_sentence() {
    let world = World::with_dead_letters("rp-gone", json!({}), 0).await;
    world.edit("orders", json!({"driftPolicy": "Report"})).await;
    world.ready("orders").await;
    world.broker.delete(&["queues", &world.vhost, DLQ]).await;
    world.replay("r", json!({})).await;
    // The pipeline says that it is missing by then, or the plan does.
    let texts = [DLQ, "Ready"];
    refused(&world, "r", "PreflightFailed", &texts).await;
    world.leave().await;
}
