//! Whom the client trusts, and what it says of whom it does not, with the brokers' own TLS.

use redrive::broker::connection::Parts;
use redrive::broker::{BrokerError, Endpoint, Management, amqp};
use rstest::rstest;

use super::authority::Authority;
use super::support::Version::{self, V40, V43};
use super::support::*;
use super::tls_listener::{Listener, Protocol, Shows};

type Identity = (String, String);

/// Both listeners of a broker, with one certificate.
struct Secured {
    plain: Endpoint,
    management: Listener,
    amqp: Listener,
}

impl Secured {
    fn start(version: Version, shows: &Shows<'_>) -> Self {
        let plain = version.endpoint();
        let listen = |protocol, port| Listener::start(version.series(), port, protocol, None, shows);
        let management = listen(Protocol::Management, plain.management.port);
        let amqp = listen(Protocol::Amqp, plain.amqp.port);
        Self { plain, management, amqp }
    }

    fn endpoint(&self, host: &str, ca: Option<&Authority>, client: Option<&Identity>) -> Endpoint {
        let ca = ca.map(Authority::pem);
        Endpoint::new(Parts {
            uri: &format!("https://{host}:{}", self.management.port),
            amqp_uri: Some(&format!("amqps://{host}:{}", self.amqp.port)),
            username: &self.plain.credentials.username,
            password: &self.plain.credentials.password,
            ca: ca.as_deref().map(str::as_bytes),
            certificate: client.map(|(certificate, _)| certificate.as_bytes()),
            key: client.map(|(_, key)| key.as_bytes()),
        })
        .unwrap()
    }
}

async fn by_http(endpoint: &Endpoint) -> Result<(), BrokerError> {
    Management::new(endpoint, guard()).unwrap().overview().await.map(drop)
}

async fn by_amqp(endpoint: &Endpoint) -> Result<(), BrokerError> {
    let connection = amqp::connect(endpoint, &guard(), "/", "tls").await?;
    connection.close(200, "OK".into()).await.unwrap();
    Ok(())
}

async fn is_trusted(endpoint: &Endpoint) {
    by_http(endpoint).await.unwrap();
    by_amqp(endpoint).await.unwrap();
}

async fn is_refused(endpoint: &Endpoint, why: &str) {
    for error in [by_http(endpoint).await.unwrap_err(), by_amqp(endpoint).await.unwrap_err()] {
        assert_eq!(error.reason(), "TLSVerifyFailed", "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[rstest]
#[tokio::test]
async fn a_private_authority_is_trusted_where_the_secret_names_it(#[values(V40, V43)] version: Version) {
    let authority = Authority::new();
    let identity = authority.sign("localhost");
    let secured = Secured::start(version, &Shows { identity: &identity, clients: None });
    is_trusted(&secured.endpoint("localhost", Some(&authority), None)).await;
    is_refused(&secured.endpoint("localhost", None, None), "into ca.crt").await;
    is_refused(&secured.endpoint("localhost", Some(&Authority::new()), None), "into ca.crt").await;
    let by_address = secured.endpoint("127.0.0.1", Some(&authority), None);
    is_refused(&by_address, "for another name: use localhost as host name").await;
}

#[rstest]
#[tokio::test]
async fn a_certificate_that_has_expired_is_refused(#[values(V40, V43)] version: Version) {
    let authority = Authority::new();
    let identity = authority.sign_expired("localhost");
    let secured = Secured::start(version, &Shows { identity: &identity, clients: None });
    let endpoint = secured.endpoint("localhost", Some(&authority), None);
    is_refused(&endpoint, "was valid until 2021-01-01T00:00:00Z: renew it").await;
}

#[rstest]
#[tokio::test]
async fn a_broker_that_wants_a_certificate_gets_it(#[values(V40, V43)] version: Version) {
    let authority = Authority::new();
    let identity = authority.sign("localhost");
    let secured = Secured::start(version, &Shows { identity: &identity, clients: Some(&authority) });
    let client = authority.sign("redrive");
    is_trusted(&secured.endpoint("localhost", Some(&authority), Some(&client))).await;
    is_refused(&secured.endpoint("localhost", Some(&authority), None), "may want tls.crt and tls.key").await;
    let foreign = Authority::new().sign("redrive");
    let stranger = secured.endpoint("localhost", Some(&authority), Some(&foreign));
    is_refused(&stranger, "may want tls.crt and tls.key").await;
}
