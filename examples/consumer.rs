//! A consumer that knows nothing of retries: it handles orders, and rejects what
//! it can't handle.
//!
//! ```sh
//! AMQP_URI=amqp://… cargo run --example consumer -- --name rust-1 --queue orders.queue --payments DIR
//! ```
//!
//! Its Python sibling, `hack/python/consumer.py`, does the same. Each order says
//! in its body how the payment goes, so that a demonstration has something to
//! show: "fine", "fails once", "fails twice", "fails always", or "crashes". The
//! latter ends this process in the middle of its work, as a bug would. With
//! `--fixed` it is the release in which no payment fails for ever.
//!
//! For each delivery it prints a line of JSON before it settles it.

use std::error::Error;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use clap::Parser;
use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use serde::Deserialize;
use serde_json::json;

#[derive(Parser)]
struct Arguments {
    /// What the broker and the printed lines call this consumer.
    #[arg(long)]
    name: String,
    /// The queue to consume.
    #[arg(long)]
    queue: String,
    /// The payment provider's memory, a directory that all consumers share.
    #[arg(long)]
    payments: PathBuf,
    /// Be the release in which the payments that always failed go through.
    #[arg(long)]
    fixed: bool,
    /// The broker.
    #[arg(long, env = "AMQP_URI", hide_env_values = true)]
    amqp_uri: String,
}

/// What a message says.
#[derive(Deserialize)]
struct Order {
    order: String,
    payment: Payment,
}

/// How the payment of an order goes.
#[derive(Clone, Copy, Deserialize)]
enum Payment {
    #[serde(rename = "fine")]
    Fine,
    #[serde(rename = "fails once")]
    FailsOnce,
    #[serde(rename = "fails twice")]
    FailsTwice,
    #[serde(rename = "fails always")]
    FailsAlways,
    #[serde(rename = "crashes")]
    Crashes,
}

impl Payment {
    fn failures(self, fixed: bool) -> u32 {
        match self {
            Self::Fine | Self::Crashes => 0,
            Self::FailsOnce => 1,
            Self::FailsTwice => 2,
            Self::FailsAlways if fixed => 0,
            Self::FailsAlways => 1_000,
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let properties =
        ConnectionProperties::default().with_connection_name(format!("consumer {}", arguments.name).into());
    let connection = Connection::connect(&arguments.amqp_uri, properties).await?;
    let channel = connection.create_channel().await?;
    // A consumer that crashes takes with it what it holds: so hold one message only.
    channel.basic_qos(1, BasicQosOptions::default()).await?;
    let queue = arguments.queue.as_str().into();
    let mut deliveries = channel
        .basic_consume(queue, "".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    while let Some(delivery) = deliveries.next().await {
        handle(&delivery?, &arguments).await?;
    }
    Ok(())
}

/// Handles one delivery: acknowledges it, rejects it, or crashes.
async fn handle(delivery: &Delivery, arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let order: Order = serde_json::from_slice(&delivery.data)?;
    let tell = |result: &str| {
        let exchange = delivery.exchange.as_str();
        let line =
            json!({"consumer": arguments.name, "order": order.order, "exchange": exchange, "result": result});
        println!("{line}");
    };
    if matches!(order.payment, Payment::Crashes) {
        tell("crashed");
        std::process::exit(1);
    }
    if pay(&order, arguments)? {
        tell("processed");
        delivery.ack(BasicAckOptions::default()).await?;
    } else {
        tell("rejected");
        // All that a consumer has to do. Where the message goes is not its business.
        delivery.reject(BasicRejectOptions { requeue: false }).await?;
    }
    Ok(())
}

/// Asks the payment provider, who remembers across all consumers how often an
/// order was tried. Returns whether the payment went through.
fn pay(order: &Order, arguments: &Arguments) -> io::Result<bool> {
    for attempt in 0..order.payment.failures(arguments.fixed) {
        match File::create_new(arguments.payments.join(format!("{}.{attempt}", order.order))) {
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
