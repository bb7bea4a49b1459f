//! Where every message ended.

use std::collections::BTreeMap;

use super::{Seen, body_of};

/// Counts the ends of messages: acknowledged, in the DLQ, in quarantine.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    ends: BTreeMap<String, Vec<String>>,
}

impl Audit {
    /// Expects these messages to end somewhere.
    pub(crate) fn of(ids: &[String]) -> Self {
        Self { ends: ids.iter().map(|id| (id.clone(), Vec::new())).collect() }
    }

    /// Counts messages that ended in a place.
    pub(crate) fn ended(&mut self, place: &str, ids: impl IntoIterator<Item = String>) {
        for id in ids {
            self.ends.entry(id).or_insert_with(|| vec!["never published".into()]).push(place.to_owned());
        }
    }

    /// Counts messages taken from a queue, and checks that they are whole.
    pub(crate) fn found(&mut self, place: &str, messages: &[Seen]) {
        for message in messages {
            assert_eq!(message.body, body_of(&message.id), "the body of {} in {place}", message.id);
        }
        self.ended(place, messages.iter().map(|message| message.id.clone()));
    }

    /// Messages that ended nowhere.
    pub(crate) fn lost(&self) -> Vec<&str> {
        self.ends.iter().filter(|(_, ends)| ends.is_empty()).map(|(id, _)| id.as_str()).collect()
    }

    /// Messages that ended more than once, with where.
    pub(crate) fn doubled(&self) -> BTreeMap<&str, &[String]> {
        let doubled = self.ends.iter().filter(|(_, ends)| ends.len() > 1);
        doubled.map(|(id, ends)| (id.as_str(), ends.as_slice())).collect()
    }

    pub(crate) fn assert_exactly_once(&self) {
        let (lost, doubled) = (self.lost(), self.doubled());
        assert!(
            lost.is_empty() && doubled.is_empty(),
            "of {} messages {} are lost and {} doubled; lost: {lost:?}; doubled: {doubled:?}",
            self.ends.len(),
            lost.len(),
            doubled.len(),
        );
    }

    pub(crate) fn assert_at_least_once(&self) {
        let lost = self.lost();
        assert!(lost.is_empty(), "of {} messages {} are lost: {lost:?}", self.ends.len(), lost.len());
    }
}
