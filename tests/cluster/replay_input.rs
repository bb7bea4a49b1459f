//! What people ask for that can't be done, or not as they think: each ends in a sentence that
//! says what to write or do instead, and nothing has moved.

use kube::api::{Patch, PatchParams};
use redrive::api::DlqReplay;
use serde_json::{Value, json};

use crate::replay_refused::refused;
use crate::support::replays::{DLQ, SOURCE, phase_of, text_of};
use crate::support::world::{SECRET, World};

/// Checks that a dry run ends with these findings, by check and severity, each with a text that
/// holds all of this.
async fn found(world: &World, name: &str, spec: Value, wanted: &[(&str, &str, &[&str])]) -> DlqReplay {
    let mut spec = spec;
    spec["dryRun"] = json!(true);
    world.replay(name, spec).await;
    let replay = world.until_phase(name, "Completed").await;
    let findings = replay.status.as_ref().unwrap().plan.as_ref().unwrap().findings.clone();
    for (check, severity, texts) in wanted {
        let finding = findings.iter().find(|finding| finding.check == *check);
        let finding = finding.unwrap_or_else(|| panic!("{check} in {findings:?}"));
        assert_eq!(format!("{:?}", finding.severity), *severity);
        for text in *texts {
            assert!(finding.message.contains(text), "{text:?} in {:?}", finding.message);
        }
    }
    replay
}

async fn policy(world: &World, pattern: &str, apply_to: &str, definition: Value) {
    let body = json!({"pattern": pattern, "apply-to": apply_to, "priority": 50, "definition": definition});
    world.broker.put(&["policies", &world.vhost, "by-hand"], body).await;
}

#[tokio::test]
async fn a_secret_for_replays_that_is_missing_is_named_until_it_is_there() {
    let mut world = World::for_replays("ri-secret").await;
    world.start();
    world.create_ready("orders", json!({"replayPolicy": {"secretRef": {"name": "typo"}}})).await;
    world.broker.fill(&world.vhost, DLQ, 2).await;
    world.replay("r", json!({})).await;
    world.until_replay("r", "names it", |replay| text_of(replay, "Succeeded").contains("typo")).await;
    assert_eq!(phase_of(&world.replays().get("r").await.unwrap()), "Planning");
    world.edit("orders", json!({"replayPolicy": {"secretRef": {"name": SECRET}}})).await;
    let done = world.until_phase("r", "Completed").await;

    // An edit that comes too late changes nothing, and nobody waits for it.
    let edited = world.edit_replay("r", json!({"pace": {"messagesPerSecond": 5}})).await;
    assert!(edited.metadata.generation > done.metadata.generation);
    let seen = world
        .until_replay("r", "has seen the edit", |replay| {
            replay.status.as_ref().unwrap().observed_generation == replay.metadata.generation
        })
        .await;
    assert_eq!(
        (phase_of(&seen), text_of(&seen, "Succeeded")),
        (phase_of(&done), text_of(&done, "Succeeded"))
    );
    assert_eq!(seen.status.unwrap().summary, done.status.unwrap().summary);
    world.leave().await;
}

#[tokio::test]
async fn a_pipeline_that_exists_nowhere_is_named() {
    let mut world = World::for_replays("ri-nowhere").await;
    world.start();
    world.replay("r", json!({"pipelineRef": {"name": "ordres"}})).await;
    let texts = ["no RetryPipeline \"ordres\"", "correct spec.pipelineRef.name"];
    refused(&world, "r", "PipelineNotFound", &texts).await;
    world.leave().await;
}

#[tokio::test]
async fn expressions_that_can_not_be_evaluated_are_placed() {
    let world = World::with_dead_letters("ri-expression", json!({}), 2).await;
    let cases: [(&str, &str, &[&str]); 4] = [
        ("syntax", "headers.tenant = 4", &["spec.select.expression", "no CEL", "line 1"]),
        ("name", "header.tenant == 4", &["no variable \"header\"", "headers, properties, body", "column 1"]),
        (
            "cost",
            "headers.a.exists(x, headers.b.exists(y, x == y))",
            &["spec.select.expression", "inside each other"],
        ),
        ("body", "size(body) < 10", &["does not let expressions read bodies", "replayPolicy.allowBody"]),
    ];
    for (name, expression, texts) in cases {
        world.replay(name, json!({"select": {"expression": expression}})).await;
        refused(&world, name, "InvalidSpec", texts).await;
    }
    world.until_messages(&[(DLQ, 2), (SOURCE, 0)]).await;
    world.leave().await;
}

#[tokio::test]
async fn targets_that_lead_nowhere_are_refused() {
    let world =
        World::with_dead_letters("ri-nowhere-to", json!({"allowedTargets": ["Queue", "Exchange"]}), 2).await;
    let exchange = json!({"type": "topic", "durable": true});
    world.broker.put(&["exchanges", &world.vhost, "bare"], exchange).await;
    let cases: [(&str, Value, &[&str]); 3] = [
        ("queue", json!({"queue": {"name": "typo"}}), &["no queue \"typo\"", "nothing is ever created"]),
        (
            "exchange",
            json!({"exchange": {"name": "typo", "routingKey": "a"}}),
            &["no exchange \"typo\"", "correct spec.to"],
        ),
        (
            "unbound",
            json!({"exchange": {"name": "bare", "routingKey": "a"}}),
            &["no queue is bound to the exchange \"bare\"", "bind one, or correct spec.to"],
        ),
    ];
    for (name, to, texts) in cases {
        world.replay(name, json!({"to": to})).await;
        refused(&world, name, "PreflightFailed", texts).await;
    }
    assert!(!world.broker.exists("queues", &world.vhost, "typo").await);
    world.until_messages(&[(DLQ, 2), (SOURCE, 0)]).await;
    world.leave().await;
}

#[tokio::test]
async fn targets_that_could_hide_a_loss_are_warned_of() {
    let world =
        World::with_dead_letters("ri-hiding", json!({"allowedTargets": ["Queue", "Exchange"]}), 2).await;
    let hiding = json!({"type": "topic", "durable": true, "arguments": {"alternate-exchange": "amq.fanout"}});
    world.broker.put(&["exchanges", &world.vhost, "hiding"], hiding).await;
    for (queue, overflow) in [("full", "reject-publish"), ("drops", "drop-head")] {
        let arguments = json!({"x-queue-type": "quorum", "x-max-length": 2, "x-overflow": overflow});
        world
            .broker
            .put(&["queues", &world.vhost, queue], json!({"durable": true, "arguments": arguments}))
            .await;
    }
    world.broker.bind(&world.vhost, "hiding", "q", "drops", "a").await;
    world.broker.fill(&world.vhost, "full", 2).await;
    let to = json!({"to": {"exchange": {"name": "hiding", "routingKey": "a"}}});
    let hidden = ["goes to \"amq.fanout\" and counts as moved", "remove its alternate exchange"];
    let drops = ["\"drops\" has a limit and drops its oldest", "set overflow to reject-publish"];
    let wanted: [(&str, &str, &[&str]); 2] =
        [("TargetAlternateExchange", "Warning", &hidden), ("TargetDropsHead", "Warning", &drops)];
    found(&world, "hiding", to, &wanted).await;
    let full = ["\"full\" is full (2 messages)", "let its consumers work it off first"];
    let to = json!({"to": {"queue": {"name": "full"}}});
    found(&world, "full", to, &[("TargetFull", "Warning", &full)]).await;
    world.until_messages(&[(DLQ, 2), ("full", 2), ("drops", 0)]).await;
    world.leave().await;
}

#[tokio::test]
async fn an_empty_origin_queue_is_said_to_be_empty() {
    let world = World::with_dead_letters("ri-empty", json!({}), 0).await;
    let empty = ["the queue \"orders.queue.dlq\" is empty", "nothing to move"];
    found(&world, "dry", json!({}), &[("OriginEmpty", "Info", &empty)]).await;
    world.replay("r", json!({})).await;
    let replay = world.until_phase("r", "Completed").await;
    assert!(text_of(&replay, "Succeeded").contains("no message is selected"), "{replay:?}");
    world.leave().await;
}

/// One that waited for its pipeline here would wait for ever, since nobody makes a new plan.
#[tokio::test]
async fn a_danger_in_a_plan_ends_a_replay_also_while_its_pipeline_is_not_ready() {
    let world = World::with_dead_letters("ri-early", json!({}), 1).await;
    world.replay("r", json!({"suspend": true})).await;
    world.until_phase("r", "Paused").await;
    world.edit("orders", json!({"suspend": true})).await;
    // In the moment of a real danger either may come first, the plan or the pipeline's condition.
    let finding = json!({"severity": "Error", "check": "OriginDeliveryLimit", "message": "reading destroys"});
    let plan = json!({"status": {"plan": {"findings": [finding]}}});
    world.replays().patch_status("r", &PatchParams::default(), &Patch::Merge(&plan)).await.unwrap();
    world.edit_replay("r", json!({"suspend": false})).await;
    refused(&world, "r", "PreflightFailed", &["reading destroys"]).await;
    world.until_messages(&[(DLQ, 1), (SOURCE, 0)]).await;
    world.leave().await;
}

#[tokio::test]
async fn a_dead_letter_queue_that_reading_would_destroy_is_not_read() {
    let world = World::with_dead_letters("ri-limit", json!({}), 1).await;
    policy(&world, "^orders\\.queue\\.dlq$", "queues", json!({"delivery-limit": 1})).await;
    world.replay("r", json!({"dryRun": true})).await;
    // The pipeline says so by then, or the plan does.
    let texts = ["orders.queue.dlq", "delivery-limit", "remove"];
    refused(&world, "r", "PreflightFailed", &texts).await;
    world.until_messages(&[(DLQ, 1), (SOURCE, 0)]).await;
    world.leave().await;
}
