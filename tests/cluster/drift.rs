//! What people change by hand on the broker, and what becomes of it.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::world::{POLL, World, describe, inventory, is_ready, message, verdict};
use crate::support::{eventually, steadily};

/// Something done by hand, and the finding that it causes.
struct ByHand {
    finding: &'static str,
    events: usize,
}

/// Waits until the contents are as before and the findings are counted, and checks that each of
/// them made one event.
async fn repaired(world: &World, contents: &[String], drift_before: i64, by_hand: &ByHand) {
    eventually(&format!("{} is repaired", by_hand.finding), async || {
        let now = without_generations(&world.broker.contents(&world.vhost).await);
        let contents = without_generations(contents);
        let count = drift(&world.get("orders").await).0;
        match now == contents && count > drift_before {
            true => Ok(()),
            false => Err(format!("drift {count}, {:#?}", difference(&contents, &now))),
        }
    })
    .await;
    let count = drift(&world.get("orders").await).0 - drift_before;
    let events = eventually("one event for each finding", async || {
        let events = world.events("orders").await;
        let found = events.iter().filter(|event| event.contains("DriftFound")).count();
        if i64::try_from(found).unwrap() == drift_before + count {
            Ok(events)
        } else {
            Err(events.join("\n"))
        }
    })
    .await;
    let matching = events.iter().filter(|event| event.contains(by_hand.finding)).count();
    assert_eq!(matching, by_hand.events, "{}: {events:#?}", by_hand.finding);
    let last = events.last().unwrap();
    assert!(last.contains("; repaired"), "{last}");
}

/// A chain that lost an exchange comes back as its next generation, at either slot.
fn without_generations(lines: &[String]) -> Vec<String> {
    let generation = fancy_regex::Regex::new(r"\.g[0-9]+").unwrap();
    let mut plain: Vec<String> = lines
        .iter()
        .map(|line| generation.replace_all(line, "").replace(".dlx.alt -> orders", ".dlx -> orders"))
        .collect();
    plain.sort();
    plain
}

fn difference(before: &[String], after: &[String]) -> Vec<String> {
    let gone = before.iter().filter(|line| !after.contains(line)).map(|line| format!("- {line}"));
    let new = after.iter().filter(|line| !before.contains(line)).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

/// The count of status.drift and its last finding.
fn drift(pipeline: &redrive::api::RetryPipeline) -> (i64, String) {
    let drift = pipeline.status.as_ref().and_then(|status| status.drift.clone()).unwrap_or_default();
    let last = drift.last.map(|last| format!("{} {} {:?}", last.object, last.what, last.action));
    (drift.count, last.unwrap_or_default())
}

const SPEC: fn() -> Value = || {
    json!({
        "source": {"deliveryLimit": 5},
        "deadLetter": {
            "retention": "14d", "parkingLot": true,
            "quarantine": [{"category": "poison", "reasons": ["delivery_limit"]}],
        },
    })
};

#[tokio::test]
async fn every_queue_that_is_deleted_comes_back_with_one_event() {
    let mut world = World::new("queues").await;
    world.start();
    world.create_ready("orders", SPEC()).await;
    let contents = world.broker.contents(&world.vhost).await;
    for queue in world.broker.names("queues", &world.vhost).await {
        let before = drift(&world.get("orders").await).0;
        world.broker.delete(&["queues", &world.vhost, &queue]).await;
        let finding = format!("DriftFound: queue {queue} is missing; the messages that it held are gone");
        let by_hand = ByHand { finding: Box::leak(finding.into_boxed_str()), events: 1 };
        repaired(&world, &contents, before, &by_hand).await;
    }
    let pipeline = world.ready("orders").await;
    assert!(inventory(&pipeline, "Adopted").is_empty(), "what we declared again is ours");
    world.leave().await;
}

#[tokio::test]
async fn every_exchange_that_is_deleted_comes_back_with_one_event() {
    let mut world = World::new("exchanges").await;
    world.start();
    world.create_ready("orders", SPEC()).await;
    let contents = world.broker.contents(&world.vhost).await;
    for exchange in world.broker.names("exchanges", &world.vhost).await {
        if exchange == "redrive.owner" {
            continue;
        }
        let before = drift(&world.get("orders").await).0;
        let now = world.broker.names("exchanges", &world.vhost).await;
        let same = |name: &String| without_generations(std::slice::from_ref(name)) == [exchange.clone()];
        let exchange = now.into_iter().find(same).unwrap();
        world.broker.delete(&["exchanges", &world.vhost, &exchange]).await;
        let finding = format!("DriftFound: exchange {exchange} is missing");
        let by_hand = ByHand { finding: Box::leak(finding.into_boxed_str()), events: 1 };
        repaired(&world, &contents, before, &by_hand).await;
    }
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn bindings_and_policies_come_back_and_strange_ones_go() {
    let mut world = World::new("bindings").await;
    world.start();
    world.create_ready("orders", SPEC()).await;
    let (broker, vhost) = (world.broker.clone(), world.vhost.clone());
    let contents = broker.contents(&vhost).await;
    let check = async |finding: &'static str| {
        let before = drift(&world.get("orders").await).0;
        (before, ByHand { finding, events: 1 })
    };

    let (before, expected) = check("binding orders.queue.return.0 -> queue orders.queue").await;
    broker.unbind(&vhost, "orders.queue.return.0", "q", "orders.queue").await;
    repaired(&world, &contents, before, &expected).await;

    let (before, expected) = check("binding orders.exchange -> queue orders.queue").await;
    broker.unbind(&vhost, "orders.exchange", "q", "orders.queue").await;
    repaired(&world, &contents, before, &expected).await;

    // Without it, dead letters find no way into the chain.
    let (before, expected) = check("binding orders.queue.dlx -> ").await;
    broker.unbind(&vhost, "orders.queue.dlx", "e", "orders.queue.dlx.dead").await;
    repaired(&world, &contents, before, &expected).await;

    let (before, expected) = check("policy redrive:").await;
    let policies = broker.names("policies", &vhost).await;
    let source = policies.iter().find(|name| name.ends_with(":source")).unwrap();
    broker.delete(&["policies", &vhost, source]).await;
    repaired(&world, &contents, before, &expected).await;

    let before = drift(&world.get("orders").await).0;
    let dlq = policies.iter().find(|name| name.ends_with(":dlq")).unwrap();
    let mut edited = broker.get(&["policies", &vhost, dlq]).await;
    edited["definition"]["message-ttl"] = json!(1_000);
    broker.put(&["policies", &vhost, dlq], edited).await;
    let expected = ByHand { finding: ":dlq is missing or was changed", events: 1 };
    repaired(&world, &contents, before, &expected).await;

    // Messages that return would be doubled.
    broker.put(&["queues", &vhost, "spy"], json!({"durable": true})).await;
    let contents = broker.contents(&vhost).await;
    let (before, expected) = check("binding orders.queue.return.1 -> queue spy").await;
    broker.bind(&vhost, "orders.queue.return.1", "q", "spy", "").await;
    repaired(&world, &contents, before, &expected).await;
    let (before, expected) = check("binding orders.queue.dlx -> queue spy").await;
    broker.bind(&vhost, "orders.queue.dlx", "q", "spy", "").await;
    repaired(&world, &contents, before, &expected).await;

    // The application's own bindings are none of our business.
    broker.bind(&vhost, "amq.topic", "q", "orders.queue", "other").await;
    let contents = broker.contents(&vhost).await;
    steadily("the application's binding stays", POLL * 4, async || {
        let now = broker.contents(&vhost).await;
        if now == contents { Ok(()) } else { Err(format!("{:#?}", difference(&contents, &now))) }
    })
    .await;
    world.edit("orders", json!({"source": {"exclusiveBindings": true}})).await;
    eventually("an unlisted binding goes with exclusiveBindings", async || {
        let bindings = broker.bindings(&vhost).await;
        let strange = bindings.into_iter().find(|binding| binding.starts_with("binding amq.topic"));
        strange.map_or(Ok(()), Err)
    })
    .await;
    world.leave().await;
}

#[tokio::test]
async fn a_queue_that_people_declare_again_is_used_and_never_deleted() {
    let mut world = World::new("redeclared").await;
    world.start();
    world.create_ready("orders", json!({"deletionPolicy": "Delete"})).await;
    let declared = world.broker.queue(&world.vhost, "orders.queue.dlq").await;
    let body = json!({"durable": true, "arguments": declared["arguments"]});
    world.broker.delete(&["queues", &world.vhost, "orders.queue.dlq"]).await;
    world.broker.put(&["queues", &world.vhost, "orders.queue.dlq"], body).await;
    let pipeline = world.until("orders", "adopts the queue", |pipeline| {
        is_ready(pipeline) && inventory(pipeline, "Adopted") == ["Queue orders.queue.dlq"]
    });
    pipeline.await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    assert_eq!(world.broker.names("queues", &world.vhost).await, ["orders.queue.dlq"]);
    world.until_event("orders", "left on the broker: queue orders.queue.dlq").await;
    world.leave().await;
}

#[tokio::test]
async fn report_never_writes_and_tells_each_finding_once() {
    let mut world = World::new("report").await;
    world.start();
    let mut spec = SPEC();
    spec["driftPolicy"] = json!("Report");
    world.create_ready("orders", spec).await;
    let (broker, vhost) = (world.broker.clone(), world.vhost.clone());
    world.until_counted("orders", broker.names("queues", &vhost).await.len()).await;
    world.proxy.forget();

    let changes: [(&str, &str); 6] = [
        ("queue orders.queue.retry.1", "queue orders.queue.retry.1 is missing"),
        ("binding", "binding orders.queue.return.0 -> queue orders.queue"),
        ("slot", "binding orders.queue.dlx -> "),
        ("policy", ":dlq is missing or was changed"),
        ("exchange", "exchange orders.queue.dlx.guard is missing"),
        ("extra", "binding orders.queue.return.0 -> queue spy"),
    ];
    for (number, (change, finding)) in changes.into_iter().enumerate() {
        match change {
            "binding" => broker.unbind(&vhost, "orders.queue.return.0", "q", "orders.queue").await,
            "slot" => broker.unbind(&vhost, "orders.queue.dlx", "e", "orders.queue.dlx.dead").await,
            "policy" => {
                let policies = broker.names("policies", &vhost).await;
                let dlq = policies.iter().find(|name| name.ends_with(":dlq")).unwrap();
                broker.delete(&["policies", &vhost, dlq]).await;
            }
            "exchange" => broker.delete(&["exchanges", &vhost, "orders.queue.dlx.guard"]).await,
            "extra" => {
                broker.put(&["queues", &vhost, "spy"], json!({"durable": true})).await;
                broker.bind(&vhost, "orders.queue.return.0", "q", "spy", "").await;
            }
            _ => broker.delete(&["queues", &vhost, "orders.queue.retry.1"]).await,
        }
        let event = world.until_event("orders", finding).await;
        assert!(event.ends_with("; left as it is"), "{event}");
        let pipeline = world.until_reason("orders", "DriftFound").await;
        assert_eq!(verdict(&pipeline, "Ready"), "False DriftFound", "{number}");
        assert_eq!(verdict(&pipeline, "Drifted"), "True DriftFound");
    }
    // Nothing more is said while nothing more changes, not even after a start.
    world.looked_at(2).await;
    let before = (world.get("orders").await, world.events("orders").await);
    world.stop().await;
    world.start();
    world.looked_at(4).await;
    let after = (world.get("orders").await, world.events("orders").await);
    assert_eq!(before.1, after.1);
    assert_eq!(
        before.0.metadata.resource_version, after.0.metadata.resource_version,
        "{:#?}",
        after.0.status
    );
    let mut texts: Vec<&String> = after.1.iter().filter(|event| event.contains("DriftFound: b")).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), after.1.iter().filter(|event| event.contains("DriftFound: b")).count());
    let writes = world.proxy.writes();
    assert!(writes.is_empty(), "{writes:#?}");

    // A change of the specification is carried out all the same, and then everything is as wanted.
    world.edit("orders", json!({"source": {"deliveryLimit": 6}})).await;
    world.ready("orders").await;
    assert!(broker.exists("queues", &vhost, "orders.queue.retry.1").await);
    world.leave().await;
}

#[tokio::test]
async fn dangerous_policies_are_refused_before_the_first_write_and_reported_afterwards() {
    let mut world = World::new("policies").await;
    let (broker, vhost) = (world.broker.clone(), world.vhost.clone());
    let wildcard = async |definition: Value| {
        let policy = json!({"pattern": ".*", "definition": definition, "priority": 99, "apply-to": "queues"});
        broker.put(&["policies", &vhost, "wildcard"], policy).await;
    };
    wildcard(json!({"expires": 3_600_000})).await;
    world.start();
    world.create(world.manifest("orders", SPEC())).await;
    let pipeline = world.until_reason("orders", "PolicyShadowed").await;
    assert!(message(&pipeline, "Ready").contains("\"wildcard\" sets expires"), "{}", describe(&pipeline));
    assert_eq!(verdict(&pipeline, "Stalled"), "True PolicyShadowed");
    assert!(world.proxy.writes().is_empty(), "nothing is declared under such a policy");
    broker.delete(&["policies", &vhost, "wildcard"]).await;
    world.ready("orders").await;

    for definition in
        [json!({"message-ttl": 1_000}), json!({"overflow": "drop-head"}), json!({"max-length": 1})]
    {
        wildcard(definition.clone()).await;
        let pipeline = world.until_reason("orders", "PolicyShadowed").await;
        assert_eq!(verdict(&pipeline, "Drifted"), "True PolicyShadowed", "{definition}");
        broker.delete(&["policies", &vhost, "wildcard"]).await;
        world.ready("orders").await;
    }
    // Harmless keys that hide our numbers are told as well.
    wildcard(json!({"consumer-timeout": 3_600_000})).await;
    let pipeline = world.until_reason("orders", "PolicyShadowed").await;
    assert!(message(&pipeline, "Ready").contains("hides ours"), "{}", describe(&pipeline));
    world.leave().await;
}

#[tokio::test]
async fn a_dangerous_operator_policy_is_reported() {
    let mut world = World::new("opolicy").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    let policy =
        json!({"pattern": "dlq$", "definition": {"message-ttl": 1_000}, "priority": 1, "apply-to": "queues"});
    world.broker.put(&["operator-policies", &world.vhost, "limits"], policy).await;
    let pipeline = world.until_reason("orders", "PolicyShadowed").await;
    assert!(message(&pipeline, "Ready").contains("operator policy \"limits\""), "{}", describe(&pipeline));
    let (status, _) =
        world.broker.call(Method::DELETE, &["operator-policies", &world.vhost, "limits"], Value::Null).await;
    assert!(status.is_success());
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn a_retry_queue_that_people_declare_otherwise_is_replaced_or_only_reported() {
    let mut world = World::new("otherwise").await;
    world.start();
    world.create_ready("orders", json!({"driftPolicy": "Report"})).await;
    let (broker, vhost) = (world.broker.clone(), world.vhost.clone());
    let mut arguments = broker.queue(&vhost, "orders.queue.retry.0").await["arguments"].clone();
    arguments["x-message-ttl"] = json!(77_000);
    world.stop().await;
    broker.delete(&["queues", &vhost, "orders.queue.retry.0"]).await;
    broker
        .put(&["queues", &vhost, "orders.queue.retry.0"], json!({"durable": true, "arguments": arguments}))
        .await;
    world.proxy.forget();
    world.start();
    let pipeline = world.until_reason("orders", "DriftFound").await;
    assert_eq!(verdict(&pipeline, "Drifted"), "True DriftFound");
    world.until_event("orders", "DriftFound: ").await;
    world.writes_nothing("nothing is written under Report", POLL * 3).await;
    world.edit("orders", json!({"driftPolicy": "Correct"})).await;
    world.ready("orders").await;
    let changed = broker.queue(&vhost, "orders.queue.retry.0").await;
    assert_eq!(changed["arguments"]["x-message-ttl"], 77_000, "what is not ours is left alone");
    let bindings = broker.bindings(&vhost).await;
    let first = bindings
        .iter()
        .filter(|binding| binding.contains(".dlx.first") && binding.contains("-> orders.queue.retry.0"));
    let first: Vec<&String> = first.collect();
    assert!(first.iter().all(|binding| binding.contains("orders.queue.retry.0.g2 ")), "{first:#?}");
    world.leave().await;
}
