//! The resources `RetryPipeline` and `DlqReplay`, group `redrive.dev`, version `v1alpha1`.
//!
//! What it is: the types behind the manifests, their schema with the rules that the API server
//! checks at admission, their printer columns, and the vocabulary of conditions and reasons.
//!
//! What it guarantees: every text, list and map a user writes is bounded; no schema default
//! exists, so that the API server never adds to what a user wrote; a duration is compared by
//! value.
//!
//! What it leaves out: any client, any clock, and everything that needs the broker or what
//! templates expand to; the controller checks that.

pub mod annotations;
pub mod conditions;
pub mod crds;
mod dlq_replay;
pub mod duration;
mod retry_pipeline;
mod rules;
mod schema;

pub use conditions::{Condition, Time};
pub use dlq_replay::*;
pub use duration::Duration;
pub use retry_pipeline::*;

/// The API group of both resources.
pub const GROUP: &str = "redrive.dev";
/// The version of both resources.
pub const VERSION: &str = "v1alpha1";

/// For serde: whether a switch that defaults to off may be left out.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_false(switch: &bool) -> bool {
    !*switch
}
