//! Log lines of the long-running commands. They go to standard error.

use clap::ValueEnum;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt};

use crate::broker::is_loggable;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Begins to log what was asked for, but for lines with bodies of messages.
///
/// A directive could not keep those away: one for a span, such as `[io_loop]=trace`, wins over
/// all that name a module.
pub(super) fn begin(asked: EnvFilter, format: LogFormat) {
    let shown = asked.and(filter_fn(is_loggable));
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    Registry::default().with(lines.with_filter(shown)).init();
}
