//! Replays of dead letters, as pure data and pure functions.
//!
//! What it is: which messages move ([`run::Run`]), what a moved message looks like, how fast
//! it may go, when a run pauses or stops by itself, and the state machine that reads,
//! publishes, records and settles. The clock is an argument; the driver around the AMQP
//! client is `broker::replay`.
//!
//! What it guarantees: a message is acknowledged on its origin queue only after a clean
//! confirm of the target and its audit record, so that it is in origin or target at every
//! moment; a crash doubles at most one window.
//!
//! What it leaves out: AMQP, Kubernetes, time and chance.

pub mod breaker;
pub mod death;
pub mod engine;
pub mod id;
pub mod judge;
pub mod message;
pub mod origin;
pub mod outcome;
pub mod plan;
pub mod rate;
pub mod relocate;
pub mod rewrite;
pub mod run;
pub mod selection;
pub mod size;
