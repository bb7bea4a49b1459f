//! Why a RabbitmqCluster leads to no broker, in sentences that say what to do.

use std::fmt;

use super::facts::Key;
use crate::api::conditions::PipelineReason;
use crate::broker::EndpointError;

/// Why a RabbitmqCluster leads to no broker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It does not exist.
    #[error("the RabbitmqCluster {0} does not exist: create it, or correct spec.broker in a new pipeline")]
    NotFound(Key),
    /// The API server does not know the kind.
    #[error(
        "the RabbitmqCluster {0} can't exist yet, since this Kubernetes cluster does not know the kind: install the \
         RabbitMQ cluster operator, or use secretRef in a new pipeline"
    )]
    NotInstalled(Key),
    /// Its deletion has begun.
    #[error("the RabbitmqCluster {0} is being deleted: nothing is done there any more")]
    Going(Key),
    /// It has no nodes.
    #[error(
        "the RabbitmqCluster {0} has 0 replicas: the pipeline is parked and goes on by itself once there are some"
    )]
    ScaledToZero(Key),
    /// Its namespace list, or its grants, leave this one out.
    #[error("{0}")]
    NotAllowed(String),
    /// Its user is in Vault alone.
    #[error(
        "the RabbitmqCluster {0} keeps its user in Vault, where it is not looked for: use secretRef in a new pipeline"
    )]
    VaultOnly(Key),
    /// Its status names no Secret.
    #[error(
        "the status of the RabbitmqCluster {0} names no Secret with its user yet: the cluster operator sets \
         status.binding, so look at that operator if it stays like this"
    )]
    NoCredentials(Key),
    /// Its status names no Service.
    #[error(
        "the status of the RabbitmqCluster {0} names no Service yet: the cluster operator sets \
         status.defaultUser.serviceReference, so look at that operator if it stays like this"
    )]
    NoService(Key),
    /// Its status points into another namespace.
    #[error(
        "the status of the RabbitmqCluster {key} names {name:?} in the namespace {namespace:?}: only what is in the \
         cluster's own namespace is used"
    )]
    Elsewhere {
        /// Which cluster.
        key: Key,
        /// What it names.
        name: String,
        /// Where.
        namespace: String,
    },
    /// A Secret that it names does not exist.
    #[error(
        "the Secret {name:?} of the RabbitmqCluster {key} does not exist: the cluster's owner creates it"
    )]
    SecretNotFound {
        /// Which cluster.
        key: Key,
        /// The Secret.
        name: String,
    },
    /// Its Service does not exist.
    #[error(
        "the Service {name:?} of the RabbitmqCluster {key} does not exist: the cluster operator makes it, so look at \
         that operator if it stays like this"
    )]
    ServiceNotFound {
        /// Which cluster.
        key: Key,
        /// The Service.
        name: String,
    },
    /// Its Service lacks a port.
    #[error(
        "the Service of the RabbitmqCluster {key} has no port named {port:?}: its plain ports go with \
         disableNonTLSListeners and the others come with spec.tls.secretName, or name both addresses in the \
         annotations rabbitmq.com/operator-connection-uri and redrive.dev/amqp-uri"
    )]
    NoPort {
        /// Which cluster.
        key: Key,
        /// The port's name.
        port: &'static str,
    },
    /// The Secret of its authority has none.
    #[error(
        "the Secret {secret:?}, which spec.tls.caSecretName of the RabbitmqCluster {key} names, has no key ca.crt: \
         write the authority's certificate there"
    )]
    NoAuthority {
        /// Which cluster.
        key: Key,
        /// The Secret.
        secret: String,
    },
    /// A value is no text.
    #[error("the key {field} in the Secret {secret:?} of the RabbitmqCluster {key} is not UTF-8")]
    NotText {
        /// Which cluster.
        key: Key,
        /// The Secret.
        secret: String,
        /// Its key.
        field: &'static str,
    },
    /// What it says can't be used.
    #[error("{role} of the RabbitmqCluster {key} can't be used: {source}")]
    Unusable {
        /// Which cluster.
        key: Key,
        /// What can't be used.
        role: Role,
        /// Why.
        source: EndpointError,
    },
    /// It is written in another form.
    #[error("the RabbitmqCluster {key} is written in a form that this version does not know")]
    Unknown {
        /// Which cluster.
        key: Key,
        /// What the reader says.
        #[source]
        source: serde_json::Error,
    },
    /// The API server refuses or fails.
    #[error("{what} of the RabbitmqCluster {key} can't be read")]
    Unreadable {
        /// Which cluster.
        key: Key,
        /// What was asked for.
        what: &'static str,
        /// What the API server said.
        #[source]
        source: Box<kube::Error>,
    },
    /// The operator lacks a right.
    #[error(
        "the operator may not read {what} of the RabbitmqCluster {key}: bind the role redrive-operator-clusters"
    )]
    Forbidden {
        /// Which cluster.
        key: Key,
        /// What was asked for.
        what: &'static str,
    },
    /// The API server does not answer.
    #[error("{what} of the RabbitmqCluster {key} can't be read in time")]
    Timeout {
        /// Which cluster.
        key: Key,
        /// What was asked for.
        what: &'static str,
    },
}

/// Where a value that can't be used stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The annotation with the management API's address.
    ConnectionUri,
    /// The annotation with the AMQP address.
    AmqpUri,
    /// The configured prefix of the management API's paths.
    PathPrefix,
    /// A Secret of this name.
    Secret(String),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionUri => {
                f.write_str("the annotation rabbitmq.com/operator-connection-uri (as uri)")
            }
            Self::AmqpUri => f.write_str("the annotation redrive.dev/amqp-uri (as amqpUri)"),
            Self::PathPrefix => f.write_str("management.path_prefix (in the uri)"),
            Self::Secret(name) => write!(f, "the Secret {name:?}"),
        }
    }
}

impl Error {
    /// The reason that a condition gets.
    pub(crate) fn reason(&self) -> PipelineReason {
        match self {
            Self::NotFound(_) | Self::NotInstalled(_) | Self::Going(_) => PipelineReason::ClusterNotFound,
            Self::ScaledToZero(_) => PipelineReason::ClusterScaledToZero,
            Self::NotAllowed(_) => PipelineReason::NamespaceNotAllowed,
            Self::VaultOnly(_)
            | Self::NoCredentials(_)
            | Self::Elsewhere { .. }
            | Self::SecretNotFound { .. }
            | Self::NoAuthority { .. }
            | Self::NotText { .. }
            | Self::Unusable { role: Role::Secret(_), .. } => PipelineReason::SecretNotFound,
            Self::NoService(_)
            | Self::ServiceNotFound { .. }
            | Self::NoPort { .. }
            | Self::Unusable { .. } => PipelineReason::BrokerUnreachable,
            Self::Unknown { .. }
            | Self::Unreadable { .. }
            | Self::Forbidden { .. }
            | Self::Timeout { .. } => PipelineReason::Progressing,
        }
    }

    /// Whether only a change can help, and not time.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self, Self::NotAllowed(_) | Self::VaultOnly(_))
    }

    /// Whether the cluster is gone, and with it all that was there.
    pub(crate) fn is_cluster_gone(&self) -> bool {
        matches!(self, Self::NotFound(_) | Self::NotInstalled(_) | Self::Going(_))
    }

    /// Whether its pipelines are left alone until the cluster changes, which the watch shows. What
    /// is missing beside it is looked for at each poll.
    pub(crate) fn parks(&self) -> bool {
        self.is_cluster_gone() || self.is_permanent() || matches!(self, Self::ScaledToZero(_))
    }

    /// Whether something is missing, and not just unreadable now.
    pub(crate) fn is_missing(&self) -> bool {
        !matches!(
            self,
            Self::Unknown { .. } | Self::Unreadable { .. } | Self::Forbidden { .. } | Self::Timeout { .. }
        )
    }
}
