//! Names: strange ones, long ones, and those that two pipelines want.

use std::time::Duration;

use serde_json::json;

use crate::support::proxy::Action;
use crate::support::world::{World, describe, message, verdict};

#[tokio::test]
async fn strange_names_work_and_patterns_match_them_alone() {
    let mut world = World::new("names").await;
    world.start();
    let names = ["100%/a b", "a+b(c)[d]$^?*{2}\\|", "заказы-é", "%2F", "x?y#z&w=1"];
    for (number, name) in names.iter().enumerate() {
        let spec = json!({
            "source": {"queue": {"name": name, "maxLength": 100}, "exchange": {"name": format!("ex {name}")},
                       "bindings": [{"exchange": format!("ex {name}"), "routingKey": name}]},
            "deadLetter": {"retention": "1d"}, "retry": {"delays": ["1s"]}, "deletionPolicy": "Delete",
        });
        world.create_ready(&format!("names-{number}"), spec).await;
        let queue = world.broker.queue(&world.vhost, name).await;
        assert!(queue["policy"].as_str().unwrap_or_default().ends_with(":source"), "{name}: {queue}");
    }
    for number in 0..names.len() {
        let name = format!("names-{number}");
        world.delete(&name).await;
        world.until_gone(&name).await;
    }
    assert!(world.broker.names("queues", &world.vhost).await.is_empty());
    assert!(world.broker.names("policies", &world.vhost).await.is_empty());
    world.leave().await;
}

#[tokio::test]
async fn names_of_255_bytes_are_used_and_longer_ones_told_all_at_once() {
    let mut world = World::new("long").await;
    world.start();
    // Alone, without anything derived from it but the DLQ, whose name is given.
    let queue = "q".repeat(255 - ".dlx.fallback.g9999.s63".len());
    let spec = json!({
        "source": {"queue": {"name": queue}, "exchange": {"name": "e".repeat(255)},
                   "bindings": [{"exchange": "e".repeat(255), "routingKey": "k".repeat(255)}]},
        "deadLetter": {"name": "d".repeat(255)}, "retry": {"naming": {"template": "r{attempt}"}},
    });
    world.create_ready("long", spec).await;
    let spec = json!({
        "source": {"queue": {"name": "q".repeat(255)}, "exchange": {"name": "orders.exchange"}, "bindings": []},
        "retry": {"delays": ["3651d", "1s"], "naming": {"template": "same{delay}"}},
    });
    world.create(world.manifest("longer", spec)).await;
    let pipeline = world.until_reason("longer", "InvalidSpec").await;
    let text = message(&pipeline, "Ready");
    assert!(text.contains("spec.retry.delays[0]") && text.contains("bytes"), "{text}");
    assert_eq!(verdict(&pipeline, "Stalled"), "True InvalidSpec");
    assert_eq!(pipeline.status.as_ref().unwrap().observed_generation, Some(1));
    world.leave().await;
}

#[tokio::test]
async fn of_two_pipelines_on_one_queue_the_older_wins_and_the_other_touches_nothing() {
    let mut world = World::new("conflict").await;
    let queue = json!({"queue": {"name": "shared.queue"}});
    world.create(world.manifest("older", json!({"source": queue, "deletionPolicy": "Delete"}))).await;
    // Ages are compared in whole seconds.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    world.create(world.manifest("younger", json!({"source": queue, "deletionPolicy": "Delete"}))).await;
    // Whoever has written first has the queue: so nobody can until both have claimed it.
    world.proxy.rule(|request| if request.is_write() { Action::Cut } else { Action::Pass });
    world.start();
    let pipeline = world.until_reason("younger", "Conflict").await;
    assert!(message(&pipeline, "Ready").contains("/older"), "{}", describe(&pipeline));
    world.proxy.heal();
    world.ready("older").await;
    let contents = world.broker.contents(&world.vhost).await;
    assert!(!contents.iter().any(|line| line.contains("younger")), "{contents:#?}");
    world.delete("younger").await;
    world.until_gone("younger").await;
    assert_eq!(world.broker.contents(&world.vhost).await, contents);

    // When the owner goes, the other one gets its turn.
    world.create(world.manifest("younger", json!({"source": queue, "deletionPolicy": "Delete"}))).await;
    world.until_reason("younger", "Conflict").await;
    world.delete("older").await;
    world.until_gone("older").await;
    world.ready("younger").await;
    world.leave().await;
}
