//! What a read of the origin queue showed: counted message by message, in bounded memory.

use std::collections::{BTreeMap, HashSet};

use super::sketch::{Sketch, Top};
use crate::replay::death::{self, Class};
use crate::replay::id::short_id;
use crate::replay::judge::{Failures, Judge, RunJudge};
use crate::replay::message::{Message, Value};
use crate::replay::origin;
use crate::replay::run::{Fate, Fence, Left};
use crate::replay::size;

/// Values that each part of the histogram shows.
const SHOWN: usize = 20;

/// Ids that are remembered to count equal ones; 8 bytes each.
const MAX_IDS: usize = 1_000_000;

/// Ages in seconds, each with the name of what is younger.
const AGES: [(u64, &str); 7] = [
    (60, "under 1m"),
    (600, "1m to 10m"),
    (3_600, "10m to 1h"),
    (21_600, "1h to 6h"),
    (86_400, "6h to 1d"),
    (604_800, "1d to 7d"),
    (2_592_000, "7d to 30d"),
];

/// How matching messages spread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// By the reason of the last death.
    pub reasons: Top,
    /// By `x-error-type`.
    pub error_types: Top,
    /// By `x-opt-category`.
    pub categories: Top,
    /// By `x-error-stack-hash`.
    pub stack_hashes: Top,
    /// By exchange and routing key of the first publish.
    pub origins: Top,
    /// By the time in the queue.
    pub ages: Top,
    /// By each header that may be shown.
    pub headers: Vec<(String, Top)>,
}

/// What a read showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Messages read.
    pub examined: u64,
    /// Messages that the selection wants.
    pub matching: u64,
    /// Of these, those that would go to the queue for messages replayed too often.
    pub over_limit: u64,
    /// Of these, those that would stay, by reason.
    pub left: BTreeMap<Left, u64>,
    /// Messages on which the expression failed; they don't match.
    pub failures: u64,
    /// Matching messages whose replay id another one has as well.
    pub colliding: u64,
    /// Whether there may be more of those, as there were too many messages to remember.
    pub colliding_at_least: bool,
    /// Matching messages with a time to live of their own.
    pub expiring: u64,
    /// Matching messages whose answer was expected on a channel that is long gone.
    pub stale_replies: u64,
    /// The largest frame of headers, in bytes.
    pub largest_headers: usize,
    /// How the matching ones spread.
    pub histogram: Histogram,
}

/// Counts messages one by one; none is kept.
pub struct Survey {
    judge: RunJudge,
    failures: Failures,
    run: String,
    fence: Fence,
    summary: Summary,
    ids: HashSet<u64>,
    reasons: Sketch,
    error_types: Sketch,
    categories: Sketch,
    stack_hashes: Sketch,
    origins: Sketch,
    ages: Sketch,
    headers: Vec<(String, Sketch)>,
}

/// What is counted of a message, taken before the judge takes the message.
struct Traits {
    class: Class,
    origin: String,
    age: &'static str,
    headers: Vec<Option<String>>,
    id: u64,
    expires: bool,
    stale_reply: bool,
    header_frame: usize,
}

impl Survey {
    /// A survey for a run, whose judge decides what matches; `headers` are those that may be
    /// shown.
    #[must_use]
    pub fn new(judge: RunJudge, run: &str, fence: Fence, headers: &[String]) -> Self {
        Self {
            failures: judge.failures(),
            judge,
            run: run.to_owned(),
            fence,
            summary: Summary::default(),
            ids: HashSet::new(),
            reasons: Sketch::default(),
            error_types: Sketch::default(),
            categories: Sketch::default(),
            stack_hashes: Sketch::default(),
            origins: Sketch::default(),
            ages: Sketch::default(),
            headers: headers.iter().map(|name| (name.clone(), Sketch::default())).collect(),
        }
    }

    /// Counts a message.
    pub fn observe(&mut self, message: Message) {
        let traits = self.traits(&message);
        self.summary.examined += 1;
        let left = match self.judge.judge(message, self.fence) {
            Fate::Publish { over_limit, .. } => {
                self.summary.over_limit += u64::from(over_limit);
                None
            }
            Fate::Discard => None,
            Fate::Leave(left) => Some(left),
        };
        if let Some(left) = left {
            *self.summary.left.entry(left).or_default() += 1;
        }
        if !matches!(left, Some(Left::NotSelected | Left::Returned | Left::BehindFence)) {
            self.count(traits);
        }
    }

    /// What was counted.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let top = |sketch: &Sketch| sketch.top(SHOWN);
        Summary {
            failures: self.failures.count(),
            histogram: Histogram {
                reasons: top(&self.reasons),
                error_types: top(&self.error_types),
                categories: top(&self.categories),
                stack_hashes: top(&self.stack_hashes),
                origins: top(&self.origins),
                ages: top(&self.ages),
                headers: self.headers.iter().map(|(name, sketch)| (name.clone(), top(sketch))).collect(),
            },
            ..self.summary.clone()
        }
    }

    fn traits(&self, message: &Message) -> Traits {
        let header = |name: &String| message.properties.header(name).and_then(Value::printed);
        let origin = origin::origin(message).map(|origin| match origin.exchange.as_str() {
            "" => origin.routing_key,
            exchange => format!("{exchange}: {}", origin.routing_key),
        });
        let reply_to = message.properties.reply_to.as_deref().unwrap_or_default();
        Traits {
            class: death::class(message),
            origin: origin.unwrap_or_else(|| "unknown origin".to_owned()),
            age: age(message, self.fence),
            headers: self.headers.iter().map(|(name, _)| header(name)).collect(),
            id: short_id(&self.run, message),
            expires: message.properties.expiration.is_some(),
            stale_reply: reply_to.starts_with("amq.rabbitmq.reply-to."),
            header_frame: size::header_frame(&message.properties),
        }
    }

    fn count(&mut self, traits: Traits) {
        let summary = &mut self.summary;
        summary.matching += 1;
        summary.expiring += u64::from(traits.expires);
        summary.stale_replies += u64::from(traits.stale_reply);
        summary.largest_headers = summary.largest_headers.max(traits.header_frame);
        if self.ids.contains(&traits.id) {
            summary.colliding += 1;
        } else if self.ids.len() < MAX_IDS {
            self.ids.insert(traits.id);
        } else {
            summary.colliding_at_least = true;
        }
        let parts = [
            (&mut self.reasons, traits.class.reason),
            (&mut self.error_types, traits.class.error_type),
            (&mut self.categories, traits.class.category),
            (&mut self.stack_hashes, traits.class.stack_hash),
            (&mut self.origins, Some(traits.origin)),
            (&mut self.ages, Some(traits.age.to_owned())),
        ];
        let headers = self.headers.iter_mut().map(|(_, sketch)| sketch).zip(traits.headers);
        for (sketch, value) in parts.into_iter().chain(headers) {
            if let Some(value) = value {
                sketch.add(&value);
            }
        }
    }
}

fn age(message: &Message, fence: Fence) -> &'static str {
    let Some(entered) = death::entered(message) else { return "unknown" };
    let age = (fence.time / 1_000).saturating_sub(entered);
    AGES.iter().find(|(below, _)| age < *below).map_or("30d and more", |(_, name)| name)
}

impl Summary {
    /// Matching messages that would stay where they are.
    #[must_use]
    pub fn left_behind(&self) -> u64 {
        let stays = [Left::UnknownOrigin, Left::TooManyReplays, Left::Unmovable];
        stays.iter().filter_map(|left| self.left.get(left)).sum()
    }
}
