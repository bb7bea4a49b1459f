//! What the operator costs, side by side with a bare script and, on request, with
//! the messaging-topology-operator, in one run on one machine.
//!
//! `make bench` measures everything; `cargo bench --bench operator -- apply100 edit`
//! only that. Needs the cluster and the broker of `hack/dev`, or others named by the
//! same variables. Times on a busy machine mean little alone: read the ratios.

mod anchor;
mod broker;
mod changes;
mod cluster;
mod deletions;
mod figures;
mod meter;
mod process;
mod proxy;
mod shapes;
mod table;

use std::process::ExitCode;

use table::{Figure, Verdict};

/// Whatever goes wrong ends the run with its text.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Error>;

const USAGE: &str =
    "figures: apply100 anchor apply1000 restart idle edit vhosts events storm delete; none means all.
restart, idle and edit need apply1000 and bring it with them.";

#[tokio::main]
async fn main() -> ExitCode {
    // Both TLS libraries of our dependencies use this one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let result = match arguments.first().map(String::as_str) {
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => measure(&arguments).await,
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

/// Measures what is asked for and prints it.
async fn measure(wanted: &[String]) -> Result<ExitCode> {
    const KNOWN: [&str; 10] =
        ["apply100", "apply1000", "vhosts", "restart", "idle", "edit", "events", "storm", "delete", "anchor"];
    if let Some(unknown) = wanted.iter().find(|figure| !KNOWN.contains(&figure.as_str())) {
        return Err(format!("there is no figure {unknown:?}\n{USAGE}").into());
    }
    let wants = |figure: &str| wanted.is_empty() || wanted.iter().any(|name| name == figure);
    let mut bench = figures::Bench::start().await?;
    let result = bench.run(wants).await;
    // What was measured before a failure is shown all the same.
    table::print(&bench.figures);
    result?;
    let broken = bench.figures.iter().any(|figure: &Figure| figure.verdict == Verdict::Broken);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
