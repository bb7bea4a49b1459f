//! Random interleavings of deliveries, confirms, nacks, returns, timeouts, disconnects,
//! suspends, edits and crashes; what must hold at every moment, and at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use redrive::replay::engine::{Command, Engine, Event, Setup};
use redrive::replay::outcome::{Ended, Outcome};
use redrive::replay::run::{Canary, Guard, Limits, Orders, Pace};

use crate::model::{Broker, Kinds};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Deliver(u8),
    Confirm(usize),
    Refuse(usize),
    LoseConfirm,
    Answer,
    Record,
    FailRecord,
    Keep,
    FailKeep,
    Wait(u16),
    Disconnect(usize),
    Crash(usize),
    Hold,
    GoOn,
    Edit(u32, u32, u32),
    Block,
    Unblock,
    Dies,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (1u8..6).prop_map(Step::Deliver),
        10 => (0usize..50).prop_map(Step::Confirm),
        1 => (0usize..50).prop_map(Step::Refuse),
        1 => Just(Step::LoseConfirm),
        12 => Just(Step::Answer),
        8 => Just(Step::Record),
        1 => Just(Step::FailRecord),
        6 => Just(Step::Keep),
        1 => Just(Step::FailKeep),
        8 => (1u16..1_500).prop_map(Step::Wait),
        1 => (30_000u16..40_000).prop_map(Step::Wait),
        1 => (0usize..5).prop_map(Step::Disconnect),
        1 => (0usize..5).prop_map(Step::Crash),
        1 => Just(Step::Hold),
        1 => Just(Step::GoOn),
        1 => (1u32..2_000, 1u32..40, 1u32..20).prop_map(|(rate, batch, window)| Step::Edit(rate, batch, window)),
        1 => Just(Step::Block),
        1 => Just(Step::Unblock),
        2 => Just(Step::Dies),
    ];
    prop::collection::vec(step, 0..400)
}

fn kinds() -> impl Strategy<Value = Kinds> {
    let many = || prop_oneof![Just(0u32), 2u32..9];
    (many(), many(), many(), many()).prop_map(|(unselected, discarded, over_limit, unroutable)| Kinds {
        unselected,
        discarded,
        over_limit,
        unroutable,
    })
}

pub(crate) fn orders(per_second: u32, batch: u32, window: u32) -> Orders {
    Orders {
        pace: Pace { per_second, batch, pause: Duration::ZERO, ramp: None, window },
        guard: Guard {
            stop_on_return_percent: 100,
            sample: 100_000,
            min_returns: 100_000,
            canary: Canary { messages: 5, after: Duration::from_secs(60), tries: 3 },
            pause_above_target_depth: None,
            require_consumers: true,
            max_unroutable: 100_000,
        },
        hold: None,
        cancel: false,
    }
}

/// A run, its broker, and what was seen of it so far.
pub(crate) struct Run {
    pub(crate) broker: Broker,
    pub(crate) engine: Engine,
    pub(crate) now: Duration,
    pub(crate) orders: Orders,
    count: u32,
    /// The widest window, and the most that one crash may leave uncounted.
    widest: u32,
    batch: u32,
    losses: u32,
    limits: Limits,
    held: BTreeMap<(u16, u64), Duration>,
    /// The longest time that one was.
    pub(crate) longest: Duration,
}

/// No limit but how long the broker lets a message be held.
pub(crate) fn unlimited(hold: Option<Duration>) -> Limits {
    Limits { messages: None, scan: u64::MAX, deadline: Duration::from_secs(1_000_000), hold }
}

fn setup(orders: &Orders, limits: &Limits) -> Setup {
    Setup { limits: limits.clone(), orders: orders.clone(), checkpoint: None, planned: None }
}

impl Run {
    pub(crate) fn new(count: u32, kinds: Kinds, orders: Orders, limits: Limits) -> Self {
        let now = Duration::from_secs(1_800_000_000);
        let mut run = Self {
            broker: Broker::new(count, kinds),
            engine: Engine::new(setup(&orders, &limits), now),
            now,
            widest: orders.pace.window,
            batch: orders.pace.batch.max(2 * orders.pace.per_second),
            orders,
            count,
            losses: 0,
            limits,
            held: BTreeMap::new(),
            longest: Duration::ZERO,
        };
        run.tell(Event::Tick);
        run
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.tell_all([event]);
    }

    fn tell_all(&mut self, events: impl IntoIterator<Item = Event>) {
        let commands = self.engine.step(events, self.now);
        if commands.contains(&Command::Close) {
            self.losses += 1;
        }
        self.broker.obey(commands);
        let held = self.broker.held();
        self.held.retain(|key, _| held.contains(key));
        for key in held {
            let since = *self.held.entry(key).or_insert(self.now);
            self.longest = self.longest.max(self.now - since);
        }
        let window = u64::from(self.widest);
        assert!(self.broker.most_flying <= window, "{} under way", self.broker.most_flying);
        let origin: BTreeSet<_> = self.broker.origin().into_iter().collect();
        for id in 0..self.count {
            assert!(self.broker.has(id, &origin), "{id} is lost");
        }
    }

    fn maybe(&mut self, event: Option<Event>) {
        if let Some(event) = event {
            self.tell(event);
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders);
        self.widest = self.widest.max(self.orders.pace.window);
        self.batch = self.batch.max(self.orders.pace.batch.max(2 * self.orders.pace.per_second));
        self.tell(Event::Ordered(self.orders.clone()));
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.tell(Event::Tick);
    }

    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Deliver(most) => {
                let events: Vec<_> = (0..most).filter_map(|_| self.broker.deliver()).collect();
                self.tell_all(events);
            }
            Step::Confirm(n) => {
                let events: Vec<_> = (0..=n % 4).filter_map(|_| self.broker.publish_ends(n, false)).collect();
                self.tell_all(events);
            }
            Step::Refuse(n) => {
                let event = self.broker.publish_ends(n, true);
                self.maybe(event);
            }
            Step::LoseConfirm => self.broker.confirm_is_lost(),
            Step::Answer => {
                let event = self.broker.answer();
                self.maybe(event);
            }
            Step::Record | Step::FailRecord => {
                let event = self.broker.record(matches!(step, Step::Record));
                self.maybe(event);
            }
            Step::Keep | Step::FailKeep => {
                let event = self.broker.keep(matches!(step, Step::Keep));
                self.maybe(event);
            }
            Step::Wait(millis) => self.wait(Duration::from_millis(millis.into())),
            Step::Disconnect(unarrived) => self.disconnect(unarrived),
            Step::Crash(unarrived) => self.crash(unarrived),
            Step::Hold => self.change(|orders| orders.hold = Some("suspended".into())),
            Step::GoOn => self.change(|orders| orders.hold = None),
            Step::Edit(per_second, batch, window) => self.change(|orders| {
                orders.pace = Pace { per_second, batch, window, ..orders.pace.clone() };
            }),
            Step::Block => self.tell(Event::Blocked),
            Step::Unblock => self.tell(Event::Unblocked),
            Step::Dies => self.broker.another_dies(),
        }
    }

    fn disconnect(&mut self, unarrived: usize) {
        let before = self.broker.duplicates();
        self.broker.lose(unarrived);
        self.check_doubled(before);
        self.losses += 1;
        self.tell(Event::Lost);
        // Whether publishers are blocked shows anew.
        self.tell(Event::Unblocked);
    }

    pub(crate) fn crash(&mut self, unarrived: usize) {
        let before = self.broker.duplicates();
        self.broker.crash(unarrived);
        self.check_doubled(before);
        self.losses += 1;
        let checkpoint = self.broker.durable.clone();
        self.engine = Engine::new(Setup { checkpoint, ..setup(&self.orders, &self.limits) }, self.now);
        self.tell(Event::Tick);
    }

    /// What a crash leaves in both queues is what it doubles: at most a window, and those
    /// whose confirms never came.
    fn check_doubled(&self, _before: u32) {
        let timed_out = self.engine.counts().duplicates_possible;
        let doubled = self.broker.doubled() as u64;
        assert!(doubled <= u64::from(self.widest) + timed_out, "{doubled} would be doubled by a crash");
    }

    /// Everything goes well from here on, until the run is over.
    pub(crate) fn finish(&mut self) -> Outcome {
        self.tell(Event::Unblocked);
        self.change(|orders| orders.hold = None);
        for _ in 0..20_000 {
            if let Some(ended) = &self.broker.ended {
                let Ended::Finished(outcome) = ended else { panic!("{ended:?}") };
                return outcome.clone();
            }
            let event = self
                .broker
                .answer()
                .or_else(|| self.broker.keep(true))
                .or_else(|| self.broker.record(true))
                .or_else(|| self.broker.deliver())
                .or_else(|| self.broker.publish_ends(0, false));
            match event {
                Some(event) => self.tell(event),
                None => {
                    let wake = self.engine.wake().expect("it waits for a time, or for an answer");
                    assert!(wake > self.now, "it asks to be woken in the past");
                    self.now = wake;
                    self.tell(Event::Tick);
                }
            }
        }
        panic!("it does not end: {:?}, {:?}", self.engine.activity(self.now), self.engine.counts());
    }
}

fn cases() -> u32 {
    if std::env::var_os("REDRIVE_TEST_FULL").is_some() { 30_000 } else { 1_500 }
}

/// What is recorded behind a refused message takes up the window: if it waited for that one, and
/// the window shrank meanwhile, both would wait for ever.
#[test]
fn a_refused_message_is_tried_again_in_a_smaller_window() {
    let kinds = Kinds { unselected: 0, discarded: 2, over_limit: 0, unroutable: 0 };
    let mut run = Run::new(6, kinds, orders(50, 6, 5), unlimited(None));
    let opened = [Step::Answer, Step::Deliver(6), Step::Answer, Step::Keep, Step::Wait(100), Step::Answer];
    let published = [Step::Wait(100), Step::Answer, Step::Record, Step::Answer];
    for step in opened.into_iter().chain(published) {
        run.take(step);
    }
    run.take(Step::Refuse(0));
    run.take(Step::Edit(1, 1, 1));
    assert_eq!(run.finish(), Outcome::Completed);
    assert_eq!(run.engine.counts().nacked, 1, "one was refused");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_all_is_counted(
        count in 0u32..120,
        kinds in kinds(),
        (per_second, batch, window) in (1u32..2_000, 1u32..40, 1u32..20),
        hold in prop_oneof![Just(None), Just(Some(Duration::from_secs(60)))],
        (messages, scan) in (prop::option::of(1u64..120), prop_oneof![Just(u64::MAX), 1u64..120]),
        steps in steps(),
    ) {
        let limits = Limits { messages, scan, ..unlimited(hold) };
        let mut run = Run::new(count, kinds, orders(per_second, batch, window), limits);
        for step in steps {
            run.take(step);
            if run.broker.ended.is_some() {
                break;
            }
        }
        let outcome = run.finish();
        let counts = run.engine.counts().clone();
        let broker = &run.broker;

        let stays: Vec<u32> = broker.origin().into_iter().filter(|id| *id < crate::model::LATER).collect();
        let unselected = |ids: &[u32]| ids.iter().filter(|id| kinds.is_unselected(**id)).count();
        prop_assert_eq!(unselected(&stays), unselected(&(0..count).collect::<Vec<_>>()));
        prop_assert!(broker.disordered || stays.is_sorted(), "in order: {:?}", stays);

        prop_assert!(
            u64::from(broker.duplicates()) <= counts.duplicates_possible,
            "{} duplicates, {:?}", broker.duplicates(), counts
        );
        let later = u64::from(broker.moved_later());
        prop_assert!(later <= counts.beyond_fence, "{later} later ones moved, {:?}", counts);
        prop_assert!(later <= u64::from(run.batch) * u64::from(run.losses), "at most a batch each");
        if run.losses == 0 {
            prop_assert_eq!(later, 0);
            let gone = u64::from(count) - stays.len() as u64;
            prop_assert_eq!(counts.replayed + counts.quarantined, gone);
            prop_assert!(gone <= messages.unwrap_or(u64::MAX) && counts.examined <= scan);
        }
        if run.losses == 0 && messages.is_none() && scan == u64::MAX {
            let left = stays.iter().any(|id| !kinds.is_unselected(*id));
            prop_assert_eq!(outcome == Outcome::Completed, !left);
        }
    }
}
