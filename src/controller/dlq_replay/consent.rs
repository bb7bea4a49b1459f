//! What a replay needs from around it: its pipeline, the way to the broker and to the audit
//! stream, and whether an approval can be believed.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, ResourceExt};

use super::Trouble;
use super::verifiability::{self, Verdict};
use crate::api::conditions::PipelineReason;
use crate::api::{DlqReplay, ReplayTo, RetryPipeline};
use crate::broker::Endpoint;
use crate::controller::Context;
use crate::controller::api_server::{WriteError, written};
use crate::controller::retry_pipeline::{DereferenceError, check_also, find};
use crate::runner::audit::Stream;
use crate::topology::rights::Use;

/// The pipeline of a replay as the API server has it now; nothing where there is none.
pub(super) async fn pipeline(
    object: &DlqReplay,
    context: &Context,
) -> Result<Option<RetryPipeline>, WriteError> {
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<RetryPipeline> = Api::namespaced(context.client.clone(), &namespace);
    written(api.get_opt(&object.spec.pipeline_ref.name)).await
}

/// The endpoint for a replay of this pipeline: with the user for replays, where there is one.
pub(super) async fn endpoint_of(
    pipeline: &RetryPipeline,
    context: &Context,
) -> Result<Arc<Endpoint>, DereferenceError> {
    let own = pipeline.spec.replay_policy.as_ref().and_then(|policy| policy.secret_ref.as_ref());
    match own {
        Some(secret) => {
            let key = (pipeline.namespace().unwrap_or_default(), secret.name.clone());
            Ok(context.secrets.endpoint(&key).await?)
        }
        None => Ok(find(pipeline, context).await?.endpoint),
    }
}

/// Why the owner of the pipeline's cluster does not let a replay publish where it wants to;
/// nothing where they do. What belongs to the pipeline is the pipeline's to ask for.
pub(super) async fn beyond_grants(
    object: &DlqReplay,
    pipeline: &RetryPipeline,
    context: &Context,
) -> Result<Option<String>, DereferenceError> {
    let uses = match object.spec.to() {
        ReplayTo::Queue(queue) => vec![Use::queue("to.queue.name", &queue.name)],
        ReplayTo::Exchange(exchange) => vec![Use::exchange("to.exchange.name", &exchange.name)],
        // The pipeline's own queues, and exchanges that it names itself.
        ReplayTo::WorkQueue {}
        | ReplayTo::Origin {}
        | ReplayTo::Quarantine(_)
        | ReplayTo::ParkingLot {}
        | ReplayTo::Discard {} => return Ok(None),
    };
    match check_also(pipeline, &uses, context).await {
        Ok(()) => Ok(None),
        Err(error) if error.reason() == PipelineReason::NamespaceNotAllowed => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

/// The endpoint of a replay; nothing where its pipeline is gone.
pub(super) async fn endpoint(
    object: &DlqReplay,
    context: &Context,
) -> Result<Option<Arc<Endpoint>>, Trouble> {
    match pipeline(object, context).await? {
        Some(pipeline) => Ok(Some(endpoint_of(&pipeline, context).await?)),
        None => Ok(None),
    }
}

/// The audit stream, where the operator has one.
pub(super) async fn stream(context: &Context) -> Result<Option<Stream>, Trouble> {
    let replays = &context.replays;
    let Some(audit) = &replays.settings.audit else { return Ok(None) };
    let key = (replays.namespace.clone(), audit.secret.clone());
    let endpoint = context.secrets.endpoint(&key).await.map_err(DereferenceError::from)?;
    Ok(Some(Stream { endpoint, vhost: audit.vhost.clone() }))
}

/// Why an approval of this replay can't be believed; nothing where it can.
pub(super) async fn unverifiable(object: &DlqReplay, context: &Context) -> Result<Option<String>, Trouble> {
    if context.replays.settings.allow_unverified_approval {
        return Ok(None);
    }
    let verdict = verifiability::verify(&context.client).await?;
    Ok(doubt(&verdict, object.creation_timestamp().as_ref()))
}

/// Why nobody can tell who asked for what was created at this moment, or approved it.
fn doubt(verdict: &Verdict, created: Option<&Time>) -> Option<String> {
    if !verdict.is_verified() {
        return Some(verdict.to_string());
    }
    let is_vouched_for = created.is_some_and(|created| verdict.vouches_for(created));
    let older = "it is older than the admission policies, or not five seconds younger, so nobody can tell who asked: \
                 create it again";
    (!is_vouched_for).then(|| older.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_created_before_the_policies_were_in_effect_is_not_believed() {
        let at = |second: i64| Time(k8s_openapi::jiff::Timestamp::from_second(second).unwrap());
        let verified = Verdict::Verified { since: Some(at(100)) };
        assert_eq!(doubt(&verified, Some(&at(105))), None);
        for created in [Some(at(99)), Some(at(100)), Some(at(104)), None] {
            let why = doubt(&verified, created.as_ref()).unwrap();
            assert!(why.contains("create it again"), "{why}");
        }
        let unverified = Verdict::Unverified(Vec::new());
        assert_eq!(doubt(&unverified, Some(&at(105))), Some(unverified.to_string()));
    }
}
