//! The controller against a real Kubernetes API server and real brokers.
//!
//! Each test has a namespace and a vhost of its own, an operator that runs inside the test and
//! watches only that namespace, and a proxy before the management API that counts what is written
//! and fails as it is told. Start the development cluster first: `hack/dev up`, then
//! `eval "$(hack/dev env)"`. Most of the time is spent waiting, so run more tests at a time than
//! there are processors: `cargo test --test cluster -- --test-threads=16`.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod bad_input;
mod broker_users;
mod chart_rights;
mod conflicts;
mod counts;
mod create;
mod deletion;
mod deletion_orders;
mod deletion_troubles;
mod discovery;
mod doubts;
mod drained;
mod drift;
mod drift_blocked;
mod drift_events;
mod drift_kinds;
mod edits;
mod external;
mod faults;
mod few;
mod gitops;
mod import;
mod inspect;
mod kill;
mod leftovers;
mod listening;
mod metrics;
mod migrations;
mod migrations_kill;
mod names;
mod refused;
mod replay;
mod replay_audit;
mod replay_breaker;
mod replay_consent;
mod replay_control;
mod replay_examples;
mod replay_input;
mod replay_job;
mod replay_kill;
mod replay_refused;
mod replicas;
mod rights;
mod runbooks;
mod size;
mod stop;
mod support;
mod tenants;
mod tls;
mod traces;
