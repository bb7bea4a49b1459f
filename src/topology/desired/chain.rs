//! The chain of exchanges that a dead letter of the source passes.

use super::super::model::{Arg, Args, Destination};
use super::super::names;
use super::super::plan::Stage;
use super::super::spec::{Category, Mode};
use super::super::validate::Tier;
use super::{Builder, Slots};

impl Builder<'_> {
    pub(super) fn chain(&mut self) {
        let names = self.pipeline.names();
        let generation = self.generations.chain;
        let named = |base: String| names::generation(&base, generation);
        let (head, alternate, fallback) = (names.head(), names.alternate(), names.fallback());
        self.exchange(Stage::Fallback, fallback.clone(), "fanout", None, 1);
        self.bind(Stage::Fallback, &fallback, self.dlq(), Args::new());

        // Built from the end, so that each exchange knows its alternate.
        let rest = named(names.rest());
        self.exchange(Stage::Rest, rest.clone(), "fanout", None, generation);
        self.bind(Stage::Rest, &rest, self.dlq(), Args::new());
        let mut next = rest.clone();
        if self.pipeline.spec.mode == Mode::Broker {
            let (first, guard, ladder) = (named(names.first()), named(names.guard()), named(names.ladder()));
            self.exchange(Stage::First, first.clone(), "headers", Some(&rest), generation);
            self.exchange(Stage::Guard, guard.clone(), "headers", Some(&first), generation);
            self.exchange(Stage::Ladder, ladder.clone(), "headers", Some(&guard), generation);
            self.first_rule(&first);
            self.guard_rules(&guard, &rest);
            self.ladder_rules(&ladder);
            next = ladder;
        }
        for category in self.pipeline.spec.dead_letter.quarantine.iter().rev() {
            let exchange = named(names.category(&category.name));
            self.exchange(Stage::Category, exchange.clone(), "headers", Some(&next), generation);
            let queue = Destination::Queue(self.in_use(&names.quarantine(&category.name)));
            for arguments in category_matches(category) {
                self.bind(Stage::Category, &exchange, queue.clone(), arguments);
            }
            next = exchange;
        }
        let entry = named(names.dead());
        self.exchange(Stage::Dead, entry.clone(), "headers", Some(&next), generation);
        // A replay asked for it, or an AMQP 1.0 consumer that gave up.
        for (header, value) in [("x-redrive-on-failure", "dead-letter"), ("x-opt-redrive", "dead")] {
            self.bind(Stage::Dead, &entry, self.dlq(), match_all([(header, Arg::from(value))]));
        }
        self.exchange(Stage::Slot, alternate.clone(), "fanout", Some(&fallback), 1);
        self.exchange(Stage::Slot, head.clone(), "fanout", Some(&alternate), 1);
        self.desired.slots = Some(Slots { head, alternate, entry });
    }

    /// From each tier to the next one above it. The same rule serves tiers that
    /// were removed: their messages go on, and never down.
    fn ladder_rules(&mut self, ladder: &str) {
        let tiers = &self.pipeline.tiers;
        for number in self.return_numbers() {
            let above = tiers.iter().find(|tier| tier.number > number);
            let target = above.map_or_else(|| self.dlq(), |tier| self.tier_target(tier));
            let returned = returned_match(&self.pipeline.names().returns(number));
            self.bind(Stage::Ladder, ladder, target, returned);
        }
    }

    /// What came back and found no way up must not start over.
    fn guard_rules(&mut self, guard: &str, rest: &str) {
        for number in self.return_numbers() {
            let returned = returned_match(&self.pipeline.names().returns(number));
            self.bind(Stage::Guard, guard, Destination::Exchange(rest.to_owned()), returned);
        }
    }

    fn first_rule(&mut self, first: &str) {
        if let Some(tier) = self.pipeline.tiers.first() {
            let target = self.tier_target(tier);
            let rejected = match_all([("x-last-death-reason", Arg::from("rejected"))]);
            self.bind(Stage::First, first, target, rejected);
        }
    }

    fn tier_target(&self, tier: &Tier) -> Destination {
        let generation = self.generations.tier(tier.number);
        match tier.shards.as_slice() {
            [only] => Destination::Queue(tier.queue(generation, only)),
            _ => Destination::Exchange(tier.spreader(generation)),
        }
    }
}

/// Matches messages that have all these headers, those with `x-` included.
fn match_all<'a>(headers: impl IntoIterator<Item = (&'a str, Arg)>) -> Args {
    let mode = ("x-match", Arg::from("all-with-x"));
    headers.into_iter().chain([mode]).map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Matches a rejection of a message that came back through a return exchange.
/// The broker stamps both headers itself and overwrites what a producer forged.
fn returned_match(exchange: &str) -> Args {
    match_all([
        ("x-last-death-reason", Arg::from("rejected")),
        ("x-last-death-exchange", Arg::from(exchange)),
    ])
}

/// One match for each reason, each with all the headers.
fn category_matches(category: &Category) -> Vec<Args> {
    let headers = || category.headers.iter().map(|(key, value)| (key.as_str(), value.clone()));
    if category.reasons.is_empty() {
        return vec![match_all(headers())];
    }
    let reason = |reason: &str| match_all(headers().chain([("x-last-death-reason", Arg::from(reason))]));
    let mut reasons: Vec<&str> = category.reasons.iter().map(String::as_str).collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons.into_iter().map(reason).collect()
}
