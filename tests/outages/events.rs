//! The plugin that tells of changes: disabled while it is in use, and enabled again.

use redrive::api::{DetectionMode, RetryPipeline};
use rstest::rstest;
use serde_json::json;

use crate::parts::{alone, development};
use crate::support::clusters::CLUSTER;
use crate::support::variable;
use crate::support::world::World;

/// Does what `rabbitmq-plugins` does with the plugin: changes the file, and has the node follow it.
struct Plugin(&'static str);

impl Plugin {
    fn change(&self, how: &str) {
        let change = format!(
            "{{ok, File}} = application:get_env(rabbit, enabled_plugins_file), \
             {{ok, [Enabled]}} = file:consult(File), \
             Others = Enabled -- [rabbitmq_event_exchange], \
             ok = file:write_file(File, io_lib:format(\"~p.~n\", [{how}])), \
             {{ok, _, _}} = rabbit_plugins:ensure(File)."
        );
        development(&variable("REDRIVE_DEV_NAME"), &["broker", "ctl", self.0, "eval", &change]);
    }

    fn disable(&self) {
        self.change("Others");
    }

    fn enable(&self) {
        self.change("[rabbitmq_event_exchange | Others]");
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.enable();
    }
}

fn mode(pipeline: &RetryPipeline) -> Option<DetectionMode> {
    Some(pipeline.status.as_ref()?.drift_detection.as_ref()?.mode)
}

#[rstest]
#[case("43")]
#[case("40")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_is_disabled_is_noticed_and_found_when_it_comes_back(#[case] version: &'static str) {
    let _alone = alone().await;
    let mut world = World::on(version, "plugin").await;
    let owner = world.owner_here().await;
    owner.create(CLUSTER, &world.broker, world.addresses()).await;
    world.start();
    world.create(world.on_cluster(&owner, "orders", json!({}))).await;
    let hears = |pipeline: &RetryPipeline| mode(pipeline) == Some(DetectionMode::Events);
    world.until("orders", "hears of changes", hears).await;

    let plugin = Plugin(version);
    plugin.disable();
    world
        .until("orders", "says that the plugin is missing", |pipeline| {
            let why = pipeline.status.clone().unwrap().drift_detection.unwrap().why.unwrap_or_default();
            mode(pipeline) == Some(DetectionMode::Polling) && why.contains("rabbitmq_event_exchange")
        })
        .await;
    world.broker.delete(&["queues", &world.vhost, "orders.queue.dlq"]).await;
    let event = world.until_event("orders", "queue orders.queue.dlq is missing").await;
    assert!(event.ends_with("are gone; repaired"), "a poll can't tell who did it: {event}");

    plugin.enable();
    world.until("orders", "hears of changes again", hears).await;
    world.stop().await;
    world.settings.poll_interval = std::time::Duration::from_secs(3_600);
    world.start();
    world.looked_at(1).await;
    world.broker.delete(&["queues", &world.vhost, "orders.queue.retry.0"]).await;
    world.until_event("orders", "queue orders.queue.retry.0 is missing").await;
    world.leave().await;
}
