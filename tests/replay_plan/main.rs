//! The plan of a replay on real brokers: what it finds, and that it changes nothing.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../support/broker.rs"]
mod support;

mod facts;
mod reading;
mod rewriting;
mod whole;
