//! HTTP under our rules: one pool and a bounded number of calls per broker,
//! checked addresses, no redirects, no proxies, no retries, a limit on every
//! wait and on every body.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Method, Response, StatusCode, header};
use serde::de::DeserializeOwned;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tracing::{Instrument as _, Span};

use super::connection::{Address, Credentials, Endpoint};
use super::error::{BrokerError, Cause};
use super::guard::{AddressGuard, AddressRefused};
use super::lenient::{Lenient, Row};
use super::management::Supervision;
use super::refusal;
use super::rows::RowSplitter;
use super::tls;

/// How long a connection may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call may take, from the connection to the body's last byte.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Shorter than the 5 s after which a broker closes an idle connection (the default of
/// `management.tcp.request_timeout`, measured on both series): a call on one that is just
/// being closed has no answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// The largest single answer; lists are read row by row instead.
const MAX_ANSWER: usize = 4 << 20;
/// As much of an error's body as is looked at.
const MAX_REFUSAL: usize = 64 << 10;

/// What a call is about, for messages.
#[derive(Clone, Debug)]
pub(crate) struct About<'a> {
    pub(crate) verb: &'static str,
    /// Such as `queue "orders"`.
    pub(crate) what: String,
    /// Empty where no vhost is concerned.
    pub(crate) vhost: &'a str,
}

impl<'a> About<'a> {
    pub(crate) fn new(verb: &'static str, what: impl Into<String>, vhost: &'a str) -> Self {
        Self { verb, what: what.into(), vhost }
    }
}

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.what)?;
        if self.vhost.is_empty() { Ok(()) } else { write!(f, " in vhost {:?}", self.vhost) }
    }
}

/// One request.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    /// From `path::api`.
    pub(crate) path: String,
    /// With its question mark, or empty.
    pub(crate) query: &'static str,
    pub(crate) body: Option<serde_json::Value>,
    pub(crate) about: About<'a>,
}

impl<'a> Call<'a> {
    pub(crate) fn get(path: String, query: &'static str, about: About<'a>) -> Self {
        Self { method: Method::GET, path, query, body: None, about }
    }
}

/// An answer with a status that the caller asked for; it occupies one of the
/// broker's places, and its span lasts, until it is read or dropped.
pub(crate) struct Answer {
    response: Response,
    address: String,
    _span: Span,
    _permit: OwnedSemaphorePermit,
}

impl Answer {
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Reads a whole small answer.
    pub(crate) async fn bytes(mut self, limit: usize) -> Result<Vec<u8>, BrokerError> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if body.len() + chunk.len() > limit {
                return Err(self.not_rabbit("its answer is too long"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Decodes a single JSON value.
    pub(crate) async fn json<T: DeserializeOwned>(self) -> Result<T, BrokerError> {
        let address = self.address.clone();
        let body = self.bytes(MAX_ANSWER).await?;
        serde_json::from_slice(&body)
            .map_err(|_| BrokerError::NotRabbit { address, why: "its answer has another shape" })
    }

    /// Decodes a JSON list row by row while it arrives; no more than one row
    /// and one chunk of it is in memory at a time.
    pub(crate) async fn rows<T: Row>(mut self, mut each: impl FnMut(T)) -> Result<(), BrokerError> {
        let mut splitter = RowSplitter::default();
        let shape = "its list has another shape";
        while let Some(chunk) = self.chunk().await? {
            splitter
                .feed(&chunk, |row| {
                    let Lenient(row) = serde_json::from_slice::<Lenient<T>>(row).map_err(|_| ())?;
                    each(row);
                    Ok(())
                })
                .map_err(|()| self.not_rabbit(shape))?;
        }
        if splitter.is_complete() { Ok(()) } else { Err(self.not_rabbit("its list ends too early")) }
    }

    async fn chunk(&mut self) -> Result<Option<impl std::ops::Deref<Target = [u8]> + use<>>, BrokerError> {
        self.response.chunk().await.map_err(|error| transport_error(&self.address, error))
    }

    fn not_rabbit(&self, why: &'static str) -> BrokerError {
        BrokerError::NotRabbit { address: self.address.clone(), why }
    }
}

/// The connection pool of one endpoint.
#[derive(Debug)]
pub(crate) struct Http {
    client: Client,
    base: String,
    address: Address,
    credentials: Credentials,
    guard: AddressGuard,
    places: Arc<Semaphore>,
    supervision: Supervision,
    /// Set once `/api/overview` has shown a RabbitMQ.
    pub(crate) proved: OnceCell<()>,
}

impl Http {
    pub(crate) fn new(
        endpoint: &Endpoint,
        guard: AddressGuard,
        in_flight: usize,
        timeout: Duration,
    ) -> Result<Self, BrokerError> {
        let address = endpoint.management.clone();
        let client = client(endpoint, guard.clone(), timeout).map_err(|error| BrokerError::Setup {
            address: address.to_string(),
            source: Some(Arc::new(error)),
        })?;
        Ok(Self {
            client,
            base: endpoint.base_url(),
            address,
            credentials: endpoint.credentials.clone(),
            guard,
            places: Arc::new(Semaphore::new(in_flight.max(1))),
            supervision: Supervision::default(),
            proved: OnceCell::new(),
        })
    }

    pub(crate) fn supervised(self, supervision: Supervision) -> Self {
        Self { supervision, ..self }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn username(&self) -> &str {
        &self.credentials.username
    }

    /// Sends a call and turns every status but 2xx and those in `also` into an
    /// error.
    pub(crate) async fn send(&self, call: Call<'_>, also: &[u16]) -> Result<Answer, BrokerError> {
        let about = call.about.clone();
        let is_good = |status: StatusCode| status.is_success() || also.contains(&status.as_u16());
        let answer = self.exchange(call, is_good).await?;
        let status = answer.status();
        if is_good(status) {
            return Ok(answer);
        }
        if status.is_redirection() {
            return Err(
                answer.not_rabbit("it redirects, which is not followed: put the final address into uri")
            );
        }
        // A body that can't be read must not hide what the status says.
        let body = answer.bytes(MAX_REFUSAL).await.unwrap_or_default();
        Err(refusal::classify(self, status.as_u16(), &body, &about))
    }

    async fn exchange(
        &self,
        call: Call<'_>,
        is_good: impl Fn(StatusCode) -> bool,
    ) -> Result<Answer, BrokerError> {
        let address = self.address();
        // Literal addresses never reach the resolver.
        self.guard.check_literal(&self.address.host).map_err(|error| refused_address(&address, &error))?;
        let permit =
            Arc::clone(&self.places).acquire_owned().await.map_err(|error| BrokerError::Unreachable {
                address: address.clone(),
                why: "the client is closed",
                source: Some(Arc::new(error)),
            })?;
        let Supervision { term, meter } = &self.supervision;
        // At the last moment: this call may have waited, and so may the whole process.
        if call.method != Method::GET && !term.holds() {
            return Err(BrokerError::TermOver);
        }
        let url = format!("{}{}{}", self.base, call.path, call.query);
        let mut request = self
            .client
            .request(call.method.clone(), url)
            .basic_auth(&self.credentials.username, Some(&self.credentials.password))
            .header(header::ACCEPT, "application/json");
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        let measured = meter.begin(&address, &call.method, &call.path);
        let sent = request.send().instrument(measured.span()).await;
        let response = sent.map_err(|error| transport_error(&address, error));
        let status = response.as_ref().map(Response::status);
        let span = measured.end(status, status.is_ok_and(is_good));
        Ok(Answer { response: response?, address, _permit: permit, _span: span })
    }
}

fn client(endpoint: &Endpoint, guard: AddressGuard, timeout: Duration) -> reqwest::Result<Client> {
    let mut builder = Client::builder()
        .user_agent(concat!("redrive/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(timeout)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .tcp_nodelay(true)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .gzip(true)
        .dns_resolver(guard);
    if let Some(ca) = &endpoint.ca {
        builder = builder.tls_certs_only(reqwest::Certificate::from_pem_bundle(ca)?);
    } else if !endpoint.management.tls {
        // The system's certificates may be missing where nobody needs them.
        builder = builder.tls_certs_only(std::iter::empty());
    }
    if let Some(identity) = &endpoint.identity {
        let pem = [identity.key.as_slice(), b"\n", identity.chain.as_slice()].concat();
        builder = builder.identity(reqwest::Identity::from_pem(&pem)?);
    }
    builder.build()
}

fn refused_address(address: &str, error: &AddressRefused) -> BrokerError {
    BrokerError::AddressRefused { address: address.to_owned(), ip: error.address, kind: error.kind }
}

/// Sorts what went wrong before there was an answer, or in the middle of it.
fn transport_error(address: &str, error: reqwest::Error) -> BrokerError {
    let error = error.without_url();
    let address = address.to_owned();
    if let Some(refused) = tls::find::<AddressRefused>(&error) {
        return refused_address(&address, refused);
    }
    if error.is_timeout() {
        return BrokerError::Timeout { address, source: Some(Arc::new(error)) };
    }
    if let Some(tls_error) = tls::find::<rustls::Error>(&error) {
        let why = tls::why(tls_error);
        return BrokerError::Tls { address, why, source: Some(Arc::new(error)) };
    }
    let why = if let Some(io) = tls::find::<std::io::Error>(&error) {
        tls::why_io(io.kind())
    } else if error.is_connect() {
        "no connection"
    } else if error.is_decode() || error.is_body() {
        "the connection broke within an answer"
    } else {
        "what it sends is not HTTP"
    };
    let source: Cause = Arc::new(error);
    BrokerError::Unreachable { address, why, source: Some(source) }
}
