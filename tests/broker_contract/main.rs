//! What Redrive relies on in RabbitMQ, and that the client reads it rightly.
//!
//! Every test runs on both broker series, in a vhost of its own. Where they
//! differ, the test says how.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../support/authority.rs"]
mod authority;
#[path = "../support/broker.rs"]
mod support;
#[path = "../support/tls_listener.rs"]
mod tls_listener;

mod cases;
mod declare;
mod delivery;
mod events;
mod exporter;
mod keep_alive;
mod moving;
mod names;
mod order;
mod policies;
mod rights;
mod routing;
mod snapshot;
mod tls;
mod watch;
