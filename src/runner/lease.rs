//! The Lease of an origin queue: tells other workers of this cluster who reads it.
//!
//! It keeps workers from waiting at the broker, and shows who holds what. The true lock is the
//! exclusive queue on the broker, which also stops an operator in another cluster; so a Lease
//! that is lost ends the run, but nothing depends on how soon.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a holder counts that does not renew.
const LASTS: Duration = Duration::from_secs(15);

/// How often a holder renews.
const RENEW: Duration = Duration::from_secs(5);

/// How often somebody who waits looks.
const LOOK: Duration = Duration::from_secs(2);

/// How long the API server may take.
const API_TIMEOUT: Duration = Duration::from_secs(10);

/// Who wants to read which queue.
#[derive(Clone)]
pub(super) struct Claim {
    api: Api<Lease>,
    name: String,
    /// The replay's UID: a worker that follows a dead one of the same run need not wait.
    holder: String,
    /// The replay as `namespace/name`, for people.
    about: String,
}

/// Shows a person which replay holds a Lease.
const ABOUT: &str = "redrive.dev/replay";

impl Claim {
    /// A claim on a queue of a vhost of a broker, by a replay.
    pub(super) fn new(client: &Client, namespace: &str, queue: [&str; 3], uid: &str, about: &str) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            name: name(queue),
            holder: uid.to_owned(),
            about: about.to_owned(),
        }
    }

    /// Waits until the Lease is ours; `waiting` hears whose it is meanwhile.
    pub(super) async fn acquire(self, waiting: impl Fn(&str)) -> Held {
        // Another machine's clock says nothing: what counts is for how long we saw no renewal.
        let mut seen: Option<(Option<MicroTime>, Instant)> = None;
        loop {
            match self.attempt(seen.as_ref()).await {
                Ok(None) => return Held { claim: self },
                Ok(Some(lease)) => {
                    waiting(lease.annotations().get(ABOUT).map_or("another replay", String::as_str));
                    let renewed = lease.spec.and_then(|spec| spec.renew_time);
                    if seen.as_ref().is_none_or(|(before, _)| *before != renewed) {
                        seen = Some((renewed, Instant::now()));
                    }
                }
                Err(error) => tracing::warn!(lease = self.name, %error, "trying again"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Takes the Lease if it is free, ours, or was not renewed for long enough; returns the one
    /// that stands in the way.
    async fn attempt(&self, seen: Option<&(Option<MicroTime>, Instant)>) -> Result<Option<Lease>, String> {
        let found = within(self.api.get_opt(&self.name)).await?;
        let Some(found) = found else {
            let lease = self.lease(ObjectMeta::default());
            return match within(self.api.create(&PostParams::default(), &lease)).await {
                Ok(_) => Ok(None),
                // Somebody was faster; who it is, the next look shows.
                Err(error) => Err(error),
            };
        };
        let spec = found.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let is_ours = holder.is_empty() || holder == self.holder;
        let is_over =
            seen.is_some_and(|(renewed, since)| *renewed == spec.renew_time && since.elapsed() > LASTS);
        if !is_ours && !is_over {
            return Ok(Some(found));
        }
        let lease = self.lease(found.metadata);
        within(self.api.replace(&self.name, &PostParams::default(), &lease)).await.map(|_| None)
    }

    /// The Lease as ours; with the version of the one it replaces, so that of two only one wins.
    fn lease(&self, found: ObjectMeta) -> Lease {
        let now = MicroTime(Timestamp::now());
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            resource_version: found.resource_version,
            annotations: Some([(ABOUT.to_owned(), self.about.clone())].into()),
            labels: Some([("app.kubernetes.io/name".to_owned(), "redrive".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let spec = LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }
}

/// A Lease that is ours.
pub(super) struct Held {
    claim: Claim,
}

impl Held {
    /// Renews until it is dropped; cancels `lost` where another holder has taken over, or nobody
    /// could be asked for too long.
    pub(super) async fn keep(&self, lost: &CancellationToken) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RENEW).await;
            match self.claim.attempt(None).await {
                Ok(None) => renewed = Instant::now(),
                Ok(Some(_)) => break,
                Err(error) => tracing::warn!(lease = self.claim.name, %error, "can't be renewed"),
            }
            if renewed.elapsed() > LASTS {
                break;
            }
        }
        tracing::warn!(lease = self.claim.name, "the Lease is lost");
        lost.cancel();
    }

    /// Gives it back, so that nobody waits for it to run out.
    pub(super) async fn release(self) {
        let Claim { api, name, holder, .. } = &self.claim;
        let Ok(Some(lease)) = within(api.get_opt(name)).await else { return };
        if lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref()) != Some(holder) {
            return;
        }
        let only_this = Preconditions { uid: lease.uid(), resource_version: lease.resource_version() };
        let params = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        if let Err(error) = within(api.delete(name, &params)).await {
            tracing::debug!(lease = name, %error, "can't be given back; it runs out");
        }
    }
}

/// The name of the Lease of a queue: no name of a broker, vhost or queue fits in as it is.
fn name(queue: [&str; 3]) -> String {
    let mut digest = Sha256::new();
    for part in queue {
        // With its length first, so that no two names run together.
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let hex: String = digest.finalize().iter().take(20).map(|byte| format!("{byte:02x}")).collect();
    format!("redrive-replay-{hex}")
}

async fn within<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(API_TIMEOUT, call).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the API server does not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_a_name_of_its_own_that_kubernetes_takes() {
        let names =
            [name(["b", "/", "q"]), name(["b", "/q", ""]), name(["b/", "", "q"]), name(["b", "/", "Q"])];
        for (at, one) in names.iter().enumerate() {
            assert!(!names[at + 1..].contains(one), "{one}");
            assert!(
                one.len() <= 63
                    && one.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
            );
        }
    }
}
