//! One change in a vhost of many pipelines, which is looked at by its own objects.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::proxy::{Action, Request};
use crate::support::world::World;

/// From so many pipelines on, a few are looked at alone.
const MANY: usize = 30;

/// Wakes nobody while a test runs.
const NO_POLL: Duration = Duration::from_secs(600);

/// A vhost of many pipelines, one of which is called `orders`.
async fn crowd(purpose: &str) -> World {
    let mut world = World::new(purpose).await;
    world.settings.poll_interval = NO_POLL;
    world.start();
    let spec = json!({"retry": {"mode": "None", "delays": null}});
    let names = (1..MANY).map(|number| format!("crowd-{number}")).chain(["orders".to_owned()]);
    let ready = names.map(|name| {
        let (world, spec) = (&world, spec.clone());
        async move { world.create_ready(&name, spec).await }
    });
    join_all(ready).await;
    world.proxy.forget();
    world
}

fn one_more_binding() -> Value {
    let binding = |key: &str| json!({"exchange": "orders.exchange", "routingKey": key});
    json!({"source": {"bindings": [binding("created"), binding("changed")]}})
}

const BOUND: &str = "binding orders.exchange -> orders.queue [changed] {}";

/// Whether it reads all queues of the vhost.
fn reads_all(request: &Request, vhost: &str) -> bool {
    request.path.contains(&format!("/queues/{vhost}?"))
}

#[tokio::test]
async fn one_edit_reads_the_objects_of_its_own_pipeline() {
    let world = crowd("few").await;
    world.edit("orders", one_more_binding()).await;
    world.ready("orders").await;
    assert!(world.broker.contents(&world.vhost).await.contains(&BOUND.to_owned()));
    let seen = world.proxy.seen();
    assert!(!seen.iter().any(|request| reads_all(request, &world.vhost)), "{seen:#?}");
    assert!(!seen.iter().any(|request| request.path.contains("crowd")), "{seen:#?}");
    assert_eq!(world.proxy.writes().len(), 1, "{:#?}", world.proxy.writes());
    world.leave().await;
}

#[tokio::test]
async fn what_can_not_be_read_alone_is_read_with_all() {
    let world = crowd("unread").await;
    let single = format!("/queues/{}/orders.queue?", world.vhost);
    world.proxy.rule(move |request| match request.path.contains(&single) {
        true => Action::Answer(500, "Content-Type: text/plain", ""),
        false => Action::Pass,
    });
    world.edit("orders", one_more_binding()).await;
    world.ready("orders").await;
    assert!(world.broker.contents(&world.vhost).await.contains(&BOUND.to_owned()));
    let seen = world.proxy.seen();
    assert!(seen.iter().any(|request| request.answer == Some(500)), "{seen:#?}");
    assert!(seen.iter().any(|request| reads_all(request, &world.vhost)), "{seen:#?}");
    world.leave().await;
}
