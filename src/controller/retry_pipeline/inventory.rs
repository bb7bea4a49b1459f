//! The inventory as status records it, and as the topology reads it.

use std::collections::BTreeMap;

use crate::api::{InventoryEntry, InventoryState, ObjectKind, RetryPipeline};
use crate::topology::model::ObjectKey;
use crate::topology::ownership::{Inventory, Record, State};

/// What a pipeline's status records.
pub(crate) fn read(object: &RetryPipeline) -> Inventory {
    let entries = object.status.iter().flat_map(|status| &status.inventory);
    entries.map(|entry| (key(entry), record(entry))).collect::<BTreeMap<_, _>>()
}

fn key(entry: &InventoryEntry) -> ObjectKey {
    let name = entry.name.clone();
    match entry.kind {
        ObjectKind::Queue => ObjectKey::Queue(name),
        ObjectKind::Exchange => ObjectKey::Exchange(name),
        ObjectKind::Policy => ObjectKey::Policy(name),
        ObjectKind::Binding => {
            ObjectKey::Binding { exchange: name, routing_key: entry.routing_key.clone().unwrap_or_default() }
        }
    }
}

fn record(entry: &InventoryEntry) -> Record {
    let state = match entry.state {
        InventoryState::Intended => State::Intended,
        InventoryState::Created => State::Created,
        InventoryState::Adopted => State::Adopted,
    };
    Record { state, generation: entry.generation.and_then(|number| u32::try_from(number).ok()).unwrap_or(1) }
}

/// The entries for a status, in a fixed order.
pub(crate) fn write(inventory: &Inventory) -> Vec<InventoryEntry> {
    inventory.iter().map(|(key, record)| entry(key, *record)).collect()
}

fn entry(key: &ObjectKey, record: Record) -> InventoryEntry {
    let (kind, name, routing_key) = match key {
        ObjectKey::Queue(name) => (ObjectKind::Queue, name, None),
        ObjectKey::Exchange(name) => (ObjectKind::Exchange, name, None),
        ObjectKey::Policy(name) => (ObjectKind::Policy, name, None),
        ObjectKey::Binding { exchange, routing_key } => {
            (ObjectKind::Binding, exchange, Some(routing_key.clone()))
        }
    };
    let state = match record.state {
        State::Intended => InventoryState::Intended,
        State::Created => InventoryState::Created,
        State::Adopted => InventoryState::Adopted,
    };
    let generation = (record.generation > 1).then_some(i64::from(record.generation));
    InventoryEntry { kind, name: name.clone(), routing_key, generation, state }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RetryPipelineStatus;

    #[test]
    fn an_inventory_reads_back_as_it_was_written() {
        let inventory = Inventory::from([
            (ObjectKey::Queue("q".into()), Record { state: State::Created, generation: 2 }),
            (ObjectKey::Exchange("q".into()), Record { state: State::Intended, generation: 1 }),
            (ObjectKey::Policy("p".into()), Record { state: State::Created, generation: 1 }),
            (
                ObjectKey::Binding { exchange: "a -> b".into(), routing_key: "[k]".into() },
                Record { state: State::Adopted, generation: 1 },
            ),
        ]);
        let mut object: RetryPipeline = serde_json::from_value(serde_json::json!({
            "apiVersion": "redrive.dev/v1alpha1", "kind": "RetryPipeline", "metadata": {"name": "x"},
            "spec": {"broker": {"secretRef": {"name": "s"}}, "source": {"queue": {"name": "q"}}}
        }))
        .unwrap();
        object.status =
            Some(RetryPipelineStatus { inventory: write(&inventory), ..RetryPipelineStatus::default() });
        assert_eq!(read(&object), inventory);
    }
}
