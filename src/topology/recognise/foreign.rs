//! What applications and client libraries declared: work queues, where they dead-letter to, and
//! the queues with a TTL that bring messages back.
//!
//! Describable is what mode Application declares: everything goes through the default exchange.
//! rabbitkit works so, and most that was written by hand. All else gets a sentence that says
//! what keeps it from being described.

mod reasons;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::effective::Subject;
use super::super::model::{Args, Destination, Policy, QueueType};
use super::super::names;
use super::super::observed::{Observed, ObservedQueue};
use super::super::spec::{Delays, Mode, Ownership, Settings, Source, SourceExchange, Spec};
use super::super::validate::MAX_PRIORITY;
use super::numbers::{self, Numbers};
use super::own::{bare, bare_source, ladder, read_bindings};
use super::{Guess, Look, naming};
use reasons::Refusal;

/// Most queues that are followed behind an exchange.
const FOLLOWED: usize = 16;

/// Where a queue's dead letters go.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way<'a> {
    exchange: &'a str,
    /// `None`: the message keeps its own.
    key: Option<&'a str>,
    /// The policy that says so; an argument otherwise.
    policy: Option<&'a Policy>,
}

/// Which queue leads where, of all queues that nobody marked.
pub(super) struct Graph<'a> {
    observed: &'a Observed,
    marked: BTreeSet<&'a str>,
    ways: BTreeMap<&'a str, Way<'a>>,
    /// By the queue that they lead to: queues with a TTL that lead straight to it.
    tiers: BTreeMap<&'a str, Vec<&'a str>>,
    /// The same, of those that lead to it through another exchange.
    roundabout: BTreeMap<&'a str, Vec<&'a str>>,
    /// What is bound to a direct exchange with a key.
    keys: HashMap<(&'a str, &'a str), Vec<&'a str>>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(look: &Look<'a>) -> Self {
        let observed = look.observed;
        let marked =
            observed.bindings_from(names::OWNER_EXCHANGE).filter_map(|marker| queue_of(&marker.destination));
        let mut keys: HashMap<(&str, &str), Vec<&str>> = HashMap::new();
        for binding in observed.bindings() {
            if let Some(queue) = queue_of(&binding.destination) {
                keys.entry((&binding.source, &binding.routing_key)).or_default().push(queue);
            }
        }
        let mut graph = Self {
            observed,
            marked: marked.collect(),
            ways: BTreeMap::new(),
            tiers: BTreeMap::new(),
            roundabout: BTreeMap::new(),
            keys,
        };
        graph.ways =
            graph.unmarked().filter_map(|(name, queue)| Some((name, way(look, name, queue)?))).collect();
        graph.find_tiers();
        graph
    }

    fn unmarked(&self) -> impl Iterator<Item = (&'a str, &'a ObservedQueue)> {
        let queues = self.observed.queues.iter().map(|(name, queue)| (name.as_str(), queue));
        queues.filter(|(name, _)| !self.marked.contains(name))
    }

    fn find_tiers(&mut self) {
        let delays: Vec<(&str, &Way<'_>)> =
            self.ways.iter().filter(|(name, _)| self.delays(name)).map(|(name, way)| (*name, way)).collect();
        let targets: BTreeSet<&str> = delays.iter().flat_map(|(_, way)| self.targets(way)).collect();
        let mut tiers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut roundabout: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        // What others come back to is a work queue, whose own TTL leads to its DLQ.
        for (name, way) in delays.into_iter().filter(|(name, _)| !targets.contains(name)) {
            for target in self.targets(way).into_iter().filter(|target| !self.is_dlq_of(target, name)) {
                let found = if way.exchange.is_empty() { &mut tiers } else { &mut roundabout };
                found.entry(target).or_default().push(name);
            }
        }
        (self.tiers, self.roundabout) = (tiers, roundabout);
    }

    /// Whether a queue is where another one, which has a TTL, dead-letters to. It looks the same as
    /// a work queue with a retry queue and no DLQ, but for the names.
    fn is_dlq_of(&self, target: &str, queue: &str) -> bool {
        !self.ways.contains_key(target) && target.starts_with(queue)
    }

    /// Whether a queue holds messages for a time and passes them on.
    fn delays(&self, name: &str) -> bool {
        self.observed.queues.get(name).is_some_and(|queue| numbers::ttl(queue).is_some())
    }

    /// The queues that a way leads to, as far as that can be told without a message.
    fn targets(&self, way: &Way<'a>) -> Vec<&'a str> {
        if way.exchange.is_empty() {
            let named = way.key.and_then(|key| self.observed.queues.get_key_value(key));
            return named.map(|(name, _)| name.as_str()).into_iter().collect();
        }
        let kind = self.observed.exchanges.get(way.exchange).map(|exchange| exchange.kind.as_str());
        if let (Some("direct"), Some(key)) = (kind, way.key) {
            let bound = self.keys.get(&(way.exchange, key)).into_iter().flatten();
            return bound.take(FOLLOWED).copied().collect();
        }
        let bound =
            self.observed.bindings_from(way.exchange).filter_map(|binding| queue_of(&binding.destination));
        bound.take(FOLLOWED).collect()
    }

    /// Work queues: those that dead-letter and are no retry queues, and those that retry queues lead to.
    pub(super) fn sources(&self) -> BTreeSet<&'a str> {
        let retries: BTreeSet<&str> =
            self.tiers.values().chain(self.roundabout.values()).flatten().copied().collect();
        let dead_lettering =
            self.ways.keys().filter(|name| !retries.contains(*name) && !self.is_orphan(name));
        let led_to =
            self.tiers.keys().chain(self.roundabout.keys()).filter(|name| !self.marked.contains(*name));
        dead_lettering.chain(led_to).copied().collect()
    }

    /// Whether a queue holds messages for another one that is not there.
    fn is_orphan(&self, name: &str) -> bool {
        self.delays(name)
            && self.ways.get(name).is_some_and(|way| way.exchange.is_empty() && self.targets(way).is_empty())
            && !self.tiers.contains_key(name)
    }

    /// The queues around a work queue.
    pub(super) fn related(&self, queue: &str) -> Vec<String> {
        let retries = self.retries(queue);
        let dead = self.ways.get(queue).into_iter().flat_map(|way| self.targets(way));
        // What dead-letters itself has its own line, unless it only holds messages for a time.
        let dead = dead.filter(|name| !self.ways.contains_key(name) || self.delays(name));
        let all: BTreeSet<&str> =
            retries.chain(dead).filter(|name| *name != queue && !self.marked.contains(name)).collect();
        all.into_iter().map(str::to_owned).collect()
    }

    fn retries(&self, queue: &str) -> impl Iterator<Item = &'a str> {
        let lists = [self.tiers.get(queue), self.roundabout.get(queue)];
        lists.into_iter().flatten().flatten().copied().collect::<Vec<_>>().into_iter()
    }

    /// What could describe a work queue, or why nothing can and what to do.
    pub(super) fn read(&self, look: &Look<'_>, queue: &str) -> Result<Vec<Guess>, (String, String)> {
        self.guess(look, queue).map(|guess| vec![guess]).map_err(|refusal| refusal.sentences(queue))
    }

    fn guess(&self, look: &Look<'_>, name: &str) -> Result<Guess, Refusal> {
        let queue = self.observed.queues.get(name).ok_or(Refusal::Gone)?;
        if let Some(what) = fleeting(queue) {
            return Err(Refusal::Fleeting(what));
        }
        let way = self.ways.get(name);
        let dlq = way.map(|way| self.dlq(name, way)).transpose()?;
        if let Some(retries) = self.roundabout.get(name) {
            return Err(Refusal::roundabout(
                retries,
                retries.first().and_then(|one| self.ways.get(one)).map_or("", |way| way.exchange),
            ));
        }
        let tiers = self.tiers.get(name).into_iter().flatten().copied();
        let ladder = ladder::of_application(look, name, tiers).map_err(Refusal::Names)?;
        let ladder =
            ladder.into_iter().next().unwrap_or_else(|| ladder::Ladder::without_tiers(Mode::Application));
        let holding = dlq.and_then(|dlq| self.observed.queues.get(dlq));
        let policy = way.and_then(|way| way.policy);
        let managed = way.is_some() && policy.is_none();
        let mut spec =
            if managed { managed_spec(look, name, queue, holding) } else { external_spec(look, name, queue) };
        spec.mode = Mode::Application;
        spec.dead_letter.template =
            dlq.map_or_else(|| "{queue}.dlq".to_owned(), |dlq| naming::of_queue(name, dlq));
        fill_holding(&mut spec, holding);
        spec.delays = Delays::List(ladder.delays);
        spec.jitter = ladder.jitter;
        (spec.retry_type, spec.retry_group_size) = (ladder.kind, ladder.group_size);
        if let Some(naming) = ladder.naming {
            (spec.retry_template, spec.number_from) = (naming.template, naming.number_from);
        }
        let mut remarks = reasons::remarks(name, managed, dlq.is_some(), policy);
        remarks.extend(self.read_source_side(look, name, &mut spec.source));
        Ok(Guess { spec, remarks })
    }

    /// The queue that a work queue dead-letters to, if it does so straight.
    fn dlq(&self, queue: &str, way: &Way<'a>) -> Result<&'a str, Refusal> {
        let policy = way.policy.map(|policy| policy.name.clone());
        if !way.exchange.is_empty() {
            return Err(Refusal::exchange(way.exchange, way.key, &self.targets(way), policy));
        }
        let key = way.key.ok_or(Refusal::OwnKey)?;
        if key == queue {
            return Err(Refusal::ToItself);
        }
        if let Some(queue) = self.observed.queues.get(key).filter(|found| found.leads_to(queue)) {
            return Err(Refusal::Loop { through: key.to_owned(), after: numbers::ttl(queue) });
        }
        Ok(key)
    }

    /// Exchange and bindings of a work queue.
    fn read_source_side(&self, look: &Look<'_>, queue: &str, source: &mut Source) -> Vec<String> {
        let mut remarks = read_bindings(look, queue, source);
        let to_source = Destination::Queue(queue.to_owned());
        let bound: BTreeSet<&str> =
            self.observed.bindings_to(&to_source).map(|binding| binding.source.as_str()).collect();
        let ours: Vec<SourceExchange> = bound.iter().filter_map(|name| self.declarable(name)).collect();
        match ours.as_slice() {
            [only] => source.exchange = Some(only.clone()),
            [] => {}
            several => {
                let names: Vec<&str> = several.iter().map(|exchange| exchange.name.as_str()).collect();
                remarks.push(format!(
                    "{queue} is bound to {}, and a RetryPipeline declares one exchange at the most: they stay their application's.",
                    ladder::shown(&names)
                ));
            }
        }
        remarks
    }

    /// An exchange as a pipeline could declare it.
    fn declarable(&self, name: &str) -> Option<SourceExchange> {
        let found = self.observed.exchanges.get(name)?;
        let known = ["direct", "fanout", "headers", "topic"].contains(&found.kind.as_str());
        let lasts = found.durable && !found.auto_delete && !found.internal;
        let usable = known && lasts && found.arguments == Args::new() && !name.starts_with("amq.");
        usable.then(|| SourceExchange { name: name.to_owned(), kind: found.kind.clone() })
    }

    /// Why a queue is left over that belongs to no work queue; `None` where it has nothing to do
    /// with dead letters.
    pub(super) fn leftover(&self, name: &str) -> Option<(String, String)> {
        if self.marked.contains(name) {
            return Some(Refusal::Marked.sentences(name));
        }
        let way = self.ways.get(name)?;
        let is_its_tier = |work: &&str| self.tiers.get(work).is_some_and(|tiers| tiers.contains(&name));
        if let Some(work) = self.targets(way).into_iter().find(|target| is_its_tier(target)) {
            return Some(Refusal::Stray(work.to_owned()).sentences(name));
        }
        let to = match (way.exchange, way.key) {
            ("", Some(key)) => format!("the queue {key}"),
            ("", None) => "the queue of each message's own routing key".to_owned(),
            (exchange, _) => format!("the exchange {exchange}"),
        };
        let exists = !self.targets(way).is_empty();
        Some(Refusal::Unclaimed { to, exists }.sentences(name))
    }
}

fn queue_of(destination: &Destination) -> Option<&str> {
    match destination {
        Destination::Queue(name) => Some(name),
        Destination::Exchange(_) => None,
    }
}

/// An argument counts before a policy, each for itself.
fn way<'a>(look: &Look<'a>, name: &str, queue: &'a ObservedQueue) -> Option<Way<'a>> {
    let policy = look.policies.user(name, Subject::Queue(queue.kind)).into_iter().next();
    let by_policy = |key: &str| policy.and_then(|policy| numbers::text(&policy.definition, key));
    let exchange = numbers::text(&queue.arguments, "x-dead-letter-exchange");
    let key = numbers::text(&queue.arguments, "x-dead-letter-routing-key");
    Some(Way {
        exchange: exchange.or_else(|| by_policy("dead-letter-exchange"))?,
        key: key.or_else(|| by_policy("dead-letter-routing-key")),
        policy: policy.filter(|_| exchange.is_none()),
    })
}

/// What keeps a queue from ever being a pipeline's source.
fn fleeting(queue: &ObservedQueue) -> Option<&'static str> {
    let found = [
        (queue.kind == QueueType::Stream, "is a stream"),
        (!queue.durable, "is not durable"),
        (queue.auto_delete, "is auto-delete"),
        (queue.exclusive, "is exclusive"),
    ];
    found.into_iter().find(|(holds, _)| *holds).map(|(_, what)| what)
}

/// A source that is declared with just these arguments.
fn managed_spec(look: &Look<'_>, name: &str, queue: &ObservedQueue, holding: Option<&ObservedQueue>) -> Spec {
    let numbers = Numbers::new(Some(queue), None);
    let mut source = bare_source(name, queue.kind);
    numbers::read_source(&mut source, &numbers);
    source.group_size = numbers::group_size(queue);
    source.single_active_consumer = queue.arguments.get("x-single-active-consumer") == Some(&true.into());
    source.delivery_limit =
        numbers::delivery_limit(queue.kind, Mode::Application, 0, look.facts, numbers.get("delivery-limit"));
    Spec { source, settings: numbers::settings(&[], &[Some(queue), holding]), ..bare(name, queue.kind) }
}

/// A source whose arguments are its application's, and whose way a policy says.
fn external_spec(look: &Look<'_>, name: &str, queue: &ObservedQueue) -> Spec {
    let source = Source { ownership: Ownership::External, ..bare_source(name, queue.kind) };
    let other = look.policies.user(name, Subject::Queue(queue.kind)).into_iter().next();
    // Ours must be above the one that is there.
    let priority = other.map_or(10, |policy| (policy.priority + 1).clamp(10, MAX_PRIORITY));
    Spec {
        source,
        settings: Settings::Policy { priority },
        merge_policy: other.is_some(),
        ..bare(name, queue.kind)
    }
}

fn fill_holding(spec: &mut Spec, holding: Option<&ObservedQueue>) {
    let numbers = Numbers::new(holding, None);
    spec.dead_letter.kind = holding.map_or(spec.source.kind, |queue| queue.kind);
    spec.dead_letter.group_size = holding.and_then(numbers::group_size);
    spec.dead_letter.retention = numbers.get("message-ttl");
    spec.dead_letter.max_length = numbers.get("max-length");
}
