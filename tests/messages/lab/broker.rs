//! The brokers under test, named by the environment.

use redrive::broker::connection::Parts;
use redrive::broker::{AddressGuard, Endpoint, Management};
use reqwest::{Method, Url};

/// A broker that the tests may do anything to, in vhosts of their own.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    pub(crate) endpoint: Endpoint,
}

/// Fails, never skips, where a variable is missing.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: start the brokers with `hack/dev up` and name them with \
             `eval \"$(hack/dev env)\"`"
        )
    })
}

impl Broker {
    /// The broker of a version, such as `43`.
    pub(crate) fn of_version(version: &str) -> Self {
        let http = variable(&format!("REDRIVE_BROKER_{version}_URI"));
        let amqp = variable(&format!("REDRIVE_BROKER_{version}_AMQP_URI"));
        Self::at(&http, &amqp)
    }

    /// The broker behind two URIs that carry user and password.
    pub(crate) fn at(http: &str, amqp: &str) -> Self {
        let parsed = Url::parse(http).expect("the URI of the management API");
        let password = parsed.password().unwrap_or_default();
        let bare = |uri: &str| {
            let mut uri = Url::parse(uri).expect("a broker's URI");
            uri.set_username("").expect("no user");
            uri.set_password(None).expect("no password");
            uri.to_string()
        };
        let parts = Parts {
            uri: &bare(http),
            amqp_uri: Some(&bare(amqp)),
            username: parsed.username(),
            password,
            ..Parts::default()
        };
        Self { endpoint: Endpoint::new(parts).expect("a usable endpoint") }
    }

    pub(crate) fn guard() -> AddressGuard {
        AddressGuard::new(true, [])
    }

    pub(crate) fn management(&self) -> Management {
        // Both TLS libraries of our dependencies use this one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Management::new(&self.endpoint, Self::guard()).expect("a client")
    }

    /// The AMQP URI of a vhost, with user and password, for other clients.
    pub(crate) fn amqp_uri(&self, vhost: &str) -> String {
        let credentials = &self.endpoint.credentials;
        let (user, password) = (&credentials.username, &credentials.password);
        format!("amqp://{user}:{password}@{}/{vhost}", self.endpoint.amqp)
    }

    /// A call that Redrive itself never makes.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<serde_json::Value>) -> u16 {
        let credentials = &self.endpoint.credentials;
        let mut call = reqwest::Client::new()
            .request(method, format!("{}/api/{path}", self.endpoint.base_url()))
            .basic_auth(&credentials.username, Some(&credentials.password));
        if let Some(body) = body {
            call = call.json(&body);
        }
        call.send().await.expect("an answer of the management API").status().as_u16()
    }
}
