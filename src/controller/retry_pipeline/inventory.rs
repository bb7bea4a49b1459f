//! The inventory as status records it, and as the topology reads it.

use std::collections::BTreeMap;

use crate::api::{InventoryEntry, InventoryState, ObjectKind, RetryPipeline};
use crate::topology::model::ObjectKey;
use crate::topology::ownership::{Inventory, Record, State};

/// What a pipeline's status records.
pub(crate) fn read(object: &RetryPipeline) -> Inventory {
    let entries = object.status.iter().flat_map(|status| &status.inventory);
    entries.flat_map(|entry| keys(entry).map(|key| (key, record(entry)))).collect()
}

fn keys(entry: &InventoryEntry) -> impl Iterator<Item = ObjectKey> {
    let named = |name: &String| match entry.kind {
        ObjectKind::Queue => Some(ObjectKey::Queue(name.clone())),
        ObjectKind::Exchange => Some(ObjectKey::Exchange(name.clone())),
        ObjectKind::Policy => Some(ObjectKey::Policy(name.clone())),
        ObjectKind::Binding => None,
    };
    let bound = |routing_key: &String| {
        let exchange = entry.exchange.clone()?;
        Some(ObjectKey::Binding { exchange, routing_key: routing_key.clone() })
    };
    entry.names.iter().filter_map(named).chain(entry.routing_keys.iter().filter_map(bound))
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
    let mut groups: BTreeMap<Group<'_>, InventoryEntry> = BTreeMap::new();
    for (key, record) in inventory {
        let group = Group::of(key, *record);
        let entry = groups.entry(group).or_insert_with(|| group.empty());
        match key {
            ObjectKey::Queue(name) | ObjectKey::Exchange(name) | ObjectKey::Policy(name) => {
                entry.names.push(name.clone());
            }
            ObjectKey::Binding { routing_key, .. } => entry.routing_keys.push(routing_key.clone()),
        }
    }
    groups.into_values().collect()
}

/// What the objects of one entry have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Group<'a> {
    kind: ObjectKind,
    state: InventoryState,
    generation: u32,
    exchange: Option<&'a str>,
}

impl<'a> Group<'a> {
    fn of(key: &'a ObjectKey, record: Record) -> Self {
        let (kind, exchange) = match key {
            ObjectKey::Queue(_) => (ObjectKind::Queue, None),
            ObjectKey::Exchange(_) => (ObjectKind::Exchange, None),
            ObjectKey::Policy(_) => (ObjectKind::Policy, None),
            ObjectKey::Binding { exchange, .. } => (ObjectKind::Binding, Some(exchange.as_str())),
        };
        let state = match record.state {
            State::Intended => InventoryState::Intended,
            State::Created => InventoryState::Created,
            State::Adopted => InventoryState::Adopted,
        };
        Self { kind, state, generation: record.generation, exchange }
    }

    fn empty(self) -> InventoryEntry {
        InventoryEntry {
            kind: self.kind,
            state: self.state,
            generation: (self.generation > 1).then_some(i64::from(self.generation)),
            names: Vec::new(),
            exchange: self.exchange.map(str::to_owned),
            routing_keys: Vec::new(),
        }
    }
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
            (ObjectKey::Queue("q.retry.0".into()), Record { state: State::Created, generation: 2 }),
            (ObjectKey::Queue("q.retry.1".into()), Record { state: State::Adopted, generation: 2 }),
            (ObjectKey::Policy("p".into()), Record { state: State::Created, generation: 1 }),
            (
                ObjectKey::Binding { exchange: "a -> b".into(), routing_key: String::new() },
                Record { state: State::Adopted, generation: 1 },
            ),
            (
                ObjectKey::Binding { exchange: "a".into(), routing_key: "[k]".into() },
                Record { state: State::Adopted, generation: 1 },
            ),
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
        let written = serde_json::to_value(write(&inventory)).unwrap();
        assert_eq!(written.as_array().map(Vec::len), Some(6), "what differs in its name alone is grouped");
        assert_eq!(
            written[0],
            serde_json::json!({
                "kind": "Queue", "state": "Created", "generation": 2, "names": ["q", "q.retry.0"]
            })
        );
    }
}
