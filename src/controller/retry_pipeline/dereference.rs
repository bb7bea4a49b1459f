//! From a reference in the specification to a broker's endpoint.

use std::sync::Arc;

use kube::ResourceExt;

use super::super::Context;
use super::super::rabbitmq_cluster::{self, Clusters, Facts, Key, check_names, check_namespace, resource_of};
use super::super::secrets::{self, SecretKey, Secrets};
use crate::api::conditions::PipelineReason;
use crate::api::{Broker, RetryPipeline};
use crate::broker::Endpoint;
use crate::topology::rights::{Use, uses};
use crate::topology::validate::Pipeline;

/// Why a reference leads nowhere, or not for this pipeline.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The RabbitmqCluster.
    #[error(transparent)]
    Cluster(#[from] rabbitmq_cluster::Error),
    /// The Secret.
    #[error(transparent)]
    Secret(#[from] secrets::Error),
}

impl Error {
    pub(crate) fn reason(&self) -> PipelineReason {
        match self {
            Self::Cluster(error) => error.reason(),
            Self::Secret(secrets::Error::NotFound(_) | secrets::Error::Invalid { .. }) => {
                PipelineReason::SecretNotFound
            }
            Self::Secret(
                secrets::Error::Forbidden(_) | secrets::Error::Unreadable { .. } | secrets::Error::Timeout(_),
            ) => PipelineReason::Progressing,
        }
    }

    /// A missing Secret is not: it often comes a moment later.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self, Self::Cluster(error) if error.is_permanent())
    }

    /// Whether the credentials are gone, and not just unreadable now.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Cluster(error) => error.is_missing(),
            Self::Secret(error) => is_gone(error),
        }
    }

    /// Whether the whole broker is gone, so that nothing is left to clean there.
    pub(crate) fn is_broker_gone(&self) -> bool {
        matches!(self, Self::Cluster(error) if error.is_cluster_gone())
    }

    /// Whether nobody may look at the broker for this pipeline until that changes.
    pub(crate) fn parks(&self) -> bool {
        matches!(self, Self::Cluster(error) if error.parks())
    }
}

fn is_gone(error: &secrets::Error) -> bool {
    matches!(error, secrets::Error::NotFound(_) | secrets::Error::Invalid { .. })
}

/// What a pipeline refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A connection Secret beside it.
    Secret(SecretKey),
    /// A RabbitmqCluster.
    Cluster(Key),
}

/// What a pipeline refers to.
pub(crate) fn source(object: &RetryPipeline) -> Source {
    match &object.spec.broker {
        Broker::SecretRef(secret) => {
            Source::Secret((object.namespace().unwrap_or_default(), secret.name.clone()))
        }
        Broker::ClusterRef(_) => Source::Cluster(resource_of(object).unwrap_or_default()),
    }
}

/// The endpoint that lanes compare with theirs: a Secret is read anew, a cluster once per poll
/// interval.
pub(crate) async fn polled(
    source: &Source,
    secrets: &Secrets,
    clusters: &Clusters,
) -> Result<Arc<Endpoint>, Error> {
    match source {
        Source::Secret(key) => Ok(secrets.read(key).await?),
        Source::Cluster(key) => Ok(clusters.endpoint(&clusters.facts(key).await?).await?),
    }
}

/// Where a pipeline's broker is, and what its owner says.
pub(crate) struct Found {
    pub(crate) endpoint: Arc<Endpoint>,
    /// The cluster, where the pipeline refers to one.
    pub(crate) cluster: Option<Arc<Facts>>,
}

impl Found {
    /// The UID of the cluster.
    pub(super) fn cluster_uid(&self) -> Option<String> {
        self.cluster.as_ref().map(|cluster| cluster.uid.clone())
    }

    /// Where the cluster has its exchange of events, if it says so.
    pub(super) fn events_vhost(&self) -> Option<String> {
        self.cluster.as_ref().and_then(|cluster| cluster.events_vhost.clone())
    }

    /// Whether the owner lets this pipeline use all that it names.
    pub(super) fn check_rights(
        &self,
        object: &RetryPipeline,
        pipeline: &Pipeline,
        context: &Context,
    ) -> Result<(), Error> {
        let everything = context.settings.cluster_wide_rights;
        match &self.cluster {
            Some(cluster) => check_uses(cluster, object, &uses(pipeline), everything),
            None => Ok(()),
        }
    }
}

fn check_uses(cluster: &Facts, object: &RetryPipeline, uses: &[Use], everything: bool) -> Result<(), Error> {
    let namespace = object.namespace().unwrap_or_default();
    Ok(check_names(cluster, &namespace, object.spec.vhost(), uses, everything)?)
}

/// Whether the owner of a pipeline's cluster lets its namespace use these names as well; anything
/// goes where the pipeline has a Secret of its own.
pub(crate) async fn check_also(object: &RetryPipeline, uses: &[Use], context: &Context) -> Result<(), Error> {
    let everything = context.settings.cluster_wide_rights;
    match resource_of(object) {
        Some(key) => check_uses(&*context.clusters.facts(&key).await?, object, uses, everything),
        None => Ok(()),
    }
}

/// Whether a pipeline may stay as it is as far as its cluster goes: that is the one on which it
/// was built, and its owner grants what it uses.
pub(crate) async fn is_welcome(
    object: &RetryPipeline,
    pipeline: &Pipeline,
    clusters: &Clusters,
    everything: bool,
) -> bool {
    let Some(key) = resource_of(object) else { return true };
    let Ok(cluster) = clusters.facts(&key).await else { return false };
    let built_on = object.status.as_ref().and_then(|status| status.cluster_uid.as_ref());
    built_on == Some(&cluster.uid) && check_uses(&cluster, object, &uses(pipeline), everything).is_ok()
}

/// Where a pipeline's broker is. A cluster's owner is asked before anything else of it is read,
/// so that whoever is not allowed learns nothing more.
pub(crate) async fn find(object: &RetryPipeline, context: &Context) -> Result<Found, Error> {
    match source(object) {
        Source::Secret(key) => Ok(Found { endpoint: context.secrets.endpoint(&key).await?, cluster: None }),
        Source::Cluster(key) => {
            let cluster = allowed(object, &key, context).await?;
            let endpoint = context.clusters.endpoint(&cluster).await?;
            Ok(Found { endpoint, cluster: Some(cluster) })
        }
    }
}

async fn allowed(object: &RetryPipeline, key: &Key, context: &Context) -> Result<Arc<Facts>, Error> {
    let cluster = context.clusters.facts(key).await?;
    check_namespace(&cluster, &object.namespace().unwrap_or_default())?;
    Ok(cluster)
}

/// The endpoint as it is now, whatever was remembered.
pub(super) async fn fresh_endpoint(
    object: &RetryPipeline,
    context: &Context,
) -> Result<Arc<Endpoint>, Error> {
    match source(object) {
        Source::Secret(key) => Ok(context.secrets.read(&key).await?),
        Source::Cluster(key) => Ok(context.clusters.read(&key).await?),
    }
}

/// The endpoint, or the last one known where the Secret is gone already. Nobody asks a cluster's
/// owner here: what was declared with their leave is cleaned up without it, too.
pub(super) async fn last_endpoint(object: &RetryPipeline, context: &Context) -> Result<Arc<Endpoint>, Error> {
    match source(object) {
        Source::Secret(key) => match context.secrets.endpoint(&key).await {
            Err(error) if is_gone(&error) => context.secrets.last_known(&key).ok_or(Error::Secret(error)),
            result => Ok(result?),
        },
        Source::Cluster(key) => {
            let facts = context.clusters.facts(&key).await?;
            match context.clusters.endpoint(&facts).await {
                Err(error) if error.is_missing() && !error.is_cluster_gone() => {
                    context.clusters.last_known(&key).ok_or(Error::Cluster(error))
                }
                result => Ok(result?),
            }
        }
    }
}

/// The UID of the cluster that has the name of the one on which a pipeline was built; nothing
/// where that one is still there, or nobody can tell.
pub(super) async fn another_cluster(object: &RetryPipeline, context: &Context) -> Option<String> {
    let built_on = object.status.as_ref()?.cluster_uid.as_ref()?;
    let facts = context.clusters.facts(&resource_of(object)?).await.ok()?;
    (facts.uid != *built_on).then(|| facts.uid.clone())
}
