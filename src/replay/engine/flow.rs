//! The way of a selected message: published, confirmed, recorded, acknowledged, and surely so.

use std::collections::VecDeque;
use std::time::Duration;

use super::canary::Trial;
use super::event::{Command, Order, Tag, millis};
use super::ledger::{Acked, State};
use super::pass::Reading;
use super::phase::Next;
use super::retry::Retry;
use super::{Engine, PATIENCE};
use crate::replay::outcome::Outcome;

/// How long what is recorded waits for company, to be acknowledged in one word.
const ACK_AFTER: Duration = Duration::from_millis(5);
/// What is on its way.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Selected, in the order read.
    pub(super) waiting: VecDeque<Tag>,
    /// Published and not surely settled.
    pub(super) open: u64,
    flying: VecDeque<(Duration, Tag)>,
    /// Confirms count from here at the earliest: publishers were blocked before.
    patient_from: Duration,
    pub(super) blocked: bool,
    confirmed: Vec<Tag>,
    recording: Option<(Order, Vec<Tag>)>,
    /// Since when something that is recorded waits for its acknowledgement.
    unacked_since: Option<Duration>,
    /// Acknowledged, and not surely so.
    flushing: Option<(Order, Acked)>,
    refused: Retry,
    unrecorded: Retry,
}

impl Flow {
    /// Forgets what belonged to the pass before.
    pub(super) fn begin_pass(&mut self) {
        *self = Self { blocked: self.blocked, ..Self::default() };
    }

    /// Whether everything that was published is surely settled.
    pub(super) fn is_settled(&self) -> bool {
        self.open == 0 && self.recording.is_none() && self.flushing.is_none()
    }

    /// Acknowledged, and possibly lost on the way.
    pub(super) fn in_doubt(&self) -> Acked {
        self.flushing.map_or(Acked::default(), |(_, acked)| acked)
    }
}

impl Engine {
    /// Why nothing is published although it could be, in words.
    pub(super) fn obstacle(&self, now: Duration) -> Option<String> {
        let flow = &self.flow;
        if flow.blocked {
            return Some("the broker takes no messages for now: it is short of memory or disk".to_owned());
        }
        let retries = [&flow.refused, &flow.unrecorded, &self.checkpoints.failing];
        let failing = retries.into_iter().find(|retry| retry.why.is_some() && retry.at > now);
        failing.and_then(|retry| retry.why.clone()).or_else(|| self.looks.obstacle.clone())
    }

    pub(super) fn publish(&mut self, now: Duration) {
        if let Some(until) = self.waits_until(now) {
            self.wake_at(until);
            return;
        }
        if self.flow.blocked || self.looks.obstacle.is_some() {
            return;
        }
        while self.has_next() {
            if !self.turn_comes(now) {
                return;
            }
            let Some(tag) = self.flow.waiting.pop_front() else { return };
            self.send(tag, now);
        }
    }

    fn waits_until(&self, now: Duration) -> Option<Duration> {
        let retries = [&self.flow.refused, &self.flow.unrecorded, &self.checkpoints.failing];
        retries.into_iter().filter(|retry| retry.at > now).map(|retry| retry.at).max()
    }

    fn has_next(&self) -> bool {
        !self.flow.waiting.is_empty()
            && self.flow.open < self.window()
            && !self.is_limit_sent()
            && self.trial != Trial::Sending { left: 0 }
    }

    /// Whether as many are on their way or moved as may be.
    pub(super) fn is_limit_sent(&self) -> bool {
        self.limits.messages.is_some_and(|most| self.moved() + self.flow.open >= most)
    }

    /// Whether the pace allows another message now. A look and a checkpoint come first where
    /// they are due.
    fn turn_comes(&mut self, now: Duration) -> bool {
        if self.rate.between_batches() {
            let due = self.rate.due(now);
            if due > now {
                self.wake_at(due);
                return false;
            }
            if !self.look_before_batch(now) || !self.checkpoint_before_batch(now) {
                return false;
            }
            if self.rate.open_batch(now) {
                self.batch_begins();
            }
        } else if self.checkpoints.is_used_up() && !self.checkpoint_before_batch(now) {
            return false;
        }
        if self.rate.take(now) {
            return true;
        }
        let due = self.rate.due(now);
        self.wake_at(due);
        false
    }

    fn send(&mut self, tag: Tag, now: Duration) {
        let Some(slot) = self.ledger.slot(tag) else { return };
        if slot.discard {
            slot.state = State::Confirmed;
            self.flow.confirmed.push(tag);
        } else {
            slot.state = State::Flying;
            self.flow.flying.push_back((now, tag));
            self.out.push(Command::Publish(tag));
        }
        self.flow.open += 1;
        self.checkpoints.use_one();
        self.started.get_or_insert_with(|| millis(now));
        if let Trial::Sending { left } = &mut self.trial {
            *left -= 1;
        }
        // Discards need no answer to go on.
        self.record(now);
    }

    pub(super) fn confirmed(&mut self, tag: Tag) {
        if self.conclude(tag, State::Confirmed) {
            self.flow.confirmed.push(tag);
            self.flow.refused.succeed();
        }
    }

    pub(super) fn returned(&mut self, tag: Tag) {
        if !self.conclude(tag, State::Held) {
            return;
        }
        self.flow.open -= 1;
        self.pass.held += 1;
        self.pass.unroutable += 1;
        self.counts.unroutable = self.counts.unroutable.max(self.pass.unroutable);
        self.out.push(Command::Forget(tag));
    }

    pub(super) fn refused(&mut self, tag: Tag, now: Duration) {
        if !self.conclude(tag, State::Waiting) {
            return;
        }
        self.flow.open -= 1;
        self.flow.flying.retain(|(_, flying)| *flying != tag);
        self.flow.waiting.push_front(tag);
        if self.phase != super::phase::Phase::Moving {
            self.hold_what_waits();
        }
        self.counts.nacked += 1;
        if self.flow.refused.at <= now {
            self.flow.refused.fail("the target refuses messages; they are tried again".to_owned(), now);
        }
    }

    /// Moves a published message on, if it is one of this pass that nothing is known of yet.
    fn conclude(&mut self, tag: Tag, state: State) -> bool {
        if tag.pass != self.pass.number {
            return false;
        }
        match self.ledger.slot(tag) {
            Some(slot) if slot.state == State::Flying => {
                slot.state = state;
                true
            }
            _ => false,
        }
    }

    pub(super) fn unblocked(&mut self, now: Duration) {
        self.flow.blocked = false;
        self.flow.patient_from = now;
    }

    /// Everything on the way that needs no permission: timeouts, records, acknowledgements.
    pub(super) fn settle_what_can_be(&mut self, now: Duration) {
        self.time_out(now);
        self.record(now);
        self.acknowledge(now);
    }

    fn time_out(&mut self, now: Duration) {
        while let Some((sent, tag)) = self.flow.flying.front().copied() {
            let flies = self.ledger.slot(tag).is_some_and(|slot| slot.state == State::Flying);
            let until = sent.max(self.flow.patient_from) + PATIENCE;
            if flies && self.flow.blocked {
                return;
            }
            if flies && until > now {
                self.wake_at(until);
                return;
            }
            self.flow.flying.pop_front();
            if flies && self.conclude(tag, State::Held) {
                self.flow.open -= 1;
                self.pass.held += 1;
                self.pass.timed_out += 1;
                self.counts.duplicates_possible += 1;
                self.checkpoints.use_up();
                self.out.push(Command::Forget(tag));
            }
        }
    }

    fn record(&mut self, now: Duration) {
        if self.flow.confirmed.is_empty() || self.flow.recording.is_some() {
            return;
        }
        if self.flow.unrecorded.at > now {
            let at = self.flow.unrecorded.at;
            self.wake_at(at);
            return;
        }
        let (order, tags) = (self.next_order(), std::mem::take(&mut self.flow.confirmed));
        self.out.push(Command::Record(order, tags.clone()));
        self.flow.recording = Some((order, tags));
    }

    fn take_recording(&mut self, order: Order) -> Option<Vec<Tag>> {
        let (_, tags) = self.flow.recording.take_if(|(recording, _)| *recording == order)?;
        Some(tags)
    }

    pub(super) fn recorded(&mut self, order: Order, now: Duration) {
        let Some(tags) = self.take_recording(order) else { return };
        self.flow.unacked_since.get_or_insert(now);
        for tag in tags {
            self.ledger.record(tag);
        }
        self.flow.unrecorded.succeed();
    }

    pub(super) fn record_failed(&mut self, order: Order, why: &str, now: Duration) {
        let Some(mut failed) = self.take_recording(order) else { return };
        failed.append(&mut self.flow.confirmed);
        self.flow.confirmed = failed;
        self.flow.unrecorded.fail(format!("the audit trail can't be written: {why}"), now);
    }

    /// Acknowledges what is recorded, many at once: each acknowledgement is a command of its
    /// own in a quorum queue. The next ones wait until these are surely there, and until a
    /// consumer that is being cancelled can't be sent another message for them.
    fn acknowledge(&mut self, now: Duration) {
        let Some(since) = self.flow.unacked_since else { return };
        if self.flow.flushing.is_some() || self.pass.reading == Reading::Ending {
            return;
        }
        let many = u64::from(self.orders.pace.window / 8).max(1);
        if self.ledger.recorded() < many && since + ACK_AFTER > now {
            self.wake_at(since + ACK_AFTER);
            return;
        }
        let acked = self.ledger.acks(&mut self.out);
        if acked.total() == 0 {
            // All of it stands behind one that is still under way.
            return;
        }
        self.flow.unacked_since = (self.ledger.recorded() > 0).then_some(now);
        self.pass.acked += acked.total();
        let order = self.next_order();
        self.flow.flushing = Some((order, acked));
        self.out.push(Command::Flush(order));
    }

    pub(super) fn flushed(&mut self, order: Order, now: Duration) {
        let Some((_, sure)) = self.flow.flushing.take_if(|(flushing, _)| *flushing == order) else {
            self.everything_returned(order, now);
            return;
        };
        self.flow.open -= sure.total();
        self.counts.replayed += sure.replayed;
        self.counts.quarantined += sure.quarantined;
        self.counts.beyond_fence += self.fringe.moved(sure.beyond);
    }

    /// What waits to be published waits for the next pass.
    pub(super) fn hold_what_waits(&mut self) {
        for tag in std::mem::take(&mut self.flow.waiting) {
            if let Some(slot) = self.ledger.slot(tag) {
                slot.state = State::Held;
                self.pass.held += 1;
            }
        }
    }

    /// Too many found no queue.
    pub(super) fn is_unroutable(&self) -> bool {
        self.pass.unroutable >= u64::from(self.orders.guard.max_unroutable.max(1))
    }

    /// Where a pass that has nothing left to do leads to.
    pub(super) fn end_pass(&mut self, now: Duration) {
        if self.is_unroutable() {
            return self.begin_settling(Next::End(Outcome::Unroutable), now);
        }
        if self.flow.open > 0 {
            return;
        }
        if self.trial == (Trial::Sending { left: 0 }) {
            return self.begin_settling(Next::Rest, now);
        }
        let over = self.pass.reading == Reading::Off || self.pass.read >= self.pass.limit;
        let read = over && self.flow.waiting.is_empty();
        if read || self.is_limit_sent() {
            self.begin_settling(Next::Finish, now);
        }
    }
}
