//! A described pipeline as the manifest that a person applies.

use serde::Serialize;

use crate::api::ExchangeType;
use crate::api::{
    Broker, DeadLetter, DeathReason, Duration, GROUP, Jitter, Naming, NativeRetry, Ownership, PolicySettings,
    Quarantine, QueueType, Retry, RetryMode, RetryPipelineSpec, Settings, Source, SourceBinding,
    SourceExchange, SourceQueue, VERSION,
};
use crate::cli::manifest::Manifests;
use crate::topology::model::{Arg, QueueType as TopologyQueueType};
use crate::topology::recognise::{Described, Effect};
use crate::topology::spec as topology;

use super::text;

/// A manifest that says what was found.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) effect: Effect,
    /// The document, with comments above it.
    pub(super) text: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    api_version: String,
    kind: &'static str,
    metadata: Metadata<'a>,
    spec: &'a RetryPipelineSpec,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    namespace: &'a str,
}

impl Written {
    /// Writes it down, reads it back, and compares: what a manifest can't say must not be lost
    /// on the way.
    pub(super) fn new(described: &Described, vhost: &str, broker: &Broker) -> Result<Self, String> {
        let identity = &described.pipeline.identity;
        let spec = specification(&described.pipeline.spec, vhost, broker)?;
        let document = Document {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: "RetryPipeline",
            metadata: Metadata { name: &identity.name, namespace: &identity.namespace },
            spec: &spec,
        };
        let yaml = yaml(&document).map_err(|error| format!("it can't be written as YAML: {error}"))?;
        check(&yaml, &described.pipeline.spec)?;
        Ok(Self {
            namespace: identity.namespace.clone(),
            name: identity.name.clone(),
            effect: described.effect.clone(),
            text: format!("{}{yaml}", text::comments(described)),
        })
    }

    /// The name of its file in a directory.
    pub(super) fn file_name(&self) -> String {
        format!("{}.{}.yaml", self.namespace, self.name)
    }
}

/// Unions as maps with one key, as Kubernetes has them, and not as tags.
fn yaml(document: &Document<'_>) -> Result<String, String> {
    let mut out = Vec::new();
    let mut serializer = serde_yaml::Serializer::new(&mut out);
    serde_yaml::with::singleton_map_recursive::serialize(document, &mut serializer)
        .map_err(|error| error.to_string())?;
    drop(serializer);
    String::from_utf8(out).map_err(|error| error.to_string())
}

/// Reads a manifest as `redrive plan` would.
fn check(yaml: &str, meant: &topology::Spec) -> Result<(), String> {
    let read = Manifests::of_text("import", yaml);
    if let Some(problem) = read.problems.first() {
        let field = problem.field.as_deref().unwrap_or("the manifest");
        return Err(format!("no manifest can say so: {field}: {}", problem.message));
    }
    let found = read.pipelines.first().map(|found| found.spec.to_topology());
    let same = found.is_some_and(|mut found| {
        if !meant.mode.has_tiers() {
            found.delays.clone_from(&meant.delays);
        }
        found == *meant
    });
    if same { Ok(()) } else { Err("no manifest can say so".to_owned()) }
}

fn specification(spec: &topology::Spec, vhost: &str, broker: &Broker) -> Result<RetryPipelineSpec, String> {
    Ok(RetryPipelineSpec {
        owner: None,
        broker: broker.clone(),
        vhost: (vhost != "/").then(|| vhost.to_owned()),
        source: source(&spec.source)?,
        retry: Some(retry(spec)?),
        dead_letter: dead_letter(&spec.dead_letter)?,
        settings: settings(spec.settings)?,
        merge_policy: spec.merge_policy,
        replay_policy: None,
        drift_policy: None,
        deletion_policy: None,
        adopt: true,
        delete_adopted: false,
        suspend: false,
    })
}

fn source(source: &topology::Source) -> Result<Source, String> {
    let exchange = match &source.exchange {
        Some(exchange) => {
            Some(SourceExchange { name: exchange.name.clone(), type_: exchange_type(&exchange.kind)? })
        }
        None => None,
    };
    Ok(Source {
        ownership: (source.ownership == topology::Ownership::External).then_some(Ownership::External),
        queue: SourceQueue {
            name: source.queue.clone(),
            type_: Some(queue_type(source.kind)?),
            max_length: source.max_length,
            message_ttl: source.message_ttl.map(Duration::from_millis),
            consumer_timeout: source.consumer_timeout.map(Duration::from_millis),
            single_active_consumer: source.single_active_consumer,
            group_size: source.group_size.map(small).transpose()?,
        },
        exchange,
        bindings: source
            .bindings
            .iter()
            .map(|binding| SourceBinding {
                exchange: binding.exchange.clone(),
                routing_key: binding.routing_key.clone(),
            })
            .collect(),
        exclusive_bindings: source.exclusive_bindings,
        delivery_limit: source.delivery_limit.map(small).transpose()?,
    })
}

fn retry(spec: &topology::Spec) -> Result<Retry, String> {
    let mode = match spec.mode {
        topology::Mode::Broker => RetryMode::Broker,
        topology::Mode::Application => RetryMode::Application,
        topology::Mode::Native { .. } => RetryMode::Native,
        topology::Mode::None => RetryMode::None,
    };
    let mut retry = Retry { mode: Some(mode), ..Retry::default() };
    if let topology::Mode::Native { min, max, attempts } = spec.mode {
        retry.native = Some(NativeRetry {
            min: Duration::from_millis(min),
            max: Duration::from_millis(max),
            attempts: small(attempts)?,
        });
    }
    let topology::Delays::List(delays) = &spec.delays else {
        return Err("its delays are no list".to_owned());
    };
    if spec.mode.has_tiers() {
        retry.delays = Some(delays.iter().copied().map(Duration::from_millis).collect());
        if !delays.is_empty() {
            retry_queues(spec, &mut retry)?;
        }
    }
    Ok(retry)
}

fn retry_queues(spec: &topology::Spec, retry: &mut Retry) -> Result<(), String> {
    retry.jitter = spec
        .jitter
        .map(|jitter| {
            Ok::<_, String>(Jitter { percent: small(jitter.percent)?, shards: small(jitter.shards)? })
        })
        .transpose()?;
    let numbered = spec.retry_template.contains("{attempt}");
    retry.naming = Some(Naming {
        template: Some(spec.retry_template.clone()),
        number_from: (numbered || spec.number_from > 0).then(|| small(spec.number_from)).transpose()?,
    });
    retry.queue_type = Some(queue_type(spec.retry_type)?);
    retry.group_size = spec.retry_group_size.map(small).transpose()?;
    Ok(())
}

fn dead_letter(dead_letter: &topology::DeadLetter) -> Result<Option<DeadLetter>, String> {
    let quarantine = dead_letter.quarantine.iter().map(quarantine).collect::<Result<_, _>>()?;
    Ok(Some(DeadLetter {
        name: Some(dead_letter.template.clone()),
        retention: dead_letter.retention.map(Duration::from_millis),
        queue_type: Some(queue_type(dead_letter.kind)?),
        group_size: dead_letter.group_size.map(small).transpose()?,
        max_length: dead_letter.max_length,
        quarantine,
        parking_lot: dead_letter.parking_lot,
    }))
}

fn quarantine(category: &topology::Category) -> Result<Quarantine, String> {
    let reason = |reason: &String| {
        let known =
            [DeathReason::Rejected, DeathReason::Expired, DeathReason::Maxlen, DeathReason::DeliveryLimit];
        let found = known.into_iter().find(|known| known.as_str() == reason);
        found.ok_or_else(|| format!("the quarantine {} is for the unknown reason {reason:?}", category.name))
    };
    let header = |(key, value): (&String, &Arg)| match value {
        Arg::Str(text) => Ok((key.clone(), text.clone())),
        other => Err(format!("the quarantine {} matches {key} by {other}, which is no text", category.name)),
    };
    Ok(Quarantine {
        category: category.name.clone(),
        reasons: category.reasons.iter().map(reason).collect::<Result<_, _>>()?,
        headers: category.headers.iter().map(header).collect::<Result<_, _>>()?,
    })
}

fn settings(settings: topology::Settings) -> Result<Option<Settings>, String> {
    Ok(match settings {
        topology::Settings::Arguments => Some(Settings::Arguments {}),
        topology::Settings::Policy { priority: 10 } => None,
        topology::Settings::Policy { priority } => {
            Some(Settings::Policy(PolicySettings { priority: Some(small(priority)?) }))
        }
    })
}

fn queue_type(kind: TopologyQueueType) -> Result<QueueType, String> {
    match kind {
        TopologyQueueType::Quorum => Ok(QueueType::Quorum),
        TopologyQueueType::Classic => Ok(QueueType::Classic),
        TopologyQueueType::Stream => Err("a stream is no queue that a pipeline can have".to_owned()),
    }
}

fn exchange_type(kind: &str) -> Result<ExchangeType, String> {
    let known = [ExchangeType::Direct, ExchangeType::Fanout, ExchangeType::Headers, ExchangeType::Topic];
    let found = known.into_iter().find(|known| known.as_str() == kind);
    found.ok_or_else(|| format!("an exchange of type {kind} is none that a pipeline can declare"))
}

fn small(number: impl TryInto<i32> + Copy + std::fmt::Display) -> Result<i32, String> {
    number.try_into().map_err(|_| format!("{number} is too large for a manifest"))
}
