//! `redrive replay`: a DlqReplay from flags, created and followed, or only printed.

mod asked;
mod ending;
mod flags;
pub(super) mod follow;
pub(super) mod text;

pub(super) use ending::Ending;

use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;

use self::flags::{Header, Place, Reason, moment};
use self::follow::{Until, follow};
use super::cluster::{Cluster, answered};
use super::{Outcome, fail, print};
use crate::api::{DlqReplay, Duration};

const AFTER_HELP: &str = "\
Exit codes:
  0  created; with --watch or --wait: it moved all that it selected (a dry run: the plan is made)
  1  an error, or the replay failed
  3  it reached its end, but messages stayed
  4  it ended early: a guard stopped it, or somebody cancelled it
  5  with --wait: it waits for a second person
  6  it was refused, and nothing has moved

Ctrl-C ends only the watching. To end the replay: redrive cancel NAME

Examples:
  redrive replay orders --dry-run --wait --justification \"what died since the release\"
  redrive replay orders --limit 10 --watch --justification \"10 of ORD-1123, fixed in 4.2.1\"
  redrive replay orders --header x-tenant-id=42 --rate 20 --print --justification \"tenant 42 asked\"";

/// What `redrive replay` was asked.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Arguments {
    /// The pipeline whose dead letters move.
    pipeline: String,

    /// Why it is right to replay now, 10 characters or more, such as which fix is deployed.
    #[arg(short, long, value_name = "TEXT")]
    justification: String,

    /// The replay's name. Default: that of the pipeline, and the time.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// End after the plan; nothing moves.
    #[arg(long)]
    dry_run: bool,

    /// Print the manifest, and send nothing to any cluster.
    #[arg(long, conflicts_with_all = ["watch", "wait"])]
    print: bool,

    /// Show the plan, and how far it is, until it has ended; also while it waits for a second
    /// person.
    #[arg(long, conflicts_with = "wait")]
    watch: bool,

    /// The same, but don't wait for a second person.
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    cluster: Cluster,

    /// The queue to read: dead-letter, quarantine:CATEGORY or parking-lot. Default: dead-letter.
    #[arg(long, value_name = "PLACE", help_heading = "Source and target")]
    from: Option<Place>,

    /// Where to: work-queue, origin, quarantine:CATEGORY, parking-lot, queue:NAME, exchange:NAME
    /// or discard. Default: work-queue.
    #[arg(long, value_name = "PLACE", help_heading = "Source and target")]
    to: Option<Place>,

    /// The routing key for --to exchange:NAME. Default: empty.
    #[arg(long, value_name = "KEY", help_heading = "Source and target")]
    to_key: Option<String>,

    /// Let the target reach more than one queue.
    #[arg(long, help_heading = "Source and target")]
    allow_fanout: bool,

    /// Messages with exactly this text in this header. Repeat it for several: all must fit.
    #[arg(long = "header", value_name = "NAME=VALUE", help_heading = "Selection")]
    headers: Vec<Header>,

    /// Messages that died last for this reason: rejected, expired, maxlen or delivery_limit.
    /// Repeat it for any of several.
    #[arg(long = "reason", value_name = "REASON", value_delimiter = ',', help_heading = "Selection")]
    reasons: Vec<Reason>,

    /// Messages that died first in this queue. Repeat it for any of several.
    #[arg(long = "first-death-queue", value_name = "QUEUE", help_heading = "Selection")]
    first_death_queues: Vec<String>,

    /// Messages whose routing key fits this topic pattern. Repeat it for any of several.
    #[arg(long = "routing-key", value_name = "PATTERN", help_heading = "Selection")]
    routing_keys: Vec<String>,

    /// The message with this id. Repeat it for several.
    #[arg(long = "message-id", value_name = "ID", help_heading = "Selection")]
    message_ids: Vec<String>,

    /// Messages that are dead for longer than this.
    #[arg(long, value_name = "DURATION", help_heading = "Selection")]
    older_than: Option<Duration>,

    /// Messages that are dead for less than this.
    #[arg(long, value_name = "DURATION", help_heading = "Selection")]
    newer_than: Option<Duration>,

    /// Messages for which this CEL expression is true, such as
    /// 'headers["x-tenant-id"] == "42"'.
    #[arg(long, value_name = "CEL", help_heading = "Selection")]
    expression: Option<String>,

    /// Move at most that many.
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(i64).range(1..), help_heading = "Selection")]
    limit: Option<i64>,

    /// Read at most that many. Default: 1000000.
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(i64).range(1..), help_heading = "Selection")]
    scan_limit: Option<i64>,

    /// The most messages per second. Default: 10.
    #[arg(long, value_name = "PER-SECOND", value_parser = clap::value_parser!(i32).range(1..=100_000), help_heading = "Pace")]
    rate: Option<i32>,

    /// Messages between two pauses. Default: 50.
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(i32).range(1..=100_000), help_heading = "Pace")]
    batch: Option<i32>,

    /// How long to pause after each batch.
    #[arg(long, value_name = "DURATION", help_heading = "Pace")]
    pause: Option<Duration>,

    /// Start with so many messages per second, and get faster step by step.
    #[arg(long, value_name = "PER-SECOND", value_parser = clap::value_parser!(i32).range(1..=100_000), help_heading = "Pace")]
    ramp_from: Option<i32>,

    /// How long each step lasts.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        requires = "ramp_from",
        help_heading = "Pace"
    )]
    ramp_every: Duration,

    /// By how much each step is faster than the one before.
    #[arg(long, value_name = "FACTOR", default_value_t = 2, requires = "ramp_from", value_parser = clap::value_parser!(i32).range(2..=100), help_heading = "Pace")]
    ramp_factor: i32,

    /// Messages in flight; a crash duplicates at most that many. Default: 500.
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(i32).range(1..=10_000), help_heading = "Pace")]
    window: Option<i32>,

    /// Pause when that many percent of the last --sample come back. Default: 20.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(i32).range(1..=100), help_heading = "Guard")]
    stop_on_return_percent: Option<i32>,

    /// How many of the last moved messages count. Default: 50.
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(i32).range(1..=100_000), help_heading = "Guard")]
    sample: Option<i32>,

    /// Messages that must have come back before the percentage counts. Default: 10.
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(i32).range(1..=100_000), help_heading = "Guard")]
    min_returns: Option<i32>,

    /// Messages that test, after a pause, whether the failures are over. Default: 5.
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(i32).range(1..=1_000), help_heading = "Guard")]
    canary_messages: Option<i32>,

    /// How long to wait before each such test. Default: 5m.
    #[arg(long, value_name = "DURATION", help_heading = "Guard")]
    canary_after: Option<Duration>,

    /// Failed tests before it stops for good. Default: 3.
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(i32).range(1..=100), help_heading = "Guard")]
    canary_tries: Option<i32>,

    /// Pause while the target holds more messages than this.
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(i64).range(1..), help_heading = "Guard")]
    pause_above_target_depth: Option<i64>,

    /// Move also while the target has no consumer.
    #[arg(long, help_heading = "Guard")]
    without_consumers: bool,

    /// Stop when that many messages find no queue. Default: 1.
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(i32).range(1..=100_000), help_heading = "Guard")]
    max_unroutable: Option<i32>,

    /// Let a moved message that fails again walk all retries. Default: it goes straight back, so
    /// that the guard sees it.
    #[arg(long, help_heading = "Messages")]
    retry_failures: bool,

    /// Keep each message's own time to live. Default: it is removed.
    #[arg(long, help_heading = "Messages")]
    keep_expiration: bool,

    /// How often one message may be replayed. Default: 3.
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(i32).range(1..=100), help_heading = "Messages")]
    max_replays_per_message: Option<i32>,

    /// A header by which consumers recognise a message that they have seen.
    #[arg(long, value_name = "NAME", help_heading = "Messages")]
    idempotency_header: Option<String>,

    /// Add that header where it is missing.
    #[arg(long, requires = "idempotency_header", help_heading = "Messages")]
    idempotency_generate: bool,

    /// Not to start before this moment, such as 2026-11-29T22:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = moment, help_heading = "Time")]
    not_before: Option<Timestamp>,

    /// The longest it may run, from the first message on. Default: 1h.
    #[arg(long, value_name = "DURATION", help_heading = "Time")]
    deadline: Option<Duration>,

    /// Create it held: it is planned, and waits for `redrive resume`.
    #[arg(long, help_heading = "Time")]
    suspend: bool,

    /// How long after its end it is deleted. Default: never.
    #[arg(long, value_name = "DURATION", help_heading = "Time")]
    ttl: Option<Duration>,
}

/// Prints the manifest, or creates it and follows the replay.
pub(super) fn run(arguments: &Arguments) -> Ending {
    let manifest = match asked::manifest(arguments, Timestamp::now()) {
        Ok(manifest) => manifest,
        Err(why) => return failed(why),
    };
    if arguments.print {
        return show(&manifest);
    }
    super::block_on(create(arguments, manifest)).unwrap_or_else(failed)
}

/// Says on standard error what went wrong.
pub(super) fn failed(why: String) -> Ending {
    let _ = fail(why);
    Ending::Failed
}

/// As people write it: without a status, and unions in the form that the API server takes.
fn show(manifest: &DlqReplay) -> Ending {
    let text = serde_json::to_value(manifest)
        .map_err(|error| error.to_string())
        .and_then(|value| serde_yaml::to_string(&value).map_err(|error| error.to_string()));
    match text.map(|text| print(&text)) {
        Ok(Outcome::Failed) => Ending::Failed,
        Ok(_) => Ending::Good,
        Err(why) => failed(format!("the manifest can't be written as YAML: {why}")),
    }
}

async fn create(arguments: &Arguments, mut manifest: DlqReplay) -> Result<Ending, String> {
    let cluster = arguments.cluster.connect().await?;
    // Where nothing stamps it, it has to be there; where something does, it is the same.
    manifest.spec.requested_by = Some(cluster.own_name().await?);
    let api = cluster.api::<DlqReplay>();
    let created = answered(api.create(&PostParams::default(), &manifest)).await?;
    let name = created.metadata.name.clone().unwrap_or_default();
    print(&format!("dlqreplay/{name} created in namespace {}\n", cluster.namespace));
    match until(arguments) {
        Some(until) => follow(&cluster, &created, until, false).await,
        None => Ok(Ending::Good),
    }
}

fn until(arguments: &Arguments) -> Option<Until> {
    match (arguments.watch, arguments.wait) {
        (true, _) => Some(Until::Ended),
        (_, true) => Some(Until::Person),
        _ => None,
    }
}
