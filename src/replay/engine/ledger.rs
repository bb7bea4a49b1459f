//! Every unacknowledged message of a pass, and how to settle them in as few words as possible.

use std::collections::VecDeque;

use super::event::{Command, Tag};

/// Single acknowledgements that go at once. A quorum queue's channel passes on 32 commands and
/// keeps what comes above until some of them are carried out; what it keeps is lost with it.
const SINGLES: usize = 16;

/// Where a message is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Selected, and not published yet.
    Waiting,
    /// Published, and not confirmed yet.
    Flying,
    /// Confirmed, or to be discarded, and not recorded yet.
    Confirmed,
    /// Recorded, and not acknowledged yet.
    Recorded,
    /// To be returned at the end.
    Held,
    /// Acknowledged.
    Gone,
}

/// A message's state and what it counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) state: State,
    /// It goes to the queue for those replayed too often.
    pub(super) over_limit: bool,
    /// It needs no publish.
    pub(super) discard: bool,
    /// It may stand behind the fence.
    pub(super) beyond: bool,
}

impl Slot {
    pub(super) fn new(state: State) -> Self {
        Self { state, over_limit: false, discard: false, beyond: false }
    }
}

#[derive(Debug, Default)]
struct Channel {
    /// The delivery tag of the first slot.
    first: u64,
    slots: VecDeque<Slot>,
    unacked: u64,
    /// Recorded ones that wait for those below.
    recorded: Vec<u64>,
}

/// What was acknowledged, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Acked {
    pub(super) replayed: u64,
    pub(super) quarantined: u64,
    pub(super) beyond: u64,
}

impl Acked {
    pub(super) fn total(self) -> u64 {
        self.replayed + self.quarantined
    }
}

/// The unacknowledged messages of one pass.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    channels: Vec<Channel>,
    unacked: u64,
}

impl Ledger {
    /// Notes a message that was read.
    pub(super) fn insert(&mut self, tag: Tag, slot: Slot) {
        let index = usize::from(tag.channel);
        while self.channels.len() <= index {
            self.channels.push(Channel { first: 1, ..Channel::default() });
        }
        self.channels[index].slots.push_back(slot);
        self.channels[index].unacked += 1;
        self.unacked += 1;
    }

    /// The slot of a message that is unacknowledged.
    pub(super) fn slot(&mut self, tag: Tag) -> Option<&mut Slot> {
        let channel = self.channels.get_mut(usize::from(tag.channel))?;
        let index = usize::try_from(tag.number.checked_sub(channel.first)?).ok()?;
        channel.slots.get_mut(index)
    }

    /// Marks a message as recorded, to be acknowledged by the next [`Ledger::acks`].
    pub(super) fn record(&mut self, tag: Tag) {
        if let Some(slot) = self.slot(tag) {
            slot.state = State::Recorded;
            self.channels[usize::from(tag.channel)].recorded.push(tag.number);
        }
    }

    /// Messages that are unacknowledged.
    pub(super) fn unacked(&self) -> u64 {
        self.unacked
    }

    /// Messages of a channel that are unacknowledged.
    pub(super) fn unacked_on(&self, channel: u16) -> u64 {
        self.channels.get(usize::from(channel)).map_or(0, |channel| channel.unacked)
    }

    /// Forgets the messages of a channel one by one: all that it will ever bring is held. Their
    /// number is enough to return them.
    pub(super) fn seal(&mut self, channel: u16) {
        if let Some(channel) = self.channels.get_mut(usize::from(channel)) {
            channel.slots = VecDeque::new();
        }
    }

    /// Messages of a channel that are held to the end.
    pub(super) fn held_on(&self, channel: u16) -> u64 {
        let slots = self.channels.get(usize::from(channel)).map(|channel| channel.slots.iter());
        slots.map_or(0, |slots| slots.filter(|slot| slot.state == State::Held).count() as u64)
    }

    /// Messages that are recorded, and not acknowledged yet.
    pub(super) fn recorded(&self) -> u64 {
        self.channels.iter().map(|channel| channel.recorded.len() as u64).sum()
    }

    /// Acknowledgements for what is recorded: one for a whole prefix, one each for what
    /// stands behind a held message or a refused one, which may have to wait for the place
    /// that these take up. What stands behind one that is still under way waits for it, and
    /// only a few go one by one at once.
    pub(super) fn acks(&mut self, commands: &mut Vec<Command>) -> Acked {
        let mut acked = Acked::default();
        let mut singles = SINGLES;
        for (index, channel) in (0u16..).zip(&mut self.channels) {
            let count = acked.total();
            channel.acks(index, &mut singles, &mut acked, commands);
            self.unacked -= acked.total() - count;
            channel.unacked -= acked.total() - count;
        }
        acked
    }

    /// Returns of everything unacknowledged, ascending.
    pub(super) fn returns(&self) -> Vec<Command> {
        let channels = (0u16..).zip(&self.channels);
        let counted = channels.map(|(channel, slots)| (channel, slots.unacked));
        let held = counted.filter(|(_, messages)| *messages > 0);
        held.map(|(channel, messages)| Command::Return { channel, messages }).collect()
    }
}

impl Channel {
    fn acks(&mut self, index: u16, singles: &mut usize, acked: &mut Acked, commands: &mut Vec<Command>) {
        if self.recorded.is_empty() {
            return;
        }
        let mut prefix = None;
        while let Some(slot) = self.slots.front().copied() {
            match slot.state {
                State::Recorded => {
                    count(slot, acked);
                    prefix = Some(self.first);
                }
                State::Gone => {}
                _ => break,
            }
            self.slots.pop_front();
            self.first += 1;
        }
        if let Some(number) = prefix {
            commands.push(Command::Ack { channel: index, number, multiple: true });
        }
        let first = self.first;
        self.recorded.retain(|number| *number >= first);
        let front = self.slots.front().map(|slot| slot.state);
        if matches!(front, Some(State::Held | State::Waiting)) {
            let now = self.recorded.len().min(*singles);
            *singles -= now;
            for number in self.recorded.drain(..now) {
                let slot = usize::try_from(number - first).ok().and_then(|at| self.slots.get_mut(at));
                if let Some(slot) = slot {
                    count(*slot, acked);
                    slot.state = State::Gone;
                    commands.push(Command::Ack { channel: index, number, multiple: false });
                }
            }
        }
    }
}

fn count(slot: Slot, acked: &mut Acked) {
    if slot.over_limit {
        acked.quarantined += 1;
    } else {
        acked.replayed += 1;
    }
    acked.beyond += u64::from(slot.beyond);
}
