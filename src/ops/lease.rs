//! Which of several processes works: the one that holds a Lease.
//!
//! Guarantees: a Lease is taken and renewed by an update of the version that was read, so of two
//! only one wins. It counts as free once this process has seen no renewal for [`FREE_AFTER`]:
//! clocks of other machines say nothing. The holder's own [`Term`] ends 4 seconds before that,
//! counted from when its last renewal was sent. What is asked of the API server has a limit in
//! time; where it does not answer, the term runs out.
//!
//! Left out: a machine that is stopped as a whole with its clock, such as a paused virtual machine,
//! does not notice how late it is; and who starts while somebody has deleted the Lease of a process
//! at work, leads beside it until that looks at it, 2 seconds later at the most.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

use super::term::Term;

/// So long after the last renewal of a leader that has died, another one leads.
const LASTS: Duration = Duration::from_secs(15);

/// A Lease is free once nobody has seen it renewed for so long. Together with the look before and
/// the one after, that is not longer than it lasts.
const FREE_AFTER: Duration = Duration::from_secs(12);

/// So long after its last renewal was sent, a holder has no term any more.
const TERM: Duration = Duration::from_secs(8);

/// How often a holder renews, and others look.
const BETWEEN: Duration = Duration::from_secs(2);

/// How long the API server may take for one answer.
const API_TIMEOUT: Duration = Duration::from_secs(5);

/// One process that would lead.
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
}

/// What stands in the Lease at a look at it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    holder: Option<String>,
    acquired: Option<MicroTime>,
    renewed: Option<MicroTime>,
    transitions: i32,
    version: Option<String>,
}

impl Candidate {
    /// For the Lease of this name. `identity` must be of this process alone.
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str, identity: String) -> Self {
        Self { api: Api::namespaced(client, namespace), name: name.to_owned(), identity }
    }

    /// Waits until this process leads. `asked` is called once the API server has answered.
    pub async fn elected(&self, asked: impl Fn()) -> Leader<'_> {
        // Of another holder, what stood there and since when.
        let mut watched: Option<(Seen, Instant)> = None;
        loop {
            let sent = Instant::now();
            match self.attempt(watched.as_ref()).await {
                Ok(Attempt::Taken(seen)) => {
                    asked();
                    return Leader { candidate: self, term: Term::until(sent + TERM), seen };
                }
                Ok(Attempt::Held(seen)) => {
                    asked();
                    if watched.as_ref().is_none_or(|(before, _)| *before != seen) {
                        if watched.as_ref().is_none_or(|(before, _)| before.holder != seen.holder) {
                            tracing::info!(lease = self.name, leader = seen.holder, "another process leads");
                        }
                        watched = Some((seen, Instant::now()));
                    }
                }
                Err(why) => tracing::warn!(lease = self.name, why, "the Lease can't be asked for"),
            }
            sleep(BETWEEN).await;
        }
    }

    /// Takes the Lease if it is free.
    async fn attempt(&self, watched: Option<&(Seen, Instant)>) -> Result<Attempt, String> {
        let found = within(self.api.get_opt(&self.name)).await?;
        let seen = match (found, watched) {
            (Some(found), _) => Seen::of(found),
            // Deleted by somebody, and its holder may not know that yet.
            (None, Some((before, since))) if since.elapsed() <= FREE_AFTER => before.clone(),
            (None, _) => Seen::default(),
        };
        let is_over =
            || watched.is_some_and(|(before, since)| *before == seen && since.elapsed() > FREE_AFTER);
        if seen.holder.is_some() && !is_over() {
            return Ok(Attempt::Held(seen));
        }
        self.write(&seen, Some(&self.identity)).await.map(Attempt::Taken)
    }

    /// Writes over what was seen, and over nothing else.
    async fn write(&self, seen: &Seen, holder: Option<&str>) -> Result<Seen, String> {
        let now = MicroTime(Timestamp::now());
        let begins = holder.is_some() && seen.holder.as_deref() != holder;
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            resource_version: seen.version.clone(),
            labels: Some([("app.kubernetes.io/name".to_owned(), "redrive".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let spec = LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
            acquire_time: if begins { Some(now.clone()) } else { seen.acquired.clone() },
            renew_time: Some(now),
            // Counts those that followed another, and so not the very first.
            lease_transitions: Some(seen.transitions + i32::from(begins && seen.version.is_some())),
            ..LeaseSpec::default()
        };
        let lease = Lease { metadata, spec: Some(spec) };
        let parameters = PostParams::default();
        let written = match seen.version {
            None => within(self.api.create(&parameters, &lease)).await,
            Some(_) => within(self.api.replace(&self.name, &parameters, &lease)).await,
        };
        written.map(Seen::of)
    }
}

enum Attempt {
    Taken(Seen),
    Held(Seen),
}

impl Seen {
    fn of(lease: Lease) -> Self {
        let spec = lease.spec.unwrap_or_default();
        Self {
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
            acquired: spec.acquire_time,
            renewed: spec.renew_time,
            transitions: spec.lease_transitions.unwrap_or_default(),
            version: lease.metadata.resource_version,
        }
    }
}

/// The process that leads.
pub struct Leader<'a> {
    candidate: &'a Candidate,
    term: Term,
    seen: Seen,
}

impl Leader<'_> {
    /// For how long this process may write.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Renews until the Lease is lost; its term has ended then.
    pub async fn lead(&mut self) {
        while self.term.holds() {
            sleep(BETWEEN).await;
            let sent = Instant::now();
            match self.candidate.write(&self.seen, Some(&self.candidate.identity)).await {
                Ok(seen) => {
                    self.seen = seen;
                    self.term.prolong(sent + TERM);
                }
                Err(why) => {
                    tracing::warn!(lease = self.candidate.name, why, "the Lease can't be renewed");
                    if self.look().await == Some(false) {
                        break;
                    }
                }
            }
        }
        self.term.end();
    }

    /// Whether the Lease is still ours, where that can be said: a renewal may have arrived although
    /// its answer has not.
    async fn look(&mut self) -> Option<bool> {
        let found = within(self.candidate.api.get_opt(&self.candidate.name)).await.ok()?;
        // Deleted by somebody: whoever asks first has it.
        let seen = found.map(Seen::of).unwrap_or_default();
        let is_ours = seen.holder.as_deref() == Some(&self.candidate.identity);
        if is_ours {
            self.seen = seen;
        }
        Some(is_ours)
    }

    /// Gives the Lease back, so that nobody has to wait until it is over.
    pub async fn release(self) {
        self.term.end();
        match self.candidate.write(&self.seen, None).await {
            Ok(_) => tracing::info!(lease = self.candidate.name, "no longer the leader"),
            Err(why) => tracing::info!(lease = self.candidate.name, why, "the Lease is left to run out"),
        }
    }
}

async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match timeout(API_TIMEOUT, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the API server did not answer within {API_TIMEOUT:?}")),
    }
}
