//! `redrive audit`: reads the records of a replay back.

use std::fmt::Write;
use std::sync::Arc;

use super::plan::broker;
use super::{Outcome, fail, print};
use crate::broker::AddressGuard;
use crate::runner::audit::{Stream, read};

const AFTER_HELP: &str = "\
One JSON object a line, the oldest first; docs/audit.md describes the fields.

Exit codes:
  0  the records were printed
  1  an error, or there are no records

Example:
  redrive audit orders-after-fix -n shop --broker http://auditor@rabbit:15672 --audit-vhost redrive";

/// What `redrive audit` was asked.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Arguments {
    /// The replay's name. It need not exist any more.
    name: String,

    /// The replay's namespace. Default: that of the kubeconfig's context.
    #[arg(short = 'n', long)]
    namespace: Option<String>,

    /// The broker of the audit stream: the address of its management API, such as
    /// http://USER@HOST:15672. The password belongs into REDRIVE_BROKER_PASSWORD.
    #[arg(long, value_name = "URI", env = "REDRIVE_BROKER_URI", hide_env_values = true)]
    broker: String,

    /// Its AMQP address, such as amqp://HOST:5672. Default: the same host at the usual port.
    #[arg(long, value_name = "URI", env = "REDRIVE_BROKER_AMQP_URI", hide_env_values = true)]
    amqp: Option<String>,

    /// The vhost of the audit stream.
    #[arg(long, value_name = "VHOST", env = "REDRIVE_AUDIT_VHOST")]
    audit_vhost: String,

    /// The only certificate authorities to trust, as a PEM file. Default: the system's.
    #[arg(long, value_name = "FILE", env = "REDRIVE_BROKER_CA")]
    ca: Option<String>,
}

/// Prints the records.
pub(super) fn run(arguments: &Arguments) -> Outcome {
    let password = std::env::var("REDRIVE_BROKER_PASSWORD").ok().filter(|password| !password.is_empty());
    let endpoint = broker::endpoint(
        &arguments.broker,
        arguments.amqp.as_deref(),
        password.as_deref(),
        arguments.ca.as_deref(),
    );
    let endpoint = match endpoint {
        Ok(endpoint) => Arc::new(endpoint),
        Err(why) => return fail(why),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(format!("no runtime can be started: {error}")),
    };
    let stream = Stream { endpoint, vhost: arguments.audit_vhost.clone() };
    match runtime.block_on(show(arguments, &stream)) {
        Ok(0) => fail(format!("there are no records of the replay {:?}", arguments.name)),
        Ok(_) => Outcome::Nothing,
        Err(why) => fail(why),
    }
}

async fn show(arguments: &Arguments, stream: &Stream) -> Result<usize, String> {
    let namespace = match &arguments.namespace {
        Some(namespace) => namespace.clone(),
        None => kube::Config::infer()
            .await
            .map_or_else(|_| "default".to_owned(), |config| config.default_namespace),
    };
    // Who types an address may mean this machine; the guard is for Secrets that others write.
    let guard = AddressGuard::new(true, []);
    read(stream, &guard, (&namespace, &arguments.name), |record| {
        let mut line = serde_json::to_string(record).unwrap_or_default();
        let _ = writeln!(line);
        let _ = print(&line);
    })
    .await
}
