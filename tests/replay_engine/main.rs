//! The replay's engine against a model of a broker, through whatever order of events.

#![allow(clippy::unwrap_used, reason = "a test's failure is a panic")]

mod credit;
mod looks;
mod model;
mod properties;
mod renewal;
mod the_end;
