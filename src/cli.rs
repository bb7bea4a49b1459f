//! The command line: arguments to validated settings, settings to an outcome.
//!
//! Each subcommand has a file of its own, which holds its raw arguments, the
//! settings that they turn into, and what it does with them. Nothing past that
//! point looks at a raw argument again.

mod approve;
mod audit;
mod capacity;
mod cluster;
mod controller;
mod crds;
mod import;
mod inspect;
mod log;
mod manifest;
mod plan;
mod replay;
mod replay_worker;
mod rules;
mod schema;
mod steer;
mod units;
mod yaml;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::steer::Steering;

/// The name under which kubectl runs this as `kubectl redrive`.
const PLUGIN: &str = "kubectl-redrive";

/// Retry topology and dead-letter replay for RabbitMQ, as Kubernetes resources.
#[derive(Debug, Parser)]
#[command(name = "redrive", version, about, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what a RetryPipeline needs on its broker, and what differs from what is there.
    Plan(Box<plan::Arguments>),
    /// Describe what a vhost holds already by RetryPipelines.
    Import(Box<import::Arguments>),
    /// Show what lies in a pipeline's dead-letter queue.
    Inspect(Box<inspect::Arguments>),
    /// Move dead letters back, or plan to.
    Replay(Box<replay::Arguments>),
    /// Consent to the plan of somebody else's replay.
    Approve(approve::Arguments),
    /// End a replay for good.
    Cancel(steer::Arguments),
    /// Hold a replay.
    Suspend(steer::Arguments),
    /// Let a held replay go on.
    Resume(steer::Arguments),
    /// Print the custom resource definitions.
    Crds(crds::Arguments),
    /// Print the audit records of a DlqReplay.
    Audit(audit::Arguments),
    /// Run the operator.
    Controller(Box<controller::Arguments>),
    /// Run one DlqReplay; the operator's Jobs start it.
    #[command(hide = true)]
    ReplayWorker(Box<replay_worker::Arguments>),
}

/// How a command ended; the worst of several counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// All is as it should be.
    Nothing,
    /// There is something to do.
    Changes,
    /// Something is wrong with the input, the broker or the machine.
    Failed,
}

impl Outcome {
    fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Nothing => 0,
            Self::Changes => 2,
            Self::Failed => 1,
        })
    }
}

/// Reads the process's arguments, runs what they ask for, and says how it ended.
#[must_use]
pub fn run() -> ExitCode {
    run_with(std::env::args_os())
}

fn run_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            // Clap would end with 2, which means "changes" here.
            return if error.use_stderr() { Outcome::Failed } else { Outcome::Nothing }.exit_code();
        }
    };
    match arguments.command {
        Command::Plan(arguments) => plan::run(*arguments),
        Command::Import(arguments) => import::run(*arguments),
        Command::Inspect(arguments) => return inspect::run(&arguments).exit_code(),
        Command::Replay(arguments) => return replay::run(&arguments).exit_code(),
        Command::Approve(arguments) => return approve::run(&arguments).exit_code(),
        Command::Cancel(arguments) => return steer::run(&arguments, Steering::Cancel).exit_code(),
        Command::Suspend(arguments) => return steer::run(&arguments, Steering::Suspend).exit_code(),
        Command::Resume(arguments) => return steer::run(&arguments, Steering::Resume).exit_code(),
        Command::Crds(arguments) => crds::run(&arguments),
        Command::Audit(arguments) => audit::run(&arguments),
        Command::Controller(arguments) => controller::run(*arguments),
        // Its exit codes are for Kubernetes.
        Command::ReplayWorker(arguments) => return replay_worker::run(*arguments),
    }
    .exit_code()
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_plugin = arguments.first().is_some_and(|name| is_plugin(name));
    let command = if is_plugin { as_plugin(Arguments::command()) } else { Arguments::command() };
    command.try_get_matches_from(arguments).and_then(|matches| Arguments::from_arg_matches(&matches))
}

fn is_plugin(name: &OsStr) -> bool {
    Path::new(name).file_stem().is_some_and(|name| name == PLUGIN)
}

/// How whoever runs this calls it.
fn program() -> &'static str {
    match std::env::args_os().next() {
        Some(name) if is_plugin(&name) => "kubectl redrive",
        _ => "redrive",
    }
}

/// The same command, which calls itself `kubectl redrive` in all its texts.
fn as_plugin(command: clap::Command) -> clap::Command {
    let renamed = |text: &str| text.replace("redrive ", "kubectl redrive ");
    let command = command.name("kubectl-redrive").bin_name("kubectl redrive");
    command.mut_subcommands(|one| match one.get_after_help().map(|help| renamed(&help.to_string())) {
        Some(help) => one.after_help(help),
        None => one,
    })
}

/// Runs what talks to a cluster to its end.
fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime can be started: {error}"))?;
    let outcome = runtime.block_on(work);
    // What hangs in a resolver must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// Says on standard error why a command can't do what it was asked.
fn fail(why: impl Display) -> Outcome {
    let _ = writeln!(std::io::stderr(), "error: {why}");
    Outcome::Failed
}

/// Writes to standard output; a reader that went away is no error.
fn print(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            fail(format!("standard output can't be written: {error}"))
        }
        _ => Outcome::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_hold_together() {
        Arguments::command().debug_assert();
        as_plugin(Arguments::command()).debug_assert();
    }

    #[test]
    fn kubectl_knows_it_by_its_name() {
        assert!(is_plugin(OsStr::new("/usr/local/bin/kubectl-redrive")));
        assert!(is_plugin(OsStr::new("kubectl-redrive.exe")));
        assert!(!is_plugin(OsStr::new("/usr/local/bin/redrive")));
    }

    #[test]
    fn a_failure_is_worse_than_changes() {
        assert_eq!(
            [Outcome::Changes, Outcome::Failed, Outcome::Nothing].into_iter().max(),
            Some(Outcome::Failed)
        );
    }
}
