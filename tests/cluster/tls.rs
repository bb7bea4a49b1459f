//! A broker behind TLS whose authority changes while the operator runs.

use std::time::Duration;

use serde_json::json;

use crate::deletion::{deletion, nothing_is_left};
use crate::support::authority::Authority;
use crate::support::tls::Terminator;
use crate::support::world::{World, describe, message, verdict};

/// A world whose operator reaches the broker by TLS alone.
struct Secured {
    world: World,
    terminator: Terminator,
    uri: String,
    amqp_uri: String,
}

impl Secured {
    async fn new(purpose: &str, authority: &Authority) -> Self {
        let world = World::new(purpose).await;
        let mut terminator = Terminator::new(authority);
        let uri = format!("https://localhost:{}", terminator.listen(&world.proxy.address).await);
        let listener = world.broker.amqp.trim_start_matches("amqp://");
        let amqp_uri = format!("amqps://localhost:{}", terminator.listen(listener).await);
        let secured = Self { world, terminator, uri, amqp_uri };
        secured.trust(&authority.pem()).await;
        secured
    }

    /// Writes these authorities to the Secret.
    async fn trust(&self, pem: &str) {
        let mut secret = self.world.secret();
        let keys = [("uri", &self.uri), ("amqpUri", &self.amqp_uri)];
        secret.extend(keys.map(|(key, value)| (key, value.clone())));
        secret.insert("ca.crt", pem.to_owned());
        self.world.write_secret(&secret).await;
    }

    async fn events_of_tls(&self) -> Vec<String> {
        let mut events = self.world.events("orders").await;
        events.retain(|event| event.contains("TLSVerifyFailed"));
        events
    }
}

#[tokio::test]
async fn a_new_authority_is_trusted_once_it_is_in_the_secret() {
    let (first, second) = (Authority::new(), Authority::new());
    let mut secured = Secured::new("authority", &first).await;
    secured.world.start();
    secured.world.create_ready("orders", deletion("DeleteIfEmpty")).await;

    secured.terminator.replace(&second);
    let pipeline = secured.world.until_reason("orders", "TLSVerifyFailed").await;
    assert_eq!(verdict(&pipeline, "Ready"), "False TLSVerifyFailed");
    assert_eq!(verdict(&pipeline, "Stalled"), "True TLSVerifyFailed");
    assert!(message(&pipeline, "Ready").contains("ca.crt"), "{}", describe(&pipeline));

    secured.trust(&second.pem()).await;
    let pipeline = secured.world.ready("orders").await;
    assert!(pipeline.status.unwrap().drift.is_none(), "nothing was changed on the broker");

    // AMQP, which proves the queues empty, trusts it as well.
    secured.world.delete("orders").await;
    secured.world.until_gone("orders").await;
    nothing_is_left(&secured.world).await;
    secured.world.leave().await;
}

#[tokio::test]
async fn a_secret_that_is_newer_than_what_is_remembered_costs_no_failure() {
    let (first, second) = (Authority::new(), Authority::new());
    let mut secured = Secured::new("newer", &first).await;
    // No poll reads the Secret meanwhile.
    secured.world.settings.poll_interval = Duration::from_secs(3_600);
    secured.world.start();
    secured.world.create_ready("orders", json!({})).await;
    secured.trust(&second.pem()).await;
    secured.terminator.replace(&second);
    secured.world.edit("orders", json!({"source": {"deliveryLimit": 3}})).await;
    secured.world.ready("orders").await;
    assert!(secured.events_of_tls().await.is_empty(), "{:#?}", secured.events_of_tls().await);
    secured.world.leave().await;
}

#[tokio::test]
async fn with_both_authorities_in_the_secret_nobody_notices_the_change() {
    let (first, second) = (Authority::new(), Authority::new());
    let mut secured = Secured::new("both", &first).await;
    secured.trust(&[first.pem(), second.pem()].concat()).await;
    secured.world.start();
    secured.world.create_ready("orders", json!({})).await;
    secured.terminator.replace(&second);
    // Something that only a new connection can put right.
    secured.world.broker.delete(&["queues", &secured.world.vhost, "orders.queue.dlq"]).await;
    secured.world.until_event("orders", "queue orders.queue.dlq is missing").await;
    secured.world.ready("orders").await;
    assert!(secured.events_of_tls().await.is_empty(), "{:#?}", secured.events_of_tls().await);
    secured.world.leave().await;
}
