//! From a RabbitmqCluster, its Service and its Secrets to a broker's endpoint. Pure.

use std::collections::BTreeMap;

use super::error::{Error, Role};
use super::facts::{Facts, Reference};
use crate::broker::connection::Parts;
use crate::broker::{Endpoint, EndpointError};

/// The data of a Secret.
pub(crate) type SecretData = BTreeMap<String, Vec<u8>>;

/// The key of a Secret that holds an authority.
const CA: &str = "ca.crt";

/// What has to be read beside the cluster, all in its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The Secret with user and password.
    pub(crate) credentials: String,
    /// The Secret that may hold the authority; none without TLS.
    pub(crate) authority: Option<String>,
    /// The Service; none where annotations say both addresses.
    pub(crate) service: Option<String>,
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The Secret with user and password.
    pub(crate) credentials: SecretData,
    /// The Secret that may hold the authority.
    pub(crate) authority: SecretData,
    /// The Service's ports, by name.
    pub(crate) ports: BTreeMap<String, u16>,
}

/// Says what to read, if the cluster can be used at all.
///
/// # Errors
/// Why it can't be used, or what it does not say yet.
pub(crate) fn needs(facts: &Facts) -> Result<Needs, Error> {
    let key = || facts.key.clone();
    if facts.is_going {
        return Err(Error::Going(key()));
    }
    if facts.is_scaled_to_zero {
        return Err(Error::ScaledToZero(key()));
    }
    let credentials = match &facts.credentials {
        Some(secret) => own(facts, secret)?,
        None if facts.has_vault_user => return Err(Error::VaultOnly(key())),
        None => return Err(Error::NoCredentials(key())),
    };
    let authority = facts.tls.as_ref().map(|tls| tls.ca_secret.as_ref().unwrap_or(&tls.secret).clone());
    let service = match &facts.service {
        _ if facts.uri.is_some() && facts.amqp_uri.is_some() => None,
        Some(service) => Some(own(facts, service)?),
        None => return Err(Error::NoService(key())),
    };
    Ok(Needs { credentials, authority, service })
}

/// The name of something beside the cluster. Whoever may write a cluster's status must not make
/// us read another namespace's Secrets, or send its password to another namespace's Service.
fn own(facts: &Facts, reference: &Reference) -> Result<String, Error> {
    match &reference.namespace {
        Some(namespace) if *namespace != facts.key.namespace => Err(Error::Elsewhere {
            key: facts.key.clone(),
            name: reference.name.clone(),
            namespace: namespace.clone(),
        }),
        _ => Ok(reference.name.clone()),
    }
}

/// Puts the endpoint together.
///
/// # Errors
/// What is missing or malformed, where it stands, and what to do about it.
pub(crate) fn endpoint(facts: &Facts, needs: &Needs, found: &Found) -> Result<Endpoint, Error> {
    let text = |key: &'static str| {
        let bytes = found.credentials.get(key).map(Vec::as_slice).unwrap_or_default();
        std::str::from_utf8(bytes).map_err(|_| Error::NotText {
            key: facts.key.clone(),
            secret: needs.credentials.clone(),
            field: key,
        })
    };
    let uri = match &facts.uri {
        Some(uri) => uri.clone(),
        None => management(facts, found)?,
    };
    let amqp = match &facts.amqp_uri {
        Some(uri) => uri.clone(),
        None => amqp(facts, found)?,
    };
    let parts = Parts {
        uri: &uri,
        amqp_uri: Some(&amqp),
        username: text("username")?,
        password: text("password")?,
        ca: authority(facts, needs, found)?,
        ..Parts::default()
    };
    Endpoint::new(parts).map_err(|error| explained(facts, needs, error))
}

/// The management API at the Service. What follows the prefix is taken off again, so that a
/// prefix may itself end in `/api`.
fn management(facts: &Facts, found: &Found) -> Result<String, Error> {
    let (scheme, port) = match facts.tls {
        Some(_) => ("https", port(facts, found, "management-tls")?),
        None => ("http", port(facts, found, "management")?),
    };
    let prefix = facts.path_prefix.trim_matches('/');
    let slash = if prefix.is_empty() { "" } else { "/" };
    Ok(format!("{scheme}://{}:{port}{slash}{prefix}/api", host(facts)))
}

fn amqp(facts: &Facts, found: &Found) -> Result<String, Error> {
    let scheme = if facts.tls.is_some() { "amqps" } else { "amqp" };
    Ok(format!("{scheme}://{}:{}", host(facts), port(facts, found, scheme)?))
}

fn host(facts: &Facts) -> String {
    let service = facts.service.as_ref().map(|service| service.name.as_str()).unwrap_or_default();
    format!("{service}.{}.svc", facts.key.namespace)
}

fn port(facts: &Facts, found: &Found, name: &'static str) -> Result<u16, Error> {
    found.ports.get(name).copied().ok_or_else(|| Error::NoPort { key: facts.key.clone(), port: name })
}

/// The cluster's own authority, else that of its certificate, else the system's.
fn authority<'a>(facts: &Facts, needs: &Needs, found: &'a Found) -> Result<Option<&'a [u8]>, Error> {
    let authority = found.authority.get(CA).map(Vec::as_slice).filter(|pem| !pem.is_empty());
    let is_named = facts.tls.as_ref().is_some_and(|tls| tls.ca_secret.is_some());
    match (authority, &needs.authority) {
        (None, Some(secret)) if is_named => {
            Err(Error::NoAuthority { key: facts.key.clone(), secret: secret.clone() })
        }
        (authority, _) => Ok(authority),
    }
}

/// An endpoint's error names the keys of a connection Secret; here they come from elsewhere.
fn explained(facts: &Facts, needs: &Needs, error: EndpointError) -> Error {
    let field = match error {
        EndpointError::Missing { key, .. } | EndpointError::Invalid { key, .. } => key,
    };
    let role = match field {
        "uri" if facts.uri.is_some() => Role::ConnectionUri,
        "amqpUri" if facts.amqp_uri.is_some() => Role::AmqpUri,
        "uri" => Role::PathPrefix,
        CA => Role::Secret(needs.authority.clone().unwrap_or_default()),
        _ => Role::Secret(needs.credentials.clone()),
    };
    Error::Unusable { key: facts.key.clone(), role, source: error }
}

#[cfg(test)]
mod tests;
