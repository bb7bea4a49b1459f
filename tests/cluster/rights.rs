//! Rights that leave out one of the names that a pipeline derives.

use reqwest::StatusCode;
use serde_json::json;

use crate::support::world::{World, describe, message};

const ALL: &str = ".*";

/// A pattern for all names but this one.
fn all_but(name: &str) -> String {
    format!("^(?!{}$)", name.replace('.', "\\."))
}

/// A world whose operator works as a user of its own, with these rights.
async fn world_with(purpose: &str, configure: &str, write: &str, read: &str) -> World {
    let mut world = World::new(purpose).await;
    let user = world.namespace.clone();
    world.broker.create_user(&user, "pass", "policymaker").await;
    let rights = json!({"configure": configure, "write": write, "read": read});
    world.broker.put(&["permissions", &world.vhost, &user], rights).await;
    let mut secret = world.secret();
    secret.extend([("username", user), ("password", "pass".to_owned())]);
    world.write_secret(&secret).await;
    world.start();
    world
}

async fn leave(world: World) {
    world.broker.delete(&["users", &world.namespace]).await;
    world.leave().await;
}

/// VHO-06: which write failed is told, nothing flows into what is not whole, and it goes on by
/// itself once the right is there.
async fn check_told(purpose: &str, (configure, write, read): (&str, &str, &str), told: &str) {
    let world = world_with(purpose, configure, write, read).await;
    world.create(world.manifest("orders", json!({"retry": {"delays": ["1s"]}}))).await;
    let pipeline = world.until_reason("orders", "Forbidden").await;
    assert!(message(&pipeline, "Ready").contains(told), "{told}: {}", describe(&pipeline));
    let bindings = world.broker.bindings(&world.vhost).await;
    let feeds = |binding: &String| binding.starts_with("binding orders.exchange -> orders.queue ");
    assert!(!bindings.iter().any(feeds), "nothing flows into a pipeline that is not whole: {bindings:#?}");
    world.broker.grant(&world.vhost, &world.namespace, ALL).await;
    world.ready("orders").await;
    leave(world).await;
}

#[tokio::test]
async fn a_queue_that_may_not_be_configured_is_told() {
    let dlq = all_but("orders.queue.dlq");
    check_told("configure", (&dlq, ALL, ALL), "declare queue \"orders.queue.dlq\"").await;
}

#[tokio::test]
async fn a_dead_letter_exchange_that_may_not_be_written_to_is_told() {
    let head = all_but("orders.queue.dlx");
    check_told("writedlx", (ALL, &head, ALL), "-> exchange orders.queue.dlx ").await;
}

#[tokio::test]
async fn an_exchange_whose_alternate_may_not_be_written_to_is_told() {
    let guard = all_but("orders.queue.dlx.guard");
    check_told("writealt", (ALL, &guard, ALL), "declare exchange \"orders.queue.dlx.ladder\"").await;
}

#[tokio::test]
async fn a_binding_whose_exchange_may_not_be_read_is_told() {
    let exchange = all_but("orders.exchange");
    check_told("readex", (ALL, ALL, &exchange), "binding orders.exchange -> queue orders.queue").await;
}

/// Why there is no asking before the first write.
#[tokio::test]
async fn only_an_administrator_may_read_rights() {
    let world = world_with("readrights", ALL, ALL, ALL).await;
    let (user, vhost) = (&world.namespace, &world.vhost);
    for path in [format!("permissions/{vhost}/{user}"), format!("users/{user}/permissions")] {
        let url = format!("http://{}/api/{path}", world.broker.address);
        let request = reqwest::Client::new().get(url).basic_auth(user, Some("pass"));
        assert_eq!(request.send().await.unwrap().status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    leave(world).await;
}
