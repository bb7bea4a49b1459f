//! Whom TLS trusts, for HTTP and for AMQP.

use redrive::broker::connection::Parts;
use redrive::broker::{BrokerError, Endpoint, Management, amqp};

use super::authority::{Authority, server_config};
use super::fake::{Answer, Fake, OVERVIEW};
use super::local;

/// A server that shows an overview behind a certificate, and with `clients`
/// wants one of them.
fn server(identity: &(String, String), clients: Option<&Authority>) -> Fake {
    Fake::https(server_config(identity, clients), |_, _| Answer::json(200, OVERVIEW))
}

fn endpoint(fake: &Fake, ca: Option<&str>, client: Option<&(String, String)>) -> Endpoint {
    let port = fake.address.port();
    Endpoint::new(Parts {
        uri: &format!("https://localhost:{port}"),
        amqp_uri: Some(&format!("amqps://localhost:{port}")),
        username: "user",
        password: "secret",
        ca: ca.map(str::as_bytes),
        certificate: client.map(|(certificate, _)| certificate.as_bytes()),
        key: client.map(|(_, key)| key.as_bytes()),
    })
    .unwrap()
}

async fn overview(endpoint: &Endpoint) -> Result<String, BrokerError> {
    Management::new(endpoint, local())?.overview().await.map(|overview| overview.version)
}

#[tokio::test]
async fn a_private_authority_is_trusted_when_it_is_given_and_only_then() {
    let authority = Authority::new();
    let fake = server(&authority.sign("localhost"), None);
    let with_ca = endpoint(&fake, Some(&authority.pem()), None);
    assert_eq!(overview(&with_ca).await.unwrap(), "4.3.6");
    for ca in [None, Some(Authority::new().pem())] {
        let endpoint = endpoint(&fake, ca.as_deref(), None);
        let error = overview(&endpoint).await.unwrap_err();
        assert!(matches!(error, BrokerError::Tls { .. }), "{error:?}");
        assert!(error.to_string().contains("ca.crt"), "{error}");
        assert_eq!(error.reason(), "TLSVerifyFailed");
        let error = amqp::connect(&endpoint, &local(), "/", "t").await.unwrap_err();
        assert!(matches!(error, BrokerError::Tls { .. }), "{error:?}");
    }
    // Trusted, and no AMQP: the handshake succeeds, what follows does not.
    let error = amqp::connect(&with_ca, &local(), "/", "t").await.unwrap_err();
    assert!(!matches!(error, BrokerError::Tls { .. } | BrokerError::Setup { .. }), "{error:?}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused_with_its_names() {
    let authority = Authority::new();
    let fake = server(&authority.sign("elsewhere.example"), None);
    let endpoint = endpoint(&fake, Some(&authority.pem()), None);
    let error = overview(&endpoint).await.unwrap_err();
    assert!(error.to_string().contains("another name: use elsewhere.example"), "{error}");
    let error = amqp::connect(&endpoint, &local(), "/", "t").await.unwrap_err();
    assert!(error.to_string().contains("another name"), "{error}");
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_refused_with_its_date() {
    let authority = Authority::new();
    let fake = server(&authority.sign_expired("localhost"), None);
    let error = overview(&endpoint(&fake, Some(&authority.pem()), None)).await.unwrap_err();
    assert!(error.to_string().contains("was valid until 2021-01-01T00:00:00Z"), "{error}");
    assert_eq!(error.reason(), "TLSVerifyFailed");
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_wanted() {
    let authority = Authority::new();
    let fake = server(&authority.sign("localhost"), Some(&authority));
    let client = authority.sign("client");
    assert!(overview(&endpoint(&fake, Some(&authority.pem()), Some(&client))).await.is_ok());
    let error = overview(&endpoint(&fake, Some(&authority.pem()), None)).await.unwrap_err();
    assert!(matches!(error, BrokerError::Tls { .. }), "{error:?}");
}

#[tokio::test]
async fn a_plain_port_is_told_from_a_bad_certificate() {
    let fake = Fake::rabbit(|_, _| Answer::json(200, "[]"));
    let error = overview(&endpoint(&fake, None, None)).await.unwrap_err();
    assert!(!error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_certificate_and_a_key_that_do_not_belong_together_make_no_client() {
    let authority = Authority::new();
    let fake = server(&authority.sign("localhost"), None);
    let mixed = (authority.sign("client").0, authority.sign("client").1);
    let error = overview(&endpoint(&fake, Some(&authority.pem()), Some(&mixed))).await.unwrap_err();
    assert!(matches!(error, BrokerError::Setup { .. }), "{error:?}");
}
