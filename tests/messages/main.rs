//! Follows messages through the topology that the planner asks for, on real brokers.
//!
//! A small operator applies plans as the controller does, with no Kubernetes behind
//! it; publishers, consumers and the operator itself are made to fail, and at the end
//! every message is accounted for. The brokers come from `eval "$(hack/dev env)"`;
//! each test has a vhost of its own. `REDRIVE_TEST_FULL=1` adds the series that take
//! longer than a few minutes.

mod breakage;
mod clients;
mod edits;
mod facts;
mod jitter;
mod lab;
mod limits;
mod migrations;
mod native;
mod poison;
mod rabbitkit;
mod source;
mod strangers;
mod trio;
mod walk;
