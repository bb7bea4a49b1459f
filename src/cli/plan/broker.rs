//! A broker as the command line names it, and one look at its vhosts.

use std::collections::{BTreeMap, BTreeSet};

use percent_encoding::percent_decode_str;
use reqwest::Url;

use super::compare::Ground;
use crate::broker::connection::Parts;
use crate::broker::{AddressGuard, BrokerError, Endpoint, EndpointError, Management, Overview};
use crate::cli::manifest::Manifest;
use crate::topology::observed::Observed;

/// Reads `--broker`, and `--amqp` where there is one. No message repeats the URI, which may hold a
/// password.
pub(in crate::cli) fn endpoint(
    uri: &str,
    amqp: Option<&str>,
    password: Option<&str>,
    ca: Option<&str>,
) -> Result<Endpoint, String> {
    let with_scheme = if uri.contains("://") { uri.to_owned() } else { format!("http://{uri}") };
    let mut url = Url::parse(&with_scheme)
        .map_err(|_| "--broker is not a URL: write one such as http://USER@HOST:15672".to_owned())?;
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let user = decoded(url.username());
    let in_uri = url.password().map(decoded);
    if user.is_empty() {
        return Err("--broker names no user: write one such as http://USER@HOST:15672".to_owned());
    }
    let password = password.map(str::to_owned).or(in_uri).ok_or_else(|| {
        "--broker has no password: put it into the environment variable REDRIVE_BROKER_PASSWORD".to_owned()
    })?;
    // Both fail only for URLs without a host, which the endpoint refuses.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let ca = ca
        .map(|file| std::fs::read(file).map_err(|error| format!("--ca {file} can't be read: {error}")))
        .transpose()?;
    let parts = Parts {
        uri: url.as_str(),
        amqp_uri: amqp,
        username: &user,
        password: &password,
        ca: ca.as_deref(),
        ..Parts::default()
    };
    Endpoint::new(parts).map_err(|error| explain(&error))
}

/// An endpoint's error names keys of a Secret; here they come from elsewhere.
fn explain(error: &EndpointError) -> String {
    let (key, problem, advice) = match error {
        EndpointError::Missing { key, advice } => (*key, "is missing", *advice),
        EndpointError::Invalid { key, problem, advice } => (*key, *problem, *advice),
    };
    let place = match key {
        "amqpUri" => "--amqp",
        "ca.crt" => "--ca",
        "username" => "the user in --broker",
        "password" => "the password",
        _ => "--broker",
    };
    format!("{place} {problem}: {advice}")
}

/// Reads every vhost that a pipeline lives in, once.
pub(super) fn look(endpoint: &Endpoint, pipelines: &[Manifest]) -> Result<Ground, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime can be started: {error}"))?;
    let vhosts: BTreeSet<&str> = pipelines.iter().map(|manifest| manifest.spec.vhost()).collect();
    runtime.block_on(read(endpoint, &vhosts)).map_err(|error| error.to_string())
}

/// Reads one vhost.
pub(in crate::cli) fn look_at(endpoint: &Endpoint, vhost: &str) -> Result<(Overview, Observed), String> {
    let read = async {
        let management = Management::new(endpoint, AddressGuard::new(true, []))?;
        Ok((management.overview().await?, management.snapshot(vhost).await?))
    };
    crate::cli::block_on(async { read.await.map_err(|error: BrokerError| error.to_string()) })
}

async fn read(endpoint: &Endpoint, vhosts: &BTreeSet<&str>) -> Result<Ground, BrokerError> {
    // Who types an address may mean this machine; the guard is for Secrets that others write.
    let management = Management::new(endpoint, AddressGuard::new(true, []))?;
    let overview = management.overview().await?;
    let mut found: BTreeMap<String, Result<Observed, String>> = BTreeMap::new();
    for vhost in vhosts {
        let observed = match management.snapshot(vhost).await {
            Err(error @ (BrokerError::VhostNotFound { .. } | BrokerError::Forbidden { .. })) => {
                Err(error.to_string())
            }
            other => Ok(other?),
        };
        found.insert((*vhost).to_owned(), observed);
    }
    Ok(Ground::observed(endpoint.base_url(), overview, found))
}
