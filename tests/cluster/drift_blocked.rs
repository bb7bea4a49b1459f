//! Drift that can't be put right from here, made by hand on a real broker: blocked, and told once.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::drift_kinds::Becomes::{Blocked, Repaired};
use crate::drift_kinds::Table;
use crate::support::amqp::{Wire, numbered};
use crate::support::eventually;
use crate::support::world::{POLL, World, describe, verdict};

#[rstest]
#[tokio::test]
async fn policies_of_others_are_blocked_and_named_key_by_key(#[values("43", "40")] version: &str) {
    let mut table = Table::new(version, "kinds-danger").await;
    let contents = table.contents().await;
    let shadowed = Blocked("PolicyShadowed");
    let keys = [
        // What only hides our numbers.
        ("policies", r"^orders\.queue$", json!({"consumer-timeout": 3_600_000}), "hides ours"),
        ("policies", r"retry\.0$", json!({"expires": 3_600_000}), "sets expires"),
        ("policies", r"retry\.0$", json!({"message-ttl": 999}), "sets message-ttl"),
        ("policies", r"retry\.0$", json!({"max-length": 100_000}), "sets max-length"),
        ("policies", r"retry\.0$", json!({"max-length-bytes": 1_000_000}), "sets max-length-bytes"),
        ("policies", r"retry\.0$", json!({"overflow": "drop-head"}), "sets overflow"),
        ("policies", r"retry\.0$", json!({"delivery-limit": 5}), "sets delivery-limit"),
        ("policies", r"retry\.0$", json!({"dead-letter-routing-key": "x"}), "sets dead-letter-routing-key"),
        // One policy is one finding, however many queues it meets.
        (
            "policies",
            "retry",
            json!({"expires": 3_600_000}),
            "queues orders.queue.retry.0, orders.queue.retry.1: policy",
        ),
        ("operator-policies", r"dlq$", json!({"message-ttl": 3_600_000}), "operator policy"),
        ("operator-policies", r"retry\.1$", json!({"expires": 3_600_000}), "operator policy"),
        ("operator-policies", r"^orders\.queue$", json!({"delivery-limit": 4}), "operator policy"),
    ];
    for (kind, pattern, definition, text) in keys {
        table.put_policy(kind, pattern, "queues", definition).await;
        table.finds(text, shadowed).await;
        table.delete(kind, "theirs").await;
        table.is_well().await;
    }
    // Of an exchange whose messages must wait where they are; the same once more is news once more.
    for _ in 0..2 {
        let definition = json!({"alternate-exchange": "amq.fanout"});
        table.put_policy("policies", r"return\.0$", "exchanges", definition).await;
        table.finds("sets alternate-exchange", shadowed).await;
        table.delete("policies", "theirs").await;
        table.is_well().await;
    }
    assert_eq!(table.contents().await, contents, "nothing was written for all that");
    table.world.leave().await;
}

#[tokio::test]
async fn a_dead_letter_queue_that_a_policy_would_lead_elsewhere_is_blocked() {
    let mut world = World::new("kinds-dlq").await;
    world.start();
    // Without a number of its own the DLQ has no policy that would win.
    world.create_ready("orders", json!({})).await;
    let mut table = Table { world, findings: 0 };
    table.put_policy("policies", "dlq$", "queues", json!({"dead-letter-exchange": "orders.exchange"})).await;
    table.finds("sets dead-letter-exchange", Blocked("PolicyShadowed")).await;
    table.delete("policies", "theirs").await;
    table.is_well().await;
    table.world.leave().await;
}

#[rstest]
#[tokio::test]
async fn what_was_replaced_by_another_type_is_blocked_or_gets_a_successor(
    #[values("43", "40")] version: &str,
) {
    let mut table = Table::new(version, "kinds-type").await;
    let mismatch = Blocked("ArgumentMismatch");

    // Names that others know stay, and so does what is there.
    let replaced = [
        (
            "queues",
            "orders.queue.dlq",
            json!({"arguments": {"x-queue-type": "classic"}}),
            "x-queue-type is classic where quorum is wanted",
        ),
        (
            "queues",
            "orders.queue",
            json!({"arguments": {"x-queue-type": "classic"}}),
            "x-queue-type is classic where quorum is wanted",
        ),
        ("exchanges", "orders.queue.dlx", json!({"type": "topic"}), "type is topic where fanout is wanted"),
        (
            "exchanges",
            "orders.queue.return.0",
            json!({"type": "direct"}),
            "type is direct where fanout is wanted",
        ),
        ("exchanges", "orders.exchange", json!({"type": "direct"}), "type is direct where topic is wanted"),
    ];
    for (kind, name, changes, how) in replaced {
        let singular = kind.strip_suffix('s').unwrap();
        table.again(kind, name, changes).await;
        table.finds(&format!("{singular} {name}: {how}"), mismatch).await;
        // Whoever deletes it gets the right one.
        table.delete(kind, name).await;
        table.finds(&format!("{singular} {name} is missing"), Repaired).await;
    }

    // Names that nobody else knows get a successor, and what is there is left alone.
    table.again("queues", "orders.queue.retry.0", json!({"arguments": {"x-queue-type": "classic"}})).await;
    table
        .finds("queue orders.queue.retry.0 was replaced by somebody else's; the messages that it held are gone: x-queue-type is classic", Repaired)
        .await;
    table.again("exchanges", "orders.queue.dlx.guard", json!({"type": "direct"})).await;
    table
        .finds(
            "exchange orders.queue.dlx.guard was replaced by somebody else's: type is direct where headers",
            Repaired,
        )
        .await;
    let theirs = table.world.broker.queue(&table.world.vhost, "orders.queue.retry.0").await;
    assert_eq!(theirs["type"], "classic");
    table.world.leave().await;
}

#[rstest]
#[tokio::test]
async fn a_consumer_on_a_retry_queue_is_told_with_its_user(#[values("43", "40")] version: &str) {
    let mut table = Table::new(version, "kinds-consumer").await;
    let user = table.world.broker.user.clone();
    // Without `monitoring` the broker shows that somebody consumes, and not who.
    let who = if version == "43" {
        table.world.as_user("pass", "policymaker,monitoring", ".*").await;
        table.world.looked_at(3).await;
        Some(user)
    } else {
        None
    };
    let wire = Wire::open(&table.world).await;
    // Where consumers belong, they are none of our business.
    let on_source = wire.fail("orders.queue").await;
    let on_dlq = wire.fail("orders.queue.dlq").await;
    let consumer = wire.fail("orders.queue.retry.0").await;
    let told = who.as_ref().map_or_else(|| "somebody".to_owned(), |user| format!("the user {user}"));
    let text = format!("queue orders.queue.retry.0: {told} consumes from it");
    table.finds(&text, Blocked("Blocked")).await;
    let drift = table.world.get("orders").await.status.unwrap().drift.unwrap();
    assert_eq!(drift.last.unwrap().by, who);
    // Edits are carried out all the same.
    table.world.edit("orders", json!({"source": {"deliveryLimit": 6}})).await;
    let generation = table.world.get("orders").await.metadata.generation;
    table
        .world
        .until("orders", "carries the edit out", |pipeline| {
            pipeline.status.as_ref().and_then(|status| status.applied_generation) == generation
        })
        .await;
    consumer.stop().await;
    table.is_well().await;
    on_source.stop().await;
    on_dlq.stop().await;
    table.world.leave().await;
}

#[rstest]
#[tokio::test]
async fn dead_letters_that_do_not_move_are_told(#[values("43", "40")] version: &str) {
    let mut world = World::on(version, "kinds-stuck").await;
    // Longer than the broker takes to count.
    world.settings.stuck_after = POLL * 10;
    world.start();
    let spec = json!({"retry": {"mode": "None", "delays": null}, "deadLetter": {"maxLength": 1}});
    world.create_ready("orders", spec).await;
    let mut table = Table { world, findings: 0 };
    let wire = Wire::open(&table.world).await;
    let consumer = wire.fail("orders.queue").await;
    wire.publish("orders.exchange", "created", numbered(0..40)).await;
    eventually("all are rejected", async || match consumer.rejected() {
        40 => Ok(()),
        rejected => Err(format!("{rejected}")),
    })
    .await;
    table
        .finds("queue orders.queue: its dead letters are held and do not move", Blocked("DeadLettersStuck"))
        .await;
    // Another operator has not waited for so long, and knows it all the same.
    table.world.stop().await;
    table.world.settings.stuck_after = Duration::from_secs(3_600);
    table.world.start();
    table.world.looked_at(4).await;
    let pipeline = table.world.get("orders").await;
    assert_eq!(verdict(&pipeline, "Ready"), "False DeadLettersStuck", "{}", describe(&pipeline));
    assert_eq!(table.events().await.len(), table.findings);
    // They are in the source: who deletes it loses them, and then nothing is held any more.
    table.delete("queues", "orders.queue").await;
    table.finds("queue orders.queue is missing; the messages that it held are gone", Repaired).await;
    table.world.leave().await;
}

#[rstest]
#[tokio::test]
async fn an_external_source_that_its_application_changes_is_told(#[values("43", "40")] version: &str) {
    let mut world = World::on(version, "kinds-external").await;
    let (broker, vhost) = (world.broker.clone(), world.vhost.clone());
    let declare = async |arguments: Value| {
        let body = json!({"durable": true, "arguments": arguments});
        broker.put(&["queues", &vhost, "orders.queue"], body).await;
    };
    declare(json!({"x-queue-type": "quorum"})).await;
    world.start();
    world.create_ready("orders", json!({"source": {"ownership": "External"}})).await;
    let contents = broker.contents(&vhost).await;
    let mut table = Table { world, findings: 0 };

    // Without our policy its dead letters would be lost.
    let policy = table.policy("source").await;
    table.delete("policies", &policy).await;
    table.finds(":source is missing or was changed", Repaired).await;
    // One of its own, which ours hides.
    let own = json!({"pattern": r"^orders\.queue$", "definition": {"max-length": 1_000}, "priority": 1, "apply-to": "queues"});
    broker.put(&["policies", &vhost, "own"], own).await;
    table
        .finds("has the policy \"own\" with max-length, which ours would hide", Blocked("PolicyConflict"))
        .await;
    table.delete("policies", "own").await;
    table.is_well().await;

    table.delete("queues", "orders.queue").await;
    table.finds("queue orders.queue: does not exist", Blocked("Blocked")).await;
    declare(json!({"x-queue-type": "quorum"})).await;
    let text = "queue orders.queue was deleted and declared again by somebody else; the messages that it held are gone";
    table.finds(text, Repaired).await;
    assert_eq!(broker.contents(&vhost).await, contents);

    // An argument beats any policy.
    let arguments = json!({"x-queue-type": "quorum", "x-dead-letter-exchange": "amq.fanout"});
    table.again("queues", "orders.queue", json!({"arguments": arguments})).await;
    table
        .finds("queue orders.queue: has the argument x-dead-letter-exchange", Blocked("PolicyConflict"))
        .await;
    table.world.leave().await;
}
