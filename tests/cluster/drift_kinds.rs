//! Every kind of drift, made by hand on a real broker: found, told once, and put right or blocked.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::amqp::Wire;
use crate::support::eventually;
use crate::support::world::{World, describe, message, verdict};

/// What a finding becomes, and the reason of Ready while it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Becomes {
    Repaired,
    Blocked(&'static str),
}

use Becomes::{Blocked, Repaired};

/// A pipeline of which one thing after the other is changed by hand.
pub(crate) struct Table {
    pub(crate) world: World,
    /// Findings so far.
    pub(crate) findings: usize,
}

impl Table {
    pub(crate) async fn new(version: &str, purpose: &str) -> Self {
        let mut world = World::on(version, purpose).await;
        world.start();
        let spec = json!({"source": {"deliveryLimit": 5}, "deadLetter": {"retention": "14d"}});
        world.create_ready("orders", spec).await;
        world.broker.put(&["queues", &world.vhost, "spy"], json!({"durable": true})).await;
        Self { world, findings: 0 }
    }

    /// Waits for one finding more that reads so, and checks all that is said of it.
    pub(crate) async fn finds(&mut self, text: &str, becomes: Becomes) {
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
    pub(crate) async fn is_well(&self) {
        self.world
            .until("orders", "is well again", |pipeline| {
                verdict(pipeline, "Ready") == "True Reconciled"
                    && verdict(pipeline, "Drifted") == "False InSync"
            })
            .await;
        assert_eq!(self.events().await.len(), self.findings);
    }

    pub(crate) async fn events(&self) -> Vec<String> {
        let mut events = self.world.events("orders").await;
        events.retain(|event| event.starts_with("Warning DriftFound: "));
        events
    }

    pub(crate) async fn contents(&self) -> Vec<String> {
        self.world.broker.contents(&self.world.vhost).await
    }

    /// Deletes something and declares it again with some changes, while nobody looks.
    pub(crate) async fn again(&mut self, kind: &str, name: &str, changes: Value) {
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

    pub(crate) async fn delete(&self, kind: &str, name: &str) {
        self.world.broker.delete(&[kind, &self.world.vhost, name]).await;
    }

    /// The one policy of the pipeline whose name ends so.
    pub(crate) async fn policy(&self, role: &str) -> String {
        let names = self.world.broker.names("policies", &self.world.vhost).await;
        names.into_iter().find(|name| name.ends_with(&format!(":{role}"))).unwrap()
    }

    /// Writes a policy of somebody else.
    pub(crate) async fn put_policy(&self, kind: &str, pattern: &str, apply_to: &str, definition: Value) {
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
