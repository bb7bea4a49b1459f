//! What operators of this process log: to the terminal for whoever looks for something, or all of it to
//! a file in which nothing secret may be found afterwards.

use std::fs::OpenOptions;
use std::process::Stdio;

use redrive::broker::is_loggable;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt};

/// As much as an operator can be made to log, but for what it keeps away at every level.
const ALL: &str = "debug,redrive=trace,hyper=info,h2=info,rustls=info";

/// Where operators that are processes of their own log to: the same file.
pub(crate) fn of_processes() -> Stdio {
    let path = std::env::var_os("REDRIVE_TEST_LOG_FILE");
    path.map_or_else(Stdio::null, |path| {
        OpenOptions::new().create(true).append(true).open(path).unwrap().into()
    })
}

pub(super) fn begin() {
    if std::env::var_os("REDRIVE_TEST_LOG").is_some() {
        let filter = EnvFilter::from_env("REDRIVE_TEST_LOG");
        let _ = fmt().with_env_filter(filter).try_init();
    } else if let Some(path) = std::env::var_os("REDRIVE_TEST_LOG_FILE") {
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        let lines = fmt::layer().json().flatten_event(true).with_writer(std::sync::Arc::new(file));
        let filter = EnvFilter::new(ALL).and(filter_fn(is_loggable));
        let _ = Registry::default().with(lines.with_filter(filter)).try_init();
    }
}
