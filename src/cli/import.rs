//! `redrive import`: the RetryPipelines that describe what a vhost holds already. It reads; it
//! never writes to a broker.

mod manifest;
mod text;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::plan::broker;
use super::{Outcome, fail, print};
use crate::api::{Broker, ClusterRef, SecretRef};
use crate::broker::Endpoint;
use crate::topology::effective::PolicyIndex;
use crate::topology::observed::{BrokerFacts, Observed};
use crate::topology::recognise::{self, Effect, Look, Recognised, Unfit};
use manifest::Written;

const AFTER_HELP: &str = "\
Recognised are pipelines of Redrive itself, by their markers and their structure, and work queues
that dead-letter straight to a queue with retry queues that lead straight back, as rabbitkit
and many applications declare them. Each manifest is put to the comparison that the operator
makes; its comments say whether applying it changes anything. Queues that take part in
dead-lettering and can't be described are listed on standard error, with the reason and what to
do.

Exit codes:
  0  all that dead-letters is described, and applying it changes nothing but markers
  1  an error: wrong arguments, a broker that can't be read, files that can't be written
  2  something can't be described, or applying would change something

Examples:
  redrive import --vhost /shop --broker http://admin@rabbit:15672 -n shop > pipelines.yaml
  redrive import --vhost /shop --broker http://admin@rabbit:15672 --queue 'orders.*' -o pipelines/
  redrive plan -f pipelines.yaml --broker http://admin@rabbit:15672";

/// What `redrive import` was asked.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Arguments {
    /// The vhost to read.
    #[arg(long, value_name = "VHOST")]
    vhost: String,

    /// The broker to read: the address of its management API, such as
    /// http://USER@HOST:15672. The password belongs into REDRIVE_BROKER_PASSWORD.
    #[arg(long, value_name = "URI", env = "REDRIVE_BROKER_URI", hide_env_values = true)]
    broker: String,

    /// The only certificate authorities to trust, as a PEM file. Default: the system's.
    #[arg(long, value_name = "FILE", env = "REDRIVE_BROKER_CA")]
    ca: Option<String>,

    /// Describe only work queues whose name matches, with * and ?; can be given several times.
    #[arg(long = "queue", value_name = "GLOB")]
    queues: Vec<String>,

    /// The namespace of pipelines that have none on the broker.
    #[arg(short = 'n', long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,

    /// The Secret that the pipelines connect with.
    #[arg(long, value_name = "NAME", default_value = "rabbit-connection")]
    secret: String,

    /// The RabbitmqCluster that the pipelines are on, instead of a Secret.
    #[arg(long, value_name = "[NAMESPACE/]NAME", conflicts_with = "secret")]
    cluster_ref: Option<String>,

    /// The id of the cluster whose operator will own the pipelines: only for the names of policies.
    #[arg(long, value_name = "ID", env = "REDRIVE_CLUSTER_ID")]
    cluster_id: Option<String>,

    /// Write one file for each pipeline into this directory, which is created if need be.
    #[arg(short = 'o', long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// What to do, with nothing left to check.
struct Settings {
    endpoint: Endpoint,
    wanted: Wanted,
    output: Option<PathBuf>,
}

/// What to describe, and what to call it.
struct Wanted {
    vhost: String,
    queues: Vec<fancy_regex::Regex>,
    namespace: String,
    broker: Broker,
    cluster_id: String,
}

impl Wanted {
    fn matches(&self, queue: &str) -> bool {
        self.queues.is_empty() || self.queues.iter().any(|glob| glob.is_match(queue).unwrap_or(false))
    }
}

impl Settings {
    fn new(arguments: Arguments) -> Result<Self, String> {
        let password = std::env::var("REDRIVE_BROKER_PASSWORD").ok();
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let ca = given(arguments.ca);
        let endpoint = broker::endpoint(&arguments.broker, None, given(password).as_deref(), ca.as_deref())?;
        let queues = arguments.queues.iter().map(|glob| pattern(glob)).collect::<Result<_, _>>()?;
        let reference = match &arguments.cluster_ref {
            Some(text) => Broker::ClusterRef(cluster_ref(text)),
            None => Broker::SecretRef(SecretRef { name: arguments.secret }),
        };
        let wanted = Wanted {
            vhost: arguments.vhost,
            queues,
            namespace: arguments.namespace,
            broker: reference,
            cluster_id: given(arguments.cluster_id).unwrap_or_else(|| "import".to_owned()),
        };
        Ok(Self { endpoint, wanted, output: arguments.output })
    }
}

/// `*` stands for anything, `?` for one character.
fn pattern(glob: &str) -> Result<fancy_regex::Regex, String> {
    let literal = |character: char| match character {
        '*' => ".*".to_owned(),
        '?' => ".".to_owned(),
        other => fancy_regex::escape(&other.to_string()).into_owned(),
    };
    let text: String = glob.chars().map(literal).collect();
    fancy_regex::Regex::new(&format!("^{text}$"))
        .map_err(|_| format!("--queue {glob:?} is no pattern: use * and ?"))
}

fn cluster_ref(text: &str) -> ClusterRef {
    match text.split_once('/') {
        Some((namespace, name)) => {
            ClusterRef { name: name.to_owned(), namespace: Some(namespace.to_owned()) }
        }
        None => ClusterRef { name: text.to_owned(), namespace: None },
    }
}

/// Reads, describes, writes, and says how it ended.
pub(super) fn run(arguments: Arguments) -> Outcome {
    let settings = match Settings::new(arguments) {
        Ok(settings) => settings,
        Err(why) => return fail(why),
    };
    let (overview, observed) = match broker::look_at(&settings.endpoint, &settings.wanted.vhost) {
        Ok(found) => found,
        Err(why) => return fail(why),
    };
    let (written, found) = describe(&settings.wanted, &overview.facts, &observed);
    let saved = match &settings.output {
        Some(folder) => save(folder, &written),
        None => print(&text::stream(&written)),
    };
    let _ = std::io::stderr().write_all(text::report(&written, &found, observed.queues.len()).as_bytes());
    saved.max(outcome(&written, &found))
}

/// The manifests of what is recognised; what no manifest can say is unfit.
fn describe(wanted: &Wanted, facts: &BrokerFacts, observed: &Observed) -> (Vec<Written>, Recognised) {
    let look = Look {
        observed,
        facts,
        policies: &PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref()),
        namespace: &wanted.namespace,
        cluster: &wanted.cluster_id,
    };
    let mut found = recognise::recognise(&look, &|queue| wanted.matches(queue));
    let mut written = Vec::new();
    for described in std::mem::take(&mut found.pipelines) {
        match Written::new(&described, &wanted.vhost, &wanted.broker) {
            Ok(manifest) => written.push(manifest),
            Err(why) => found.unfit.push(Unfit {
                queue: described.pipeline.spec.source.queue.clone(),
                related: Vec::new(),
                why,
                instead: recognise::BY_HAND.to_owned(),
            }),
        }
    }
    found.unfit.sort();
    (written, found)
}

fn outcome(written: &[Written], found: &Recognised) -> Outcome {
    let changes = written.iter().any(|manifest| manifest.effect != Effect::Nothing);
    if changes || !found.unfit.is_empty() { Outcome::Changes } else { Outcome::Nothing }
}

/// Writes files, and none over one that is there.
fn save(folder: &Path, written: &[Written]) -> Outcome {
    if let Err(error) = fs::create_dir_all(folder) {
        return fail(format!("{} can't be created: {error}", folder.display()));
    }
    for manifest in written {
        let path = folder.join(manifest.file_name());
        let file = fs::OpenOptions::new().write(true).create_new(true).open(&path);
        if let Err(error) = file.and_then(|mut file| file.write_all(manifest.text.as_bytes())) {
            return fail(match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    format!(
                        "{} is there already: give another directory with -o, or move it away",
                        path.display()
                    )
                }
                _ => format!("{} can't be written: {error}", path.display()),
            });
        }
    }
    Outcome::Nothing
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests;
