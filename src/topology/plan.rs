//! Ordered steps, as data that can be shown, stored as a golden file, or applied.
//!
//! A plan leaves nothing to decide: whoever applies it runs the steps of one
//! [`Stage`] after those of the one before, and within a stage declarations before
//! bindings; steps of the same stage and rank may run in any order. After every
//! single step each message has exactly one way.

use std::fmt;

use serde::Serialize;

use super::model::{Binding, Exchange, ObjectKey, Policy, Queue, write_args};

/// The order of writes. Whatever messages could reach next exists before them;
/// what they could still need goes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Stage {
    /// The exchange that markers hang on, and markers that are missing.
    Owner,
    /// Policies of the queues that we declare, before those queues.
    Policy,
    /// DLQ, quarantine queues, parking lot.
    DeadLetter,
    /// The exchange that leads to the DLQ while no chain is in use.
    Fallback,
    /// The end of the chain, which leads everything else to the DLQ.
    Rest,
    /// Retry queues, shards and return exchanges.
    Tier,
    /// Rules for what asks for the DLQ. Where a chain in use has lost rules, the
    /// first to be asked come back first, or a later one would take their messages.
    Dead,
    /// Quarantine rules.
    Category,
    /// Rules from tier to tier.
    Ladder,
    /// Rules that keep lost tiers from starting over.
    Guard,
    /// Shards of a tier, once no rule that is missing could lead here by mistake.
    Spread,
    /// The rule for first failures.
    First,
    /// The two slots, without their binding; rules that the chain lost.
    Slot,
    /// A chain comes into use.
    Activate,
    /// The chain before it goes out of use.
    Deactivate,
    /// The source queue, or the policy that makes an External one dead-letter.
    Source,
    /// What brings retried messages back to a source that is new.
    Return,
    /// The user's exchange.
    UserExchange,
    /// The user's bindings, last of all that is created.
    UserBinding,
    /// Bindings that are not wanted any more.
    Unbind,
    /// Nothing leads to a source any more that is made anew.
    Divert,
    /// The source queue goes before what it dead-letters to, and so does the
    /// policy that makes an External one dead-letter.
    RemoveSource,
    /// Queues that hold nothing any more.
    RemoveQueue,
    /// Exchanges that nothing leads to any more.
    RemoveExchange,
    /// Policies, after the queues that they protected.
    RemovePolicy,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Step {
    /// Declares a queue and marks it as ours.
    CreateQueue {
        /// The queue.
        queue: Queue,
        /// The binding that marks it.
        marker: Binding,
    },
    /// Declares an exchange and marks it as ours.
    CreateExchange {
        /// The exchange.
        exchange: Exchange,
        /// The binding that marks it; `None` for the owner exchange itself.
        marker: Option<Binding>,
    },
    /// Marks an object that exists already as ours.
    Mark(Binding),
    /// Takes a marker away.
    Unmark(Binding),
    /// Binds.
    Bind(Binding),
    /// Unbinds.
    Unbind(Binding),
    /// Creates or replaces a policy.
    SetPolicy(Policy),
    /// Removes a policy.
    ClearPolicy(String),
    /// Deletes a queue with all that it holds.
    DeleteQueue(String),
    /// Deletes an exchange.
    DeleteExchange(String),
}

impl Step {
    /// Declarations run before bindings of the same stage.
    #[must_use]
    pub fn rank(&self) -> u8 {
        u8::from(!matches!(self, Self::CreateQueue { .. } | Self::CreateExchange { .. } | Self::SetPolicy(_)))
    }

    /// The object that an inventory records for this step.
    #[must_use]
    pub fn object(&self) -> Option<ObjectKey> {
        match self {
            Self::CreateQueue { queue, .. } => Some(ObjectKey::Queue(queue.name.clone())),
            Self::CreateExchange { exchange, .. } => Some(ObjectKey::Exchange(exchange.name.clone())),
            Self::SetPolicy(policy) => Some(ObjectKey::Policy(policy.name.clone())),
            Self::ClearPolicy(name) => Some(ObjectKey::Policy(name.clone())),
            Self::DeleteQueue(name) => Some(ObjectKey::Queue(name.clone())),
            Self::DeleteExchange(name) => Some(ObjectKey::Exchange(name.clone())),
            Self::Mark(_) | Self::Unmark(_) | Self::Bind(_) | Self::Unbind(_) => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateQueue { queue, .. } => {
                write!(f, "+ queue    {}", queue.name)?;
                write_args(f, &queue.arguments)
            }
            Self::CreateExchange { exchange, .. } => {
                let internal = if exchange.internal { ", internal" } else { "" };
                write!(f, "+ exchange {} ({}{internal})", exchange.name, exchange.kind)?;
                write_args(f, &exchange.arguments)
            }
            Self::Mark(marker) => write!(f, "+ marker   {}", marker.destination),
            Self::Unmark(marker) => write!(f, "- marker   {}", marker.destination),
            Self::Bind(binding) => write!(f, "+ binding  {binding}"),
            Self::Unbind(binding) => write!(f, "- binding  {binding}"),
            Self::SetPolicy(policy) => write!(f, "~ policy   {policy}"),
            Self::ClearPolicy(name) => write!(f, "- policy   {name}"),
            Self::DeleteQueue(name) => write!(f, "- queue    {name}"),
            Self::DeleteExchange(name) => write!(f, "- exchange {name}"),
        }
    }
}

/// A step and when to run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedStep {
    /// When.
    pub stage: Stage,
    /// What.
    pub step: Step,
}

/// Why something that is wanted is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum BlockedBy {
    /// The edit would need a migration that Redrive does not do yet.
    NotSupportedYet,
    /// The edit makes queues anew that others know, which a person must allow.
    AwaitsConsent,
    /// Somebody else owns the object, or it exists and nobody said to adopt it.
    Conflict,
    /// The object exists with settings that can't be changed.
    ArgumentMismatch,
    /// Another policy would lose messages or hides ours.
    PolicyShadowed,
    /// An External source has a policy of its own.
    PolicyConflict,
    /// Something must exist and does not.
    Missing,
    /// Somebody consumes from a retry queue.
    Consumer,
    /// Dead letters are held and do not move.
    Stuck,
}

impl BlockedBy {
    /// Whether an edit waits as a whole.
    #[must_use]
    pub fn refuses_edit(self) -> bool {
        matches!(self, Self::NotSupportedYet | Self::AwaitsConsent)
    }

    /// Whether all is declared as wanted in spite of it.
    #[must_use]
    pub fn concerns_messages_alone(self) -> bool {
        matches!(self, Self::Consumer | Self::Stuck)
    }
}

/// Something that is wanted and not done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Blocked {
    /// The kind of obstacle.
    pub by: BlockedBy,
    /// The object, such as `queue orders`.
    pub object: String,
    /// What is in the way, and what to do about it.
    pub why: String,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.why)
    }
}

/// Messages that go from one queue to another, one by one: published, confirmed, and only then
/// acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Move {
    /// The queue that goes when it is empty.
    pub from: String,
    /// The queue that has its part now.
    pub to: String,
}

/// An edit that is carried out once a person has consented.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pending {
    /// What the consent must name: 16 hexadecimal digits over what is changed and made anew.
    pub hash: String,
    /// What would be done, and what that means for others.
    pub why: String,
}

/// Everything to do, and everything that can't be done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<PlannedStep>,
    /// Obstacles.
    pub blocked: Vec<Blocked>,
    /// Queues that go when they are proven empty.
    pub draining: Vec<String>,
    /// How some of these become empty.
    pub moves: Vec<Move>,
    /// What waits for a person's consent.
    pub pending: Option<Pending>,
}

impl Plan {
    /// Whether nothing is to be written and nothing is in the way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.blocked.is_empty() && self.draining.is_empty()
    }

    /// Adds a step.
    pub fn push(&mut self, stage: Stage, step: Step) {
        self.steps.push(PlannedStep { stage, step });
    }

    /// Parts the steps up to and with a stage from those after it; obstacles stay
    /// with the first part.
    #[must_use]
    pub fn split_after(mut self, stage: Stage) -> (Self, Self) {
        let (early, late) = self.steps.into_iter().partition(|planned| planned.stage <= stage);
        self.steps = early;
        (self, Self { steps: late, ..Self::default() })
    }

    /// Puts the steps into the order in which they must run.
    pub fn sort(&mut self) {
        self.steps.sort_by_key(|planned| (planned.stage, planned.step.rank()));
        self.blocked.sort();
        self.blocked.dedup();
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "nothing to do");
        }
        for blocked in &self.blocked {
            writeln!(f, "! {blocked}")?;
        }
        if let Some(Pending { why, .. }) = &self.pending {
            writeln!(f, "? {why}")?;
        }
        let mut stage = None;
        for planned in &self.steps {
            if stage != Some(planned.stage) {
                stage = Some(planned.stage);
                writeln!(f, "{:?}", planned.stage)?;
            }
            writeln!(f, "  {}", planned.step)?;
        }
        for queue in &self.draining {
            match self.moves.iter().find(|moved| moved.from == *queue) {
                Some(Move { to, .. }) => {
                    writeln!(f, "… queue    {queue} goes when its messages are moved to {to}")?
                }
                None => writeln!(f, "… queue    {queue} goes when it is empty")?,
            }
        }
        Ok(())
    }
}
