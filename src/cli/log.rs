//! Log lines of the long-running commands. They go to standard error.

use clap::ValueEnum;
use tracing::Subscriber;
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::broker::is_loggable;
use crate::ops::traces::Traces;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Begins to log what was asked for, but for lines with bodies of messages, and to trace.
///
/// A directive could not keep those away: one for a span, such as `[io_loop]=trace`, wins over
/// all that name a module.
pub(super) fn begin(asked: EnvFilter, format: LogFormat, traces: Option<&Traces>) {
    let shown = asked.and(filter_fn(is_loggable));
    Registry::default().with(lines(format).with_filter(shown)).with(traces.map(Traces::layer)).init();
}

/// Logs warnings of what has to be done before.
pub(super) fn before<T>(format: LogFormat, work: impl FnOnce() -> T) -> T {
    let early = Registry::default().with(lines(format).with_filter(LevelFilter::WARN));
    tracing::subscriber::with_default(early, work)
}

fn lines<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let lines = fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}
