//! The Helm chart, without a cluster.
//!
//! `UPDATE_CHART=1 cargo test --test chart` writes what is generated: the copies in `files/`, and
//! the table of values in the README. `UPDATE_GOLDEN=1` writes what the files in `ci/` render to
//! below `tests/golden/chart`; read the difference before you commit it.

#![allow(clippy::unwrap_used)] // a test fails by panicking

#[path = "../support/command.rs"]
mod command;
mod generated;
#[path = "../support/rights.rs"]
mod granted;
#[path = "../support/helm.rs"]
mod helm;
mod readme;
mod refused;
mod rendered;
mod rights;
mod schema;

use std::path::PathBuf;

fn folder(below: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(below)
}

/// Compares a file with what it shall hold, or writes it where the environment says so.
fn check_fresh(path: &str, wanted: &str, variable: &str) {
    let path = folder(path);
    if std::env::var_os(variable).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{} is stale: run `{variable}=1 cargo test --test chart`", path.display());
}
