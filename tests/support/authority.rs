//! Authorities that sign certificates for tests.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "for tests only")]

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// An authority with a key of its own.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one that nobody trusts yet.
    pub fn new() -> Self {
        let mut params = named("an authority of the tests", Vec::new());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its certificate, for `ca.crt`.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key for a name, both PEM.
    pub fn sign(&self, name: &str) -> (String, String) {
        self.sign_params(&named(name, vec![name.to_owned()]))
    }

    /// As [`Authority::sign`], valid until the year 2021 began.
    pub fn sign_expired(&self, name: &str) -> (String, String) {
        let mut params = named(name, vec![name.to_owned()]);
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        self.sign_params(&params)
    }

    fn sign_params(&self, params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem().as_bytes()).unwrap()).unwrap();
        roots
    }
}

/// Erlang takes a certificate for self-signed whose subject is called as its issuer.
fn named(subject: &str, hosts: Vec<String>) -> CertificateParams {
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    params
}

/// What a server shows, and with `clients` whose certificates it wants in turn.
pub fn server_config((certificate, key): &(String, String), clients: Option<&Authority>) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(Arc::new(authority.roots()), provider)
                .build()
                .unwrap(),
        ),
    };
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    builder.with_single_cert(chain, key).unwrap()
}
