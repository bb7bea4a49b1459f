//! The pure modules stay pure: they are computed, tested and trusted without a
//! broker, a cluster, a clock or luck.

use std::path::{Path, PathBuf};

/// Crates and modules that a pure module must not name, and what they bring.
const FORBIDDEN: [(&str, &str); 17] = [
    ("kube::", "a Kubernetes client"),
    ("k8s_openapi", "Kubernetes types"),
    ("lapin", "an AMQP client"),
    ("reqwest", "an HTTP client"),
    ("tokio", "a runtime"),
    ("futures", "a runtime"),
    ("std::time::Instant", "a clock"),
    ("std::time::SystemTime", "a clock"),
    ("std::env", "the environment"),
    ("std::fs", "files"),
    ("std::net", "the network"),
    ("rand::", "luck"),
    ("crate::api", "the resources"),
    ("crate::broker", "the broker"),
    ("crate::controller", "the controller"),
    ("crate::cli", "the command line"),
    ("crate::ops", "telemetry"),
];

/// The pure modules, each with the crates that it may use.
const ALLOWED: [(&str, &[&str]); 2] = [
    ("topology", &["std", "serde", "serde_json", "sha2", "fancy_regex"]),
    ("replay", &["std", "serde", "serde_json", "sha2", "cel"]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

fn code_lines(path: &Path) -> Vec<(usize, String)> {
    let text = std::fs::read_to_string(path).expect("a source file");
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_end().to_owned()));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//")).collect()
}

#[test]
fn pure_modules_use_no_client_no_clock_and_no_luck() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let topology = sources(&root.join("topology"));
    assert!(topology.len() > 10, "the topology is where it was");
    for path in topology.into_iter().chain(sources(&root.join("replay"))) {
        for (number, line) in code_lines(&path) {
            for (name, what) in FORBIDDEN {
                assert!(!line.contains(name), "{}:{number} uses {what}: {line}", path.display());
            }
        }
    }
}

#[test]
fn pure_modules_import_nothing_else_than_allowed() {
    for (module, crates) in ALLOWED {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(module);
        // What tests the module is not part of it.
        for path in sources(&root).into_iter().filter(|path| !path.ends_with("tests.rs")) {
            for (number, line) in code_lines(&path) {
                let Some(first) = imported(&line) else { continue };
                let own = ["super", "crate", "self"].contains(&first) || is_module(&root, first);
                let sibling = is_module(&path.with_extension(""), first)
                    || path.parent().is_some_and(|folder| is_module(folder, first));
                let allowed = own || sibling || crates.contains(&first);
                assert!(allowed, "{}:{number} imports {first}", path.display());
            }
        }
    }
}

/// The first name of a path that is imported.
fn imported(line: &str) -> Option<&str> {
    let imports = line.starts_with("use ") || line.starts_with("pub");
    let (_, imported) = line.split_once("use ").filter(|_| imports)?;
    imported.split([':', ';', ' ']).next()
}

fn is_module(folder: &Path, name: &str) -> bool {
    folder.join(format!("{name}.rs")).exists() || folder.join(name).join("mod.rs").exists()
}
