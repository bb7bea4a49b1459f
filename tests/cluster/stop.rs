//! The operator's own end, and an API server that goes away under it.

use std::time::Duration;

use kube::Client;
use serde_json::json;

use crate::support::kubernetes;
use crate::support::proxy::Action;
use crate::support::tcp::Tunnel;
use crate::support::world::{World, describe, inventory};

#[tokio::test]
async fn a_stop_finishes_what_is_under_way() {
    let mut world = World::new("stop").await;
    world.proxy.rule(|request| {
        if request.is_write() { Action::Delay(Duration::from_millis(50)) } else { Action::Pass }
    });
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    world.proxy.write_arrived().await;
    let took = world.stop().await;
    assert!(took < Duration::from_secs(29), "{took:?}");
    let pipeline = world.get("orders").await;
    assert!(inventory(&pipeline, "Intended").is_empty(), "the batch was finished: {}", describe(&pipeline));
    assert!(!inventory(&pipeline, "Created").is_empty());
    let writes = world.proxy.writes().len();
    world.start();
    world.ready("orders").await;
    assert_eq!(world.proxy.writes().len(), writes, "nothing was left to do");
    world.leave().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_broker_that_never_answers() {
    let mut world = World::new("stopsilent").await;
    world.proxy.rule(|request| if request.is_write() { Action::Silence } else { Action::Pass });
    world.start();
    world.create(world.manifest("orders", json!({}))).await;
    world.proxy.write_arrived().await;
    let took = world.stop().await;
    assert!(took < Duration::from_secs(29), "{took:?}");
    world.proxy.heal();
    world.start();
    world.ready("orders").await;
    world.leave().await;
}

#[tokio::test]
async fn an_idle_operator_stops_at_once() {
    let mut world = World::new("stopidle").await;
    world.start();
    world.create_ready("orders", json!({})).await;
    let took = world.stop().await;
    assert!(took < Duration::from_secs(15), "{took:?}");
    world.leave().await;
}

#[tokio::test]
async fn an_api_server_that_goes_away_is_found_again() {
    let mut world = World::new("apiserver").await;
    let mut config = kubernetes::config().await;
    let (host, port) = (config.cluster_url.host().unwrap(), config.cluster_url.port_u16().unwrap_or(443));
    let tunnel = Tunnel::start(vec![format!("{host}:{port}")]).await;
    config.cluster_url = format!("https://{}", tunnel.address).parse().unwrap();
    world.operators_client = Some(Client::try_from(config).unwrap());
    world.start();
    world.create_ready("orders", json!({"deletionPolicy": "Delete"})).await;
    tunnel.close();
    // Two changes that the operator can't see, one on either side.
    world.edit("orders", json!({"source": {"deliveryLimit": 3}})).await;
    world.broker.delete(&["queues", &world.vhost, "orders.queue.dlq"]).await;
    tunnel.refused(3).await;
    tunnel.open();
    world.ready("orders").await;
    assert!(world.broker.exists("queues", &world.vhost, "orders.queue.dlq").await);
    tunnel.close();
    world.delete("orders").await;
    tunnel.open();
    world.until_gone("orders").await;
    assert!(world.broker.names("queues", &world.vhost).await.is_empty());
    world.leave().await;
}
