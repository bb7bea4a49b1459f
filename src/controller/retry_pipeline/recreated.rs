//! Another RabbitmqCluster under the name of the one before: everything is built on it anew.
//!
//! What is recorded of the cluster before would be wrong about this one: that its objects are
//! ours, that whatever is missing was lost, and which broker answers. So it is forgotten before
//! the first look, and with it that the pipeline was Ready. Where the new cluster has the data of
//! the old one, the markers on the broker say what is ours.

use std::sync::Arc;

use super::super::Context;
use super::super::api_server::WriteError;
use super::super::rabbitmq_cluster::resource_of;
use super::{conditions, dereference, freshness, report, update_status};
use crate::api::RetryPipeline;
use crate::api::conditions::PipelineReason;

/// Forgets the cluster before, if there is another one now; returns the resource as it is then.
pub(super) async fn noticed(
    object: Arc<RetryPipeline>,
    context: &Context,
) -> Result<Arc<RetryPipeline>, WriteError> {
    let Some(uid) = dereference::another_cluster(&object, context).await else { return Ok(object) };
    let mut next = object.status.clone().unwrap_or_default();
    (next.broker_id, next.applied_generation) = (None, None);
    next.inventory.clear();
    next.queues.clear();
    next.cluster_uid = Some(uid);
    let name = resource_of(&object).unwrap_or_default();
    let text = format!("the RabbitmqCluster {name} was created anew: everything is built on it again");
    update_status::judge(&mut next, &object, conditions::of_rebuilding(PipelineReason::Progressing, &text));
    context.lanes.forget(&super::uid(&object));
    report::save(&object, &next, context).await?;
    freshness::latest(&object, context).await
}
