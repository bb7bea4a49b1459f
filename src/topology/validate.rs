//! Checks a specification and expands it; all errors are reported at once.
//!
//! The API server has checked most of this already. It is checked again here
//! because `redrive plan -f` reads files that no server has seen, and because
//! what templates and back-off expand to is only known here.

mod dead_letter;

use std::collections::BTreeSet;

use super::budget;
use super::expand;
use super::model::QueueType;
use super::names;
use super::observed::BrokerFacts;
pub use super::pipeline::{Names, Pipeline, Shard, Tier};
pub use super::problem::Problem;
use super::problem::Problems;
use super::spec::{Delays, Identity, Jitter, Mode, Ownership, Settings, SourceBinding, Spec};
use super::uses;

/// The longest time that the broker takes as a TTL: ten years, in milliseconds.
pub const MAX_TTL: i64 = 315_360_000_000;

/// Most tiers of a ladder.
pub const MAX_TIERS: usize = 32;

/// Most retry queues of a pipeline: tiers × shards.
pub const MAX_RETRY_QUEUES: usize = 64;

/// The largest number of a first tier.
pub const MAX_NUMBER_FROM: u32 = 1_000;

/// The largest priority of our policies.
pub const MAX_PRIORITY: i64 = 1_000_000;

/// Checks a specification.
///
/// # Errors
///
/// All problems found, in the order of their fields.
pub fn validate(identity: Identity, spec: Spec) -> Result<Pipeline, Vec<Problem>> {
    let mut problems = Problems::default();
    check_source(&spec, &mut problems);
    check_bindings(&spec.source.bindings, &mut problems);
    check_types(&spec, &mut problems);
    check_mode(&spec, &mut problems);
    let jitter = check_jitter(&spec, &mut problems);
    let delays = check_delays(&spec, jitter, &mut problems);
    dead_letter::check(&spec, &mut problems);

    let dlq = names::expand(&spec.dead_letter.template, &spec.source.queue, 0, "");
    let tiers = expand::tiers(&spec, &delays, jitter);
    let pipeline = Pipeline { identity, spec, tiers, dlq };
    uses::check_names(&pipeline, &mut problems.0);
    budget::check(&pipeline, &mut problems.0);

    if problems.0.is_empty() { Ok(pipeline) } else { Err(problems.0) }
}

fn check_source(spec: &Spec, problems: &mut Problems) {
    let source = &spec.source;
    if source.kind == QueueType::Classic && source.delivery_limit.is_some() {
        problems.add(
            "source.deliveryLimit",
            "classic queues have no delivery limit: remove it, or use type quorum",
        );
    }
    problems.check_range("source.deliveryLimit", source.delivery_limit, 1, 100_000, "deliveries");
    problems.check_range("source.maxLength", source.max_length, 1, i64::MAX, "messages");
    problems.check_range("source.messageTTL", source.message_ttl, 1, MAX_TTL, "ms");
    problems.check_range("source.consumerTimeout", source.consumer_timeout, 60_000, MAX_TTL, "ms");
    if source.exchange.as_ref().is_some_and(|exchange| exchange.kind.trim().is_empty()) {
        problems.add("source.exchange.type", "is empty: write a type such as topic");
    }
    if source.ownership == Ownership::External && spec.settings == Settings::Arguments {
        problems.add(
            "settings",
            "an External source keeps the arguments that its application gave it: use settings.policy",
        );
    }
    if let Settings::Policy { priority } = spec.settings {
        problems.check_range("settings.policy.priority", Some(priority), 0, MAX_PRIORITY, "as priority");
    }
}

fn check_bindings(bindings: &[SourceBinding], problems: &mut Problems) {
    let mut seen = BTreeSet::new();
    for (index, binding) in bindings.iter().enumerate() {
        let field = format!("source.bindings[{index}]");
        // Declaring, binding and deleting it are all refused by the broker (NAM-16).
        if matches!(binding.exchange.as_str(), "" | "amq.default") {
            problems.add(
                &field,
                "the default exchange leads to every queue by its name and takes no other binding: leave this one out, or bind another exchange",
            );
        } else if let Some(message) = names::problem("the exchange name", &binding.exchange) {
            problems.add(&field, message);
        } else if binding.exchange.starts_with("redrive.") {
            problems.add(&field, "binds an exchange of Redrive itself: use one of your own");
        }
        if binding.routing_key.len() > names::MAX_NAME_BYTES {
            problems.add(
                &field,
                format!(
                    "the routing key has {} bytes: at most 255 are allowed, so shorten it",
                    binding.routing_key.len()
                ),
            );
        }
        if binding.routing_key.split('.').filter(|word| *word == "#").count() > 2 {
            problems.add(
                &field,
                format!("the routing key {:?} has more than two '#': use at most two", binding.routing_key),
            );
        }
        if !seen.insert(binding) {
            problems.add(&field, "is listed twice: remove one");
        }
    }
}

/// Types and sizes that only the API server has checked so far.
fn check_types(spec: &Spec, problems: &mut Problems) {
    let kinds = [
        ("source.queue.type", spec.source.kind),
        ("retry.queueType", spec.retry_type),
        ("deadLetter.queueType", spec.dead_letter.kind),
    ];
    for (field, kind) in kinds {
        if kind == QueueType::Stream {
            problems.add(field, "a stream can't hold messages until they are dealt with: use quorum");
        }
    }
    let sizes = [
        ("source.queue.groupSize", spec.source.group_size),
        ("retry.groupSize", spec.retry_group_size),
        ("deadLetter.groupSize", spec.dead_letter.group_size),
    ];
    for (field, size) in sizes {
        problems.check_range(field, size, 1, 99, "members");
    }
}

fn check_mode(spec: &Spec, problems: &mut Problems) {
    let Mode::Native { min, max, attempts } = spec.mode else { return };
    if spec.source.kind != QueueType::Quorum {
        problems
            .add("retry.mode", "Native needs a quorum source: use source.queue.type quorum, or mode Broker");
    }
    if spec.source.delivery_limit.is_some() {
        problems.add(
            "source.deliveryLimit",
            "in mode Native retry.native.attempts sets the limit: remove deliveryLimit",
        );
    }
    problems.check_range("retry.native.min", Some(min), 1, MAX_TTL, "ms");
    problems.check_range("retry.native.max", Some(max), 1, MAX_TTL, "ms");
    problems.check_range("retry.native.attempts", Some(attempts), 1, 100_000, "attempts");
    if max < min {
        problems.add("retry.native.max", "is less than min: write a max of at least min");
    }
}

/// The jitter, or none where it can't be used.
fn check_jitter(spec: &Spec, problems: &mut Problems) -> Option<Jitter> {
    let Jitter { percent, shards } = spec.jitter?;
    let mut usable = true;
    if percent > 100 {
        problems.add("retry.jitter.percent", format!("{percent} is out of range: write 0 to 100"));
        usable = false;
    }
    if shards < 1 || shards as usize > MAX_RETRY_QUEUES {
        problems
            .add("retry.jitter.shards", format!("{shards} is out of range: write 1 to {MAX_RETRY_QUEUES}"));
        usable = false;
    }
    usable.then_some(Jitter { percent, shards })
}

fn check_delays(spec: &Spec, jitter: Option<Jitter>, problems: &mut Problems) -> Vec<i64> {
    if !spec.mode.has_tiers() {
        return Vec::new();
    }
    let (field, count) = match &spec.delays {
        Delays::List(list) => ("retry.delays", list.len()),
        Delays::Backoff { steps, .. } => ("retry.backoff", usize::try_from(*steps).unwrap_or(usize::MAX)),
    };
    check_naming(spec, count, problems);
    if !check_backoff(&spec.delays, problems) {
        return Vec::new();
    }
    // A client that never retries has a DLQ all the same.
    if count == 0 && spec.mode != Mode::Application {
        problems.add(field, "has no step: give at least one delay, or use mode None");
    }
    if count > MAX_TIERS {
        problems.add(field, format!("has {count} steps: at most {MAX_TIERS} are allowed"));
    }
    let delays = expand::delays(&spec.delays, MAX_TIERS);
    let shards = jitter.map_or(1, |jitter| jitter.shards as usize);
    if delays.len() * shards > MAX_RETRY_QUEUES {
        problems.add(
            "retry.jitter.shards",
            format!(
                "{} steps × {shards} shards: write fewer, at most {MAX_RETRY_QUEUES} queues in all",
                delays.len()
            ),
        );
    }
    for (index, tier) in expand::tiers(spec, &delays, jitter).iter().enumerate() {
        let field = format!("{field}[{index}]");
        if tier.delay < 1 {
            problems.add(&field, format!("{} ms is below 1 ms: write at least 1ms", tier.delay));
        }
        let longest = tier.shards.last().map_or(tier.delay, |shard| shard.ttl);
        if longest > MAX_TTL {
            problems.add(
                &field,
                format!("expands to {longest} ms: the broker takes at most {MAX_TTL} ms, so write at most 3650d, jitter included"),
            );
        }
    }
    delays
}

/// Whether a back-off can be computed at all.
fn check_backoff(delays: &Delays, problems: &mut Problems) -> bool {
    let Delays::Backoff { initial, factor, max, .. } = delays else { return true };
    if max < initial {
        problems.add("retry.backoff.max", "is less than initial: write a max of at least initial");
    }
    if *factor >= 1.0 && factor.is_finite() {
        return true;
    }
    problems.add("retry.backoff.factor", format!("{factor} would shorten the delays: write at least 1"));
    false
}

fn check_naming(spec: &Spec, count: usize, problems: &mut Problems) {
    let tells_apart = ["{attempt}", "{delay}"].into_iter().any(|part| spec.retry_template.contains(part));
    if !tells_apart && count > 1 {
        problems.add(
            "retry.naming.template",
            "has neither {attempt} nor {delay}, so all tiers would share one name: add one",
        );
    }
    if spec.number_from > MAX_NUMBER_FROM {
        problems.add(
            "retry.naming.numberFrom",
            format!("{} is out of range: write 0 to {MAX_NUMBER_FROM}", spec.number_from),
        );
    }
}

/// What a broker can't do for a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The broker is too old for Redrive or for what the pipeline asks.
    Version(String),
    /// A plugin is not enabled.
    Plugin(String),
}

/// Checks a pipeline against the broker it is for.
#[must_use]
pub fn check_broker(pipeline: &Pipeline, facts: &BrokerFacts) -> Vec<Unsupported> {
    let (major, minor, patch) = facts.version;
    let mut found = Vec::new();
    if facts.version < (4, 0, 0) {
        found.push(Unsupported::Version(format!(
            "RabbitMQ {major}.{minor}.{patch} is too old: use 4.0 or newer"
        )));
    }
    if matches!(pipeline.spec.mode, Mode::Native { .. }) && !facts.has_delayed_retry() {
        found.push(Unsupported::Version(format!(
            "retry.mode Native needs RabbitMQ 4.3.1 or newer and this is {major}.{minor}.{patch}: use mode Broker"
        )));
    }
    let sharded =
        pipeline.spec.mode == Mode::Broker && pipeline.tiers.iter().any(|tier| tier.shards.len() > 1);
    if sharded && !facts.exchange_types.contains("x-random") {
        found.push(Unsupported::Plugin(
            "retry.jitter needs the plugin rabbitmq_random_exchange: enable it on every node, or remove jitter".to_owned(),
        ));
    }
    if let Some(exchange) = &pipeline.spec.source.exchange
        && !facts.exchange_types.contains(&exchange.kind)
    {
        let known: Vec<&str> = facts.exchange_types.iter().map(String::as_str).collect();
        found.push(Unsupported::Plugin(format!(
            "source.exchange.type {:?} is unknown to the broker: enable its plugin, or use one of {}",
            exchange.kind,
            known.join(", ")
        )));
    }
    found
}
