//! A checked pipeline, and the names of everything around its source queue.
//!
//! Families of names start with the source queue's name and are reserved for its
//! pipeline: `Q.dlx…` for the chain and `Q.return.N` for the way back.

use super::names;
use super::spec::{Identity, Mode, Spec};

/// The quarantine category that replays use, so that users can't.
pub const REPLAY_LIMIT_CATEGORY: &str = "replay-limit";

/// One retry queue of a tier: a tier without jitter has one, with the tier's delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The number in `.sK`; `None` without jitter.
    pub number: Option<u32>,
    /// The delay in milliseconds.
    pub ttl: i64,
}

/// One step of the ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// The number in names; the first tier has the specification's `number_from`.
    pub number: u32,
    /// The wanted delay in milliseconds.
    pub delay: i64,
    /// The name of its queue in generation one, without shards.
    pub name: String,
    /// Its queues.
    pub shards: Vec<Shard>,
}

impl Tier {
    /// The name of one of its queues in a generation.
    #[must_use]
    pub fn queue(&self, generation: u32, shard: &Shard) -> String {
        let name = names::generation(&self.name, generation);
        match shard.number {
            Some(number) => format!("{name}.s{number}"),
            None => name,
        }
    }

    /// The exchange that spreads messages over the queues of a generation. It has
    /// their name, so that no two ladders ever share one.
    #[must_use]
    pub fn spreader(&self, generation: u32) -> String {
        format!("{}.shards", names::generation(&self.name, generation))
    }
}

/// A specification that holds, with its names and delays expanded.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// Who it is.
    pub identity: Identity,
    /// What it asks for.
    pub spec: Spec,
    /// The ladder, first step first; empty in the modes Native and None.
    pub tiers: Vec<Tier>,
    /// The name of the DLQ.
    pub dlq: String,
}

impl Pipeline {
    /// Names of the exchanges and queues around the source.
    #[must_use]
    pub fn names(&self) -> Names<'_> {
        Names::new(&self.spec.source.queue, &self.dlq)
    }

    /// Whether dead letters of the source pass the chain of exchanges. Mode
    /// Application without quarantine sends them straight to the DLQ.
    #[must_use]
    pub fn has_chain(&self) -> bool {
        self.spec.mode != Mode::Application || !self.spec.dead_letter.quarantine.is_empty()
    }

    /// The quarantine categories that get a queue: the user's, and one for replays.
    pub fn quarantine_categories(&self) -> impl Iterator<Item = &str> {
        let categories = &self.spec.dead_letter.quarantine;
        let for_replays = (!categories.is_empty()).then_some(REPLAY_LIMIT_CATEGORY);
        categories.iter().map(|category| category.name.as_str()).chain(for_replays)
    }

    /// The queues that this pipeline claims for itself, in generation one.
    pub fn claimed_queues(&self) -> impl Iterator<Item = String> {
        let names = self.names();
        let tiers = self.tiers.iter().flat_map(|tier| tier.shards.iter().map(|shard| tier.queue(1, shard)));
        let quarantine = self.quarantine_categories().map(move |category| names.quarantine(category));
        let parking_lot = self.spec.dead_letter.parking_lot.then(|| names.parking_lot());
        let fixed = [self.spec.source.queue.clone(), self.dlq.clone()];
        fixed.into_iter().chain(tiers).chain(quarantine).chain(parking_lot)
    }

    /// The longest delay that a message may still have to wait, in milliseconds.
    #[must_use]
    pub fn longest_delay(&self) -> i64 {
        self.tiers.iter().flat_map(|tier| &tier.shards).map(|shard| shard.ttl).max().unwrap_or(0)
    }
}

/// Names derived from the source queue and the DLQ.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    queue: &'a str,
    dlq: &'a str,
}

impl<'a> Names<'a> {
    /// The names around a source queue and its DLQ.
    pub(super) fn new(queue: &'a str, dlq: &'a str) -> Self {
        Self { queue, dlq }
    }
}

impl Names<'_> {
    /// The source's dead-letter exchange, first of the two slots.
    #[must_use]
    pub fn head(&self) -> String {
        format!("{}.dlx", self.queue)
    }

    /// The second slot.
    #[must_use]
    pub fn alternate(&self) -> String {
        format!("{}.dlx.alt", self.queue)
    }

    /// Leads to the DLQ while neither slot holds a chain. It is in no chain, so
    /// that a chain may end in another DLQ than the one before.
    #[must_use]
    pub fn fallback(&self) -> String {
        format!("{}.dlx.fallback", self.queue)
    }

    /// Where everything ends that nothing else in the chain took.
    #[must_use]
    pub fn rest(&self) -> String {
        format!("{}.dlx.rest", self.queue)
    }

    /// Sends what asked for it straight to the DLQ.
    #[must_use]
    pub fn dead(&self) -> String {
        format!("{}.dlx.dead", self.queue)
    }

    /// Routes one quarantine category.
    #[must_use]
    pub fn category(&self, category: &str) -> String {
        format!("{}.dlx.category.{category}", self.queue)
    }

    /// Routes a failure after tier N to tier N + 1.
    #[must_use]
    pub fn ladder(&self) -> String {
        format!("{}.dlx.ladder", self.queue)
    }

    /// Keeps what the ladder did not take from starting over.
    #[must_use]
    pub fn guard(&self) -> String {
        format!("{}.dlx.guard", self.queue)
    }

    /// Routes the first failure to the first tier.
    #[must_use]
    pub fn first(&self) -> String {
        format!("{}.dlx.first", self.queue)
    }

    /// Reads the generation of one of a chain's exchanges back.
    #[must_use]
    pub fn chain_generation(&self, exchange: &str) -> Option<u32> {
        let rest = exchange.strip_prefix(self.queue)?.strip_prefix(".dlx.")?;
        let base = rest.rsplit_once(".g").map_or(rest, |(base, _)| base);
        let in_chain = matches!(base, "rest" | "dead" | "ladder" | "guard" | "first")
            || base.strip_prefix("category.").is_some_and(|category| !category.contains('.'));
        in_chain.then(|| names::generation_of(base, rest))?
    }

    /// Brings messages of a tier back to the source.
    #[must_use]
    pub fn returns(&self, number: u32) -> String {
        format!("{}.return.{number}", self.queue)
    }

    /// Reads the number of a return exchange back.
    #[must_use]
    pub fn return_number(&self, exchange: &str) -> Option<u32> {
        let digits = exchange.strip_prefix(self.queue)?.strip_prefix(".return.")?;
        let number: u32 = digits.parse().ok()?;
        (number.to_string() == digits).then_some(number)
    }

    /// Leads what comes in past the source, while that is made anew.
    #[must_use]
    pub fn divert(&self) -> String {
        names::stand_in(self.queue, 1)
    }

    /// Where that leads to then.
    #[must_use]
    pub fn aside(&self) -> String {
        format!("{}.aside", self.divert())
    }

    /// Whether an exchange's name is kept for the chain, the way back, or the way past the source.
    #[must_use]
    pub fn is_reserved(&self, exchange: &str) -> bool {
        let Some(rest) = exchange.strip_prefix(self.queue) else { return false };
        let past = [self.divert(), self.aside()];
        rest == ".dlx"
            || rest.starts_with(".dlx.")
            || self.return_number(exchange).is_some()
            || past.iter().any(|name| name == exchange)
    }

    /// The quarantine queue of a category.
    #[must_use]
    pub fn quarantine(&self, category: &str) -> String {
        format!("{}.quarantine.{category}", self.dlq)
    }

    /// The queue for long-term holds.
    #[must_use]
    pub fn parking_lot(&self) -> String {
        format!("{}.parking", self.dlq)
    }
}
