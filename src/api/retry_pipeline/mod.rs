//! `RetryPipeline`: the whole retry topology of one work queue.

mod dead_letter;
mod drift;
mod replay_policy;
mod retry;
mod source;
mod status;
mod topology;

pub use dead_letter::*;
pub use drift::*;
pub use replay_policy::*;
pub use retry::*;
pub use source::*;
pub use status::*;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{is_false, rules, schema};

/// What a retry pipeline consists of: a work queue, its retries, its dead-letter queue.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "redrive.dev",
    version = "v1alpha1",
    kind = "RetryPipeline",
    plural = "retrypipelines",
    shortname = "rp",
    category = "redrive",
    namespaced,
    status = "RetryPipelineStatus",
    derive = "PartialEq",
    doc = "A complete, guarded retry topology on RabbitMQ for one work queue.",
    validation = rules::OBJECT_NAME,
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#, description = "Whether no message can be lost or go astray"),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#, description = "Why"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".status.effective.mode", description = "Who walks the retries"),
    printcolumn(name = "Steps", type_ = "integer", json_path = ".status.effective.steps", description = "Retries before a message counts as dead"),
    printcolumn(name = "DLQ", type_ = "integer", json_path = r#".status.queues[?(@.role=="DeadLetter")].ready"#, description = "Messages ready in the dead-letter queue"),
    printcolumn(name = "Drifted", type_ = "string", json_path = r#".status.conditions[?(@.type=="Drifted")].status"#, description = "Whether the broker differs from the pipeline"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Broker", type_ = "string", json_path = ".status.effective.broker", priority = 1, description = "The broker's reference"),
    printcolumn(name = "Vhost", type_ = "string", json_path = ".status.effective.vhost", priority = 1),
    printcolumn(name = "Owner", type_ = "string", json_path = ".spec.owner.team", priority = 1, description = "The team to ask"),
    printcolumn(name = "Message", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#, priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(
    extend("x-kubernetes-validations" = rules::retry_pipeline()),
    transform = schema::spec
)]
pub struct RetryPipelineSpec {
    /// Who answers for this pipeline. Shown in alerts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,

    /// The broker. Immutable.
    pub broker: Broker,

    /// The virtual host, which must exist. Default "/". Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::foreign_name")]
    pub vhost: Option<String>,

    /// The work queue and what feeds it.
    pub source: Source,

    /// How often and how late a failed message is tried again. Default: mode Broker with delays of
    /// 5s, 30s, 2m and 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,

    /// Where messages go that failed for good. Default: the queue "{queue}.dlq", without limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<DeadLetter>,

    /// Where numbers that may change later are kept. Default: a policy with priority 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,

    /// For an External source that has a policy of its own: true merges its keys into ours and
    /// restores it on deletion, false (default) refuses.
    #[serde(default, skip_serializing_if = "is_false")]
    pub merge_policy: bool,

    /// What every DlqReplay of this pipeline must respect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_policy: Option<ReplayPolicy>,

    /// What happens when the broker differs: Correct (default) repairs and reports, Report only
    /// reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_policy: Option<DriftPolicy>,

    /// What happens on the broker when this resource is deleted: Retain (default) leaves
    /// everything, DeleteIfEmpty deletes what we created once all queues are proved empty, Delete
    /// deletes what we created with its messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,

    /// Take over equal objects that exist already. Default false: they are a Conflict.
    #[serde(default, skip_serializing_if = "is_false")]
    pub adopt: bool,

    /// Delete adopted objects as well when the deletion policy deletes. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub delete_adopted: bool,

    /// Touch nothing on the broker for now. Deletion still proceeds. Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub suspend: bool,
}

impl RetryPipelineSpec {
    /// The virtual host that the pipeline lives in.
    pub fn vhost(&self) -> &str {
        self.vhost.as_deref().unwrap_or("/")
    }

    /// What happens when the broker differs.
    pub fn drift_policy(&self) -> DriftPolicy {
        self.drift_policy.unwrap_or_default()
    }

    /// What happens on the broker when the resource is deleted.
    pub fn deletion_policy(&self) -> DeletionPolicy {
        self.deletion_policy.unwrap_or_default()
    }

    /// Who walks the retries.
    pub fn mode(&self) -> RetryMode {
        let retry = self.retry.as_ref();
        retry.and_then(|retry| retry.mode).unwrap_or_default()
    }

    /// The name of the dead-letter queue, with its placeholder filled in.
    pub fn dead_letter_name(&self) -> String {
        let dead_letter = self.dead_letter.as_ref();
        let template = dead_letter.and_then(|dead_letter| dead_letter.name.as_deref());
        template.unwrap_or("{queue}.dlq").replace("{queue}", &self.source.queue.name)
    }
}

/// Who answers for a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The team's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub team: Option<String>,
    /// How to reach the team, such as a chat channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub contact: Option<String>,
    /// The address of the runbook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub runbook: Option<String>,
}

/// How to find the broker and how to log in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::union)]
pub enum Broker {
    /// A RabbitmqCluster (rabbitmq.com/v1beta1), used with its default user.
    ClusterRef(ClusterRef),
    /// A Secret in the same namespace with the keys uri, username and password, and optionally
    /// amqpUri, ca.crt, tls.crt and tls.key.
    SecretRef(SecretRef),
}

/// A RabbitmqCluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRef {
    /// Its name.
    #[schemars(schema_with = "schema::object_name")]
    pub name: String,
    /// Its namespace. Default: the namespace of this resource. Another one needs the cluster
    /// owner's grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// A Secret in the namespace of this resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Its name.
    #[schemars(schema_with = "schema::object_name")]
    pub name: String,
}

/// Where numbers that may change later are kept: limits and retention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::union)]
pub enum Settings {
    /// In policies, so that a change needs no new queue.
    Policy(PolicySettings),
    /// In the queues' arguments, where no policy of ours is wanted. Not for an External source.
    Arguments {},
}

/// How our policies are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicySettings {
    /// The policies' priority; only the highest applies to a queue. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub priority: Option<i32>,
}

/// What happens when the broker differs from the pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DriftPolicy {
    /// Repair and report.
    #[default]
    Correct,
    /// Report.
    Report,
}

/// What happens on the broker when a pipeline is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// Leave everything as it is.
    #[default]
    Retain,
    /// Delete what we created once all queues are proved empty; wait until then.
    DeleteIfEmpty,
    /// Delete what we created, messages included.
    Delete,
}
