//! What a broker tells of its changes, and which of them are worth a look.
//!
//! A change says when to look and who did it, and never what there is: whatever is told here,
//! a look at the vhost decides. So it does no harm to take one change too many for important,
//! and one that is passed over is found by the next poll.
//!
//! Two questions are answered: whether a change is our own, by what is being written ([`Own`]),
//! since the name of a user can't tell; and whether it concerns any pipeline ([`Known`]). Both
//! remember names as hashes, so that a thousand pipelines cost little.

mod authors;
mod known;
mod own;

pub use authors::Authors;
pub use known::Known;
pub use own::Own;

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};

use super::model::{Binding, Destination};
use super::plan::Step;

/// One change on a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Where.
    pub vhost: String,
    /// What was done.
    pub change: Change,
    /// The broker's user who did it, where the broker tells.
    pub by: Option<String>,
}

/// What was done to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A queue or exchange is there that was not.
    Declared(Destination),
    /// A queue or exchange is gone.
    Deleted(Destination),
    /// A binding was made, or made again. Its arguments are not told.
    Bound(Binding),
    /// A binding is gone, by itself or with one of its ends. Its arguments are not told.
    Unbound(Binding),
    /// A policy or operator policy of this name was written.
    PolicySet(String),
    /// A policy or operator policy of this name was removed.
    PolicyCleared(String),
    /// The vhost itself came or went.
    Vhost,
}

impl Change {
    /// What a step of ours will be told as.
    #[must_use]
    pub fn of(step: &Step) -> Self {
        match step {
            Step::CreateQueue { queue, .. } => Self::Declared(Destination::Queue(queue.name.clone())),
            Step::CreateExchange { exchange, .. } => {
                Self::Declared(Destination::Exchange(exchange.name.clone()))
            }
            Step::Bind(binding) | Step::Mark(binding) => Self::Bound(binding.clone()),
            Step::Unbind(binding) | Step::Unmark(binding) => Self::Unbound(binding.clone()),
            Step::SetPolicy(policy) => Self::PolicySet(policy.name.clone()),
            Step::ClearPolicy(name) => Self::PolicyCleared(name.clone()),
            Step::DeleteQueue(name) => Self::Deleted(Destination::Queue(name.clone())),
            Step::DeleteExchange(name) => Self::Deleted(Destination::Exchange(name.clone())),
        }
    }

    /// What stands for it among hashes. A binding's arguments don't count: rules that differ in
    /// them alone are written as often as they are told.
    fn hash(&self) -> u64 {
        match self {
            Self::Declared(object) => hash(&(0, object)),
            Self::Deleted(object) => hash(&(1, object)),
            Self::Bound(Binding { source, destination, routing_key, .. }) => {
                hash(&(2, source, destination, routing_key))
            }
            Self::Unbound(Binding { source, destination, routing_key, .. }) => {
                hash(&(3, source, destination, routing_key))
            }
            Self::PolicySet(name) => hash(&(4, name)),
            Self::PolicyCleared(name) => hash(&(5, name)),
            Self::Vhost => hash(&6),
        }
    }
}

impl fmt::Display for Change {
    /// The object, as findings name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Declared(object) | Self::Deleted(object) => object.fmt(f),
            Self::Bound(binding) | Self::Unbound(binding) => write!(f, "binding {binding}"),
            Self::PolicySet(name) | Self::PolicyCleared(name) => write!(f, "policy {name}"),
            Self::Vhost => f.write_str("vhost"),
        }
    }
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
