//! Which publish was confirmed, returned or refused, without believing the client's pairing.
//!
//! A broker answers an unroutable mandatory publish with a return, and then confirms it. The
//! client keeps returns in a row and hands the first of them to whatever confirm comes next,
//! so a confirm may carry another message's return, and the returned message's own confirm
//! may look clean. Three facts make it sound again:
//! - a return comes before its own confirm, so it was handed out by then, or still waits;
//! - a confirm without a return was made while none waited: whatever returns there had been
//!   before were handed out before, and waking up in the order of confirms we have seen them;
//! - a confirm that carries another's return proves nothing about its own message, until one
//!   without a return, or the last one under way, shows that none waits.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use lapin::Confirmation;
use lapin::message::BasicReturnMessage;
use tokio::sync::Notify;

use super::convert;
use crate::replay::message::Value;

/// The header by which a return is matched.
pub(super) const REPLAY_ID: &str = "x-redrive-replay-id";

/// What became of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Confirmed,
    Returned,
    Refused,
}

/// A confirm as it came, with the replay id of whatever return it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Came {
    pub(super) number: u64,
    pub(super) acked: bool,
    pub(super) carries: Option<String>,
}

#[derive(Debug)]
struct Pending {
    id: String,
    returned: bool,
}

/// Publishes whose fate is open, by number, and the rules above.
#[derive(Debug, Default)]
pub(super) struct Fates {
    pending: HashMap<u64, Pending>,
    /// Confirmed, with another's return.
    unsure: Vec<u64>,
}

impl Fates {
    pub(super) fn add(&mut self, number: u64, id: String) {
        self.pending.insert(number, Pending { id, returned: false });
    }

    /// Takes confirms in the order in which they came, all that came so far.
    pub(super) fn settle(&mut self, came: Vec<Came>) -> Vec<(u64, Fate)> {
        for id in came.iter().filter_map(|came| came.carries.as_deref()) {
            self.mark_returned(id);
        }
        let none_waits = came.iter().any(|came| came.carries.is_none());
        let mut fates = Vec::with_capacity(came.len());
        let doubtful = std::mem::take(&mut self.unsure);
        self.unsure = doubtful
            .into_iter()
            .filter(|number| !self.conclude(*number, none_waits.then_some(Fate::Confirmed), &mut fates))
            .collect();
        for came in came {
            let clean = match (came.acked, came.carries) {
                (false, _) => Some(Fate::Refused),
                (true, None) => Some(Fate::Confirmed),
                (true, Some(_)) => None,
            };
            if !self.conclude(came.number, clean, &mut fates) {
                self.unsure.push(came.number);
            }
        }
        if self.unsure.len() == self.pending.len() {
            for number in std::mem::take(&mut self.unsure) {
                self.conclude(number, Some(Fate::Confirmed), &mut fates);
            }
        }
        fates
    }

    fn conclude(&mut self, number: u64, clean: Option<Fate>, fates: &mut Vec<(u64, Fate)>) -> bool {
        let Some(pending) = self.pending.get(&number) else { return true };
        let fate = if pending.returned { Some(Fate::Returned) } else { clean };
        if let Some(fate) = fate {
            self.pending.remove(&number);
            fates.push((number, fate));
        }
        fate.is_some()
    }

    /// Two messages of one id are the same in everything that counts: either may be meant.
    fn mark_returned(&mut self, id: &str) {
        let mut same = self.pending.values_mut().filter(|pending| !pending.returned && pending.id == id);
        if let Some(pending) = same.next() {
            pending.returned = true;
        }
    }
}

/// Numbers of publishes to look at: new ones, written ones, confirmed ones, in their order.
#[derive(Default)]
struct Woken {
    numbers: Mutex<VecDeque<u64>>,
    notify: Notify,
}

impl Woken {
    fn pop(&self) -> Option<u64> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn push(&self, number: u64) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).push_back(number);
        self.notify.notify_one();
    }
}

struct Alarm {
    number: u64,
    woken: Arc<Woken>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.woken.push(self.number);
    }
}

/// From a publish to its confirm.
type Publish = Pin<Box<dyn Future<Output = lapin::Result<Confirmation>> + Send>>;

/// The client's confirms under way, in the order in which they come.
#[derive(Default)]
pub(super) struct Confirms {
    waiting: HashMap<u64, (Publish, Waker)>,
    woken: Arc<Woken>,
}

impl Confirms {
    /// Adds a publish, which begins, after those added before, with the next
    /// [`Confirms::take`].
    pub(super) fn add(
        &mut self,
        number: u64,
        publish: impl Future<Output = lapin::Result<Confirmation>> + Send + 'static,
    ) {
        let waker: Waker = Arc::new(Alarm { number, woken: Arc::clone(&self.woken) }).into();
        self.waiting.insert(number, (Box::pin(publish), waker));
        self.woken.push(number);
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// All confirms that came so far. Whatever came before one of them is among them or was
    /// taken before.
    ///
    /// # Errors
    /// Where the channel is gone, and with it every confirm.
    pub(super) fn take(&mut self) -> lapin::Result<Vec<Came>> {
        let mut came = Vec::new();
        while let Some(number) = self.woken.pop() {
            let Some((publish, waker)) = self.waiting.get_mut(&number) else { continue };
            let Poll::Ready(result) = publish.as_mut().poll(&mut Context::from_waker(waker)) else {
                continue;
            };
            self.waiting.remove(&number);
            let confirmation = result?;
            let acked = confirmation.is_ack();
            let carried = confirmation.take_message();
            // Without an id it is nobody's, and still says that another may wait.
            let carries = carried.map(|message| id_of(&message).unwrap_or_default());
            came.push(Came { number, acked, carries });
        }
        Ok(came)
    }

    /// Waits until a confirm comes.
    pub(super) async fn come(&mut self) {
        self.woken.notify.notified().await;
    }
}

/// The replay id of a returned message.
pub(super) fn id_of(message: &BasicReturnMessage) -> Option<String> {
    let headers = convert::properties(&message.delivery.properties);
    headers.header(REPLAY_ID).and_then(Value::as_text).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn came(number: u64, carries: Option<&str>) -> Came {
        Came { number, acked: true, carries: carries.map(str::to_owned) }
    }

    fn fates(ids: &[(u64, &str)]) -> Fates {
        let mut fates = Fates::default();
        for (number, id) in ids {
            fates.add(*number, (*id).to_owned());
        }
        fates
    }

    #[test]
    fn a_return_that_came_with_another_confirm_marks_its_own_message() {
        let mut fates = fates(&[(1, "a"), (2, "b"), (3, "c")]);
        // The return of "b" waited when "a" was confirmed.
        assert_eq!(fates.settle(vec![came(1, Some("b"))]), []);
        assert_eq!(fates.settle(vec![came(2, None)]), [(1, Fate::Confirmed), (2, Fate::Returned)]);
        assert_eq!(fates.settle(vec![came(3, None)]), [(3, Fate::Confirmed)]);
    }

    #[test]
    fn a_confirm_with_a_foreign_return_may_be_of_a_returned_message() {
        let mut fates = fates(&[(1, "a"), (2, "b")]);
        // Both were returned; the confirm of "b" came first and took the return of "a".
        assert_eq!(fates.settle(vec![came(2, Some("a"))]), []);
        let mut settled = fates.settle(vec![came(1, Some("b"))]);
        settled.sort_unstable_by_key(|(number, _)| *number);
        assert_eq!(settled, [(1, Fate::Returned), (2, Fate::Returned)]);
    }

    #[test]
    fn the_last_one_under_way_settles_what_is_unsure() {
        let mut fates = fates(&[(1, "a"), (2, "b")]);
        let settled = fates.settle(vec![came(1, Some("b")), came(2, Some("x"))]);
        assert!(settled.contains(&(2, Fate::Returned)) && settled.contains(&(1, Fate::Confirmed)));
        assert!(fates.pending.is_empty());
    }

    #[test]
    fn a_refusal_is_no_confirm_whatever_it_carries() {
        let mut fates = fates(&[(1, "a"), (2, "b")]);
        let refused = Came { acked: false, ..came(1, None) };
        assert_eq!(fates.settle(vec![refused]), [(1, Fate::Refused)]);
        let refused = Came { acked: false, ..came(2, Some("b")) };
        assert_eq!(fates.settle(vec![refused]), [(2, Fate::Returned)]);
    }

    #[test]
    fn two_messages_of_one_id_share_their_returns() {
        let mut fates = fates(&[(1, "a"), (2, "a")]);
        assert_eq!(fates.settle(vec![came(1, Some("a")), came(2, None)]).len(), 2);
    }
}
