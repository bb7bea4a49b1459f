//! `redrive plan`: what a RetryPipeline needs on its broker, and what differs from
//! what is there. It reads; it never writes to a broker.

pub(super) mod broker;
mod compare;
mod cost;
mod notes;
mod ownership;
mod report;
mod text;

use clap::ValueEnum;

use super::capacity::{Capacity, Load};
use super::manifest::{Manifest, Manifests, Problem};
use super::units::{Days, Percent, Rate, Size, Version};
use super::{Outcome, fail, print};
use crate::broker::Endpoint;
use compare::{Claims, Ground};
use report::Report;

const AFTER_HELP: &str = "\
Exit codes:
  0  nothing to do; without --broker: the files are valid
  1  an error: wrong arguments, an invalid file, a broker that can't be read, or
     a pipeline that is blocked by something on the broker
  2  there are changes to make
Of several files the worst counts: an error, then changes, then nothing to do.

Only RetryPipelines are planned; other kinds are named and skipped. Nothing is ever
written to a broker.

Examples:
  redrive plan -f orders.yaml
  kubectl get retrypipeline orders -o yaml | redrive plan -f - --broker http://admin@rabbit:15672
  redrive plan -f orders.yaml --capacity --rate 50/s --message-size 4KiB --failure-percent 5

JSON output has the apiVersion plan.redrive.dev/v1 and the fields outcome, pipelines,
skipped and errors; within v1 fields are only ever added.";

/// What `redrive plan` was asked.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Arguments {
    /// A file of manifests, or - for standard input; can be given several times.
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    files: Vec<String>,

    /// Without a broker: the version of RabbitMQ to plan for.
    #[arg(long, value_name = "VERSION", default_value = "4.3", conflicts_with = "broker")]
    rabbitmq: Version,

    /// Compare with this broker: the address of its management API, such as
    /// http://USER@HOST:15672. The password belongs into REDRIVE_BROKER_PASSWORD.
    #[arg(long, value_name = "URI", env = "REDRIVE_BROKER_URI", hide_env_values = true)]
    broker: Option<String>,

    /// The only certificate authorities to trust, as a PEM file. Default: the system's.
    #[arg(long, value_name = "FILE", env = "REDRIVE_BROKER_CA")]
    ca: Option<String>,

    /// The id of the cluster whose operator owns the pipelines. Default: what the
    /// markers on the broker say, else "plan".
    #[arg(long, value_name = "ID", env = "REDRIVE_CLUSTER_ID")]
    cluster_id: Option<String>,

    /// Estimate memory and disk of retry tiers and dead-letter queue.
    #[arg(long, requires_all = ["rate", "message_size"])]
    capacity: bool,

    /// Messages that arrive in the work queue, per s, m, h or d, such as 50/s.
    #[arg(long, value_name = "N/s", requires = "capacity")]
    rate: Option<Rate>,

    /// Size of a message, such as 4KiB.
    #[arg(long, value_name = "SIZE", requires = "capacity")]
    message_size: Option<Size>,

    /// Share of the messages that fail at the first attempt.
    #[arg(long, value_name = "P", default_value = "100", requires = "capacity")]
    failure_percent: Percent,

    /// Share of the retried messages that fail again, at each retry.
    #[arg(long, value_name = "P", default_value = "100", requires = "capacity")]
    retry_failure_percent: Percent,

    /// Days that dead letters stay in the dead-letter queue. Default: its retention.
    #[arg(long, value_name = "D", requires = "capacity")]
    dlq_days: Option<Days>,

    /// How to print the result.
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// What to do, with nothing left to check.
struct Settings {
    files: Vec<String>,
    target: Target,
    cluster_id: Option<String>,
    load: Option<Load>,
    output: Output,
}

/// What to compare with.
enum Target {
    /// An empty vhost of a broker of this version.
    Empty(Version),
    /// A real one.
    Broker(Box<Endpoint>),
}

impl Settings {
    fn new(arguments: Arguments) -> Result<Self, String> {
        let password = std::env::var("REDRIVE_BROKER_PASSWORD").ok();
        // A variable that is set to nothing counts as not set.
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let target = match given(arguments.broker) {
            Some(uri) => {
                let ca = given(arguments.ca);
                let endpoint = broker::endpoint(&uri, None, given(password).as_deref(), ca.as_deref())?;
                Target::Broker(Box::new(endpoint))
            }
            None => Target::Empty(arguments.rabbitmq),
        };
        let load = match (arguments.capacity, arguments.rate, arguments.message_size) {
            (true, Some(rate), Some(size)) => Some(Load {
                rate,
                size,
                failures: arguments.failure_percent,
                repeated_failures: arguments.retry_failure_percent,
                dlq_days: arguments.dlq_days,
            }),
            _ => None,
        };
        let Arguments { files, cluster_id, output, .. } = arguments;
        Ok(Self { files, target, cluster_id: given(cluster_id), load, output })
    }
}

/// Plans, prints, and says how it ended.
pub(super) fn run(arguments: Arguments) -> Outcome {
    let settings = match Settings::new(arguments) {
        Ok(settings) => settings,
        Err(why) => return fail(why),
    };
    let manifests = Manifests::read(&settings.files);
    let report = plan(&settings, manifests);
    let printed = match settings.output {
        Output::Text => {
            for problem in &report.errors {
                fail(problem);
            }
            print(&text::render(&report))
        }
        Output::Json => match serde_json::to_string_pretty(&report) {
            Ok(json) => print(&format!("{json}\n")),
            Err(error) => fail(format!("the report can't be written as JSON: {error}")),
        },
    };
    report.outcome.max(printed)
}

fn plan(settings: &Settings, manifests: Manifests) -> Report {
    let Manifests { pipelines, skipped, problems } = manifests;
    let mut report = Report::new(skipped, problems);
    let ground = match &settings.target {
        Target::Empty(version) => Ground::empty(version),
        Target::Broker(_) if pipelines.is_empty() => return report.finish(),
        Target::Broker(endpoint) => match broker::look(endpoint, &pipelines) {
            Ok(ground) => ground,
            Err(message) => {
                report.errors.push(Problem::of_no_file(message));
                return report.finish();
            }
        },
    };
    let mut claims = Claims::default();
    for manifest in &pipelines {
        match compare::pipeline(manifest, &ground, settings.cluster_id.as_deref(), &mut claims) {
            Ok(mut planned) => {
                planned.capacity = settings.load.map(|load| Capacity::new(&load, &planned.pipeline));
                report.pipelines.push(planned);
            }
            Err(messages) => report.errors.extend(messages.into_iter().map(|message| of(manifest, message))),
        }
    }
    report.finish()
}

fn of(manifest: &Manifest, message: String) -> Problem {
    Problem {
        file: Some(manifest.file.clone()),
        document: Some(manifest.document),
        ..Problem::of_no_file(message)
    }
}
