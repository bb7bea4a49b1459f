//! What a pipeline brings to its lane, and what it gets back.

use std::fmt;
use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::oneshot;
use tracing::Span;

use super::super::Guarded;
use super::super::broker_events::Detection;
use crate::api::RetryPipeline;
use crate::broker::BrokerError;
use crate::topology::desired::QueueRole;
use crate::topology::model::Queue;
use crate::topology::ownership::{Claim, Inventory};
use crate::topology::plan::{Blocked, Move, Pending};
use crate::topology::spec::Identity;
use crate::topology::validate::{Pipeline, Unsupported};

/// A task and where its result goes.
pub(crate) struct Job {
    pub(crate) task: Task,
    /// What has asked for it.
    pub(crate) asked: Span,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

/// What to do for a pipeline.
pub(crate) enum Task {
    /// Make it so and keep it so.
    Maintain(Arc<Maintain>),
    /// Take away what is ours.
    Remove(Box<Remove>),
}

/// A pipeline to maintain.
pub(crate) struct Maintain {
    pub(crate) object: Arc<RetryPipeline>,
    pub(crate) pipeline: Pipeline,
    /// What the status records.
    pub(crate) inventory: Inventory,
    /// Whether the current specification has been applied before, so that every
    /// difference is drift.
    pub(crate) settled: bool,
    /// The UID of the RabbitmqCluster, where it was looked up.
    pub(crate) cluster_uid: Option<String>,
    /// Where that cluster has its exchange of events, if it says so.
    pub(crate) events_vhost: Option<String>,
}

/// How far a removal goes this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalStep {
    /// Prove that all queues are empty.
    Prove,
    /// Cut the inflow.
    Unbind,
    /// Put the inflow back.
    Rebind,
    /// Delete.
    Delete,
}

/// A pipeline to remove.
pub(crate) struct Remove {
    pub(crate) object: Arc<RetryPipeline>,
    pub(crate) identity: Identity,
    pub(crate) inventory: Inventory,
    pub(crate) step: RemovalStep,
}

impl Task {
    pub(crate) fn object(&self) -> &Arc<RetryPipeline> {
        match self {
            Self::Maintain(task) => &task.object,
            Self::Remove(task) => &task.object,
        }
    }

    pub(crate) fn uid(&self) -> &str {
        self.object().metadata.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn reference(&self) -> ObjectRef<Guarded> {
        super::super::reference(self.object())
    }

    /// The pipeline's claim on unowned names.
    pub(crate) fn claim(&self) -> Claim {
        let object = self.object();
        Claim {
            created: object.creation_timestamp().map_or(i64::MAX, |time| time.0.as_second()),
            uid: self.uid().to_owned(),
            who: format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any()),
        }
    }
}

/// What came of a task.
pub(crate) type Outcome = Result<Done, Failure>;

/// A task that was carried out, as far as it can be.
#[derive(Debug)]
pub(crate) enum Done {
    Maintained(Box<Maintained>),
    Removed(Removed),
}

/// The state of a pipeline on its broker.
#[derive(Debug)]
pub(crate) struct Maintained {
    pub(crate) broker_id: Option<String>,
    pub(crate) inventory: Inventory,
    /// Whether nothing is left to write.
    pub(crate) complete: bool,
    /// What can't be done.
    pub(crate) blocked: Vec<Blocked>,
    /// What the broker can't do.
    pub(crate) unsupported: Vec<Unsupported>,
    /// Queues that go when they are empty.
    pub(crate) draining: Vec<String>,
    /// Messages that are moved, so that some of these become empty.
    pub(crate) moves: Vec<Move>,
    /// Whether queues are being made anew.
    pub(crate) recreates: bool,
    /// What waits for a person's consent.
    pub(crate) pending: Option<Pending>,
    /// What differed from an applied specification, what is blocked included.
    pub(crate) findings: Vec<Finding>,
    /// Messages ready, by queue, in the order of the topology.
    pub(crate) depths: Vec<(QueueRole, String, Option<i64>)>,
    /// Queues whose names and arguments applications may rely on.
    pub(crate) contract: Vec<Queue>,
    /// Classic queues, which dead-letter at most once.
    pub(crate) at_most_once: Vec<String>,
    /// How drift is noticed there, where that is known.
    pub(crate) detection: Option<Detection>,
}

impl Maintained {
    /// Whether something of before is left that goes by itself.
    pub(crate) fn migrates(&self) -> bool {
        self.recreates || !self.draining.is_empty()
    }

    /// Whether the broker is as the specification says.
    pub(crate) fn is_applied(&self) -> bool {
        let declared = self.blocked.iter().all(|blocked| blocked.by.concerns_messages_alone());
        self.complete && declared && self.unsupported.is_empty()
    }
}

/// What a removal found or did.
#[derive(Clone, Debug)]
pub(crate) enum Removed {
    /// All queues are proven empty.
    Empty,
    /// Not yet proven: the second look must come later.
    NotYetProven,
    /// Queues that hold messages, with their counts.
    NotEmpty(Vec<(String, Option<i64>)>),
    /// Nothing is known to hold messages, but AMQP, which must confirm it, is refused.
    Unprovable(BrokerError),
    /// The inflow is cut; no message is under way longer than this many milliseconds.
    Unbound { longest_delay: i64 },
    /// The inflow is back.
    Rebound,
    /// Nothing of ours is left; what is listed was not ours to delete.
    Deleted { left: Vec<String> },
}

/// One difference from an applied specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) object: String,
    pub(crate) what: String,
    /// The broker's user who did it, where the broker tells.
    pub(crate) by: Option<String>,
    pub(crate) action: Action,
}

/// What becomes of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is put right.
    Repaired,
    /// It is only told.
    Reported,
    /// It can't be put right without loss, or only by somebody else.
    Blocked,
}

impl Finding {
    /// Whether it is there still.
    pub(crate) fn is_open(&self) -> bool {
        self.action != Action::Repaired
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is blocked reads as it does among the obstacles.
        let colon = if self.action == Action::Blocked { ":" } else { "" };
        write!(f, "{}{colon} {}", self.object, self.what)
    }
}

/// A task that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    /// What exists by now, where the task got so far.
    pub(crate) inventory: Option<Box<Inventory>>,
}

/// Why a task failed.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// The broker.
    Broker(BrokerError),
    /// The API server would not take the record that must come first.
    Record(String),
    /// Another broker answers under the same reference.
    BrokerChanged { recorded: String, found: String },
    /// Somebody else made one of our objects in the same moment.
    Raced(String),
    /// The operator is stopping.
    Stopped,
}

impl Failure {
    pub(crate) fn broker(error: BrokerError) -> Self {
        Self { cause: Cause::Broker(error), inventory: None }
    }

    pub(crate) fn stopped() -> Self {
        Self { cause: Cause::Stopped, inventory: None }
    }
}
