//! From a reference in the specification to a broker's endpoint.

use std::sync::Arc;

use kube::ResourceExt;

use super::super::Context;
use super::super::secrets::{self, SecretKey};
use crate::api::conditions::PipelineReason;
use crate::api::{Broker, RetryPipeline};
use crate::broker::Endpoint;

/// Why a reference leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A `clusterRef`.
    #[error(
        "spec.broker.clusterRef is not supported yet: use secretRef with the keys uri, username and password"
    )]
    ClusterRef,
    /// The Secret.
    #[error(transparent)]
    Secret(#[from] secrets::Error),
}

impl Error {
    pub(crate) fn reason(&self) -> PipelineReason {
        match self {
            Self::ClusterRef => PipelineReason::NotSupportedYet,
            Self::Secret(secrets::Error::NotFound(_) | secrets::Error::Invalid { .. }) => {
                PipelineReason::SecretNotFound
            }
            Self::Secret(secrets::Error::Unreadable { .. } | secrets::Error::Timeout(_)) => {
                PipelineReason::Progressing
            }
        }
    }

    /// A missing Secret is not: it often comes a moment later.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self, Self::ClusterRef)
    }

    /// Whether the credentials are gone, and not just unreadable now.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Secret(secrets::Error::NotFound(_) | secrets::Error::Invalid { .. }))
    }
}

/// Namespace and name of the Secret that a pipeline refers to.
pub(crate) fn secret_key(object: &RetryPipeline) -> Option<SecretKey> {
    match &object.spec.broker {
        Broker::SecretRef(secret) => Some((object.namespace().unwrap_or_default(), secret.name.clone())),
        Broker::ClusterRef(_) => None,
    }
}

pub(super) async fn endpoint(object: &RetryPipeline, context: &Context) -> Result<Arc<Endpoint>, Error> {
    let key = secret_key(object).ok_or(Error::ClusterRef)?;
    Ok(context.secrets.endpoint(&key).await?)
}

/// The endpoint as the Secret has it now.
pub(super) async fn fresh_endpoint(
    object: &RetryPipeline,
    context: &Context,
) -> Result<Arc<Endpoint>, Error> {
    let key = secret_key(object).ok_or(Error::ClusterRef)?;
    Ok(context.secrets.read(&key).await?)
}

/// The endpoint, or the last one known where the Secret is gone already.
pub(super) async fn last_endpoint(object: &RetryPipeline, context: &Context) -> Result<Arc<Endpoint>, Error> {
    let key = secret_key(object).ok_or(Error::ClusterRef)?;
    match context.secrets.endpoint(&key).await {
        Err(error) if Error::Secret(clone_kind(&error)).is_gone() => {
            context.secrets.last_known(&key).ok_or(Error::Secret(error))
        }
        result => Ok(result?),
    }
}

/// Enough of an error to judge it.
fn clone_kind(error: &secrets::Error) -> secrets::Error {
    match error {
        secrets::Error::NotFound(name) | secrets::Error::Invalid { name, .. } => {
            secrets::Error::NotFound(name.clone())
        }
        secrets::Error::Unreadable { name, .. } | secrets::Error::Timeout(name) => {
            secrets::Error::Timeout(name.clone())
        }
    }
}
