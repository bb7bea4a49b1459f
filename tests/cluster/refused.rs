//! Changes of a specification that can't be carried out yet: refused whole, and by their field.

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::world::{World, merge, message, verdict};

/// Sends a message on its way, rejects it at the source, and says in which queue it ends up then.
async fn way_of_a_rejected_message(world: &World) -> &'static str {
    let publish = json!({
        "properties": {"delivery_mode": 2}, "routing_key": "created", "payload": "x", "payload_encoding": "string",
    });
    let path = ["exchanges", world.vhost.as_str(), "orders.exchange", "publish"];
    assert_eq!(world.broker.post(&path, publish).await["routed"], true);
    let take = async |queue: &str, ackmode: &str| {
        let get = json!({"count": 1, "ackmode": ackmode, "encoding": "auto"});
        let found = world.broker.post(&["queues", &world.vhost, queue, "get"], get).await;
        found.as_array().unwrap().len() == 1
    };
    eventually("the message is at the source", async || {
        let rejected = take("orders.queue", "reject_requeue_false").await;
        if rejected { Ok(()) } else { Err("nothing there".to_owned()) }
    })
    .await;
    eventually("the rejected message turns up", async || {
        for queue in ["orders.queue", "orders.queue.dlq"] {
            if take(queue, "ack_requeue_false").await {
                return Ok(queue);
            }
        }
        Err("it is in neither queue".to_owned())
    })
    .await
}

/// Makes an edit that can't be carried out, together with more that could be, and checks that it is
/// refused by the field's name, that nothing of it is written and that messages go on as before;
/// then takes it back.
///
/// What a person may allow has the reason `Blocked` and a pending plan.
async fn check_refused(
    (name, reason): (&str, &str),
    before: Value,
    edit: Value,
    back: Value,
    names: &[&str],
) {
    let mut world = World::new(name).await;
    world.start();
    world.create_ready("orders", before).await;
    let contents = world.broker.contents(&world.vhost).await;
    let way = way_of_a_rejected_message(&world).await;
    let status = world.get("orders").await.status.unwrap();
    world.proxy.forget();
    let mut whole = json!({
        "source": {"bindings": [
            {"exchange": "orders.exchange", "routingKey": "created"},
            {"exchange": "orders.exchange", "routingKey": "paid"},
        ]},
        "deadLetter": {"parkingLot": true},
    });
    merge(&mut whole, edit);
    world.edit("orders", whole).await;
    let pipeline = world.until_reason("orders", reason).await;
    let text = message(&pipeline, "Ready");
    for part in names {
        assert!(text.contains(part), "{part}: {text}");
    }
    let pending = pipeline.status.as_ref().unwrap().pending_plan.as_ref();
    let why = pending.map_or("is not supported yet", |pending| &pending.hash);
    assert!(text.contains(why) && text.contains("take the edit back"), "{text}");
    assert_eq!(pending.is_some(), reason == "Blocked", "{pending:?}");
    assert_eq!(verdict(&pipeline, "Ready"), format!("False {reason}"));
    assert_eq!(verdict(&pipeline, "Stalled"), format!("True {reason}"));
    assert_eq!(verdict(&pipeline, "Drifted"), "Unknown NotSupportedYet");
    assert_eq!(verdict(&pipeline, "Reconciling"), "False Reconciled");
    assert_eq!(world.broker.contents(&world.vhost).await, contents, "{name}: nothing of it is done");
    assert_eq!(way_of_a_rejected_message(&world).await, way, "{name}: messages go on as before");
    assert!(world.proxy.writes().is_empty(), "{name}: {:#?}", world.proxy.writes());
    let now = pipeline.status.unwrap();
    assert_eq!(now.inventory, status.inventory);
    assert_eq!((&now.effective, &now.client_contract), (&status.effective, &status.client_contract));
    assert_eq!(now.applied_generation, status.applied_generation);
    let mut whole = json!({
        "source": {"bindings": [{"exchange": "orders.exchange", "routingKey": "created"}]},
        "deadLetter": {"parkingLot": null},
    });
    merge(&mut whole, back);
    world.edit("orders", whole).await;
    let pipeline = world.ready("orders").await;
    assert_eq!(verdict(&pipeline, "Stalled"), "False Reconciled");
    assert_eq!(verdict(&pipeline, "Drifted"), "False InSync");
    assert_eq!(world.broker.contents(&world.vhost).await, contents, "{name}: as before");
    assert!(world.proxy.writes().is_empty(), "{name}: {:#?}", world.proxy.writes());
    assert_eq!(pipeline.status.unwrap().inventory, status.inventory);
    world.leave().await;
}

#[tokio::test]
async fn the_broker_can_not_hand_the_ladder_to_the_application() {
    let (edit, back) = (json!({"retry": {"mode": "Application"}}), json!({"retry": {"mode": "Broker"}}));
    let names = ["spec.retry.mode: from Broker to Application", "create another RetryPipeline"];
    check_refused(("toapp", "Blocked"), json!({"retry": {"delays": ["1s"]}}), edit, back, &names).await;
}

#[tokio::test]
async fn the_application_can_not_hand_the_ladder_to_the_broker() {
    let (edit, back) = (json!({"retry": {"mode": "Broker"}}), json!({"retry": {"mode": "Application"}}));
    let before = json!({"retry": {"mode": "Application", "delays": ["1s"]}});
    let names = ["spec.retry.mode: from Application to Broker", "create another RetryPipeline"];
    check_refused(("tobroker", "Blocked"), before, edit, back, &names).await;
}

#[tokio::test]
async fn an_application_keeps_the_names_that_it_publishes_to() {
    let before = json!({"retry": {"mode": "Application", "delays": ["1s", "2s"]}});
    let (edit, back) = (
        json!({"retry": {"naming": {"template": "{queue}.wait.{attempt}"}}}),
        json!({"retry": {"naming": null}}),
    );
    let names = [
        "spec.retry.naming.template: from names like orders.queue.retry.0 to names like orders.queue.wait.0",
    ];
    check_refused(("rename", "Blocked"), before, edit, back, &names).await;
}

#[tokio::test]
async fn numbers_in_arguments_can_not_change() {
    let before = json!({"settings": {"arguments": {}}, "source": {"queue": {"maxLength": 500}}, "retry": {"delays": ["1s"]}});
    let (edit, back) =
        (json!({"source": {"queue": {"maxLength": 9}}}), json!({"source": {"queue": {"maxLength": 500}}}));
    let names = ["spec.source.queue.maxLength: from 500 to 9", "queue orders.queue"];
    check_refused(("arguments", "Blocked"), before, edit, back, &names).await;
}

#[tokio::test]
async fn numbers_can_not_move_from_policies_to_arguments() {
    let before = json!({"deadLetter": {"retention": "14d"}, "retry": {"delays": ["1s"]}});
    let (edit, back) =
        (json!({"settings": {"arguments": {}}}), json!({"settings": {"arguments": null, "policy": {}}}));
    let names = ["spec.settings: from policy to arguments"];
    check_refused(("settings", "Blocked"), before, edit, back, &names).await;
}

#[tokio::test]
async fn a_source_can_not_be_given_away() {
    let (edit, back) =
        (json!({"source": {"ownership": "External"}}), json!({"source": {"ownership": "Managed"}}));
    let names = ["spec.source.ownership: from Managed to External", "queue orders.queue"];
    check_refused(("giveaway", "NotSupportedYet"), json!({"retry": {"delays": ["1s"]}}), edit, back, &names)
        .await;
}

#[tokio::test]
async fn what_is_missing_while_an_edit_is_refused_is_told_and_comes_back_when_it_is_taken_back() {
    let mut world = World::new("missing").await;
    world.start();
    world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;
    world.edit("orders", json!({"retry": {"mode": "Application"}})).await;
    world.until_reason("orders", "Blocked").await;
    world.broker.delete(&["queues", &world.vhost, "orders.queue.retry.0"]).await;
    let pipeline = world
        .until("orders", "tells of the queue", |pipeline| verdict(pipeline, "Drifted") == "True DriftFound")
        .await;
    assert!(message(&pipeline, "Drifted").contains("queue orders.queue.retry.0 is missing"));
    assert_eq!(verdict(&pipeline, "Ready"), "False Blocked");
    assert!(!world.broker.exists("queues", &world.vhost, "orders.queue.retry.0").await);
    world.edit("orders", json!({"retry": {"mode": "Broker"}})).await;
    world.ready("orders").await;
    assert!(world.broker.exists("queues", &world.vhost, "orders.queue.retry.0").await);
    world.leave().await;
}
