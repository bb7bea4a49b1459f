//! The management API: who a broker is, and single questions.
//!
//! `snapshot` holds the bulk read, `write` the changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;

use super::connection::Endpoint;
use super::error::BrokerError;
use super::guard::AddressGuard;
use super::http::{About, Answer, Call, Http, REQUEST_TIMEOUT};
use super::lenient::Lenient;
use super::meter::Meter;
use super::path;
use super::wire::QueueRow;
use crate::ops::term::Term;
use crate::topology::observed::{BrokerFacts, Totals};

/// How many calls to one broker may be under way at the same time.
pub const IN_FLIGHT: usize = 16;

/// What `/api/overview` says of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// Version and exchange types.
    pub facts: BrokerFacts,
    /// The version as the broker writes it, such as `4.3.6` or `4.4.0-rc.1`.
    pub version: String,
    /// The cluster's name, which operators may change at any time; see
    /// [`Management::internal_cluster_id`] for what stays.
    pub cluster_name: String,
    /// Whether the broker runs without statistics (API-03); totals still work
    /// where `enable_queue_totals` is set or asked for.
    pub statistics_disabled: bool,
}

/// What `/api/whoami` says of us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhoAmI {
    /// Our user's name.
    pub name: String,
    /// Our user's tags, such as `management`, `policymaker`, `administrator`.
    pub tags: BTreeSet<String>,
}

impl WhoAmI {
    /// Whether these tags show the connections, channels and consumers of other users.
    #[must_use]
    pub fn sees_connections(&self) -> bool {
        self.tags.contains("monitoring") || self.tags.contains("administrator")
    }

    /// Whether these tags allow writing policies and reading the cluster's
    /// identity (API-07). Reading policies takes permission in the vhost only.
    #[must_use]
    pub fn may_write_policies(&self) -> bool {
        self.tags.contains("policymaker") || self.tags.contains("administrator")
    }
}

/// All that a queue holds, as far as the broker says; `None` is unknown.
/// [`Management::queue_totals`] says how old it can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// The counts of the totals mode. `messages` includes dead letters that
    /// wait and delayed retries (measured on 4.0.5 and 4.3.6).
    pub totals: Totals,
    /// Dead letters that wait for their next queue.
    pub dead_lettering: Option<i64>,
    /// Messages in delayed retry.
    pub delayed: Option<i64>,
}

impl QueueTotals {
    /// Whether the broker says of every place a message can be in that it is
    /// empty. The two counts from the statistics can veto, but where they are
    /// missing `messages` stands in for them, since it is their sum.
    ///
    /// One look proves nothing, for it can be 5 seconds old: two, 10 seconds
    /// apart, with a ready count of zero over AMQP at the second.
    #[must_use]
    pub fn says_empty(&self) -> bool {
        let nothing = |count: Option<i64>| count.is_none_or(|count| count == 0);
        self.totals.proven_empty() && nothing(self.dead_lettering) && nothing(self.delayed)
    }

    /// Messages that are neither ready nor delivered nor delayed: dead letters
    /// that wait for their next queue.
    #[must_use]
    pub fn waiting_dead_letters(&self) -> Option<i64> {
        Some(self.totals.waiting()? - self.delayed.unwrap_or_default())
    }
}

/// For how long a client may write, and where its calls are counted.
#[derive(Clone, Debug)]
pub struct Supervision {
    /// Once it has ended, every write fails.
    pub term: Term,
    /// Counts the calls.
    pub meter: Meter,
}

impl Default for Supervision {
    fn default() -> Self {
        Self { term: Term::unlimited(), meter: Meter::default() }
    }
}

/// A client of one broker's management API; clones share one pool.
///
/// The first call, whatever it is, is preceded by a probe of `/api/overview`;
/// nothing else is sent to a server that has not proved to be a RabbitMQ.
/// No call is repeated on its own. A connection may take 5 seconds, a call 30.
#[derive(Clone, Debug)]
pub struct Management {
    http: Arc<Http>,
}

impl Management {
    /// Prepares a client; nothing is resolved or connected yet.
    ///
    /// # Errors
    /// [`BrokerError::Setup`] if the certificates can't be used.
    pub fn new(endpoint: &Endpoint, guard: AddressGuard) -> Result<Self, BrokerError> {
        Self::with_limits(endpoint, guard, IN_FLIGHT, REQUEST_TIMEOUT)
    }

    /// Like [`Management::new`], for an operator that may lose its place to another.
    ///
    /// # Errors
    /// [`BrokerError::Setup`] if the certificates can't be used.
    pub fn supervised(
        endpoint: &Endpoint,
        guard: AddressGuard,
        supervision: Supervision,
    ) -> Result<Self, BrokerError> {
        let http = Http::new(endpoint, guard, IN_FLIGHT, REQUEST_TIMEOUT)?;
        Ok(Self { http: Arc::new(http.supervised(supervision)) })
    }

    /// Like [`Management::new`], with the number of calls under way and the
    /// time that a call may take, from the connection to its last byte.
    ///
    /// # Errors
    /// [`BrokerError::Setup`] if the certificates can't be used.
    pub fn with_limits(
        endpoint: &Endpoint,
        guard: AddressGuard,
        in_flight: usize,
        timeout: Duration,
    ) -> Result<Self, BrokerError> {
        Ok(Self { http: Arc::new(Http::new(endpoint, guard, in_flight, timeout)?) })
    }

    /// Sends a call, after the broker has proved to be one.
    pub(super) async fn send(&self, call: Call<'_>, also: &[u16]) -> Result<Answer, BrokerError> {
        self.http.proved.get_or_try_init(|| async { self.probe().await.map(|_| ()) }).await?;
        self.http.send(call, also).await
    }

    /// Asks the broker who it is; fresh at every call.
    ///
    /// # Errors
    /// [`BrokerError::NotRabbit`] if something else answers, and every error
    /// of a connection.
    pub async fn overview(&self) -> Result<Overview, BrokerError> {
        let overview = self.probe().await?;
        // It may have been set before; both times it is the same answer.
        let _ = self.http.proved.set(());
        Ok(overview)
    }

    async fn probe(&self) -> Result<Overview, BrokerError> {
        let about = About::new("read", "/api/overview", "");
        // Without "disable_stats=true", which would come back as the answer's own.
        let call = Call::get(path::api(&["overview"])?, "", about);
        let answer: Value = self.http.send(call, &[]).await?.json().await?;
        parse_overview(&answer).map_err(|why| BrokerError::NotRabbit { address: self.http.address(), why })
    }

    /// The cluster's identity, which survives restarts, renames and restores
    /// of definitions; `None` where the broker has none.
    ///
    /// # Errors
    /// [`BrokerError::Forbidden`] without the tag `policymaker`, and every
    /// error of a connection.
    pub async fn internal_cluster_id(&self) -> Result<Option<String>, BrokerError> {
        let about = About::new("read", "the global parameter internal_cluster_id", "");
        let call = Call::get(path::api(&["global-parameters", "internal_cluster_id"])?, "", about);
        let answer = match self.send(call, &[]).await {
            Err(BrokerError::NotFound { .. }) => return Ok(None),
            answer => answer?.json::<Value>().await?,
        };
        Ok(answer.get("value").and_then(Value::as_str).map(str::to_owned))
    }

    /// Who we are and which tags we have.
    ///
    /// # Errors
    /// Every error of a connection.
    pub async fn whoami(&self) -> Result<WhoAmI, BrokerError> {
        let about = About::new("read", "/api/whoami", "");
        let answer: Value =
            self.send(Call::get(path::api(&["whoami"])?, "", about), &[]).await?.json().await?;
        let name = answer.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let tags = match answer.get("tags") {
            Some(Value::Array(tags)) => tags.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            // One string, separated by commas, before 3.9.
            Some(Value::String(tags)) => tags.split(',').map(|tag| tag.trim().to_owned()).collect(),
            _ => BTreeSet::new(),
        };
        Ok(WhoAmI { name, tags })
    }

    /// Whether a vhost exists. `false` is not proof (VHO-09): ask again, with
    /// [`Management::overview`] healthy, before cleaning anything up.
    ///
    /// # Errors
    /// [`BrokerError::Forbidden`] if it exists and the user has no permission
    /// in it, and every error of a connection.
    pub async fn vhost_exists(&self, vhost: &str) -> Result<bool, BrokerError> {
        // /api/vhosts/{vhost} is for administrators alone; this exchange is in
        // every vhost, can't be deleted, and may be read by every user there.
        let about = About::new("read", format!("vhost {vhost:?}"), vhost);
        let call = Call::get(path::api(&["exchanges", vhost, "amq.direct"])?, "?disable_stats=true", about);
        match self.send(call, &[]).await {
            Ok(_) => Ok(true),
            Err(BrokerError::NotFound { .. } | BrokerError::VhostNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What one queue holds, or `None` if it does not exist: two requests side
    /// by side, since no single one shows everything.
    ///
    /// Of quorum queues all of it is as of their last tick, up to 5 seconds
    /// ago (measured on 4.0.5 and 4.3.6); of classic queues the totals are
    /// current. `dead_lettering` and `delayed` come from the statistics, which
    /// lag up to 10 seconds and are missing for fresh queues, on brokers
    /// without statistics, and (`delayed`) before 4.3.
    ///
    /// # Errors
    /// [`BrokerError::VhostNotFound`], and every error of a connection.
    pub async fn queue_totals(&self, vhost: &str, queue: &str) -> Result<Option<QueueTotals>, BrokerError> {
        let rows = futures::try_join!(
            self.queue_row(vhost, queue, "?disable_stats=true&enable_queue_totals=true"),
            self.queue_row(vhost, queue, "?columns=messages_dlx,messages_delayed"),
        );
        match rows {
            Ok((counts, hidden)) => Ok(Some(QueueTotals {
                totals: counts.totals(),
                dead_lettering: hidden.dead_lettering,
                delayed: hidden.delayed,
            })),
            Err(BrokerError::NotFound { .. }) => self.explain_missing(vhost).await.map(|()| None),
            Err(error) => Err(error),
        }
    }

    async fn queue_row(
        &self,
        vhost: &str,
        queue: &str,
        query: &'static str,
    ) -> Result<QueueRow, BrokerError> {
        let about = About::new("read", format!("queue {queue:?}"), vhost);
        let call = Call::get(path::api(&["queues", vhost, queue])?, query, about);
        Ok(self.send(call, &[]).await?.json::<Lenient<QueueRow>>().await?.0)
    }

    /// Turns "no such object" into "no such vhost" where that is the cause.
    pub(super) async fn explain_missing(&self, vhost: &str) -> Result<(), BrokerError> {
        if self.vhost_exists(vhost).await? {
            Ok(())
        } else {
            Err(BrokerError::VhostNotFound { vhost: vhost.to_owned() })
        }
    }

    /// The resource alarms in effect, such as `memory on rabbit@host`; while
    /// there is one, the broker blocks publishers.
    ///
    /// # Errors
    /// Every error of a connection; each user with a tag may ask.
    pub async fn alarms(&self) -> Result<Vec<String>, BrokerError> {
        let about = About::new("read", "alarms", "");
        let call = Call::get(path::api(&["health", "checks", "alarms"])?, "", about.clone());
        let answer = self.send(call, &[503]).await?;
        if answer.status() == StatusCode::OK {
            return Ok(Vec::new());
        }
        let answer: Value = answer.json().await?;
        let Some(alarms) = answer.get("alarms").and_then(Value::as_array) else {
            return Err(BrokerError::ServerError { action: about.to_string(), status: 503 });
        };
        Ok(alarms.iter().map(alarm).collect())
    }
}

fn alarm(alarm: &Value) -> String {
    let field = |key| alarm.get(key).and_then(Value::as_str).unwrap_or("?");
    super::refusal::bounded(&format!("{} on {}", field("resource"), field("node")))
}

/// Reads an overview, or says why it is none of RabbitMQ's.
fn parse_overview(answer: &Value) -> Result<Overview, &'static str> {
    let text = |key| answer.get(key).and_then(Value::as_str);
    let version = text("rabbitmq_version").ok_or("/api/overview has no rabbitmq_version")?;
    if text("product_name").is_some_and(|name| !name.contains("RabbitMQ")) {
        return Err("it is another product");
    }
    let numbers = parse_version(version).ok_or("its rabbitmq_version is no version")?;
    let types = answer
        .get("exchange_types")
        .and_then(Value::as_array)
        .ok_or("/api/overview has no exchange_types")?;
    let exchange_types =
        types.iter().filter_map(|entry| entry.get("name")?.as_str()).map(str::to_owned).collect();
    Ok(Overview {
        facts: BrokerFacts { version: numbers, exchange_types },
        version: super::refusal::bounded(version),
        cluster_name: super::refusal::bounded(text("cluster_name").unwrap_or_default()),
        statistics_disabled: answer.get("disable_stats").and_then(Value::as_bool).unwrap_or_default(),
    })
}

/// `4.3.6`, `4.4.0-rc.1`, `4.3.1+12.gabc`: the first three numbers.
fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let core = text.split(['-', '+']).next()?;
    let mut numbers = core.split('.').map(|part| part.parse().ok());
    let mut next = || numbers.next().flatten();
    Some((next()?, next()?, next().unwrap_or(0)))
}
