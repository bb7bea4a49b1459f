//! The audit trail: one record for each message that a replay has moved or deleted, written
//! before the message leaves its queue.
//!
//! A record never holds a body, and of the headers only those that the pipeline lists. Fields are
//! only ever added within a version of the schema; docs/audit.md describes it.

mod read;
mod record;
mod trail;

pub(crate) use read::read;
pub(crate) use record::About;
pub(crate) use trail::{Stream, Trail};
