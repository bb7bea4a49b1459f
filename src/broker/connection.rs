//! From a Secret's keys to the place and the credentials of a broker.
//!
//! Pure: nothing is resolved or connected here. What can be wrong in a Secret
//! is found here, before a connection attempt turns it into a riddle.

use std::collections::BTreeMap;
use std::fmt;

use reqwest::Url;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

/// Why a Secret does not describe a broker. Each sentence names the key and
/// says what to write; none repeats a value that could be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// A required key is missing or empty.
    #[error("the key {key} is missing: {advice}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What to write there.
        advice: &'static str,
    },
    /// A key holds something that can't be used.
    #[error("the key {key} {problem}: {advice}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// What is wrong with its value.
        problem: &'static str,
        /// What to write instead.
        advice: &'static str,
    },
}

impl EndpointError {
    fn invalid(key: &'static str, problem: &'static str, advice: &'static str) -> Self {
        Self::Invalid { key, problem, advice }
    }
}

/// Who we are on the broker.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user's name; it can't contain a colon (HTTP Basic).
    pub username: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// A client certificate with its private key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The chain, the client's own certificate first.
    pub chain: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCertificate(..)")
    }
}

/// One listener of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// A host name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Address {
    /// `host:port`, as messages show it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// What an [`Endpoint`] is made of, before anything has been checked.
#[derive(Clone, Copy, Default)]
pub struct Parts<'a> {
    /// The management API: `http(s)://host:port/prefix`, or without scheme.
    pub uri: &'a str,
    /// The AMQP listener: `amqp(s)://host:port`; a path is ignored, since the
    /// vhost comes from elsewhere.
    pub amqp_uri: Option<&'a str>,
    /// The user's name.
    pub username: &'a str,
    /// The password.
    pub password: &'a str,
    /// The only authorities to trust, PEM; without them the system's.
    pub ca: Option<&'a [u8]>,
    /// The client's certificate chain, PEM.
    pub certificate: Option<&'a [u8]>,
    /// The client's private key, PEM.
    pub key: Option<&'a [u8]>,
}

/// Where a broker is, who we are there, and whom to trust.
///
/// Two endpoints with equal [`Endpoint::fingerprint`] may share connections and
/// snapshots; no others may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The management API's listener.
    pub management: Address,
    /// What precedes `/api` in paths (API-15): empty, or `/` and more, without
    /// a slash at the end, percent-encoded as it was written.
    pub path_prefix: String,
    /// The AMQP listener.
    pub amqp: Address,
    /// User and password, the same for both.
    pub credentials: Credentials,
    /// The only authorities to trust, PEM; `None`: the system's.
    pub ca: Option<Vec<u8>>,
    /// What we identify ourselves with in TLS.
    pub identity: Option<ClientCertificate>,
}

impl Endpoint {
    /// Reads the keys `uri`, `username`, `password`, and optionally `amqpUri`,
    /// `ca.crt`, `tls.crt`, `tls.key` of a Secret's data. Optional keys count
    /// as absent when empty. Other keys are ignored.
    ///
    /// # Errors
    /// The first thing that is wrong, see [`Endpoint::new`].
    pub fn from_secret(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, EndpointError> {
        let bytes = |key: &str| data.get(key).map(Vec::as_slice).filter(|value| !value.is_empty());
        let text = |key: &'static str| {
            bytes(key)
                .map(|value| {
                    std::str::from_utf8(value)
                        .map_err(|_| EndpointError::invalid(key, "is not UTF-8", "write it as plain text"))
                })
                .transpose()
        };
        Self::new(Parts {
            uri: text("uri")?.unwrap_or_default(),
            amqp_uri: text("amqpUri")?,
            username: text("username")?.unwrap_or_default(),
            password: text("password")?.unwrap_or_default(),
            ca: bytes("ca.crt"),
            certificate: bytes("tls.crt"),
            key: bytes("tls.key"),
        })
    }

    /// Checks the parts and puts them together. Blanks and line breaks around
    /// both URIs are dropped; those in user and password are refused, since a
    /// line break at the end of a file is the commonest cause of a 401.
    ///
    /// # Errors
    /// The first part that is missing or can't be used, named by its key in a
    /// Secret. Credentials inside a URI are refused: `username` and `password`
    /// alone count, and URIs get printed.
    pub fn new(parts: Parts<'_>) -> Result<Self, EndpointError> {
        let (management, path_prefix) = parse_management(parts.uri.trim())?;
        let amqp = match parts.amqp_uri.map(str::trim).filter(|uri| !uri.is_empty()) {
            Some(uri) => parse_amqp(uri)?,
            None => Address {
                tls: management.tls,
                host: management.host.clone(),
                port: default_amqp_port(management.tls),
            },
        };
        let credentials = parse_credentials(parts.username, parts.password)?;
        let ca = parts.ca.map(parse_ca).transpose()?;
        let identity = parse_identity(parts.certificate, parts.key)?;
        Ok(Self { management, path_prefix, amqp, credentials, ca, identity })
    }

    /// The management API's URL up to and without `/api`.
    #[must_use]
    pub fn base_url(&self) -> String {
        let scheme = if self.management.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.management, self.path_prefix)
    }

    /// A SHA-256 in hex over everything, the password included: equal only for
    /// equal endpoints, and safe to print.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let base = self.base_url();
        let amqp = format!("{}{}", self.amqp.tls, self.amqp);
        let (chain, key) =
            self.identity.as_ref().map_or((&[][..], &[][..]), |identity| (&identity.chain, &identity.key));
        let fields: [&[u8]; 7] = [
            base.as_bytes(),
            amqp.as_bytes(),
            self.credentials.username.as_bytes(),
            self.credentials.password.as_bytes(),
            self.ca.as_deref().unwrap_or_default(),
            chain,
            key,
        ];
        let mut digest = Sha256::new();
        for field in fields {
            // With its length first, so that no two lists of fields run together.
            digest.update((field.len() as u64).to_be_bytes());
            digest.update(field);
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn default_amqp_port(tls: bool) -> u16 {
    if tls { 5671 } else { 5672 }
}

const URI_ADVICE: &str = "write the management API's address, such as http://rabbit.example.svc:15672";
const AMQP_ADVICE: &str = "write the AMQP listener's address, such as amqp://rabbit.example.svc:5672";

fn parse_management(uri: &str) -> Result<(Address, String), EndpointError> {
    if uri.is_empty() {
        return Err(EndpointError::Missing { key: "uri", advice: URI_ADVICE });
    }
    // "rabbit:15672" alone would parse as a URL of the scheme "rabbit".
    let url = if uri.contains("://") { Url::parse(uri) } else { Url::parse(&format!("http://{uri}")) }
        .map_err(|_| EndpointError::invalid("uri", "is not a URL", URI_ADVICE))?;
    let tls = match url.scheme() {
        "http" => false,
        "https" => true,
        "amqp" | "amqps" => {
            return Err(EndpointError::invalid(
                "uri",
                "is an AMQP address",
                "write the management API's address there, and the AMQP one into amqpUri",
            ));
        }
        _ => return Err(EndpointError::invalid("uri", "has an unknown scheme", "use http or https")),
    };
    no_credentials("uri", &url)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(EndpointError::invalid("uri", "has a query or a fragment", URI_ADVICE));
    }
    let prefix = url.path().trim_end_matches('/');
    let prefix = prefix.strip_suffix("/api").unwrap_or(prefix);
    let address = address("uri", &url, tls, if tls { 443 } else { 80 }, URI_ADVICE)?;
    Ok((address, prefix.to_owned()))
}

fn parse_amqp(uri: &str) -> Result<Address, EndpointError> {
    let url = Url::parse(uri).map_err(|_| EndpointError::invalid("amqpUri", "is not a URL", AMQP_ADVICE))?;
    let tls = match url.scheme() {
        "amqp" => false,
        "amqps" => true,
        _ => {
            return Err(EndpointError::invalid(
                "amqpUri",
                "has another scheme than amqp or amqps",
                AMQP_ADVICE,
            ));
        }
    };
    no_credentials("amqpUri", &url)?;
    address("amqpUri", &url, tls, default_amqp_port(tls), AMQP_ADVICE)
}

fn no_credentials(key: &'static str, url: &Url) -> Result<(), EndpointError> {
    if url.username().is_empty() && url.password().is_none() {
        return Ok(());
    }
    Err(EndpointError::invalid(
        key,
        "contains credentials",
        "remove them and use the keys username and password",
    ))
}

fn address(
    key: &'static str,
    url: &Url,
    tls: bool,
    default_port: u16,
    advice: &'static str,
) -> Result<Address, EndpointError> {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(EndpointError::invalid(key, "has no host", advice));
    }
    Ok(Address { tls, host: host.to_owned(), port: url.port().unwrap_or(default_port) })
}

fn parse_credentials(username: &str, password: &str) -> Result<Credentials, EndpointError> {
    const USER_ADVICE: &str = "write the broker user's name there";
    const PASSWORD_ADVICE: &str = "write the broker user's password there";
    for (key, value, advice) in [("username", username, USER_ADVICE), ("password", password, PASSWORD_ADVICE)]
    {
        if value.is_empty() {
            return Err(EndpointError::Missing { key, advice });
        }
        if value.ends_with(['\n', '\r']) {
            return Err(EndpointError::invalid(key, "ends with a line break", "store it without one"));
        }
    }
    if username.contains(':') {
        return Err(EndpointError::invalid(
            "username",
            "contains a colon",
            "HTTP Basic can't carry it: use a user with another name",
        ));
    }
    Ok(Credentials { username: username.to_owned(), password: password.to_owned() })
}

fn parse_ca(pem: &[u8]) -> Result<Vec<u8>, EndpointError> {
    certificates("ca.crt", pem)?;
    Ok(pem.to_vec())
}

fn certificates(key: &'static str, pem: &[u8]) -> Result<(), EndpointError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(()),
        _ => Err(EndpointError::invalid(
            key,
            "holds no certificate",
            "write PEM with one or more BEGIN CERTIFICATE blocks",
        )),
    }
}

fn parse_identity(
    chain: Option<&[u8]>,
    key: Option<&[u8]>,
) -> Result<Option<ClientCertificate>, EndpointError> {
    const BOTH: &str = "a client certificate takes tls.crt and tls.key, so write both or neither";
    match (chain, key) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(EndpointError::Missing { key: "tls.key", advice: BOTH }),
        (None, Some(_)) => Err(EndpointError::Missing { key: "tls.crt", advice: BOTH }),
        (Some(chain), Some(key)) => {
            certificates("tls.crt", chain)?;
            PrivateKeyDer::from_pem_slice(key).map_err(|_| {
                EndpointError::invalid("tls.key", "holds no private key", "write an unencrypted PEM key")
            })?;
            Ok(Some(ClientCertificate { chain: chain.to_vec(), key: key.to_vec() }))
        }
    }
}

#[cfg(test)]
mod tests;
