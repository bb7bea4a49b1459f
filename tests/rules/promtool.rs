//! promtool, from the `PATH` or by `hack/tools`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::path;

/// Where it is. The first test that asks installs it if need be.
fn tool() -> &'static PathBuf {
    static TOOL: OnceLock<PathBuf> = OnceLock::new();
    TOOL.get_or_init(|| {
        let output = Command::new(path("hack/tools")).arg("promtool").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
    })
}

/// Runs it, and fails with all that it says unless it is content.
pub(crate) fn run(arguments: &[&str]) {
    let output = Command::new(tool()).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "promtool {arguments:?}\n{}", String::from_utf8_lossy(&said));
}
