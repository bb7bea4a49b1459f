//! What running in production takes beside the work itself: one writer of several processes,
//! numbers, traces, and answers to probes. It knows neither pipelines nor brokers: each layer registers its own
//! numbers.

pub mod admin;
pub mod kubernetes;
pub mod lease;
pub mod metrics;
pub mod term;
pub mod traces;
