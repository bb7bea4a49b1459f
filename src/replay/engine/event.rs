//! What the engine is told, and what it tells its driver to do.

use std::time::Duration;

use super::super::outcome::{Checkpoint, Ended};
use super::super::run::{Fence, Left, Limits, Orders};

/// A message that was read, until it is settled or returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Which opening of the origin queue it belongs to; events of earlier ones are ignored.
    pub pass: u32,
    /// The channel that it was read on.
    pub channel: u16,
    /// Its delivery tag there; each is one more than the one before.
    pub number: u64,
}

/// The number of an order, by which its answer is known. Answers to orders that do not
/// matter any more are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(pub u64);

/// A fate without the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Publish it; the flag says that it goes to the queue for messages replayed too often.
    Publish {
        /// Whether it goes to the queue for those replayed too often.
        over_limit: bool,
    },
    /// Record it and delete it.
    Discard,
    /// Leave it where it is.
    Leave {
        /// Why.
        why: Left,
        /// What people call it, where they are told.
        name: Option<String>,
    },
}

/// What the engine works with from the start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How far the run may go.
    pub limits: Limits,
    /// Pace, guard and holds at the start.
    pub orders: Orders,
    /// Where an earlier worker came to.
    pub checkpoint: Option<Checkpoint>,
    /// What was ready when the run was planned: with the fence it tells how many messages
    /// arrive anyhow.
    pub planned: Option<Fence>,
}

/// What the driver reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The origin queue can be read, and so many are ready; nothing of ours is unacknowledged.
    Opened {
        /// Messages ready.
        ready: u64,
    },
    /// A message was read and judged.
    Read {
        /// Which.
        tag: Tag,
        /// How much it takes on the wire, about.
        bytes: u64,
        /// What is to become of it.
        verdict: Verdict,
    },
    /// The consumer is cancelled, and whatever it still brought was reported.
    Cancelled,
    /// The target's broker has it for sure.
    Confirmed(Tag),
    /// It was routed nowhere.
    Returned(Tag),
    /// The target's broker refused it.
    Refused(Tag),
    /// The records of this order are written.
    Recorded(Order),
    /// They are not, with the reason in words.
    RecordFailed(Order, String),
    /// The broker has every acknowledgement and return ordered before this flush.
    Flushed(Order),
    /// The checkpoint of this order is kept.
    Checkpointed(Order),
    /// It is not, with the reason in words.
    CheckpointFailed(Order, String),
    /// What a look showed.
    Looked {
        /// Which look.
        order: Order,
        /// Messages ready in the origin queue.
        ready: u64,
        /// The target, where it is one queue.
        target: Option<TargetLook>,
    },
    /// The broker takes no publishes for now.
    Blocked,
    /// It takes them again.
    Unblocked,
    /// A connection, a channel or the consumer is gone; the driver has closed the rest, so
    /// that everything unacknowledged is back in the origin queue.
    Lost,
    /// As [`Event::Lost`], because the broker takes no publishes to the target, now or later,
    /// with the reason in words.
    Failed(String),
    /// Pace, guard or holds changed.
    Ordered(Orders),
    /// The worker is to stop: settle, and leave the rest to another.
    Stop,
    /// Time has passed.
    Tick,
}

/// What a passive declaration shows of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetLook {
    /// Messages ready there.
    pub ready: u64,
    /// Its consumers.
    pub consumers: u64,
}

/// What the driver is to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Connect, take the lock, and count the ready messages.
    Open {
        /// So many should be ready, once the broker has taken back what was held before.
        expected: u64,
    },
    /// Consume on this new channel, after cancelling the consumer before; what that one
    /// brought stays unacknowledged.
    Consume {
        /// The pass that messages read from now on belong to.
        pass: u32,
        /// The channel.
        channel: u16,
        /// How many unacknowledged messages this consumer may have.
        prefetch: u16,
    },
    /// Cancel the consumer.
    Cancel,
    /// Publish it, mandatory and with a confirm.
    Publish(Tag),
    /// Write the records of these.
    Record(Order, Vec<Tag>),
    /// Its content is not needed any more.
    Forget(Tag),
    /// Acknowledge on the origin queue.
    Ack {
        /// The channel.
        channel: u16,
        /// The delivery tag.
        number: u64,
        /// Whether all below are meant too.
        multiple: bool,
    },
    /// Return to the origin queue everything unacknowledged of this channel, before what is
    /// returned next.
    Return {
        /// The channel.
        channel: u16,
        /// How many messages that are.
        messages: u64,
    },
    /// Make sure that the broker has what was acknowledged and returned.
    Flush(Order),
    /// Keep this, after those ordered before.
    Checkpoint(Order, Checkpoint),
    /// Look at the origin queue and the target.
    Look(Order),
    /// Close both connections at once, whatever is under way.
    Close,
    /// It is over; nothing is unacknowledged.
    End(Ended),
}

/// Milliseconds of a moment that counts from 1970.
pub(super) fn millis(moment: Duration) -> u64 {
    u64::try_from(moment.as_millis()).unwrap_or(u64::MAX)
}
