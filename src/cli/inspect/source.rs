//! What to read, and as whom: the pipeline from the cluster, the credentials from its Secret or
//! from flags.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::Arguments;
use crate::api::{Broker, DlqReplay, ReplayPolicy, RetryPipeline};
use crate::broker::connection::Parts;
use crate::broker::{Endpoint, EndpointError};
use crate::cli::cluster::{Connected, answered, refusal};
use crate::cli::controller::chain;
use crate::controller::rabbitmq_cluster::{Clusters, resource_of};
use crate::topology::pipeline::Pipeline;
use crate::topology::spec::Identity;
use crate::topology::validate::validate;

/// The variable with the password of `--username`.
const PASSWORD: &str = "REDRIVE_BROKER_PASSWORD";

/// A queue, who may read it, and what may be shown of it.
pub(super) struct Source {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) vhost: String,
    pub(super) queue: String,
    /// Headers that may be shown.
    pub(super) headers: Vec<String>,
    /// Whether bodies are shown.
    pub(super) bodies: bool,
}

/// Finds the queue and the way to it.
pub(super) async fn find(arguments: &Arguments) -> Result<Source, String> {
    let cluster = arguments.cluster.connect().await?;
    let pipeline = answered(cluster.api::<RetryPipeline>().get(&arguments.pipeline)).await?;
    let policy = pipeline.spec.replay_policy.clone().unwrap_or_default();
    if arguments.show_bodies && !policy.allow_body {
        return Err(
            "--show-bodies: the pipeline's replayPolicy.allowBody is false, so that nobody sees bodies by \
                    this way"
                .to_owned(),
        );
    }
    let queue = queue(arguments, &checked(&pipeline)?)?;
    nobody_reads(&cluster, &arguments.pipeline).await?;
    let endpoint = match &arguments.broker_uri {
        Some(uri) => from_flags(arguments, uri)?,
        None => from_secret(&cluster, &pipeline, &policy).await?,
    };
    Ok(Source {
        endpoint: Arc::new(endpoint),
        vhost: pipeline.spec.vhost().to_owned(),
        queue,
        headers: policy.audit_headers,
        bodies: arguments.show_bodies,
    })
}

fn checked(pipeline: &RetryPipeline) -> Result<Pipeline, String> {
    let identity = Identity {
        // Only marks what is declared, and nothing is declared here.
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

fn queue(arguments: &Arguments, pipeline: &Pipeline) -> Result<String, String> {
    if let Some(category) = &arguments.quarantine {
        let known: Vec<&str> = pipeline.quarantine_categories().collect();
        return match known.contains(&category.as_str()) {
            true => Ok(pipeline.names().quarantine(category)),
            false if known.is_empty() => Err("--quarantine: the pipeline has no quarantine".to_owned()),
            false => Err(format!("--quarantine {category}: the pipeline has {}", known.join(", "))),
        };
    }
    match arguments.parking_lot {
        true if pipeline.spec.dead_letter.parking_lot => Ok(pipeline.names().parking_lot()),
        true => Err("--parking-lot: the pipeline has no parking lot".to_owned()),
        false => Ok(pipeline.dlq.clone()),
    }
}

/// Two readers would take messages from each other for a while, and a replay counts them.
async fn nobody_reads(cluster: &Connected, pipeline: &str) -> Result<(), String> {
    let replays = answered(cluster.api::<DlqReplay>().list(&ListParams::default())).await?;
    match replays.items.iter().find(|replay| reads(replay, pipeline)) {
        Some(replay) => Err(format!(
            "the replay {} reads the dead letters of {pipeline} at present: wait until it has ended, or look at its \
             status.plan",
            replay.name_any()
        )),
        None => Ok(()),
    }
}

fn reads(replay: &DlqReplay, pipeline: &str) -> bool {
    let Some(status) = &replay.status else { return false };
    let at_work = ["Planning", "Running", "Paused", "Canary"];
    let reads =
        |one: &crate::api::Condition| one.type_ == "Succeeded" && at_work.contains(&one.reason.as_str());
    replay.spec.pipeline_ref.name == pipeline
        && status.summary.is_none()
        && status.conditions.iter().any(reads)
}

async fn from_secret(
    cluster: &Connected,
    pipeline: &RetryPipeline,
    policy: &ReplayPolicy,
) -> Result<Endpoint, String> {
    let name = match (&policy.secret_ref, &pipeline.spec.broker) {
        (Some(own), _) => &own.name,
        (None, Broker::SecretRef(secret)) => &secret.name,
        (None, Broker::ClusterRef(_)) => return from_cluster(cluster, pipeline).await,
    };
    let secrets = Api::<Secret>::namespaced(cluster.client.clone(), &cluster.namespace);
    let secret = match secrets.get(name).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            return Err(format!(
                "{}: use --broker-uri with a broker user of your own, or let the operator look: {} replay {} \
                 --dry-run --wait --justification TEXT",
                refusal(&status),
                crate::cli::program(),
                pipeline.name_any()
            ));
        }
        other => answered(std::future::ready(other)).await?,
    };
    let data = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
    Endpoint::from_secret(&data).map_err(|error| format!("the Secret {name:?} can't be used: {error}"))
}

/// With the user of the RabbitmqCluster, for whoever may read its Secrets.
async fn from_cluster(cluster: &Connected, pipeline: &RetryPipeline) -> Result<Endpoint, String> {
    let key = resource_of(pipeline).ok_or("the pipeline refers to no RabbitmqCluster")?;
    let clusters = Clusters::new(cluster.client.clone(), Duration::ZERO);
    match clusters.read(&key).await {
        Ok(endpoint) => Ok(Endpoint::clone(&endpoint)),
        Err(error) => Err(format!(
            "{}: use --broker-uri with a broker user of your own, or let the operator look: {} replay {} --dry-run \
             --wait --justification TEXT",
            chain(&error),
            crate::cli::program(),
            pipeline.name_any()
        )),
    }
}

fn from_flags(arguments: &Arguments, uri: &str) -> Result<Endpoint, String> {
    let username = arguments.username.as_deref().unwrap_or_default();
    let password = match &arguments.password_file {
        Some(file) => std::fs::read_to_string(file)
            // As editors and `echo` leave it.
            .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
            .map_err(|error| format!("--password-file {} can't be read: {error}", file.display()))?,
        None => std::env::var(PASSWORD)
            .map_err(|_| format!("there is no password: use --password-file, or set {PASSWORD}"))?,
    };
    let ca = arguments
        .ca
        .as_ref()
        .map(|file| {
            std::fs::read(file).map_err(|error| format!("--ca {} can't be read: {error}", file.display()))
        })
        .transpose()?;
    let parts = Parts {
        uri,
        amqp_uri: arguments.amqp_uri.as_deref(),
        username,
        password: &password,
        ca: ca.as_deref(),
        ..Parts::default()
    };
    Endpoint::new(parts).map_err(|error| explained(&error))
}

/// An endpoint's error names keys of a Secret; here they come from flags.
fn explained(error: &EndpointError) -> String {
    let (key, problem, advice) = match error {
        EndpointError::Missing { key, advice } => (*key, "is missing", *advice),
        EndpointError::Invalid { key, problem, advice } => (*key, *problem, *advice),
    };
    let flag = match key {
        "ca.crt" => "--ca",
        "username" => "--username",
        "password" => "the password",
        "amqpUri" => "--amqp-uri",
        _ => "--broker-uri",
    };
    format!("{flag} {problem}: {advice}")
}
