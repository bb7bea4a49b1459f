//! Real parts that really stop: the API server, a broker, nodes of a RabbitMQ cluster.
//!
//! Proxies fail as a test tells them to; a part that stops and starts again has its own ways to
//! do so. Whatever else uses these parts fails meanwhile, so the tests here wait for one another,
//! and nothing else may run beside them: `cargo test --test outages`. `hack/dev` must have started
//! the parts.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod api_server;
mod brokers;
mod definitions;
mod events;
mod leaders;
mod parts;
mod quorum;
mod replays;
#[allow(dead_code, reason = "written for more tests than these")]
#[path = "../cluster/support/mod.rs"]
mod support;
#[path = "../support/trio.rs"]
mod trio;
