//! Which objects concern the pipelines of a lane.

use std::collections::HashSet;

use super::{Change, hash};
use crate::topology::model::{Destination, ObjectKey};
use crate::topology::names::OWNER_EXCHANGE;
use crate::topology::ownership::Inventory;
use crate::topology::uses::is_internal;
use crate::topology::validate::Pipeline;

/// The objects of some pipelines.
#[derive(Clone, Debug, Default)]
pub struct Known(HashSet<u64>);

/// An exchange from which nothing of others may lead.
#[derive(Hash)]
struct Closed<'a>(&'a str);

impl Known {
    /// Adds what a pipeline has, or will have with this inventory.
    pub fn add(&mut self, pipeline: &Pipeline, inventory: &Inventory) {
        self.add_queue(&pipeline.spec.source.queue);
        for binding in &pipeline.spec.source.bindings {
            self.add_exchange(&binding.exchange);
        }
        for key in inventory.keys() {
            match key {
                ObjectKey::Queue(name) => self.add_queue(name),
                ObjectKey::Exchange(name) => {
                    self.add_exchange(name);
                    if is_internal(pipeline, name) {
                        self.0.insert(hash(&Closed(name)));
                    }
                }
                // Bindings lead to queues that are here, and a policy counts whatever its name.
                ObjectKey::Policy(_) | ObjectKey::Binding { .. } => {}
            }
        }
    }

    fn add_queue(&mut self, name: &str) {
        self.0.insert(hash(&Destination::Queue(name.to_owned())));
    }

    fn add_exchange(&mut self, name: &str) {
        self.0.insert(hash(&Destination::Exchange(name.to_owned())));
    }

    /// Whether a change may matter to one of the pipelines. A policy may, whatever it is called:
    /// what it applies to, and what it applied to before, is in its patterns.
    #[must_use]
    pub fn concerns(&self, change: &Change) -> bool {
        match change {
            Change::Declared(object) | Change::Deleted(object) => {
                *object == Destination::Exchange(OWNER_EXCHANGE.to_owned()) || self.0.contains(&hash(object))
            }
            // Where a shared exchange leads beside our queues is nobody's business here.
            Change::Bound(binding) | Change::Unbound(binding) => {
                self.0.contains(&hash(&binding.destination))
                    || self.0.contains(&hash(&Closed(&binding.source)))
            }
            Change::PolicySet(_) | Change::PolicyCleared(_) | Change::Vhost => true,
        }
    }
}
