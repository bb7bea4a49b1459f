//! The worker as a `batch/v1` Job in the operator's namespace.
//!
//! The Job is named from the replay's UID, so that no run ever has two. An owner reference can't
//! cross namespaces: labels lead back to the replay, and its finalizer ends the Job. A pod that
//! is evicted, drained or dies is followed by another one, which goes on from the checkpoint.

mod manifest;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};

pub(crate) use self::manifest::{LABEL_NAME, LABEL_NAMESPACE, Shape, name};
use self::manifest::{key_of, manifest};
use super::audit::Stream;
use super::{API_TIMEOUT, State, files};
use crate::api::DlqReplay;
use crate::broker::Endpoint;

/// Which labels every Job of ours has.
pub(crate) const SELECTOR: &str = "app.kubernetes.io/name=redrive,app.kubernetes.io/component=replay-worker";

/// The field manager of the operator.
const MANAGER: &str = "redrive-operator";

/// Runs workers as Jobs.
pub(crate) struct Jobs {
    client: Client,
    shape: Shape,
}

/// What a Job could not be made, read or ended for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API server refused or failed.
    #[error("the worker's {what} can't be {verb}: {source}")]
    Refused {
        /// What it was about.
        what: &'static str,
        /// What was tried.
        verb: &'static str,
        /// What the API server said.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("the worker's {what} can't be {verb}: the API server does not answer")]
    Timeout {
        /// What it was about.
        what: &'static str,
        /// What was tried.
        verb: &'static str,
    },
}

impl Jobs {
    pub(crate) fn new(client: Client, shape: Shape) -> Self {
        Self { client, shape }
    }

    /// Sees to it that a Job is there, and says how it is.
    pub(crate) async fn ensure(
        &self,
        replay: &DlqReplay,
        endpoint: &Endpoint,
        stream: Option<&Stream>,
    ) -> Result<State, Error> {
        let name = name(replay);
        let found = call("Job", "read", self.jobs().get_opt(&name)).await?;
        let (job, is_new) = match found {
            Some(job) => (job, false),
            None => (self.create(replay, stream).await?, true),
        };
        let state = state(&job);
        let failed = job.status.as_ref().and_then(|status| status.failed).unwrap_or(0);
        // Once more after a failure: the password may have been replaced.
        if state == State::Working && (is_new || failed > 0 || !self.has_secret(&name).await?) {
            self.write_secret(&job, endpoint, stream).await?;
        }
        Ok(state)
    }

    /// Whether there is a Job that has not ended.
    pub(crate) async fn is_at_work(&self, replay: &DlqReplay) -> Result<bool, Error> {
        let job = call("Job", "read", self.jobs().get_opt(&name(replay))).await?;
        let ends = |job: &Job| job.metadata.deletion_timestamp.is_some() || state(job) != State::Working;
        Ok(job.is_some_and(|job| !ends(&job)))
    }

    /// Ends a Job and says whether it and its pods are gone.
    pub(crate) async fn stop(&self, replay: &DlqReplay) -> Result<bool, Error> {
        let name = name(replay);
        match call("Job", "read", self.jobs().get_opt(&name)).await? {
            None => return Ok(true),
            Some(job) if job.metadata.deletion_timestamp.is_some() => return Ok(false),
            Some(_) => {}
        }
        // The Job stays until its pods have settled.
        match call("Job", "deleted", self.jobs().delete(&name, &DeleteParams::foreground())).await {
            Err(Error::Refused { source, .. }) if is(&source, 404) => Ok(true),
            Err(error) => Err(error),
            Ok(_) => Ok(false),
        }
    }

    fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), &self.shape.namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.shape.namespace)
    }

    async fn create(&self, replay: &DlqReplay, stream: Option<&Stream>) -> Result<Job, Error> {
        let job = serde_json::from_value(manifest(&self.shape, replay, stream));
        let job: Job = job.map_err(|error| Error::Refused {
            what: "Job",
            verb: "described",
            source: Box::new(kube::Error::SerdeError(error)),
        })?;
        match call("Job", "created", self.jobs().create(&PostParams::default(), &job)).await {
            Err(Error::Refused { source, .. }) if is(&source, 409) => {
                call("Job", "read", self.jobs().get(&name(replay))).await
            }
            result => result,
        }
    }

    async fn has_secret(&self, name: &str) -> Result<bool, Error> {
        Ok(call("Secret", "read", self.secrets().get_metadata_opt(name)).await?.is_some())
    }

    /// The run's own Secret, which goes with the Job. Pods wait until it is there.
    async fn write_secret(
        &self,
        job: &Job,
        endpoint: &Endpoint,
        stream: Option<&Stream>,
    ) -> Result<(), Error> {
        let mut secret = Secret::default();
        secret.metadata.name = Some(job.name_any());
        secret.metadata.labels = job.metadata.labels.clone();
        secret.metadata.owner_references = job.controller_owner_ref(&()).map(|owner| vec![owner]);
        let mut data: BTreeMap<String, ByteString> = BTreeMap::new();
        let mut add = |directory: &str, endpoint: &Endpoint| {
            data.extend(
                files::data(endpoint)
                    .into_iter()
                    .map(|(key, bytes)| (key_of(directory, key), ByteString(bytes))),
            );
        };
        add("connection", endpoint);
        if let Some(stream) = stream {
            add("audit", &stream.endpoint);
        }
        secret.data = Some(data);
        let params = PatchParams::apply(MANAGER).force();
        let secrets = self.secrets();
        call("Secret", "written", secrets.patch(&job.name_any(), &params, &Patch::Apply(&secret))).await?;
        Ok(())
    }
}

/// How a Job is.
fn state(job: &Job) -> State {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let failed = conditions.into_iter().find(|one| one.type_ == "Failed" && one.status == "True");
    match failed {
        Some(failed) if failed.reason.as_deref() == Some("DeadlineExceeded") => State::Overdue,
        Some(failed) => {
            let reason = failed.reason.as_deref().unwrap_or("no reason given");
            State::Failed(format!("its Job failed ({reason}): look at the logs of its pods"))
        }
        None => State::Working,
    }
}

async fn call<T>(
    what: &'static str,
    verb: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(API_TIMEOUT, call).await {
        Ok(result) => result.map_err(|source| Error::Refused { what, verb, source: Box::new(source) }),
        Err(_) => Err(Error::Timeout { what, verb }),
    }
}

fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The stream with its endpoint, as a Job's Secret and arguments describe it.
pub(crate) fn stream(endpoint: Endpoint, vhost: String) -> Stream {
    Stream { endpoint: Arc::new(endpoint), vhost }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_that_failed_says_why() {
        let job = |reason: &str| -> Job {
            serde_json::from_value(json!({
                "status": {"conditions": [{"type": "Failed", "status": "True", "reason": reason}]},
            }))
            .unwrap()
        };
        assert_eq!(state(&job("DeadlineExceeded")), State::Overdue);
        assert!(
            matches!(state(&job("BackoffLimitExceeded")), State::Failed(why) if why.contains("BackoffLimit"))
        );
        assert_eq!(state(&Job::default()), State::Working);
    }
}
