//! Annotations, labels and finalizers by which people and the operator talk through metadata.

/// On a RetryPipeline: the hash of the pending plan that may recreate a queue under its name.
pub const ALLOW_RECREATE: &str = "redrive.dev/allow-recreate";
/// On a RetryPipeline under deletion: `"true"` lets it go although queues still hold messages.
pub const RELEASE: &str = "redrive.dev/release";
/// On a RabbitmqCluster: which namespaces may use which vhosts and name prefixes.
pub const GRANTS: &str = "redrive.dev/grants";
/// On a RabbitmqCluster: the topology operator's list of namespaces that may refer to it.
pub const TOPOLOGY_ALLOWED_NAMESPACES: &str = "rabbitmq.com/topology-allowed-namespaces";
/// On a RabbitmqCluster: where its management API is, if not at its Service; the topology operator
/// goes by it as well.
pub const OPERATOR_CONNECTION_URI: &str = "rabbitmq.com/operator-connection-uri";
/// On a RabbitmqCluster: where it speaks AMQP, if not at its Service.
pub const AMQP_URI: &str = "redrive.dev/amqp-uri";
/// On a namespace: the weakest replay guardrails its pipelines may have.
pub const REPLAY_FLOOR: &str = "redrive.dev/replay-floor";
/// The finalizer of a RetryPipeline that cleans up on the broker.
pub const CLEANUP_FINALIZER: &str = "redrive.dev/cleanup";
/// The finalizer of a DlqReplay that stops its worker first.
pub const REPLAY_FINALIZER: &str = "redrive.dev/replay";
