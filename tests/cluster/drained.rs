//! A broker in maintenance.

use std::process::{Command, Stdio};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::broker::Broker;
use crate::support::variable;
use crate::support::world::{World, verdict};

/// Brokers that no other test uses, thrown away at the end.
struct OwnBrokers;

impl OwnBrokers {
    fn name() -> String {
        format!("{}-drained", variable("REDRIVE_DEV_NAME"))
    }

    async fn develop(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
        tokio::task::spawn_blocking(move || {
            let output = Command::new(variable("REDRIVE_DEV"))
                .args(&arguments)
                .env("REDRIVE_DEV_NAME", Self::name())
                // It shall start some of its own.
                .env_remove("REDRIVE_BROKER_43_URI")
                .env_remove("REDRIVE_BROKER_43_AMQP_URI")
                .env_remove("REDRIVE_BROKER_40_URI")
                .env_remove("REDRIVE_BROKER_40_AMQP_URI")
                .stderr(Stdio::inherit())
                .output()
                .expect("hack/dev runs");
            assert!(output.status.success(), "hack/dev {arguments:?} failed");
            String::from_utf8(output.stdout).expect("text")
        })
        .await
        .unwrap()
    }

    async fn start() -> Self {
        let own = Self;
        Self::develop(&["up", "brokers"]).await;
        own
    }

    async fn of(version: &str) -> Broker {
        let environment = Self::develop(&["env"]).await;
        let value = |name: &str| {
            let line = environment.lines().find_map(|line| line.split_once(&format!("{name}=")));
            line.unwrap_or_else(|| panic!("{name}: {environment}")).1.trim_matches(['\'', '"']).to_owned()
        };
        let uri = value(&format!("REDRIVE_BROKER_{version}_URI"));
        Broker::at(&uri, &value(&format!("REDRIVE_BROKER_{version}_AMQP_URI")))
    }
}

impl Drop for OwnBrokers {
    fn drop(&mut self) {
        let mut clean = Command::new(variable("REDRIVE_DEV"));
        let _ = clean.arg("clean").env("REDRIVE_DEV_NAME", Self::name()).status();
    }
}

/// API-25: a drained node closes its listeners, that of the management API too. The edit waits, as
/// for any broker that can't be reached, and is carried out once the node is back in service.
#[tokio::test]
async fn an_edit_waits_while_the_broker_is_drained() {
    let _own = OwnBrokers::start().await;
    for version in ["43", "40"] {
        let broker = OwnBrokers::of(version).await;
        let mut world = World::on(version, "drained").await;
        world.broker.call(Method::DELETE, &["vhosts", &world.vhost], Value::Null).await;
        world.proxy.lead_to(&broker.address);
        world.broker = broker;
        world.broker.create_vhost(&world.vhost).await;
        world.let_in(&world.broker).await;
        world.start();
        world.create_ready("orders", json!({"retry": {"delays": ["1s"]}})).await;

        OwnBrokers::develop(&["broker", "ctl", version, "eval", "rabbit_maintenance:drain()."]).await;
        world.edit("orders", json!({"retry": {"delays": ["1s", "2s"]}})).await;
        let pipeline = world.until_reason("orders", "BrokerUnreachable").await;
        assert_eq!(verdict(&pipeline, "Stalled"), "False Progressing");
        assert_eq!(verdict(&pipeline, "Reconciling"), "True BrokerUnreachable");

        OwnBrokers::develop(&["broker", "ctl", version, "eval", "rabbit_maintenance:revive()."]).await;
        let pipeline = world.ready("orders").await;
        assert!(pipeline.status.unwrap().drift.is_none());
        assert!(world.broker.exists("queues", &world.vhost, "orders.queue.retry.1").await);
        world.leave().await;
    }
}
