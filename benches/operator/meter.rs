//! Processor time of everything that takes part, which a busy machine distorts less
//! than the clock.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::process::{cpu, cpu_of};

/// Who takes part, besides the operator.
const PARTS: [&str; 3] = ["broker-43", "kube-apiserver", "etcd"];

/// Processor seconds by who used them.
pub(crate) type Used = BTreeMap<&'static str, f64>;

/// A reading to compare with a later one.
pub(crate) struct Meter {
    directory: PathBuf,
    before: Used,
    operator: Option<u32>,
}

impl Meter {
    /// Reads the processes of `hack/dev`, ourselves, and the operator.
    pub(crate) fn start(operator: Option<u32>) -> Self {
        let named = |key| std::env::var(key).unwrap_or_default();
        let directory = Path::new(&named("REDRIVE_DEV_STATE")).join(named("REDRIVE_DEV_NAME")).join("run");
        let before = read(&directory, operator);
        Self { directory, before, operator }
    }

    /// What was used since.
    pub(crate) fn used(&self) -> Used {
        let after = read(&self.directory, self.operator);
        after.into_iter().map(|(name, now)| (name, now - self.before.get(name).unwrap_or(&0.0))).collect()
    }
}

fn read(directory: &Path, operator: Option<u32>) -> Used {
    let pid = |part: &str| {
        let text = std::fs::read_to_string(directory.join(part).with_extension("pid")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    let parts = PARTS.iter().filter_map(|part| Some((*part, cpu_of(pid(part)?).ok()?)));
    let operator = operator.and_then(|pid| Some(("operator", cpu_of(pid).ok()?)));
    let us = cpu("self").ok().map(|seconds| ("harness", seconds));
    parts.chain(operator).chain(us).collect()
}

/// One line.
pub(crate) fn text(used: &Used) -> String {
    let parts = used.iter().map(|(name, seconds)| format!("{name} {seconds:.1}"));
    format!("processor seconds: {}", parts.collect::<Vec<_>>().join(", "))
}
