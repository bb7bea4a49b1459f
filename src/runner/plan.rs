//! Plans a replay: what it would do, found out without moving anything.

use std::sync::Arc;

use kube::{Client, ResourceExt};

use super::lease::Claim;
use crate::api::conditions::ReplayReason;
use crate::api::{DlqReplay, ReplayFrom, ReplayPlan, RetryPipeline};
use crate::broker::replay::Site;
use crate::broker::{AddressGuard, BrokerError, Endpoint, Management};
use crate::topology::spec::Identity;
use crate::topology::validate::{Pipeline, validate};

/// What a plan is made from.
pub(crate) struct Request {
    pub(crate) client: Client,
    pub(crate) replay: Arc<DlqReplay>,
    pub(crate) pipeline: Arc<RetryPipeline>,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) guard: AddressGuard,
    pub(crate) lease_namespace: String,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The reason that the condition gets.
    pub(crate) reason: ReplayReason,
    /// What is wrong, in sentences.
    pub(crate) message: String,
    /// Whether another attempt may succeed.
    pub(crate) again: bool,
}

impl Failure {
    pub(crate) fn for_good(reason: ReplayReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), again: false }
    }
}

impl From<BrokerError> for Failure {
    fn from(error: BrokerError) -> Self {
        Self {
            reason: ReplayReason::PreflightFailed,
            message: error.to_string(),
            again: error.is_transient(),
        }
    }
}

/// Makes a plan; the queue's Lease is ours meanwhile.
pub(crate) async fn make(request: Request) -> Result<ReplayPlan, Failure> {
    let queue = origin_queue(&request.replay, &request.pipeline)
        .map_err(|why| Failure::for_good(ReplayReason::InvalidSpec, why))?;
    let Request { client, replay, pipeline, endpoint, guard, lease_namespace } = &request;
    let id = Management::new(endpoint, guard.clone())?.internal_cluster_id().await?;
    let broker = id.unwrap_or_else(|| endpoint.amqp.to_string());
    let site = Site {
        endpoint: endpoint.clone(),
        guard: guard.clone(),
        vhost: pipeline.spec.vhost().to_owned(),
        queue,
    };
    let about = format!("{}/{}", replay.namespace().unwrap_or_default(), replay.name_any());
    let uid = replay.uid().unwrap_or_default();
    let held = Claim::new(client, lease_namespace, [&broker, &site.vhost, &site.queue], &uid, &about);
    let held = held.acquire(|by| tracing::debug!(by, "the plan waits: the queue is being read")).await;
    let plan = read(&request, &site).await;
    held.release().await;
    plan
}

/// Reads the queue, and returns everything.
async fn read(_request: &Request, _site: &Site) -> Result<ReplayPlan, Failure> {
    Err(Failure::for_good(ReplayReason::Failed, "planning a replay is not supported by this build"))
}

/// The queue that a replay reads.
pub(super) fn origin_queue(replay: &DlqReplay, pipeline: &RetryPipeline) -> Result<String, String> {
    let checked = checked(pipeline)?;
    match replay.spec.from() {
        ReplayFrom::DeadLetter {} => Ok(checked.dlq.clone()),
        ReplayFrom::ParkingLot {} if checked.spec.dead_letter.parking_lot => {
            Ok(checked.names().parking_lot())
        }
        ReplayFrom::ParkingLot {} => {
            Err("the pipeline has no parking lot: set deadLetter.parkingLot there".to_owned())
        }
        ReplayFrom::Quarantine(one) => {
            let known: Vec<&str> = checked.quarantine_categories().collect();
            if known.contains(&one.category.as_str()) {
                return Ok(checked.names().quarantine(&one.category));
            }
            Err(format!(
                "the pipeline has no quarantine {:?}: it has {}",
                one.category,
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            ))
        }
    }
}

/// The pipeline in the topology's terms.
pub(super) fn checked(pipeline: &RetryPipeline) -> Result<Pipeline, String> {
    let identity = Identity {
        // Only marks what is declared, and a replay declares nothing.
        cluster: String::new(),
        namespace: pipeline.namespace().unwrap_or_default(),
        name: pipeline.name_any(),
        uid: pipeline.uid().unwrap_or_default(),
    };
    validate(identity, pipeline.spec.to_topology()).map_err(|problems| {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        format!("the pipeline's spec is invalid: {}", texts.join("; "))
    })
}
