//! The node, and the image on it.

use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::support::{kubectl, variable};

/// Runs a command, which has to succeed.
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
}

/// The image as it is on the node.
pub(crate) struct Image {
    pub(crate) repository: &'static str,
    pub(crate) tag: String,
    /// Of all layers, compressed.
    pub(crate) bytes: u64,
}

/// The image of this checkout, built and put on the node once.
pub(crate) fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(make)
}

fn make() -> Image {
    let root = env!("CARGO_MANIFEST_DIR");
    let out = format!("{}/e2e-image", env!("CARGO_TARGET_TMPDIR"));
    run(Command::new("hack/image").args(["--arch", "amd64", "--out", &out]).current_dir(root));
    let version = env!("CARGO_PKG_VERSION");
    let layout = format!("{out}/redrive-{version}.oci");
    check(&layout, &format!("{out}/redrive-{version}.cdx.json"));
    let blobs = std::fs::read_dir(format!("{layout}/blobs/sha256")).unwrap();
    let bytes = blobs.map(|blob| blob.unwrap().metadata().unwrap().len()).sum();
    run(Command::new(variable("REDRIVE_DEV"))
        .args(["image", &layout])
        .env("REDRIVE_DEV_NAME", variable("REDRIVE_DEV_NAME")));
    Image { repository: "redrive", tag: format!("{version}-amd64"), bytes }
}

/// What an image says of itself: who runs it and how, and what is in it.
fn check(layout: &str, bill: &str) {
    let read = |path: &str| serde_json::from_str::<Value>(&std::fs::read_to_string(path).unwrap()).unwrap();
    let blob = |digest: &Value| format!("{layout}/blobs/{}", digest.as_str().unwrap().replace(':', "/"));
    let index = read(&format!("{layout}/index.json"));
    let version = env!("CARGO_PKG_VERSION");
    let named = |name: &str| {
        let manifests = index["manifests"].as_array().unwrap().iter();
        let is_it = |one: &&Value| one["annotations"]["org.opencontainers.image.ref.name"] == name;
        read(&blob(&manifests.clone().find(is_it).unwrap()["digest"]))
    };
    // Under the version's name an index of all architectures.
    assert_eq!(named(version)["manifests"][0]["platform"], json!({"os": "linux", "architecture": "amd64"}));
    let image = read(&blob(&named(&format!("{version}-amd64"))["config"]["digest"]));
    assert_eq!((&image["os"], &image["architecture"]), (&json!("linux"), &json!("amd64")));
    let config = &image["config"];
    assert_eq!((&config["User"], &config["Entrypoint"]), (&json!("65532:65532"), &json!(["/redrive"])));
    for label in ["title", "description", "source", "licenses", "version", "revision", "created"] {
        let value =
            config["Labels"][format!("org.opencontainers.image.{label}")].as_str().unwrap_or_default();
        assert!(!value.is_empty(), "{label} in {config}");
    }
    let parts = read(bill)["components"].as_array().unwrap().clone();
    assert!(parts.len() > 100 && parts.iter().any(|part| part["name"] == "lapin"), "{} parts", parts.len());
}

/// The node without pods; it takes some again when this is dropped.
pub(crate) struct Drained(String);

impl Drained {
    pub(crate) fn now(namespace: &str) -> Self {
        let node = kubectl::say(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
        let drained = Self(node);
        let timeout = "--timeout=120s";
        kubectl::say(&[
            "drain",
            &drained.0,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--force",
            timeout,
        ]);
        let left = kubectl::say(&[
            "get",
            "pods",
            "-n",
            namespace,
            "--field-selector=status.phase=Running",
            "-o",
            "name",
        ]);
        assert_eq!(left, "", "the node is drained");
        drained
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        kubectl::say(&["uncordon", &self.0]);
    }
}
