//! What Redrive declared, read back from markers and structure.
//!
//! Markers say which objects are a pipeline's, and not what they are for. That their names and the
//! way of a message through them tell, so that a cluster whose resources were lost is described
//! again.

mod chain;
pub(super) mod ladder;

use std::collections::{BTreeMap, BTreeSet};

use super::super::desired::policy_name;
use super::super::effective::{Subject, exact_name};
use super::super::model::{Args, Destination, Policy, QueueType};
use super::super::names::OWNER_EXCHANGE;
use super::super::observed::ObservedQueue;
use super::super::ownership::owner_of;
use super::super::pipeline::Names;
use super::super::policy_check;
use super::super::spec::{
    DeadLetter, Delays, Identity, Mode, Ownership, Settings, Source, SourceBinding, SourceExchange, Spec,
};
use super::naming::{self, Naming};
use super::numbers::{self, Numbers};
use super::{Guess, Look};
use chain::Chain;
use ladder::Ladder;

/// Most bindings that a pipeline lists.
const MAX_BINDINGS: usize = 64;

/// The objects with one pipeline's markers.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects<'a> {
    pub(super) queues: BTreeSet<&'a str>,
    pub(super) exchanges: BTreeSet<&'a str>,
}

/// Who has markers here, and on what. Resources of the same name that came after each other are one.
pub(super) fn owners<'a>(look: &Look<'a>) -> BTreeMap<Identity, Objects<'a>> {
    let mut found: BTreeMap<Identity, Objects<'a>> = BTreeMap::new();
    for marker in look.observed.bindings_from(OWNER_EXCHANGE) {
        let Some(owner) = owner_of(marker) else { continue };
        let objects = found.entry(Identity { uid: String::new(), ..owner }).or_default();
        match &marker.destination {
            Destination::Queue(name) => objects.queues.insert(name),
            Destination::Exchange(name) => objects.exchanges.insert(name),
        };
    }
    found
}

/// The source queue: the one that the chain is named after, that a policy makes dead-letter, or that
/// the retry queues lead to.
pub(super) fn source(look: &Look<'_>, owner: &Identity, objects: &Objects<'_>) -> Option<String> {
    let by_chain = objects.exchanges.iter().find_map(|exchange| exchange.strip_suffix(".dlx.fallback"));
    if let Some(queue) = by_chain {
        return Some(queue.to_owned());
    }
    if let Some(policy) = look.policies.named(&policy_name(owner, "source")) {
        return exact_name(&policy.pattern);
    }
    let queue = |name: &&str| look.observed.queues.get(*name);
    // A source may have a TTL as well; unlike a DLQ it dead-letters itself.
    let dead_letters = |name: &&str| {
        let queue = look.observed.queues.get(*name);
        queue.is_some_and(|queue| queue.arguments.contains_key("x-dead-letter-exchange"))
    };
    let tiers = objects.queues.iter().filter_map(queue).filter(|queue| numbers::ttl(queue).is_some());
    let mut targets = tiers.filter_map(|queue| numbers::text(&queue.arguments, "x-dead-letter-routing-key"));
    let by_tier = targets.find(dead_letters).map(str::to_owned);
    // Without a retry there is only the source and where it dead-letters to.
    by_tier.or_else(|| objects.queues.iter().copied().find(dead_letters).map(str::to_owned))
}

/// Everything that is read of one pipeline.
struct Reader<'a> {
    look: &'a Look<'a>,
    owner: &'a Identity,
    objects: &'a Objects<'a>,
    queue: &'a str,
    source: &'a ObservedQueue,
    declared: bool,
}

/// Guesses what the pipeline around a source queue asks for.
pub(super) fn read(
    look: &Look<'_>,
    owner: &Identity,
    objects: &Objects<'_>,
    queue: &str,
) -> Result<Vec<Guess>, String> {
    let source = look
        .observed
        .queues
        .get(queue)
        .ok_or_else(|| format!("its source queue {queue} does not exist any more"))?;
    let declared = objects.queues.contains(queue);
    Reader { look, owner, objects, queue, source, declared }.guesses()
}

impl Reader<'_> {
    fn guesses(&self) -> Result<Vec<Guess>, String> {
        let chain = Chain::read(self.look, self.queue, self.objects)?;
        let own = self.look.policies.named(&policy_name(self.owner, "source"));
        let dlq = match &chain {
            Some(chain) => chain.dlq.clone(),
            None => self.straight(own)?,
        };
        let holding = self.look.observed.queues.get(&dlq);
        let dlq_policy = self.look.policies.named(&policy_name(self.owner, "dlq"));
        let other = if self.declared { None } else { self.other_policy() };
        let ladder = self.ladder(chain.as_ref(), &dlq)?;
        let mut spec = self.base(&dlq, holding, dlq_policy);
        spec.merge_policy = other.is_some();
        spec.settings =
            match numbers::settings(&[own, dlq_policy], &[self.declared.then_some(self.source), holding]) {
                Settings::Arguments if !self.declared => Settings::Policy { priority: 10 },
                settings => settings,
            };
        if let Some(chain) = chain {
            spec.dead_letter.quarantine = chain.categories;
        }
        let remarks = self.read_bindings(&mut spec.source);
        let sources = if other.is_some() { vec![other, None] } else { vec![None] };
        let mut guesses = Vec::new();
        for merged in sources {
            let numbers = Numbers::new(self.declared.then_some(self.source), own);
            for ladder in &ladder {
                let mut spec = spec.clone();
                self.fill(&mut spec, ladder, &numbers, merged);
                guesses.push(Guess { spec, remarks: remarks.clone() });
            }
        }
        Ok(guesses)
    }

    /// The mode, the tiers and the source's numbers.
    fn fill(&self, spec: &mut Spec, ladder: &Ladder, numbers: &Numbers<'_>, merged: Option<&Policy>) {
        numbers::read_source(&mut spec.source, &numbers.without(merged));
        spec.mode = ladder.mode;
        if let Mode::Native { attempts, .. } = &mut spec.mode {
            *attempts =
                numbers.get("delivery-limit").unwrap_or(super::super::desired::DEFAULT_DELIVERY_LIMIT);
        }
        let limit = numbers.get("delivery-limit");
        spec.source.delivery_limit = numbers::delivery_limit(
            spec.source.kind,
            ladder.mode,
            ladder.delays.len(),
            self.look.facts,
            limit,
        );
        if ladder.mode.has_tiers() {
            spec.delays = Delays::List(ladder.delays.clone());
            spec.jitter = ladder.jitter;
            spec.retry_type = ladder.kind;
            spec.retry_group_size = ladder.group_size;
            if let Some(Naming { template, number_from, .. }) = &ladder.naming {
                spec.retry_template.clone_from(template);
                spec.number_from = *number_from;
            }
        }
    }

    /// The DLQ of a source that dead-letters straight to it.
    fn straight(&self, own: Option<&Policy>) -> Result<String, String> {
        let by_argument = numbers::text(&self.source.arguments, "x-dead-letter-routing-key");
        let by_policy = own.and_then(|policy| numbers::text(&policy.definition, "dead-letter-routing-key"));
        let found = by_argument.or(by_policy);
        found
            .map(str::to_owned)
            .ok_or_else(|| format!("its source queue {} has no way for dead letters", self.queue))
    }

    fn base(&self, dlq: &str, holding: Option<&ObservedQueue>, policy: Option<&Policy>) -> Spec {
        let numbers = Numbers::new(holding, policy);
        let names = Names::new(self.queue, dlq);
        Spec {
            source: Source {
                ownership: if self.declared { Ownership::Managed } else { Ownership::External },
                group_size: numbers::group_size(self.source).filter(|_| self.declared),
                single_active_consumer: self.declared
                    && self.source.arguments.get("x-single-active-consumer") == Some(&true.into()),
                ..bare_source(self.queue, self.source.kind)
            },
            dead_letter: DeadLetter {
                template: naming::of_queue(self.queue, dlq),
                retention: numbers.get("message-ttl"),
                kind: holding.map_or(QueueType::Quorum, |queue| queue.kind),
                group_size: holding.and_then(numbers::group_size),
                max_length: numbers.get("max-length"),
                quarantine: Vec::new(),
                parking_lot: self.objects.queues.contains(names.parking_lot().as_str()),
            },
            ..bare(self.queue, self.source.kind)
        }
    }

    /// The policy of an External source whose keys were merged into ours.
    fn other_policy(&self) -> Option<&Policy> {
        let matching = self.look.policies.user(self.queue, Subject::Queue(self.source.kind));
        matching.into_iter().find(|policy| !policy_check::is_own(self.owner, policy))
    }

    fn ladder(&self, chain: Option<&Chain>, dlq: &str) -> Result<Vec<Ladder>, String> {
        if let Some(chain) = chain.filter(|chain| chain.has_ladder()) {
            return chain.walk(self.look, self.queue, dlq);
        }
        let own = self.look.policies.named(&policy_name(self.owner, "source"));
        let numbers = Numbers::new(self.declared.then_some(self.source), own);
        if let (Some(min), Some(max)) = (numbers.get("delayed-retry-min"), numbers.get("delayed-retry-max")) {
            return Ok(vec![Ladder::without_tiers(Mode::Native { min, max, attempts: 0 })]);
        }
        let tiers = ladder::of_application(self.look, self.queue, self.objects.queues.iter().copied())?;
        if tiers.is_empty() {
            let mode = if chain.is_some() { Mode::None } else { Mode::Application };
            return Ok(vec![Ladder::without_tiers(mode)]);
        }
        Ok(tiers)
    }

    /// The user's exchange and bindings; says what is left out.
    fn read_bindings(&self, source: &mut Source) -> Vec<String> {
        let names = Names::new(self.queue, "");
        let known = |name: &&&str| {
            let found = self.look.observed.exchanges.get(**name);
            found.is_some_and(|exchange| !exchange.internal) && !names.is_reserved(name)
        };
        let exchanges: Vec<&str> = self.objects.exchanges.iter().filter(known).copied().collect();
        let to_source = Destination::Queue(self.queue.to_owned());
        let bound = |name: &&&str| {
            self.look.observed.bindings_to(&to_source).any(|binding| binding.source == ***name)
        };
        let exchange = exchanges.iter().find(bound).or_else(|| exchanges.first());
        source.exchange = exchange.and_then(|name| {
            let kind = self.look.observed.exchanges.get(*name)?.kind.clone();
            Some(SourceExchange { name: (*name).to_owned(), kind })
        });
        read_bindings(self.look, self.queue, source)
    }
}

/// Lists what is bound to a source; says what is left out.
pub(super) fn read_bindings(look: &Look<'_>, queue: &str, source: &mut Source) -> Vec<String> {
    let names = Names::new(queue, "");
    let to_source = Destination::Queue(queue.to_owned());
    let of_users = look
        .observed
        .bindings_to(&to_source)
        .filter(|binding| binding.source != OWNER_EXCHANGE && names.return_number(&binding.source).is_none());
    let (plain, by_arguments): (Vec<_>, Vec<_>) =
        of_users.partition(|binding| binding.arguments == Args::new());
    let mut remarks = Vec::new();
    if !by_arguments.is_empty() {
        remarks.push(format!(
            "{} of {queue} match by arguments, which a RetryPipeline can't list: they stay as they are.",
            counted(by_arguments.len(), "binding", "bindings")
        ));
    }
    if plain.len() > MAX_BINDINGS {
        remarks.push(format!(
            "{queue} has {} bindings, and a RetryPipeline lists {MAX_BINDINGS} at the most: none is listed here, and \
             they stay as they are.",
            plain.len()
        ));
        return remarks;
    }
    let listed = plain.into_iter().map(|binding| SourceBinding {
        exchange: binding.source.clone(),
        routing_key: binding.routing_key.clone(),
    });
    source.bindings = listed.collect();
    remarks
}

/// `1 binding`, `2 bindings`.
pub(super) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A source of which nothing but its name and type is known.
pub(super) fn bare_source(queue: &str, kind: QueueType) -> Source {
    Source {
        ownership: Ownership::Managed,
        queue: queue.to_owned(),
        kind,
        max_length: None,
        message_ttl: None,
        consumer_timeout: None,
        single_active_consumer: false,
        group_size: None,
        exchange: None,
        bindings: Vec::new(),
        exclusive_bindings: false,
        delivery_limit: None,
    }
}

/// A pipeline of which nothing but its source is known.
pub(super) fn bare(queue: &str, kind: QueueType) -> Spec {
    Spec {
        source: bare_source(queue, kind),
        mode: Mode::None,
        delays: Delays::List(Vec::new()),
        jitter: None,
        retry_template: "{queue}.retry.{attempt}".to_owned(),
        number_from: 0,
        retry_type: QueueType::Quorum,
        retry_group_size: None,
        dead_letter: DeadLetter {
            template: "{queue}.dlq".to_owned(),
            retention: None,
            kind: QueueType::Quorum,
            group_size: None,
            max_length: None,
            quarantine: Vec::new(),
            parking_lot: false,
        },
        settings: Settings::Policy { priority: 10 },
        merge_policy: false,
    }
}
