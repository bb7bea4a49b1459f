//! The retry topology, as pure data and pure functions.
//!
//! From a checked pipeline and what the broker holds, this module computes what
//! must exist ([`desired`]), what differs ([`diff`]) and the ordered steps that
//! close the difference ([`plan`]). It does no IO, reads no clock, draws no
//! random number, and knows neither Kubernetes nor HTTP: the same input always
//! gives the same plan. A test reads its imports to keep that so.

mod budget;
pub mod desired;
pub mod diff;
pub mod drift;
pub mod effective;
mod expand;
pub mod generations;
pub mod model;
pub mod names;
pub mod news;
pub mod observed;
pub mod ownership;
pub mod pipeline;
pub mod plan;
pub mod policy_check;
mod problem;
pub mod recognise;
mod recreation;
pub mod removal;
pub mod rights;
pub mod spec;
pub mod stand_in;
mod uses;
pub mod validate;
pub mod watch;
