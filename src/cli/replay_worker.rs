//! `redrive replay-worker`: one replay's worker as a process, as the operator's Jobs start it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::controller::{chain, stop_on_signals};
use super::log::{self, LogFormat};
use super::{Outcome, fail};
use crate::broker::AddressGuard;
use crate::controller::api_server_addresses;
use crate::runner::{End, INTERRUPTED, Work, files, job, work};

/// What `redrive replay-worker` was told.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The replay's namespace.
    #[arg(long)]
    namespace: String,

    /// The replay's name.
    #[arg(long)]
    name: String,

    /// The replay's UID.
    #[arg(long)]
    uid: String,

    /// The directory with the files uri, amqpUri, username, password, and optionally ca.crt,
    /// tls.crt and tls.key.
    #[arg(long, value_name = "DIRECTORY")]
    connection: PathBuf,

    /// The namespace of the Leases.
    #[arg(long, value_name = "NAMESPACE")]
    lease_namespace: String,

    /// The directory with the audit stream's connection.
    #[arg(long, value_name = "DIRECTORY", requires = "audit_vhost")]
    audit: Option<PathBuf>,

    /// The vhost of the audit stream.
    #[arg(long, value_name = "VHOST", requires = "audit")]
    audit_vhost: Option<String>,

    /// Allow brokers at loopback, link-local and the API server's addresses.
    #[arg(long)]
    allow_local_brokers: bool,

    /// What is logged, such as info or redrive=debug,kube=warn.
    #[arg(long, value_name = "FILTER", env = "REDRIVE_LOG", default_value = "info")]
    log: EnvFilter,
}

/// Works until the run is over or a signal comes. Standard output is for audit records alone.
pub(super) fn run(arguments: Arguments) -> ExitCode {
    log::begin(EnvFilter::new(arguments.log.to_string()), LogFormat::Text, None);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(format!("no runtime can be started: {error}")).exit_code(),
    };
    let code = match runtime.block_on(serve(arguments)) {
        Ok(End::Finished) => Outcome::Nothing.exit_code(),
        Ok(End::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(why) => fail(why).exit_code(),
    };
    // What hangs in a resolver must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

async fn serve(arguments: Arguments) -> Result<End, String> {
    let stop = CancellationToken::new();
    stop_on_signals(stop.clone())?;
    let config = kube::Config::infer().await.map_err(|error| chain(&error))?;
    let client = kube::Client::try_from(config).map_err(|error| chain(&error))?;
    let endpoint = files::read(&arguments.connection).map_err(|error| error.to_string())?;
    let stream = match arguments.audit.as_deref().zip(arguments.audit_vhost) {
        Some((directory, vhost)) => {
            let endpoint = files::read(directory).map_err(|error| error.to_string())?;
            Some(job::stream(endpoint, vhost))
        }
        None => None,
    };
    // Nobody has to answer where nothing is refused.
    let refused = match arguments.allow_local_brokers {
        true => Vec::new(),
        false => api_server_addresses(&client).await,
    };
    tracing::info!(arguments.namespace, arguments.name, "the worker starts");
    let job = Work {
        client,
        namespace: arguments.namespace,
        name: arguments.name,
        uid: arguments.uid,
        endpoint: Arc::new(endpoint),
        guard: AddressGuard::new(arguments.allow_local_brokers, refused),
        lease_namespace: arguments.lease_namespace,
        stream,
        print_records: true,
    };
    let end = work(job, stop).await.map_err(|error| chain(&error))?;
    tracing::info!(?end, "the worker ends");
    Ok(end)
}
