//! Queues whose messages the broker doesn't count.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::eventually;
use crate::support::proxy::Action;
use crate::support::world::{World, message};

/// So far apart are the two looks that prove a queue empty.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);

/// API-03: a look without counts is none that shows an empty queue, however often it is taken.
///
/// Measured on 4.0.5 and 4.3.6: with `management_agent.disable_metrics_collector` the listing that
/// the operator asks for still has its counts, so that the answer without them is made here.
#[tokio::test]
async fn a_queue_that_is_not_counted_is_never_taken_for_empty() {
    let mut world = World::new("uncounted").await;
    world.start();
    let spec = json!({"deletionPolicy": "DeleteIfEmpty", "retry": {"delays": ["1s"]}});
    world.create_ready("orders", spec).await;
    let rows = world.broker.get(&["queues", &world.vhost]).await;
    assert!(rows.as_array().unwrap().iter().all(|row| row.get("messages").is_none()), "{rows}");
    let body: &'static str = Box::leak(rows.to_string().into_boxed_str());
    let listing = format!("/api/queues/{}?", world.vhost);
    let path = listing.clone();
    world.proxy.rule(move |request| match request.path.starts_with(&path) {
        true => Action::Answer(200, "Content-Type: application/json", body),
        false => Action::Pass,
    });
    world.proxy.forget();
    let contents = world.broker.contents(&world.vhost).await;
    world.delete("orders").await;
    let pipeline = world.until_reason_of_deletion("QueueNotEmpty").await;
    let text = message(&pipeline, "Ready");
    assert!(text.contains("orders.queue can't be proven empty"), "{text}");
    let looks = || world.proxy.seen().iter().filter(|request| request.path.starts_with(&listing)).count();
    let (began, before) = (Instant::now(), looks());
    eventually("it was looked at again, later than a proof takes", async || {
        let later = began.elapsed() > 2 * BETWEEN_LOOKS && looks() > before;
        if later { Ok(()) } else { Err(format!("{} looks", looks())) }
    })
    .await;
    assert!(world.proxy.writes().is_empty(), "{:#?}", world.proxy.writes());
    assert_eq!(world.broker.contents(&world.vhost).await, contents);
    world.leave().await;
}
