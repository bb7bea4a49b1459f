//! A broker small enough to be believed: an origin queue, a target, and whatever is between.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use redrive::replay::engine::{Command, Event, Order, Tag, TargetLook, Verdict};
use redrive::replay::outcome::{Checkpoint, Ended};
use redrive::replay::run::Left;

/// Messages that die after the fence have ids from here on.
pub(crate) const LATER: u32 = 100_000;

/// As many as every message takes.
pub(crate) const BYTES: u64 = 1_300;

/// What a message is like, by its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kinds {
    /// One in so many is not selected.
    pub(crate) unselected: u32,
    /// One in so many is deleted.
    pub(crate) discarded: u32,
    /// One in so many goes to the quarantine.
    pub(crate) over_limit: u32,
    /// One in so many finds no queue.
    pub(crate) unroutable: u32,
}

fn one_in(id: u32, many: u32, rest: u32) -> bool {
    many > 0 && id % many == rest % many
}

impl Kinds {
    pub(crate) fn verdict(&self, id: u32) -> Verdict {
        if self.is_unselected(id) {
            Verdict::Leave { why: Left::NotSelected, name: None }
        } else if one_in(id, self.discarded, 2) {
            Verdict::Discard
        } else {
            Verdict::Publish { over_limit: one_in(id, self.over_limit, 3) }
        }
    }

    pub(crate) fn is_unselected(&self, id: u32) -> bool {
        one_in(id, self.unselected, 1)
    }

    pub(crate) fn is_unroutable(&self, id: u32) -> bool {
        one_in(id, self.unroutable, 4)
    }
}

struct Consumer {
    pass: u32,
    channel: u16,
    prefetch: usize,
    cancelling: bool,
}

/// What the broker and the journal hold.
pub(crate) struct Broker {
    pub(crate) kinds: Kinds,
    /// Returned messages are served before all others, in the order of their return.
    returned: VecDeque<u32>,
    ready: VecDeque<u32>,
    unacked: BTreeMap<(u16, u64), u32>,
    numbers: BTreeMap<u16, u64>,
    consumer: Option<Consumer>,
    /// Acknowledgements that may still be lost with the connection.
    acks: VecDeque<(u16, u64)>,
    flying: Vec<(Tag, u32)>,
    /// Nobody waits for their confirms any more.
    given_up: BTreeSet<Tag>,
    pub(crate) target: BTreeMap<u32, u32>,
    confirmed: BTreeSet<u32>,
    recorded: BTreeSet<u32>,
    tags: BTreeMap<Tag, u32>,
    answers: VecDeque<Event>,
    checkpoints: VecDeque<(Order, Checkpoint)>,
    records: VecDeque<(Order, Vec<Tag>)>,
    pub(crate) durable: Option<Checkpoint>,
    pub(crate) ended: Option<Ended>,
    pub(crate) most_flying: u64,
    pub(crate) later: u32,
    opened: bool,
    /// Whether a connection was lost: how much came back then, the next worker can't know.
    lost: bool,
    /// Whether something was returned behind what was returned before.
    pub(crate) disordered: bool,
    returning: bool,
    /// Messages of the opening that are not delivered yet.
    unread: usize,
    /// Whether a look showed nothing ready although there was something.
    misled: bool,
}

impl Broker {
    pub(crate) fn new(count: u32, kinds: Kinds) -> Self {
        Self {
            kinds,
            returned: VecDeque::new(),
            ready: (0..count).collect(),
            unacked: BTreeMap::new(),
            numbers: BTreeMap::new(),
            consumer: None,
            acks: VecDeque::new(),
            flying: Vec::new(),
            given_up: BTreeSet::new(),
            target: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            recorded: BTreeSet::new(),
            tags: BTreeMap::new(),
            answers: VecDeque::new(),
            checkpoints: VecDeque::new(),
            records: VecDeque::new(),
            durable: None,
            ended: None,
            most_flying: 0,
            later: 0,
            opened: false,
            lost: false,
            disordered: false,
            returning: false,
            unread: 0,
            misled: false,
        }
    }

    /// Everything in the origin queue, in the order in which it would be served.
    pub(crate) fn origin(&self) -> Vec<u32> {
        let held = self.unacked.values().copied();
        self.returned.iter().copied().chain(held).chain(self.ready.iter().copied()).collect()
    }

    /// What is unacknowledged, by channel and delivery.
    pub(crate) fn held(&self) -> BTreeSet<(u16, u64)> {
        self.unacked.keys().copied().collect()
    }

    /// Whether a message is where it may be: in the origin queue, in the target, or recorded
    /// as deleted.
    pub(crate) fn has(&self, id: u32, origin: &BTreeSet<u32>) -> bool {
        let deleted = self.kinds.verdict(id) == Verdict::Discard && self.recorded.contains(&id);
        origin.contains(&id) || self.target.contains_key(&id) || deleted
    }

    /// Copies in the target beyond the first of each message.
    pub(crate) fn duplicates(&self) -> u32 {
        self.target.values().map(|copies| copies - 1).sum()
    }

    /// Messages that are in the target and still in the origin queue.
    pub(crate) fn doubled(&self) -> usize {
        self.origin().iter().filter(|id| self.target.contains_key(id)).count()
    }

    /// Messages beyond the fence that left the origin queue.
    pub(crate) fn moved_later(&self) -> u32 {
        let origin: BTreeSet<_> = self.origin().into_iter().collect();
        u32::try_from((0..self.later).filter(|later| !origin.contains(&(LATER + later))).count()).unwrap()
    }

    /// A message dies behind the fence, once there is one that outlives a crash: before that
    /// nothing has moved, and a new fence is as good.
    pub(crate) fn another_dies(&mut self) {
        if self.durable.is_none() {
            return;
        }
        self.ready.push_back(LATER + self.later);
        self.later += 1;
    }

    /// Does what the engine says, and checks what must hold at that moment.
    pub(crate) fn obey(&mut self, commands: Vec<Command>) {
        for command in commands {
            self.check_returns(&command);
            match command {
                Command::Open { .. } => {
                    assert!(self.unacked.is_empty(), "opened with messages unacknowledged");
                    self.opened = true;
                    // It takes the place of an opening under way.
                    self.answers.retain(|answer| !matches!(answer, Event::Opened { .. }));
                    self.unread = self.returned.len() + self.ready.len();
                    self.answers.push_back(Event::Opened { ready: self.unread as u64 });
                }
                Command::Consume { pass, channel, prefetch } => {
                    if channel == 0 {
                        self.numbers.clear();
                        self.tags.clear();
                    }
                    let prefetch = usize::from(prefetch);
                    self.check_nothing_comes();
                    self.consumer = Some(Consumer { pass, channel, prefetch, cancelling: false });
                }
                Command::Cancel => {
                    let consumer = self.consumer.as_mut().filter(|consumer| !consumer.cancelling);
                    consumer.expect("there was a consumer to cancel").cancelling = true;
                    self.answers.push_back(Event::Cancelled);
                }
                Command::Publish(tag) => {
                    let id = self.tags[&tag];
                    assert!(!matches!(self.kinds.verdict(id), Verdict::Discard | Verdict::Leave { .. }));
                    let kept = self.durable.as_ref().and_then(|checkpoint| checkpoint.started);
                    assert!(kept.is_some(), "after a crash nobody would know when it began");
                    self.flying.push((tag, id));
                }
                Command::Record(order, tags) => self.records.push_back((order, tags)),
                Command::Forget(tag) => {
                    self.given_up.insert(tag);
                }
                Command::Ack { channel, number, multiple } => self.ack(channel, number, multiple),
                Command::Return { channel, messages } => self.take_back(channel, messages),
                Command::Flush(order) => {
                    while let Some(ack) = self.acks.pop_front() {
                        self.unacked.remove(&ack);
                    }
                    self.answers.push_back(Event::Flushed(order));
                }
                Command::Checkpoint(order, checkpoint) => self.checkpoints.push_back((order, checkpoint)),
                Command::Look(order) => {
                    let ready = (self.returned.len() + self.ready.len()) as u64;
                    let target = Some(TargetLook { ready: 0, consumers: 1 });
                    self.answers.push_back(Event::Looked { order, ready, target });
                }
                Command::Close => self.lose(usize::MAX),
                Command::End(ended) => {
                    assert!(self.unacked.is_empty(), "ended with messages unacknowledged");
                    assert!(self.consumer.is_none(), "ended with a consumer");
                    self.ended = Some(ended);
                }
            }
            let flying = self.flying.iter().filter(|(tag, _)| !self.given_up.contains(tag)).count();
            let open = flying + self.acks.len();
            self.most_flying = self.most_flying.max(open as u64);
        }
    }

    /// What is on its way to a consumer when it is cancelled goes to the end of the queue.
    /// What died after the opening is behind everything anyhow.
    fn check_nothing_comes(&self) {
        let Some(consumer) = &self.consumer else { return };
        let channel = consumer.channel;
        let covered = self.acks.iter().filter(|(of, _)| *of == channel).count();
        let unacked = self.unacked.range((channel, 0)..=(channel, u64::MAX)).count();
        assert!(
            unacked - covered >= consumer.prefetch || self.unread == 0 || self.misled,
            "cancelled with {} of {} held: others may be on their way",
            unacked - covered,
            consumer.prefetch
        );
    }

    fn check_returns(&mut self, command: &Command) {
        let returns = matches!(command, Command::Return { .. });
        if returns && !self.returning && !self.returned.is_empty() {
            assert!(self.lost, "returned behind what was returned before");
            self.disordered = true;
        }
        self.returning = returns;
    }

    fn ack(&mut self, channel: u16, number: u64, multiple: bool) {
        let from = if multiple { 0 } else { number };
        let covered: Vec<_> = self.unacked.range((channel, from)..=(channel, number)).collect();
        let fresh: Vec<_> =
            covered.into_iter().filter(|(key, _)| !self.acks.contains(key)).map(|(k, v)| (*k, *v)).collect();
        assert!(fresh.iter().any(|(key, _)| *key == (channel, number)), "acknowledged twice, or never read");
        for (key, id) in fresh {
            let verdict = self.kinds.verdict(id);
            assert!(!matches!(verdict, Verdict::Leave { .. }), "{id} was not selected");
            assert!(self.recorded.contains(&id), "{id} was acknowledged before its record");
            assert!(
                verdict == Verdict::Discard || self.confirmed.contains(&id),
                "{id} was acknowledged before its confirm"
            );
            self.acks.push_back(key);
        }
    }

    fn take_back(&mut self, channel: u16, messages: u64) {
        assert!(self.consumer.is_none(), "returned while the consumer would get it again");
        assert!(self.acks.is_empty(), "returned before all acknowledgements were sure");
        let keys: Vec<_> =
            self.unacked.range((channel, 0)..=(channel, u64::MAX)).map(|(key, _)| *key).collect();
        assert_eq!(keys.len() as u64, messages, "the channel's messages are counted");
        for key in keys {
            self.returned.extend(self.unacked.remove(&key));
        }
    }

    /// The connections are gone; so many of the last acknowledgements never arrived.
    pub(crate) fn lose(&mut self, unarrived: usize) {
        self.lost = true;
        self.disordered |= !self.returned.is_empty();
        let keep = self.acks.len().saturating_sub(unarrived);
        for ack in self.acks.drain(..).take(keep) {
            self.unacked.remove(&ack);
        }
        self.acks.clear();
        for id in std::mem::take(&mut self.unacked).into_values() {
            self.returned.push_back(id);
        }
        // Publishes that nobody hears of any more may have arrived all the same.
        for (index, (_, id)) in std::mem::take(&mut self.flying).into_iter().enumerate() {
            if index % 2 == 0 && !self.kinds.is_unroutable(id) {
                *self.target.entry(id).or_default() += 1;
            }
        }
        self.given_up.clear();
        self.consumer = None;
        self.answers.clear();
        self.records.clear();
        self.opened = false;
    }

    /// The worker is gone, and what it wrote last with it.
    pub(crate) fn crash(&mut self, unarrived: usize) {
        self.checkpoints.clear();
        self.ended = None;
        self.lose(unarrived);
    }

    /// The consumer's next message, if it may have one.
    pub(crate) fn deliver(&mut self) -> Option<Event> {
        let consumer = self.consumer.as_ref()?;
        let (pass, channel) = (consumer.pass, consumer.channel);
        if self.unacked.range((channel, 0)..=(channel, u64::MAX)).count() >= consumer.prefetch {
            return None;
        }
        let id = self.returned.pop_front().or_else(|| self.ready.pop_front())?;
        self.unread = self.unread.saturating_sub(1);
        let number = self.numbers.entry(channel).or_default();
        *number += 1;
        let tag = Tag { pass, channel, number: *number };
        self.unacked.insert((channel, tag.number), id);
        self.tags.insert(tag, id);
        Some(Event::Read { tag, bytes: BYTES, verdict: self.kinds.verdict(id) })
    }

    /// The looks under way find nothing ready: the rest is on its way to the consumer.
    pub(crate) fn shows_nothing_ready(&mut self) {
        for answer in &mut self.answers {
            if let Event::Looked { ready, .. } = answer {
                self.misled = true;
                *ready = 0;
            }
        }
    }

    /// Somebody else moves what nobody has read.
    pub(crate) fn is_emptied(&mut self) {
        let taken = self.returned.drain(..).chain(self.ready.drain(..));
        self.unread = 0;
        self.target.extend(taken.map(|id| (id, 1)));
    }

    /// What becomes of the n-th publish under way.
    pub(crate) fn publish_ends(&mut self, n: usize, refuse: bool) -> Option<Event> {
        if self.flying.is_empty() {
            return None;
        }
        let (tag, id) = self.flying.remove(n % self.flying.len());
        if refuse {
            return Some(Event::Refused(tag));
        }
        if self.kinds.is_unroutable(id) {
            return Some(Event::Returned(tag));
        }
        *self.target.entry(id).or_default() += 1;
        self.confirmed.insert(id);
        Some(Event::Confirmed(tag))
    }

    /// A publish arrives, and its confirm does not.
    pub(crate) fn confirm_is_lost(&mut self) {
        if let Some((_, id)) = self.flying.pop()
            && !self.kinds.is_unroutable(id)
        {
            *self.target.entry(id).or_default() += 1;
        }
    }

    /// Whether an answer is due.
    pub(crate) fn is_asked(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Whether the next answer is one to a look.
    pub(crate) fn next_is_look(&self) -> bool {
        matches!(self.answers.front(), Some(Event::Looked { .. }))
    }

    /// Messages that were published so far.
    pub(crate) fn published(&self) -> u32 {
        self.target.values().sum::<u32>() + u32::try_from(self.flying.len()).unwrap()
    }

    pub(crate) fn answer(&mut self) -> Option<Event> {
        let answer = self.answers.pop_front();
        if matches!(answer, Some(Event::Cancelled)) {
            self.check_nothing_comes();
            self.consumer = None;
        }
        answer
    }

    pub(crate) fn record(&mut self, succeed: bool) -> Option<Event> {
        let (order, tags) = self.records.pop_front()?;
        if !succeed {
            return Some(Event::RecordFailed(order, "no room".into()));
        }
        self.recorded.extend(tags.iter().filter_map(|tag| self.tags.get(tag)));
        Some(Event::Recorded(order))
    }

    pub(crate) fn keep(&mut self, succeed: bool) -> Option<Event> {
        let (order, checkpoint) = self.checkpoints.pop_front()?;
        if !succeed {
            return Some(Event::CheckpointFailed(order, "no answer".into()));
        }
        self.durable = Some(checkpoint);
        Some(Event::Checkpointed(order))
    }
}
