//! Replays on the real brokers, with a judge that knows nothing but numbers.
//!
//! Every test runs in a vhost of its own. `T` with a number is the case of docs/cases.md.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../support/broker.rs"]
mod support;

mod asked;
mod guards;
mod lab;
mod limits;
mod loss;
mod moves;
mod odd;
mod order;
mod rewritten;
