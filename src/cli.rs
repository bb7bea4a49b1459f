//! The command line: arguments to validated settings, settings to an outcome.
//!
//! Each subcommand has a file of its own, which holds its raw arguments, the
//! settings that they turn into, and what it does with them. Nothing past that
//! point looks at a raw argument again.

mod audit;
mod capacity;
mod controller;
mod crds;
mod manifest;
mod plan;
mod replay_worker;
mod rules;
mod schema;
mod units;
mod yaml;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            // Clap would end with 2, which means "changes" here.
            return if error.use_stderr() { Outcome::Failed } else { Outcome::Nothing }.exit_code();
        }
    };
    match arguments.command {
        Command::Plan(arguments) => plan::run(*arguments),
        Command::Crds(arguments) => crds::run(&arguments),
        Command::Audit(arguments) => audit::run(&arguments),
        Command::Controller(arguments) => controller::run(*arguments),
        // Its exit codes are for Kubernetes.
        Command::ReplayWorker(arguments) => return replay_worker::run(*arguments),
    }
    .exit_code()
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
    use clap::CommandFactory;

    #[test]
    fn the_arguments_hold_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_failure_is_worse_than_changes() {
        assert_eq!(
            [Outcome::Changes, Outcome::Failed, Outcome::Nothing].into_iter().max(),
            Some(Outcome::Failed)
        );
    }
}
