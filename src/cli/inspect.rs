//! `redrive inspect`: what lies in a pipeline's dead-letter queue, read without taking anything out.

mod read;
mod sample;
mod source;

use std::fmt::Write as _;
use std::path::PathBuf;

use self::read::{Reading, read};
use super::cluster::Cluster;
use super::print;
use super::replay::{Ending, failed, text};
use crate::api::Bucket;
use crate::replay::plan::sketch::Top;
use crate::replay::plan::survey::Summary;
use crate::replay::run::Left;

const AFTER_HELP: &str = "\
Every message goes back to its place: order, bodies and number are the same afterwards. Of headers
only those in the pipeline's replayPolicy.auditHeaders are shown.

It reads with the pipeline's Secret, if you may read that, or as a broker user of your own, whose
password is in --password-file or in REDRIVE_BROKER_PASSWORD. Without either, let the operator
look: redrive replay PIPELINE --dry-run --wait --justification TEXT

Exit codes:
  0  it was read
  1  an error

Examples:
  redrive inspect orders
  redrive inspect orders --quarantine poison --samples 3 --show-bodies
  redrive inspect orders --broker-uri http://localhost:15672 --username ann --password-file ./password";

/// What `redrive inspect` was asked.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Arguments {
    /// The pipeline's name.
    pipeline: String,

    /// Look into this quarantine instead of the dead-letter queue.
    #[arg(long, value_name = "CATEGORY", conflicts_with = "parking_lot")]
    quarantine: Option<String>,

    /// Look into the parking lot instead.
    #[arg(long)]
    parking_lot: bool,

    /// Read at most that many messages, the oldest.
    #[arg(long, value_name = "MESSAGES", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    scan_limit: u64,

    /// Show that many messages one by one, the oldest.
    #[arg(long, value_name = "MESSAGES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    samples: u32,

    /// Show their bodies too, where the pipeline's replayPolicy.allowBody lets you.
    #[arg(long)]
    show_bodies: bool,

    /// The broker's management API, such as http://HOST:15672. Default: that of the Secret.
    #[arg(long, value_name = "URI", requires = "username", help_heading = "Broker")]
    broker_uri: Option<String>,

    /// Its AMQP address, such as amqp://HOST:5672. Default: the same host at the usual port.
    #[arg(long, value_name = "URI", requires = "broker_uri", help_heading = "Broker")]
    amqp_uri: Option<String>,

    /// A user of the broker.
    #[arg(long, value_name = "NAME", requires = "broker_uri", help_heading = "Broker")]
    username: Option<String>,

    /// The file with the user's password. Default: the variable REDRIVE_BROKER_PASSWORD.
    #[arg(long, value_name = "FILE", requires = "broker_uri", help_heading = "Broker")]
    password_file: Option<PathBuf>,

    /// The only certificate authorities to trust, as a PEM file. Default: the system's.
    #[arg(long, value_name = "FILE", requires = "broker_uri", help_heading = "Broker")]
    ca: Option<PathBuf>,

    #[command(flatten)]
    cluster: Cluster,
}

/// Reads the queue and prints what is in it.
pub(super) fn run(arguments: &Arguments) -> Ending {
    super::block_on(inspect(arguments)).unwrap_or_else(failed)
}

async fn inspect(arguments: &Arguments) -> Result<Ending, String> {
    let source = source::find(arguments).await?;
    let reading = read(&source, arguments.scan_limit, arguments.samples).await?;
    print(&rendered(&reading));
    Ok(Ending::Good)
}

fn rendered(reading: &Reading) -> String {
    let Reading { queue, ready, summary, samples } = reading;
    let read = count(summary.examined);
    let mut out = match ready {
        Some(ready) => format!("{}: {} messages, {read} of them read\n", text::clean(queue), count(*ready)),
        None => format!("{}: a stream, {read} messages read\n", text::clean(queue)),
    };
    histogram(&mut out, summary);
    if !samples.is_empty() {
        out.push_str("\nThe oldest messages\n");
        for sample in samples {
            out.push_str(sample);
        }
    }
    out
}

fn histogram(out: &mut String, summary: &Summary) {
    let found = &summary.histogram;
    part(out, "reason", &found.reasons);
    part(out, "error type", &found.error_types);
    part(out, "category", &found.categories);
    part(out, "stack hash", &found.stack_hashes);
    part(out, "origin", &found.origins);
    part(out, "age", &found.ages);
    for (name, values) in &found.headers {
        part(out, &format!("header {}", text::clean(name)), values);
    }
    let later = summary.left.get(&Left::BehindFence).copied().unwrap_or_default();
    if later > 0 {
        let _ = writeln!(
            out,
            "\n{} died while this ran, or by a clock ahead of yours: not counted",
            count(later)
        );
    }
}

fn part(out: &mut String, name: &str, top: &Top) {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let mut values: Vec<Bucket> = top
        .values
        .iter()
        .map(|bucket| Bucket { value: bucket.value.clone(), count: signed(bucket.count) })
        .collect();
    if top.other > 0 {
        values.push(Bucket { value: "all others".to_owned(), count: signed(top.other) });
    }
    let name = if top.lower_bounds { format!("{name} (at least)") } else { name.to_owned() };
    text::buckets(out, &name, &values);
}

fn count(number: u64) -> String {
    text::number(i64::try_from(number).unwrap_or(i64::MAX))
}
