//! More members than the broker has nodes.

use serde_json::json;

use crate::support::eventually;
use crate::support::world::{World, verdict};

/// QQ-06: the broker keeps the wish as an argument and starts what it can. That is no difference,
/// so nothing is written again, by this operator or the next.
#[tokio::test]
async fn more_members_than_nodes_are_declared_once_and_left_alone() {
    for version in ["43", "40"] {
        let mut world = World::on(version, "replicas").await;
        world.start();
        let spec = json!({
            "source": {"queue": {"groupSize": 3}},
            "retry": {"delays": ["1s"], "groupSize": 3},
            "deadLetter": {"groupSize": 3, "parkingLot": true},
        });
        world.create_ready("orders", spec).await;
        for queue in ["orders.queue", "orders.queue.retry.0", "orders.queue.dlq", "orders.queue.dlq.parking"]
        {
            let found = world.broker.queue(&world.vhost, queue).await;
            assert_eq!(found["arguments"]["x-quorum-initial-group-size"], 3, "{found}");
            assert_eq!(found["members"].as_array().map(Vec::len), Some(1), "{found}");
        }
        world.stop().await;
        world.proxy.forget();
        world.start();
        let listing = format!("/api/queues/{}?", world.vhost);
        eventually("the next operator has looked several times", async || {
            let seen = world.proxy.seen();
            let looks = seen.iter().filter(|request| request.path.starts_with(&listing)).count();
            if looks >= 4 { Ok(()) } else { Err(format!("{looks} looks")) }
        })
        .await;
        assert!(world.proxy.writes().is_empty(), "{:#?}", world.proxy.writes());
        let pipeline = world.get("orders").await;
        assert_eq!(verdict(&pipeline, "Ready"), "True Reconciled");
        assert_eq!(verdict(&pipeline, "Drifted"), "False InSync");
        assert!(pipeline.status.unwrap().drift.is_none());
        world.leave().await;
    }
}
