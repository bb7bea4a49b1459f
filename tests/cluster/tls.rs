//! A broker behind TLS whose authority changes while the operator runs.

use std::time::Duration;

use serde_json::json;

use crate::deletion::{deletion, nothing_is_left};
use crate::support::at_rest;
use crate::support::authority::Authority;
use crate::support::replays::{DLQ, SOURCE};
use crate::support::tls::Terminator;
use crate::support::tls_listener::{Listener, Protocol, Shows};
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
    // The counts of its new queues are read a moment later.
    at_rest("looks at the vhost", || secured.world.looks()).await;
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

/// The broker's own TLS, which wants a certificate of its clients.
struct Listeners {
    management: Listener,
    amqp: Listener,
}

impl Listeners {
    /// Those of a broker whose certificate and clients are of this authority, on the ports of
    /// others that are gone if there are any.
    fn start(world: &World, series: &'static str, authority: &Authority, ports: Option<(u16, u16)>) -> Self {
        let identity = authority.sign("localhost");
        let shows = Shows { identity: &identity, clients: Some(authority) };
        let port = |address: &str| address.rsplit(':').next().unwrap().parse().unwrap();
        let (management, amqp) = (ports.map(|ports| ports.0), ports.map(|ports| ports.1));
        Self {
            management: Listener::start(
                series,
                port(&world.broker.address),
                Protocol::Management,
                management,
                &shows,
            ),
            amqp: Listener::start(series, port(&world.broker.amqp), Protocol::Amqp, amqp, &shows),
        }
    }

    /// What the Secret must say, with a certificate that the authority signed.
    async fn trusted(&self, world: &World, authority: &Authority, password: &str) {
        let mut secret = world.secret();
        let (certificate, key) = authority.sign("redrive");
        secret.extend([
            ("uri", format!("https://localhost:{}", self.management.port)),
            ("amqpUri", format!("amqps://localhost:{}", self.amqp.port)),
            ("username", world.namespace.clone()),
            ("password", password.to_owned()),
            ("ca.crt", authority.pem()),
            ("tls.crt", certificate),
            ("tls.key", key),
        ]);
        world.write_secret(&secret).await;
    }
}

/// Authority, certificates and password change, and nothing restarts.
async fn follows_a_rotation(series: &'static str, purpose: &str) {
    let mut world = World::for_replays_on(series, purpose).await;
    let (first, second) = (Authority::new(), Authority::new());
    world.as_user("first", "policymaker", ".*").await;
    let listeners = Listeners::start(&world, series, &first, None);
    listeners.trusted(&world, &first, "first").await;
    world.start();
    world.create_ready("orders", deletion("DeleteIfEmpty")).await;
    world.broker.fill(&world.vhost, DLQ, 3).await;
    world.replay("first", json!({})).await;
    world.until_phase("first", "Completed").await;
    world.until_messages(&[(DLQ, 0)]).await;

    let ports = (listeners.management.port, listeners.amqp.port);
    drop(listeners);
    let listeners = Listeners::start(&world, series, &second, Some(ports));
    world.broker.create_user(&world.namespace, "second", "policymaker").await;
    world.until_reason("orders", "TLSVerifyFailed").await;
    listeners.trusted(&world, &second, "second").await;
    world.ready("orders").await;
    world.broker.fill(&world.vhost, DLQ, 3).await;
    world.replay("second", json!({})).await;
    world.until_phase("second", "Completed").await;

    world.broker.purge(&world.vhost, SOURCE).await;
    world.delete("orders").await;
    world.until_gone("orders").await;
    nothing_is_left(&world).await;
    world.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_wants_certificates_is_followed_through_a_rotation() {
    follows_a_rotation("43", "rotation").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_wants_certificates_is_followed_through_a_rotation_on_4_0() {
    follows_a_rotation("40", "rotation-40").await;
}
