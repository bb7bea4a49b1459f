//! AMQP connections under the same rules as HTTP, and the one question that
//! only AMQP answers exactly: how many messages are ready.

use std::sync::Arc;

use lapin::options::QueueDeclareOptions;
use lapin::tcp::{AsyncTcpStream, RustlsConnector, RustlsConnectorConfig};
use lapin::types::{FieldTable, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::timeout;

use super::connection::Endpoint;
use super::error::BrokerError;
use super::guard::{AddressGuard, AddressRefused};
use super::http::{CONNECT_TIMEOUT, REQUEST_TIMEOUT};
use super::refusal::{self, bounded};
use super::tls;
use crate::topology::names::MAX_NAME_BYTES;

/// AMQP's reply codes that are told apart here.
pub(super) mod code {
    pub(in crate::broker) const ACCESS_REFUSED: u16 = 403;
    pub(in crate::broker) const NOT_FOUND: u16 = 404;
    pub(super) const NOT_ALLOWED: u16 = 530;
}

/// Connects to a vhost, each address checked by the guard, TLS with the same
/// roots and client certificate as HTTP. `name` is what the broker shows of
/// the connection. Nothing reconnects by itself.
///
/// # Errors
/// [`BrokerError::Unauthorized`], [`BrokerError::VhostNotFound`],
/// [`BrokerError::QuotaExceeded`] at a connection limit (VHO-05), and every
/// error of a connection. The TCP and TLS connection may take 5 seconds, AMQP's
/// own opening 30.
pub async fn connect(
    endpoint: &Endpoint,
    guard: &AddressGuard,
    vhost: &str,
    name: &str,
) -> Result<Connection, BrokerError> {
    if vhost.len() > MAX_NAME_BYTES {
        return Err(BrokerError::VhostNotFound { vhost: vhost.to_owned() });
    }
    let tls_connector = if endpoint.amqp.tls { Some(Arc::new(connector(endpoint)?)) } else { None };
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let guard = guard.clone();
    let open = Connection::connector(
        uri(endpoint, vhost),
        lapin::runtime::default_runtime().map_err(|error| sort(endpoint, vhost, "connect", error))?,
        async move |uri: AMQPUri, runtime| {
            let AMQPAuthority { host, port, .. } = &uri.authority;
            let limit = timeout(CONNECT_TIMEOUT, async {
                let addresses = guard.resolve(host, *port).await?;
                let stream = AsyncTcpStream::connect(&runtime, addresses.as_slice()).await?;
                match &tls_connector {
                    Some(connector) => stream.into_rustls(connector, host).await,
                    None => Ok(stream),
                }
            });
            Ok(limit.await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))?)
        },
        properties,
    );
    match timeout(REQUEST_TIMEOUT, open).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(sort(endpoint, vhost, "connect", error)),
        Err(_) => Err(late(endpoint)),
    }
}

/// What a passive declaration tells of a queue, exact and current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Messages that are ready.
    pub ready: u32,
    /// Its consumers.
    pub consumers: u32,
}

/// What each queue says to a passive declaration, one after the other; `None` if there is no
/// such queue.
///
/// It sees neither unacknowledged messages nor dead letters that wait for their next queue
/// (API-05), so it proves nothing alone. One channel serves all; a queue that is missing or
/// refused closes it, and the next opens another.
///
/// The error of a queue is [`BrokerError::Forbidden`] where the user may not see it, or one
/// of a connection; each may take 30 seconds.
pub async fn declared_all(
    connection: &Connection,
    endpoint: &Endpoint,
    vhost: &str,
    queues: Vec<String>,
) -> Vec<(String, Result<Option<Declared>, BrokerError>)> {
    let mut channel = None;
    let mut answers = Vec::with_capacity(queues.len());
    for queue in queues {
        let answer = declared_over(&mut channel, connection, endpoint, vhost, &queue).await;
        answers.push((queue, answer));
    }
    if let Some(channel) = channel
        && let Err(error) = channel.close(200, "OK".into()).await
    {
        tracing::debug!(%error, "the channel was closed already");
    }
    answers
}

/// As [`declared_all`], of one queue.
///
/// # Errors
/// As there.
pub async fn declared(
    connection: &Connection,
    endpoint: &Endpoint,
    vhost: &str,
    queue: &str,
) -> Result<Option<Declared>, BrokerError> {
    let mut answers = declared_all(connection, endpoint, vhost, vec![queue.to_owned()]).await;
    answers.pop().map_or(Ok(None), |(_, answer)| answer)
}

/// A passive declaration over an open channel, which it closes where there is no such queue.
pub(crate) async fn declare_passively(channel: &Channel, queue: ShortString) -> lapin::Result<Declared> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(queue, options, FieldTable::default()).await?;
    Ok(Declared { ready: found.message_count(), consumers: found.consumer_count() })
}

/// How many messages of a queue are ready; `None` if there is no such queue.
///
/// # Errors
/// As [`declared_all`].
pub async fn ready_count(
    connection: &Connection,
    endpoint: &Endpoint,
    vhost: &str,
    queue: &str,
) -> Result<Option<u32>, BrokerError> {
    Ok(declared(connection, endpoint, vhost, queue).await?.map(|declared| declared.ready))
}

/// One queue's answer over the channel, which is opened where there is none and forgotten
/// where it may have been closed.
async fn declared_over(
    channel: &mut Option<Channel>,
    connection: &Connection,
    endpoint: &Endpoint,
    vhost: &str,
    queue: &str,
) -> Result<Option<Declared>, BrokerError> {
    // Too long for AMQP, so no queue has this name.
    let Ok(name) = ShortString::try_new(queue) else { return Ok(None) };
    let open = channel.take();
    let ask = async {
        let open = match open {
            Some(open) => open,
            None => connection.create_channel().await?,
        };
        let declared = declare_passively(&open, name).await?;
        Ok::<_, lapin::Error>((open, declared))
    };
    match timeout(REQUEST_TIMEOUT, ask).await {
        Ok(Ok((open, declared))) => {
            *channel = Some(open);
            Ok(Some(declared))
        }
        Ok(Err(error)) if reply(&error).is_some_and(|(code, _)| code == code::NOT_FOUND) => Ok(None),
        Ok(Err(error)) => Err(sort(endpoint, vhost, &format!("count queue {queue:?}"), error)),
        Err(_) => Err(late(endpoint)),
    }
}

fn uri(endpoint: &Endpoint, vhost: &str) -> AMQPUri {
    let address = &endpoint.amqp;
    AMQPUri {
        scheme: if address.tls { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: endpoint.credentials.username.clone(),
                password: endpoint.credentials.password.clone(),
            },
            host: address.host.clone(),
            port: address.port,
        },
        vhost: vhost.to_owned(),
        query: AMQPQueryString::default(),
    }
}

fn connector(endpoint: &Endpoint) -> Result<RustlsConnector, BrokerError> {
    build_connector(endpoint).map_err(|error| BrokerError::Setup {
        address: endpoint.amqp.to_string(),
        source: Some(Arc::new(error)),
    })
}

fn build_connector(endpoint: &Endpoint) -> std::io::Result<RustlsConnector> {
    let invalid = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
    let certificates =
        |pem: &[u8]| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(invalid);
    let config = match &endpoint.ca {
        // Only these: the default configuration trusts nobody.
        Some(ca) => RustlsConnectorConfig::default().with_parsable_certificates(certificates(ca)?),
        None => RustlsConnectorConfig::new_with_native_certs()?,
    };
    match &endpoint.identity {
        Some(identity) => config.connector_with_single_cert(
            certificates(&identity.chain)?,
            PrivateKeyDer::from_pem_slice(&identity.key).map_err(invalid)?,
        ),
        None => config.connector_with_no_client_auth(),
    }
}

pub(super) fn late(endpoint: &Endpoint) -> BrokerError {
    BrokerError::Timeout { address: endpoint.amqp.to_string(), source: None }
}

/// The broker's reply code and sentence, where there is one.
pub(super) fn reply(error: &lapin::Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some((error.get_id(), bounded(error.get_message().as_str()))),
        _ => None,
    }
}

/// Sorts lapin's errors into the same classes as those of HTTP.
pub(super) fn sort(endpoint: &Endpoint, vhost: &str, verb: &str, error: lapin::Error) -> BrokerError {
    let address = endpoint.amqp.to_string();
    let username = endpoint.credentials.username.clone();
    let action = format!("{verb} in vhost {vhost:?}");
    match reply(&error) {
        Some((code::ACCESS_REFUSED, text)) if text.contains("Login was refused") => {
            BrokerError::Unauthorized { address, username }
        }
        Some((code::ACCESS_REFUSED, reason)) => BrokerError::Forbidden { username, action, reason },
        Some((code::NOT_ALLOWED, reason)) if reason.contains("limit") => {
            BrokerError::QuotaExceeded { action, reason }
        }
        Some((code::NOT_ALLOWED, reason)) if refusal::is_missing_vhost(&reason) => {
            BrokerError::VhostNotFound { vhost: vhost.to_owned() }
        }
        Some((code::NOT_ALLOWED, reason)) => BrokerError::Forbidden { username, action, reason },
        Some((status, reason)) => BrokerError::Refused { action, status, reason },
        None => no_reply(address, error),
    }
}

fn no_reply(address: String, error: lapin::Error) -> BrokerError {
    // lapin's own `source` skips the I/O error that it shows.
    let io = match error.kind() {
        ErrorKind::IOError(io) => Some(Arc::clone(io)),
        _ => None,
    };
    let Some(io) = io else {
        return BrokerError::Unreachable {
            address,
            why: "the connection failed",
            source: Some(Arc::new(error)),
        };
    };
    if let Some(refused) = tls::find::<AddressRefused>(&*io) {
        return BrokerError::AddressRefused { address, ip: refused.address, kind: refused.kind };
    }
    if let Some(tls_error) = tls::find::<rustls::Error>(&*io) {
        return BrokerError::Tls { address, why: tls::why(tls_error), source: Some(io) };
    }
    if io.kind() == std::io::ErrorKind::TimedOut {
        return BrokerError::Timeout { address, source: Some(io) };
    }
    BrokerError::Unreachable { address, why: tls::why_io(io.kind()), source: Some(io) }
}
