//! Values of flags, as people type them.

use std::str::FromStr;

use k8s_openapi::jiff::Timestamp;

use crate::api::DeathReason;

/// A queue or exchange that a replay reads from or moves to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The dead-letter queue.
    DeadLetter,
    /// The work queue.
    WorkQueue,
    /// Where each message was first published to.
    Origin,
    /// A quarantine queue, by its category.
    Quarantine(String),
    /// The parking lot.
    ParkingLot,
    /// A queue by name.
    Queue(String),
    /// An exchange by name.
    Exchange(String),
    /// Nowhere.
    Discard,
}

/// Which of the two ends a place is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    From,
    To,
}

impl Place {
    /// Why it can't be that end of a replay.
    pub(super) fn no_place(&self, direction: Direction) -> String {
        match direction {
            Direction::From => {
                "--from: a replay reads from dead-letter, quarantine:CATEGORY or parking-lot".to_owned()
            }
            Direction::To => "--to: a replay moves to work-queue, origin, quarantine:CATEGORY, parking-lot, \
                              queue:NAME, exchange:NAME or discard"
                .to_owned(),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let place = match text.split_once(':') {
            None => match text {
                "dead-letter" | "dlq" => Some(Self::DeadLetter),
                "work-queue" => Some(Self::WorkQueue),
                "origin" => Some(Self::Origin),
                "parking-lot" => Some(Self::ParkingLot),
                "discard" => Some(Self::Discard),
                _ => None,
            },
            // Everything behind the first colon is the name, which may have colons itself.
            Some((_, "")) => None,
            Some(("quarantine", category)) => Some(Self::Quarantine(category.to_owned())),
            Some(("queue", name)) => Some(Self::Queue(name.to_owned())),
            Some(("exchange", name)) => Some(Self::Exchange(name.to_owned())),
            Some(_) => None,
        };
        place.ok_or_else(|| {
            "there are dead-letter, work-queue, origin, parking-lot, discard, quarantine:CATEGORY, queue:NAME and \
             exchange:NAME"
                .to_owned()
        })
    }
}

/// A header and its exact text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) name: String,
    pub(super) value: String,
}

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                Ok(Self { name: name.to_owned(), value: value.to_owned() })
            }
            _ => Err("write NAME=VALUE, such as x-error-type=Timeout".to_owned()),
        }
    }
}

/// Why messages died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reason(pub(super) DeathReason);

impl FromStr for Reason {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        use DeathReason::{DeliveryLimit, Expired, Maxlen, Rejected};
        [Rejected, Expired, Maxlen, DeliveryLimit]
            .into_iter()
            .find(|reason| reason.as_str() == text)
            .map(Self)
            .ok_or_else(|| "there are rejected, expired, maxlen and delivery_limit".to_owned())
    }
}

/// A moment with its offset from UTC.
pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| "write a moment with its offset, such as 2026-11-29T22:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_colons_of_its_own() {
        assert_eq!("queue:a:b".parse(), Ok(Place::Queue("a:b".to_owned())));
        assert_eq!("exchange:shop.events".parse(), Ok(Place::Exchange("shop.events".to_owned())));
        assert!("queue:".parse::<Place>().is_err());
        assert!("orders.queue".parse::<Place>().is_err());
    }

    #[test]
    fn a_header_may_have_equals_signs_in_its_value() {
        let header = Header { name: "a".to_owned(), value: "b=c".to_owned() };
        assert_eq!("a=b=c".parse(), Ok(header));
        assert!("=b".parse::<Header>().is_err());
        assert!("a".parse::<Header>().is_err());
    }

    #[test]
    fn reasons_are_the_brokers_words() {
        assert_eq!("delivery_limit".parse(), Ok(Reason(DeathReason::DeliveryLimit)));
        assert!("Rejected".parse::<Reason>().is_err());
    }
}
