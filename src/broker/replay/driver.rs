//! The loop around the engine: tells it what happened, and does what it says.
//!
//! It never waits for anything but the next event: whatever takes time runs as a future of
//! its own, and its end is an event. Content is kept here by tag, from the judge's word until
//! the message is settled or stays.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::judging::{Content, Judged, Said};
use super::opening::Opening;
use super::publisher::Published;
use super::session::{Plan, Session, Signal};
use super::{Entry, Journal, Report, reader};
use crate::broker::BrokerError;
use crate::replay::engine::{Command, Engine, Event, Order, Tag};
use crate::replay::outcome::{Checkpoint, Ended};
use crate::replay::run::Orders;

/// How often a report is made at most.
const REPORT_EACH: Duration = Duration::from_millis(200);
/// Events that are taken before the orders are looked at again.
const AT_ONCE: usize = 64;

type Answer = Pin<Box<dyn Future<Output = Told> + Send>>;

/// The end of something that took time.
enum Told {
    /// Of a session that may be gone by now.
    OfSession(u32, Event),
    Kept(Event),
    Recorded(Order, Vec<Tag>, Result<(), String>),
}

pub(super) struct Driver<R> {
    pub(super) engine: Engine,
    pub(super) plan: Plan,
    pub(super) journal: Arc<R>,
    pub(super) clock: Clock,
    pub(super) reports: watch::Sender<Report>,
    pub(super) opening: Opening,
    session: Option<Session>,
    contents: HashMap<Tag, Content>,
    answers: FuturesUnordered<Answer>,
    /// Kept one after the other.
    checkpoints: VecDeque<(Order, Checkpoint)>,
    /// Returned with the next flush.
    returns: Vec<(u16, u64)>,
    keeping: bool,
    reported: Option<Instant>,
    /// When the next report is due, since something happened.
    report_at: Option<Instant>,
    ended: Option<Ended>,
}

/// Everything that wakes the loop.
pub(super) struct Inputs {
    pub(super) orders: watch::Receiver<Orders>,
    pub(super) said: mpsc::Receiver<(u32, Said)>,
    pub(super) signals: mpsc::Receiver<(u32, Signal)>,
    pub(super) stop: CancellationToken,
}

impl<R: Journal> Driver<R> {
    pub(super) fn new(
        engine: Engine,
        plan: Plan,
        journal: Arc<R>,
        clock: Clock,
        reports: watch::Sender<Report>,
        opening: Opening,
    ) -> Self {
        Self {
            engine,
            plan,
            journal,
            clock,
            reports,
            opening,
            session: None,
            contents: HashMap::new(),
            answers: FuturesUnordered::new(),
            checkpoints: VecDeque::new(),
            returns: Vec::new(),
            keeping: false,
            reported: None,
            report_at: None,
            ended: None,
        }
    }

    /// Runs until the engine says that it is over.
    ///
    /// # Errors
    /// Where the broker can't be reached as it is meant to, and trying again won't help.
    pub(super) async fn run(&mut self, mut inputs: Inputs) -> Result<Ended, BrokerError> {
        self.tell([Event::Tick]);
        let ended = loop {
            if let Some(ended) = self.ended.take() {
                break Ok(ended);
            }
            if let Err(error) = self.next(&mut inputs).await {
                break Err(error);
            }
            self.report(false);
        };
        self.report(true);
        for session in self.opening.abandon().into_iter().chain(self.session.take()) {
            session.close().await;
        }
        ended
    }

    async fn next(&mut self, inputs: &mut Inputs) -> Result<(), BrokerError> {
        let wake = self.engine.wake().map(|moment| self.clock.instant(moment));
        let wake = wake.into_iter().chain(self.report_at).min();
        let wake = async {
            match wake {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Ok(()) = inputs.orders.changed() => {
                let orders = inputs.orders.borrow_and_update().clone();
                self.tell([Event::Ordered(orders)]);
            }
            () = inputs.stop.cancelled(), if !self.engine.is_stopping() => self.tell([Event::Stop]),
            Some(told) = self.answers.next(), if !self.answers.is_empty() => self.told(told),
            Some((session, signal)) = inputs.signals.recv() => {
                self.signal(session, signal);
                for _ in 0..AT_ONCE {
                    let Ok((session, signal)) = inputs.signals.try_recv() else { break };
                    self.signal(session, signal);
                }
            }
            Some((session, said)) = inputs.said.recv() => self.said(session, said),
            opened = self.opening.done() => self.opened(opened)?,
            () = wake => self.tell([Event::Tick]),
        }
        Ok(())
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::OfSession(number, event) => {
                if self.is_current(number) {
                    self.tell_of_session(event);
                }
            }
            Told::Kept(event) => {
                self.keeping = false;
                self.keep_next();
                self.tell([event]);
            }
            Told::Recorded(order, tags, Ok(())) => {
                for tag in tags {
                    self.contents.remove(&tag);
                }
                self.tell([Event::Recorded(order)]);
            }
            Told::Recorded(order, _, Err(why)) => self.tell([Event::RecordFailed(order, why)]),
        }
    }

    fn tell_of_session(&mut self, event: Event) {
        if matches!(event, Event::Lost | Event::Failed(_)) {
            self.lose();
        }
        self.tell([event]);
    }

    fn is_current(&self, number: u32) -> bool {
        self.session.as_ref().is_some_and(|session| session.number == number)
    }

    fn signal(&mut self, number: u32, signal: Signal) {
        if !self.is_current(number) {
            return;
        }
        match signal {
            Signal::Blocked => self.tell([Event::Blocked]),
            Signal::Unblocked => self.tell([Event::Unblocked]),
            Signal::Lost => self.tell_of_session(Event::Lost),
            Signal::Failed(why) => self.tell_of_session(Event::Failed(why)),
            Signal::Published(published) => {
                let events: Vec<_> = published.into_iter().map(|one| self.published(one)).collect();
                self.tell(events);
            }
        }
    }

    fn published(&mut self, published: Published) -> Event {
        match published {
            Published::Confirmed(tag) => Event::Confirmed(tag),
            Published::Returned(tag) => Event::Returned(tag),
            Published::Refused(tag, parcel) => {
                if let Some(content) = self.contents.get_mut(&tag) {
                    content.parcel = Some(parcel);
                }
                Event::Refused(tag)
            }
        }
    }

    fn said(&mut self, number: u32, said: Said) {
        if !self.is_current(number) {
            return;
        }
        match said {
            Said::Cancelled => self.tell([Event::Cancelled]),
            Said::Judged(messages) => {
                let mut events = Vec::with_capacity(messages.len());
                for Judged { tag, bytes, verdict, content } in messages {
                    self.contents.extend(content.map(|content| (tag, content)));
                    events.push(Event::Read { tag, bytes, verdict });
                }
                self.tell(events);
            }
        }
    }

    fn opened(&mut self, opened: Result<(Session, u64), BrokerError>) -> Result<(), BrokerError> {
        let (session, ready) = opened?;
        self.session = Some(session);
        // A new connection is told anew where it is blocked.
        self.tell([Event::Unblocked]);
        self.tell([Event::Opened { ready }]);
        Ok(())
    }

    /// Both connections go, whichever of them was lost.
    fn lose(&mut self) {
        self.contents.clear();
        self.returns.clear();
        if let Some(session) = self.session.take() {
            self.opening.close_first(session);
        }
    }

    fn tell(&mut self, events: impl IntoIterator<Item = Event>) {
        let commands = self.engine.step(events, self.clock.now());
        for command in commands {
            self.obey(command);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open { expected } => self.open(expected),
            Command::Consume { pass, channel, prefetch } => {
                // The engine consumes only once it has a fence.
                if let Some(fence) = self.engine.fence() {
                    self.read(reader::Order::Consume { pass, channel, prefetch, fence });
                }
            }
            Command::Cancel => self.read(reader::Order::Cancel),
            Command::Publish(tag) => self.publish(tag),
            Command::Record(order, tags) => self.record(order, tags),
            Command::Forget(tag) => drop(self.contents.remove(&tag)),
            Command::Ack { channel, number, multiple } => {
                if let Some(session) = &self.session {
                    session.channels.ack(channel, number, multiple);
                }
            }
            Command::Return { channel, messages } => self.returns.push((channel, messages)),
            Command::Flush(order) => self.flush(order),
            Command::Checkpoint(order, checkpoint) => {
                self.checkpoints.push_back((order, checkpoint));
                self.keep_next();
            }
            Command::Look(order) => self.look(order),
            Command::Close => self.lose(),
            Command::End(ended) => self.ended = Some(ended),
        }
    }

    fn open(&mut self, expected: u64) {
        self.contents.clear();
        let session = self.session.take();
        self.opening.begin(self.plan.clone(), session, expected);
    }

    fn read(&mut self, order: reader::Order) {
        let Some(session) = &self.session else { return };
        if session.reads.try_send(order).is_err() {
            self.lost_later();
        }
    }

    /// Whatever can't be handed on shows that its task is gone.
    fn lost_later(&mut self) {
        if let Some(session) = &self.session {
            let told = Told::OfSession(session.number, Event::Lost);
            self.answers.push(std::future::ready(told).boxed());
        }
    }

    fn publish(&mut self, tag: Tag) {
        let Some(session) = &self.session else { return };
        let parcel = self.contents.get_mut(&tag).and_then(|content| content.parcel.take());
        let handed = parcel.is_some_and(|parcel| session.parcels.try_send((tag, parcel)).is_ok());
        if !handed {
            self.lost_later();
        }
    }

    fn record(&mut self, order: Order, tags: Vec<Tag>) {
        if !self.journal.keeps_records() {
            self.answers.push(std::future::ready(Told::Recorded(order, tags, Ok(()))).boxed());
            return;
        }
        let time = u64::try_from(self.clock.now().as_millis()).unwrap_or(u64::MAX);
        // Kept until they are recorded: a record that failed is tried again.
        let entries: Vec<Entry> =
            tags.iter().filter_map(|tag| Some(entry(self.contents.get(tag)?, time))).collect();
        let journal = Arc::clone(&self.journal);
        let record = async move { Told::Recorded(order, tags, journal.record(entries).await) };
        self.answers.push(record.boxed());
    }

    fn flush(&mut self, order: Order) {
        let returns = std::mem::take(&mut self.returns);
        let Some(session) = &self.session else { return };
        let number = session.number;
        let (channels, counting) = (session.channels.clone(), Arc::clone(&session.counting));
        self.answers.push(
            async move {
                let flushed = channels.flush().await.is_ok();
                let settled = flushed && counting.give_back(&channels, returns).await.is_ok();
                Told::OfSession(number, if settled { Event::Flushed(order) } else { Event::Lost })
            }
            .boxed(),
        );
    }

    fn look(&mut self, order: Order) {
        let Some(session) = &self.session else { return };
        let (number, counting) = (session.number, Arc::clone(&session.counting));
        self.answers.push(
            async move {
                let event = match counting.look().await {
                    Ok((ready, target)) => Event::Looked { order, ready, target },
                    Err(_) => Event::Lost,
                };
                Told::OfSession(number, event)
            }
            .boxed(),
        );
    }

    fn keep_next(&mut self) {
        if self.keeping {
            return;
        }
        let Some((order, checkpoint)) = self.checkpoints.pop_front() else { return };
        self.keeping = true;
        let journal = Arc::clone(&self.journal);
        self.answers.push(
            async move {
                Told::Kept(match journal.checkpoint(checkpoint).await {
                    Ok(()) => Event::Checkpointed(order),
                    Err(why) => Event::CheckpointFailed(order, why),
                })
            }
            .boxed(),
        );
    }

    fn report(&mut self, last: bool) {
        let due = self.reported.is_none_or(|reported| reported.elapsed() >= REPORT_EACH);
        if !due && !last {
            self.report_at = self.reported.map(|reported| reported + REPORT_EACH);
            return;
        }
        self.reported = Some(Instant::now());
        self.report_at = None;
        let now = self.clock.now();
        self.reports.send_replace(Report {
            activity: self.engine.activity(now),
            fence: self.engine.fence(),
            counts: self.engine.counts().clone(),
            rate: self.engine.per_second(now),
        });
    }
}

fn entry(content: &Content, time: u64) -> Entry {
    let message = content.original.clone().unwrap_or_default();
    Entry { message, went: content.went.clone(), replay_id: content.replay_id.clone(), time }
}
