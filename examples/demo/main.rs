//! The demo: orders through a real retry topology, watched live.
//!
//! `hack/demo` prepares everything and starts this. Consumers that know nothing
//! of retries (`examples/consumer.rs` and `hack/python/consumer.py`) handle the
//! orders that are published here. Where each order is follows from what the
//! consumers say and is held against the broker's own counts and, at the end,
//! against the messages in the dead-letter and quarantine queues. Then a queue is
//! deleted by hand, to see it repaired. At last dead orders are moved back by replays,
//! with the commands that people type: with a fixed consumer, and with one that is not.
//!
//! It ends with an error that says what is missing unless every order is where it
//! belongs, every wait was as long as the pipeline says, and every replay ended as it
//! should.

mod broker;
mod orders;
mod redrive;
mod repair;
mod replays;
mod screen;
mod show;
mod topology;
mod workers;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kube::Client;

use broker::Broker;
use screen::Screen;
use show::Show;
use topology::Topology;
use workers::{Release, Workers};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The exit code that shells use for it.
const INTERRUPTED: u8 = 130;

#[derive(Parser)]
struct Arguments {
    /// The pipeline's namespace.
    #[arg(long)]
    namespace: String,
    /// The pipeline, which must be Ready.
    #[arg(long)]
    pipeline: String,
    /// A python with pika, for one of the consumers.
    #[arg(long)]
    python: PathBuf,
    /// An empty directory, the memory of the payment provider.
    #[arg(long)]
    payments: PathBuf,
    /// The command `redrive`.
    #[arg(long)]
    redrive: PathBuf,
    /// The kubeconfig of the person who asks for replays. Default: the present one.
    #[arg(long, requires = "approver")]
    requester: Option<PathBuf>,
    /// The kubeconfig of another person, who approves them. Default: nobody has to.
    #[arg(long, requires = "requester")]
    approver: Option<PathBuf>,
    /// Append lines instead of redrawing a table.
    #[arg(long)]
    plain: bool,
    /// The broker, for producer and consumers.
    #[arg(long, env = "AMQP_URI", hide_env_values = true)]
    amqp_uri: String,
    /// The broker's management API, for deleting a queue by hand.
    #[arg(long, env = "MANAGEMENT_URI", hide_env_values = true)]
    management_uri: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let outcome = tokio::select! {
        outcome = run(&arguments) => outcome,
        _ = tokio::signal::ctrl_c() => {
            eprintln!("\ninterrupted; start it again at any time");
            return ExitCode::from(INTERRUPTED);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("\nerror: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<()> {
    let client = Client::try_default().await?;
    let topology = Topology::read(client.clone(), &arguments.namespace, &arguments.pipeline).await?;
    let broker = Broker::connect(&arguments.amqp_uri, &arguments.management_uri, &topology).await?;
    broker.clean(&topology).await?;

    let version = broker.version().await?;
    let workers = Workers::start(arguments, &topology.source, Release::Broken)?;
    let screen = Screen::new(arguments.plain);
    let mut show = Show::new(topology, broker, workers, screen);
    show.screen.title(&format!(
        "RabbitMQ {version}: orders as producer and consumers see them, and the broker's own counts"
    ));
    show.walk(orders::of_the_show()).await?;
    show.check().await?;
    show.summary();
    repair::show(&mut show, client.clone(), &arguments.namespace, &arguments.pipeline).await?;
    show.check().await?;
    replays::show(&mut show, client, arguments).await
}
