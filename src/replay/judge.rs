//! What becomes of a message: selection, limits for each message and rewriting in one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::death;
use super::message::{Message, Value};
use super::origin;
use super::rewrite::{Address, Purpose, Wire, header, replays, rewrite};
use super::run::{Fate, Fence, Left, Rewriting, Target};
use super::selection::{Answer, Selection};

/// Says what becomes of each message: selection, limits for each message and rewriting in one.
pub trait Judge: Send + 'static {
    /// Judges a message. Called off the task that does the IO.
    fn judge(&mut self, message: Message, fence: Fence) -> Fate;
}

/// What time it is, in milliseconds since 1970: whoever makes a judge brings the clock.
pub type Clock = Box<dyn Fn() -> u64 + Send>;

/// How often the expression failed on a message; it goes on counting while the judge works.
#[derive(Clone, Debug, Default)]
pub struct Failures(Arc<AtomicU64>);

impl Failures {
    /// How often so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Judges the messages of one run.
///
/// In this order: what this run moved before and what died after the fence stays; then the
/// selection decides; then how often the message was replayed; then where it goes; then
/// whether it can be published at all.
pub struct RunJudge {
    selection: Selection,
    target: Target,
    rewriting: Rewriting,
    wire: Wire,
    clock: Clock,
    failures: Failures,
}

impl RunJudge {
    /// A judge for one run, whose messages go over `wire`.
    #[must_use]
    pub fn new(selection: Selection, target: Target, rewriting: Rewriting, wire: Wire, clock: Clock) -> Self {
        Self { selection, target, rewriting, wire, clock, failures: Failures::default() }
    }

    /// How often the expression failed.
    #[must_use]
    pub fn failures(&self) -> Failures {
        self.failures.clone()
    }

    /// Why a message stays although nobody asked about it yet.
    fn stands_behind(&self, message: &Message, fence: Fence) -> Option<Left> {
        let header = |name| message.properties.header(name);
        let own = header(header::REQUEST).and_then(Value::as_text) == Some(&self.rewriting.request);
        let at = header(header::AT).and_then(Value::as_count);
        // An earlier run may have had the same name: its messages count as any others.
        if own && at.is_some_and(|at| at >= fence.time) {
            return Some(Left::Returned);
        }
        // Deaths are told in whole seconds, rounded down: later is later for sure.
        let died = death::last_time(message).map(|time| time.saturating_mul(1_000));
        died.is_some_and(|died| died > fence.time).then_some(Left::BehindFence)
    }

    fn move_on(&self, message: Message) -> Fate {
        if self.target == Target::Discard {
            return Fate::Discard;
        }
        if replays(&message) >= u64::from(self.rewriting.max_replays) {
            let Some(queue) = &self.rewriting.replay_limit_queue else {
                return Fate::Leave(Left::TooManyReplays);
            };
            let to = Address { exchange: "", routing_key: queue };
            return self.publish_to(message, to, Purpose::PutAside);
        }
        match &self.target {
            Target::Queue(queue) => {
                self.publish_to(message, Address { exchange: "", routing_key: queue }, Purpose::Replay)
            }
            Target::Exchange { name, routing_key } => {
                self.publish_to(message, Address { exchange: name, routing_key }, Purpose::Replay)
            }
            Target::Origin { exchanges } => {
                let allowed = |origin: &origin::Origin| {
                    origin.is_direct()
                        && exchanges.contains(&origin.exchange)
                        && origin.routing_key.len() <= 255
                };
                let Some(origin) = origin::origin(&message).filter(allowed) else {
                    return Fate::Leave(Left::UnknownOrigin);
                };
                let to = Address { exchange: &origin.exchange, routing_key: &origin.routing_key };
                self.publish_to(message, to, Purpose::Replay)
            }
            Target::Discard => Fate::Discard,
        }
    }

    fn publish_to(&self, message: Message, to: Address<'_>, purpose: Purpose) -> Fate {
        match rewrite(message, to, purpose, &self.rewriting, self.wire, (self.clock)()) {
            Ok(message) => {
                Fate::Publish { message: Box::new(message), over_limit: purpose == Purpose::PutAside }
            }
            Err(_) => Fate::Leave(Left::Unmovable),
        }
    }
}

impl Judge for RunJudge {
    fn judge(&mut self, message: Message, fence: Fence) -> Fate {
        if let Some(left) = self.stands_behind(&message, fence) {
            return Fate::Leave(left);
        }
        match self.selection.answer(&message, fence) {
            Answer::Yes => self.move_on(message),
            Answer::No => Fate::Leave(Left::NotSelected),
            Answer::Failed => {
                self.failures.0.fetch_add(1, Ordering::Relaxed);
                Fate::Leave(Left::NotSelected)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use crate::replay::message::{Outgoing, Properties, Table};
    use crate::replay::run::OnFailure;
    use crate::replay::selection::Criteria;

    const FENCE: Fence = Fence { count: 5, time: 500_500 };
    const WIRE: Wire = Wire { frame_max: 131_072, max_body: Some(100) };

    fn judge(target: Target, criteria: Criteria, limit_queue: Option<&str>) -> RunJudge {
        let rewriting = Rewriting {
            request: "shop/run".to_owned(),
            run: "uid".to_owned(),
            on_failure: OnFailure::Retry,
            keep_expiration: false,
            idempotency: None,
            max_replays: 2,
            replay_limit_queue: limit_queue.map(str::to_owned),
        };
        let selection = Selection::new(criteria, false).unwrap();
        RunJudge::new(selection, target, rewriting, WIRE, Box::new(|| 777_000))
    }

    fn with(headers: impl IntoIterator<Item = (&'static str, Value)>) -> Message {
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Message {
            properties: Properties { headers: Some(headers), ..Properties::default() },
            ..Message::default()
        }
    }

    fn died_at(exchange: &str, seconds: u64) -> (&'static str, Value) {
        let entry = Table::from([
            ("exchange".to_owned(), Value::from(exchange)),
            ("routing-keys".to_owned(), Value::Array(vec![Value::from("orders.created")])),
            ("time".to_owned(), Value::Timestamp(seconds)),
        ]);
        ("x-death", Value::Array(vec![Value::Table(entry)]))
    }

    fn queue() -> Target {
        Target::Queue("orders".to_owned())
    }

    fn published(fate: Fate) -> (Outgoing, bool) {
        match fate {
            Fate::Publish { message, over_limit } => (*message, over_limit),
            other => panic!("not published: {other:?}"),
        }
    }

    #[test]
    fn a_selected_message_goes_to_the_target_and_is_stamped() {
        let (message, over) = published(judge(queue(), Criteria::default(), None).judge(with([]), FENCE));
        assert_eq!((message.exchange.as_str(), message.routing_key.as_str(), over), ("", "orders", false));
        assert_eq!(message.properties.header(header::AT), Some(&Value::I64(777_000)));
        let named = Target::Exchange { name: "shop".to_owned(), routing_key: "k".to_owned() };
        let (message, _) = published(judge(named, Criteria::default(), None).judge(with([]), FENCE));
        assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), ("shop", "k"));
    }

    #[test]
    fn what_this_run_moved_before_stays_and_what_an_earlier_one_moved_does_not() {
        let back = |request: &str, at: i64| {
            with([(header::REQUEST, Value::from(request)), (header::AT, Value::I64(at))])
        };
        let mut judge = judge(queue(), Criteria::default(), None);
        assert_eq!(judge.judge(back("shop/run", 500_500), FENCE), Fate::Leave(Left::Returned));
        published(judge.judge(back("shop/run", 500_499), FENCE));
        published(judge.judge(back("shop/other", 900_000), FENCE));
        published(judge.judge(with([(header::REQUEST, Value::from("shop/run"))]), FENCE));
    }

    #[test]
    fn what_died_after_the_fence_stands_behind_it() {
        let mut judge = judge(queue(), Criteria::default(), None);
        assert_eq!(judge.judge(with([died_at("shop", 501)]), FENCE), Fate::Leave(Left::BehindFence));
        published(judge.judge(with([died_at("shop", 500)]), FENCE));
    }

    #[test]
    fn replays_are_counted_and_the_limit_leads_aside() {
        let often = || with([(header::COUNT, Value::I64(2))]);
        let mut without = judge(queue(), Criteria::default(), None);
        assert_eq!(without.judge(often(), FENCE), Fate::Leave(Left::TooManyReplays));
        let mut with_queue = judge(queue(), Criteria::default(), Some("dlq.quarantine.replay-limit"));
        let (message, over) = published(with_queue.judge(often(), FENCE));
        assert_eq!((message.routing_key.as_str(), over), ("dlq.quarantine.replay-limit", true));
        let (_, over) = published(with_queue.judge(with([(header::COUNT, Value::I64(1))]), FENCE));
        assert!(!over);
    }

    #[test]
    fn an_origin_must_be_known_and_allowed() {
        let target = Target::Origin { exchanges: vec!["shop".to_owned()] };
        let mut judge = judge(target, Criteria::default(), None);
        let (message, _) = published(judge.judge(with([died_at("shop", 1)]), FENCE));
        assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), ("shop", "orders.created"));
        for stays in [with([died_at("amq.topic", 1)]), with([]), with([died_at("", 1)])] {
            assert_eq!(judge.judge(stays, FENCE), Fate::Leave(Left::UnknownOrigin));
        }
    }

    #[test]
    fn discarding_needs_nothing_but_the_selection() {
        let only = Criteria { message_ids: ["m".to_owned()].into(), ..Criteria::default() };
        let mut judge = judge(Target::Discard, only, None);
        assert_eq!(judge.judge(with([]), FENCE), Fate::Leave(Left::NotSelected));
        let mut chosen = with([(header::COUNT, Value::I64(9))]);
        chosen.properties.message_id = Some("m".to_owned());
        assert_eq!(judge.judge(chosen, FENCE), Fate::Discard);
    }

    #[test]
    fn what_can_not_be_published_stays() {
        let mut judge = judge(queue(), Criteria::default(), None);
        let large = Message { body: vec![0; 101], ..Message::default() };
        assert_eq!(judge.judge(large, FENCE), Fate::Leave(Left::Unmovable));
    }

    #[test]
    fn failing_expressions_are_counted_and_match_nothing() {
        let criteria = Criteria { expression: Some("headers.a == 1".to_owned()), ..Criteria::default() };
        let mut judge = judge(queue(), criteria, None);
        let failures = judge.failures();
        assert_eq!(judge.judge(with([]), FENCE), Fate::Leave(Left::NotSelected));
        assert_eq!(judge.judge(with([("a", Value::I32(2))]), FENCE), Fate::Leave(Left::NotSelected));
        published(judge.judge(with([("a", Value::I32(1))]), FENCE));
        assert_eq!(failures.count(), 1);
    }
}
