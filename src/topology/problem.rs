//! What is wrong with a specification: all of it at once.

use std::fmt;

/// Something in a specification that can't be used, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Path of the field below `spec`.
    pub field: String,
    /// What is wrong, and what to write instead.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spec.{}: {}", self.field, self.message)
    }
}

/// The problems found so far.
#[derive(Default)]
pub(super) struct Problems(pub(super) Vec<Problem>);

impl Problems {
    pub(super) fn add(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(Problem { field: field.to_owned(), message: message.into() });
    }

    pub(super) fn check_range(&mut self, field: &str, value: Option<i64>, low: i64, high: i64, unit: &str) {
        if let Some(value) = value
            && !(low..=high).contains(&value)
        {
            self.add(field, format!("{value} {unit} is out of range: write {low} to {high}"));
        }
    }
}
