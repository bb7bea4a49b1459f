//! Why something that works can't be described, and what to do about it.

use super::super::super::model::Policy;
use super::super::super::names;
use super::super::own::ladder::shown;

const ANEW: &str = "let the application declare a new work queue without x-dead-letter arguments, describe that one \
     with source.ownership External, and move the bindings to it";

/// Why a work queue can't be described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Gone,
    Fleeting(&'static str),
    /// It dead-letters to an exchange; by a policy, if that is named.
    Exchange {
        exchange: String,
        key: Option<String>,
        to: String,
        policy: Option<String>,
    },
    OwnKey,
    ToItself,
    Loop {
        through: String,
        after: Option<i64>,
    },
    Roundabout {
        retries: String,
        exchange: String,
    },
    Names(String),
    /// A retry queue of this work queue, which was described without it.
    Stray(String),
    Marked,
    Unclaimed {
        to: String,
        exists: bool,
    },
}

impl Refusal {
    pub(super) fn exchange(exchange: &str, key: Option<&str>, to: &[&str], policy: Option<String>) -> Self {
        let to = if to.is_empty() { "no queue".to_owned() } else { shown(to) };
        Self::Exchange { exchange: exchange.to_owned(), key: key.map(str::to_owned), to, policy }
    }

    pub(super) fn roundabout(retries: &[&str], exchange: &str) -> Self {
        Self::Roundabout { retries: shown(retries), exchange: exchange.to_owned() }
    }

    /// Why, and what to do.
    pub(super) fn sentences(self, queue: &str) -> (String, String) {
        let why = self.why();
        (why, self.instead(queue))
    }

    fn why(&self) -> String {
        match self {
            Self::Gone => "retry queues lead to it, and it does not exist".to_owned(),
            Self::Fleeting(what) => format!("{what}, and messages of such a queue are lost with it"),
            Self::Exchange { exchange, key, to, policy } => {
                let key = key.as_ref().map(|key| format!(" with the key {key:?}")).unwrap_or_default();
                let by = match policy {
                    Some(policy) => format!("by the policy {policy:?}"),
                    None => "by its arguments".to_owned(),
                };
                let spring = if exchange == "DLX" { ", as Spring Cloud Stream declares it" } else { "" };
                format!(
                    "dead-letters {by} to the exchange {exchange:?}{key}, which leads to {to}{spring}; the source of a \
                     RetryPipeline dead-letters straight to its DLQ, or to an exchange of its own"
                )
            }
            Self::OwnKey => {
                "dead-letters through the default exchange under each message's own routing key, which \
                             leads to no one queue"
                    .to_owned()
            }
            Self::ToItself => {
                "dead-letters to itself, so that what fails comes back at once and for ever".to_owned()
            }
            Self::Loop { through, after } => {
                let after = after.map(|time| format!(" after {}", names::duration(time))).unwrap_or_default();
                format!(
                    "dead-letters to {through}, which leads back to it{after}: what fails goes round until the \
                     application acknowledges it, and there is no DLQ"
                )
            }
            Self::Roundabout { retries, exchange } => format!(
                "its retry queues ({retries}) lead back through the exchange {exchange:?}, from which others may get \
                 the same message again; those of a RetryPipeline lead straight to the source"
            ),
            Self::Names(why) => why.clone(),
            Self::Stray(work) => format!(
                "brings messages back to {work}, and has a name of another form than the retry queues that its \
                 RetryPipeline names"
            ),
            Self::Marked => {
                "has a marker of Redrive and is no part of what its pipeline asks for: a change of it is \
                 under way, or its pipeline is gone"
                    .to_owned()
            }
            Self::Unclaimed { to, exists: true } => {
                format!("dead-letters to {to}, and belongs to no work queue that was found")
            }
            Self::Unclaimed { to, exists: false } => {
                format!("dead-letters to {to}, from which nothing reaches a queue that exists")
            }
        }
    }

    fn instead(&self, queue: &str) -> String {
        match self {
            Self::Gone | Self::Unclaimed { .. } => {
                "if nobody needs it, delete it once it is empty; else describe by hand what it is for".to_owned()
            }
            Self::Fleeting(_) => "let its application declare a durable quorum queue".to_owned(),
            Self::Exchange { policy: Some(policy), .. } => format!(
                "stop the consumers of {queue}, take dead-letter-exchange out of the policy {policy:?}, describe {queue} \
                 with source.ownership External and mergePolicy true, and start them again"
            ),
            Self::Exchange { .. } | Self::OwnKey | Self::ToItself => ANEW.to_owned(),
            Self::Loop { .. } => format!("{ANEW}; with mode Broker attempts are counted, and the last failure ends in the DLQ"),
            Self::Roundabout { .. } => {
                "declare retry queues with x-dead-letter-exchange \"\" and the source's name as x-dead-letter-routing-key, \
                 and let the old ones run empty"
                    .to_owned()
            }
            Self::Names(_) => {
                "declare retry queues with names that are counted, such as NAME.retry.1, NAME.retry.2, and let the old \
                 ones run empty"
                    .to_owned()
            }
            Self::Stray(_) => "it works on as it is; to have it in the pipeline, declare one with a name of that form and \
                               let this one run empty"
                .to_owned(),
            Self::Marked => "look at it again later, or delete it by hand if its pipeline is gone".to_owned(),
        }
    }
}

/// What a description of a work queue has to say besides.
pub(super) fn remarks(
    queue: &str,
    managed: bool,
    dead_letters: bool,
    policy: Option<&Policy>,
) -> Vec<String> {
    let mut remarks = Vec::new();
    if !managed {
        remarks.push(format!(
            "{queue} is External: its arguments say nothing of dead letters, and they can't be changed. Redrive adds a policy."
        ));
    }
    if !dead_letters {
        remarks.push(format!("{queue} dead-letters nowhere today: what its consumers reject is lost."));
    }
    if let Some(policy) = policy {
        remarks.push(format!(
            "The policy {:?} says today where dead letters of {queue} go; its keys are merged into ours, and it stays.",
            policy.name
        ));
    }
    remarks
}
