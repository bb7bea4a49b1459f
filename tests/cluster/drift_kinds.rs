//! Every kind of drift, made by hand on a real broker: found, told once, and put right or blocked.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::amqp::{Wire, numbered};
use crate::support::eventually;
use crate::support::world::{POLL, World, describe, message, verdict};

/// What a finding becomes, and the reason of Ready while it is there.
#[derive(Clone, Copy, Debug)]
enum Becomes {
    Repaired,
    Blocked(&'static str),
}

use Becomes::{Blocked, Repaired};

/// A pipeline of which one thing after the other is changed by hand.
struct Table {
    world: World,
    /// Findings so far.
    findings: usize,
}

impl Table {
    async fn new(version: &str, purpose: &str) -> Self {
        let mut world = World::on(version, purpose).await;
        world.start();
        let spec = json!({"source": {"deliveryLimit": 5}, "deadLetter": {"retention": "14d"}});
        world.create_ready("orders", spec).await;
        world.broker.put(&["queues", &world.vhost, "spy"], json!({"durable": true})).await;
        Self { world, findings: 0 }
    }

    /// Waits for one finding more that reads so, and checks all that is said of it.
    async fn finds(&mut self, text: &str, becomes: Becomes) {
        let ending = match becomes {
            Repaired => "; repaired",
            Blocked(_) => "; blocked",
        };
        let events = eventually(&format!("an event with {text:?}"), async || {
            let found = self.events().await;
            if found.len() > self.findings { Ok(found) } else { Err(found.join("\n")) }
        })
        .await;
        assert_eq!(events.len(), self.findings + 1, "one event for {text:?}: {events:#?}");
        let event = &events[self.findings];
        assert!(event.contains(text) && event.ends_with(ending), "{text:?}{ending}: {event}");
        self.findings += 1;

        let wanted = match becomes {
            Repaired => ("True Reconciled".to_owned(), "False InSync".to_owned()),
            Blocked(reason) => (format!("False {reason}"), format!("True {reason}")),
        };
        let pipeline = self
            .world
            .until("orders", &format!("{wanted:?} after {text:?}"), |pipeline| {
                (verdict(pipeline, "Ready"), verdict(pipeline, "Drifted")) == wanted
            })
            .await;
        if let Blocked(_) = becomes {
            assert!(message(&pipeline, "Drifted").contains(text), "{}", describe(&pipeline));
        }
        let drift = pipeline.status.unwrap().drift.unwrap();
        assert_eq!(usize::try_from(drift.count).unwrap(), self.findings, "{text:?}: {drift:?}");
        let last = drift.last.unwrap();
        assert!(event.contains(&last.object) && event.contains(&last.what), "{last:?} and {event}");
        assert!(ending.contains(&format!("{:?}", last.action).to_lowercase()), "{last:?}");
        // And not once more at the next looks.
        self.world.looked_at(2).await;
        assert_eq!(self.events().await.len(), self.findings, "{text:?} is told once");
    }

    /// Waits until nothing differs any more, for a reason that is no finding.
    async fn is_well(&self) {
        self.world
            .until("orders", "is well again", |pipeline| {
                verdict(pipeline, "Ready") == "True Reconciled"
                    && verdict(pipeline, "Drifted") == "False InSync"
            })
            .await;
        assert_eq!(self.events().await.len(), self.findings);
    }

    async fn events(&self) -> Vec<String> {
        let mut events = self.world.events("orders").await;
        events.retain(|event| event.starts_with("Warning DriftFound: "));
        events
    }

    async fn contents(&self) -> Vec<String> {
        self.world.broker.contents(&self.world.vhost).await
    }

    /// Deletes something and declares it again with some changes, while nobody looks.
    async fn again(&mut self, kind: &str, name: &str, changes: Value) {
        self.world.stop().await;
        let (broker, vhost) = (&self.world.broker, &self.world.vhost);
        let found = broker.get(&[kind, vhost, name]).await;
        let mut body = json!({"durable": true, "arguments": found["arguments"]});
        if kind == "exchanges" {
            body["type"] = found["type"].clone();
            body["internal"] = found["internal"].clone();
        }
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        broker.delete(&[kind, vhost, name]).await;
        broker.put(&[kind, vhost, name], body).await;
        self.world.start();
    }

    async fn delete(&self, kind: &str, name: &str) {
        self.world.broker.delete(&[kind, &self.world.vhost, name]).await;
    }

    /// The one policy of the pipeline whose name ends so.
    async fn policy(&self, role: &str) -> String {
        let names = self.world.broker.names("policies", &self.world.vhost).await;
        names.into_iter().find(|name| name.ends_with(&format!(":{role}"))).unwrap()
    }

    /// Writes a policy of somebody else.
    async fn put_policy(&self, kind: &str, pattern: &str, apply_to: &str, definition: Value) {
        let policy =
            json!({"pattern": pattern, "definition": definition, "priority": 99, "apply-to": apply_to});
        self.world.broker.put(&[kind, &self.world.vhost, "theirs"], policy).await;
    }
}

#[rstest]
#[tokio::test]
async fn what_was_deleted_or_declared_again_comes_back_with_what_it_lost(
    #[values("43", "40")] version: &str,
) {
    let mut table = Table::new(version, "kinds-lost").await;
    let (broker, vhost) = (table.world.broker.clone(), table.world.vhost.clone());
    let contents = table.contents().await;

    broker.fill(&vhost, "orders.queue.dlq", 3).await;
    table.delete("queues", "orders.queue.dlq").await;
    table.finds("queue orders.queue.dlq is missing; the messages that it held are gone", Repaired).await;
    assert_eq!(table.contents().await, contents);

    broker.fill(&vhost, "orders.queue.retry.1", 1).await;
    table.again("queues", "orders.queue.retry.1", json!({})).await;
    let text = "queue orders.queue.retry.1 was deleted and declared again by somebody else; the messages that it held are gone";
    table.finds(text, Repaired).await;
    for exchange in ["orders.queue.dlx", "orders.queue.return.0", "orders.exchange"] {
        table.again("exchanges", exchange, json!({})).await;
        let text = format!("exchange {exchange} was deleted and declared again by somebody else");
        table.finds(&text, Repaired).await;
    }
    let now = table.contents().await;
    // What somebody else declared is used, and marked as theirs.
    let unmarked = |lines: &[String]| -> Vec<String> {
        lines.iter().map(|line| line.replace(r#""adopted":true,"#, "")).collect()
    };
    let (mut now, mut before) = (unmarked(&now), unmarked(&contents));
    now.sort();
    before.sort();
    assert_eq!(now, before);
    table.world.leave().await;
}

#[rstest]
#[tokio::test]
async fn bindings_that_were_changed_are_put_right(#[values("43", "40")] version: &str) {
    let mut table = Table::new(version, "kinds-bound").await;
    let (broker, vhost) = (table.world.broker.clone(), table.world.vhost.clone());
    let contents = table.contents().await;

    broker.unbind(&vhost, "orders.queue.dlx.fallback", "q", "orders.queue.dlq").await;
    table.finds("binding orders.queue.dlx.fallback -> queue orders.queue.dlq is missing", Repaired).await;

    // Back to the source, round the chain once more, and past the source into the middle.
    let strange = [
        ("orders.queue.dlx.rest", "q", "orders.queue"),
        ("orders.queue.dlx.ladder", "e", "orders.queue.return.0"),
        ("orders.queue.dlx.rest", "e", "orders.queue.dlx.dead"),
        ("orders.queue.return.1", "q", "spy"),
        ("orders.exchange", "e", "orders.queue.dlx"),
        ("orders.exchange", "q", "orders.queue.retry.0"),
    ];
    for (source, kind, target) in strange {
        broker.bind(&vhost, source, kind, target, "").await;
        let kind = if kind == "q" { "queue" } else { "exchange" };
        let text = format!("binding {source} -> {kind} {target} is there and changes the way of messages");
        table.finds(&text, Repaired).await;
        assert_eq!(table.contents().await, contents, "{text}");
    }
    table.world.leave().await;
}

#[rstest]
#[tokio::test]
async fn policies_of_ours_that_were_changed_are_put_right(#[values("43", "40")] version: &str) {
    let mut table = Table::new(version, "kinds-policy").await;
    let (broker, vhost) = (table.world.broker.clone(), table.world.vhost.clone());
    let contents = table.contents().await;
    let (source, dlq) = (table.policy("source").await, table.policy("dlq").await);

    table.delete("policies", &source).await;
    table.finds(":source is missing or was changed", Repaired).await;
    assert_eq!(table.contents().await, contents);
    // Edited in each of its parts.
    let edits = [
        json!({"definition": {"message-ttl": 60_000}}),
        json!({"pattern": "^nothing$"}),
        json!({"priority": 1}),
        json!({"apply-to": "classic_queues"}),
    ];
    for edit in edits {
        let mut policy = broker.get(&["policies", &vhost, &dlq]).await;
        policy.as_object_mut().unwrap().extend(edit.as_object().unwrap().clone());
        broker.put(&["policies", &vhost, &dlq], policy).await;
        table.finds(":dlq is missing or was changed", Repaired).await;
        assert_eq!(table.contents().await, contents, "{edit}");
    }
    table.world.leave().await;
}

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
    // Of an exchange whose messages must wait where they are.
    table
        .put_policy("policies", r"return\.0$", "exchanges", json!({"alternate-exchange": "amq.fanout"}))
        .await;
    table.finds("sets alternate-exchange", shadowed).await;
    table.delete("policies", "theirs").await;
    table.is_well().await;
    // The same once more is news once more.
    table
        .put_policy("policies", r"return\.0$", "exchanges", json!({"alternate-exchange": "amq.fanout"}))
        .await;
    table.finds("sets alternate-exchange", shadowed).await;
    table.delete("policies", "theirs").await;
    table.is_well().await;
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
    let wire = Wire::open(&table.world).await;
    // Where consumers belong, they are none of our business.
    let on_source = wire.fail("orders.queue").await;
    let on_dlq = wire.fail("orders.queue.dlq").await;
    let consumer = wire.fail("orders.queue.retry.0").await;
    let user = table.world.broker.user.clone();
    let text = format!("queue orders.queue.retry.0: the user {user} consumes from it");
    table.finds(&text, Blocked("Blocked")).await;
    let drift = table.world.get("orders").await.status.unwrap().drift.unwrap();
    assert_eq!(drift.last.unwrap().by, Some(user));
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

#[tokio::test]
async fn report_tells_each_kind_and_writes_nothing() {
    let mut world = World::new("kinds-report").await;
    world.start();
    let spec = json!({"driftPolicy": "Report", "deadLetter": {"retention": "14d"}});
    world.create_ready("orders", spec).await;
    let mut table = Table { world, findings: 0 };
    let (broker, vhost) = (table.world.broker.clone(), table.world.vhost.clone());
    let dlq = table.policy("dlq").await;
    let wire = Wire::open(&table.world).await;
    table.world.proxy.forget();

    table.again("queues", "orders.queue.retry.1", json!({})).await;
    table.world.until_event("orders", "queue orders.queue.retry.1 was deleted and declared again").await;
    broker.bind(&vhost, "orders.queue.dlx.rest", "q", "orders.queue", "").await;
    broker.bind(&vhost, "orders.exchange", "e", "orders.queue.dlx", "").await;
    let mut policy = broker.get(&["policies", &vhost, &dlq]).await;
    policy["definition"]["message-ttl"] = json!(60_000);
    broker.put(&["policies", &vhost, &dlq], policy).await;
    table.put_policy("policies", r"retry\.0$", "queues", json!({"expires": 3_600_000})).await;
    let consumer = wire.fail("orders.queue.retry.0").await;
    let findings = [
        ("queue orders.queue.retry.1 was deleted and declared again", "; left as it is"),
        ("binding orders.queue.dlx.rest -> queue orders.queue is there", "; left as it is"),
        ("binding orders.exchange -> exchange orders.queue.dlx is there", "; left as it is"),
        (":dlq is missing or was changed", "; left as it is"),
        ("sets expires", "; blocked"),
        ("consumes from it", "; blocked"),
    ];
    for (text, ending) in findings {
        let event = table.world.until_event("orders", text).await;
        assert!(event.ends_with(ending), "{event}");
    }
    let pipeline = table.world.get("orders").await;
    assert_eq!(verdict(&pipeline, "Ready"), "False PolicyShadowed", "{}", describe(&pipeline));
    table.world.looked_at(3).await;
    let events = table.events().await;
    assert_eq!(events.len(), findings.len(), "{events:#?}");
    let pipeline = table.world.get("orders").await;
    let count = pipeline.status.unwrap().drift.unwrap().count;
    assert_eq!(usize::try_from(count).unwrap(), findings.len());
    assert!(table.world.proxy.writes().is_empty(), "{:#?}", table.world.proxy.writes());

    // A restart finds the same, which is no news.
    table.world.stop().await;
    table.world.start();
    table.world.looked_at(4).await;
    assert_eq!(table.events().await, events);

    consumer.stop().await;
    table.delete("policies", "theirs").await;
    table.world.edit("orders", json!({"driftPolicy": "Correct"})).await;
    table.world.ready("orders").await;
    let bindings = broker.bindings(&vhost).await;
    let strange = |binding: &&String| {
        binding.contains("orders.queue.dlx.rest -> orders.queue [")
            || binding.contains("orders.exchange -> orders.queue.dlx ")
    };
    assert_eq!(bindings.iter().find(strange), None, "{bindings:#?}");
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

#[rstest]
#[tokio::test]
async fn a_rule_that_was_bound_elsewhere_is_named_both_ways(#[values("43", "40")] version: &str) {
    let mut table = Table::new(version, "kinds-rebound").await;
    let (broker, vhost) = (table.world.broker.clone(), table.world.vhost.clone());
    table.world.stop().await;
    let (first, tier) = ("orders.queue.dlx.first", "orders.queue.retry.0");
    let rules = broker.get(&["bindings", &vhost, "e", first, "q", tier]).await;
    broker.unbind(&vhost, first, "q", tier).await;
    let body = json!({"routing_key": "", "arguments": rules[0]["arguments"]});
    broker.post(&["bindings", &vhost, "e", first, "q", "spy"], body).await;
    table.world.start();
    let texts = [
        format!("binding {first} -> queue spy {{x-last-death-reason: \"rejected\""),
        format!("binding {first} -> queue {tier} {{x-last-death-reason: \"rejected\""),
    ];
    for (text, what) in texts.iter().zip(["is there and changes the way of messages", "is missing"]) {
        let event = table.world.until_event("orders", text).await;
        assert!(event.ends_with(&format!("{what}; repaired")), "{event}");
    }
    table.findings = 2;
    table.is_well().await;
    // Another chain is in use, in which the first failure leads to the first tier.
    let bindings = broker.bindings(&vhost).await;
    let leads = |to: &str| {
        bindings
            .iter()
            .any(|binding| binding.starts_with(&format!("binding {first}")) && binding.contains(to))
    };
    assert!(leads(&format!("-> {tier} ")) && !leads("-> spy "), "{bindings:#?}");
    table.world.leave().await;
}
