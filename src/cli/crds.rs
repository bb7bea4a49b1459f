//! `redrive crds`: the custom resource definitions.

use std::path::{Path, PathBuf};

use super::{Outcome, fail, print};
use crate::api::crds;

/// What `redrive crds` was asked.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: redrive crds | kubectl apply --server-side -f -")]
pub(super) struct Arguments {
    /// Write one file for each kind into this directory, which is created if need be.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the definitions, or writes them as files.
pub(super) fn run(arguments: &Arguments) -> Outcome {
    let files = match crds::render() {
        Ok(files) => files,
        Err(error) => return fail(format!("the definitions can't be written as YAML: {error}")),
    };
    match &arguments.dir {
        None => {
            let documents: Vec<String> = files.into_iter().map(|(_, yaml)| yaml).collect();
            print(&documents.join("---\n"))
        }
        Some(dir) => write(dir, &files),
    }
}

fn write(dir: &Path, files: &[(String, String)]) -> Outcome {
    if let Err(error) = std::fs::create_dir_all(dir) {
        return fail(format!("{} can't be created: {error}", dir.display()));
    }
    for (name, yaml) in files {
        let path = dir.join(name);
        if let Err(error) = std::fs::write(&path, yaml) {
            return fail(format!("{} can't be written: {error}", path.display()));
        }
        print(&format!("{}\n", path.display()));
    }
    Outcome::Nothing
}
