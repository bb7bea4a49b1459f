//! Redrive.
