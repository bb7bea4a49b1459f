//! An API server that is killed and comes back.

use serde_json::json;

use crate::parts::{Part, alone, check_whole, in_the_middle_of_an_apply};
use crate::support::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_killed_while_pipelines_are_applied_is_found_again() {
    let _alone = alone().await;
    let mut world = World::new("apikill").await;
    let names = in_the_middle_of_an_apply(&mut world).await;
    let server = Part::API_SERVER;
    server.kill();
    let bound = world.broker.bindings(&world.vhost).await;
    let feeds = bound.iter().filter(|binding| binding.contains(".exchange -> ")).count();
    assert!(feeds < names.len(), "it was killed in the middle: {bound:#?}");
    world.proxy.release();
    world.proxy.heal();
    server.start();
    check_whole(&world, &names).await;

    // And with nothing to do but to keep it so.
    server.kill();
    world.broker.delete(&["queues", &world.vhost, "orders-3.queue.dlq"]).await;
    server.start();
    world.until_event("orders-3", "queue orders-3.queue.dlq is missing").await;
    world.ready("orders-3").await;
    assert!(world.broker.exists("queues", &world.vhost, "orders-3.queue.dlq").await);

    // What happens from now on is seen.
    world.edit("orders-4", json!({"retry": {"delays": ["1s", "2s", "3s"]}})).await;
    world.ready("orders-4").await;
    world.delete("orders-5").await;
    world.until_gone("orders-5").await;
    world.leave().await;
}
