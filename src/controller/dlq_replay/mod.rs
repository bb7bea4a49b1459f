//! What the operator does for a `DlqReplay`.

pub mod verifiability;
