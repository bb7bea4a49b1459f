//! What a lane hears: when to look, and who did what.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::topology::news::{Authors, Known, News, Own};
use crate::topology::ownership::Inventory;
use crate::topology::plan::Step;
use crate::topology::validate::Pipeline;

/// How long more changes are awaited after the first: they often come together.
const GATHERING: Duration = Duration::from_millis(100);

/// The ear of one lane.
#[derive(Debug)]
pub(crate) struct Ear {
    /// What the lanes of this vhost write.
    own: Arc<Mutex<Own>>,
    began: std::time::Instant,
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Since when a look is due.
    rung: Option<Instant>,
    /// Whether anything is heard at present.
    is_open: bool,
    /// What concerns the lane's pipelines; before that was looked up, everything does.
    known: Option<Known>,
    authors: Authors,
}

impl Ear {
    pub(super) fn new(own: Arc<Mutex<Own>>, began: std::time::Instant, is_open: bool) -> Self {
        let state = Mutex::new(State { is_open, ..State::default() });
        Self { own, began, state, bell: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a change that is none of ours.
    pub(super) fn hear(&self, news: &News) {
        let mut state = self.state();
        if state.known.as_ref().is_none_or(|known| known.concerns(&news.change)) {
            state.authors.note(news);
            drop(state);
            self.ring();
        }
    }

    /// Has the lane look at its vhost.
    pub(crate) fn ring(&self) {
        self.state().rung.get_or_insert_with(Instant::now);
        self.bell.notify_one();
    }

    /// Changes are heard from now on.
    pub(super) fn open(&self) {
        self.forget();
        self.state().is_open = true;
    }

    /// Nothing is heard any more.
    pub(super) fn close(&self) {
        self.forget();
        self.state().is_open = false;
    }

    /// Changes may have been missed, so that nobody knows who made what is found.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.authors.clear();
        state.known = None;
    }

    /// Waits until a look is due, and not before this time. Nothing is lost where it is dropped.
    pub(crate) async fn rung(&self, not_before: Instant) {
        loop {
            let rung = self.state().rung;
            match rung {
                Some(since) => return sleep_until(not_before.max(since + GATHERING)).await,
                None => self.bell.notified().await,
            }
        }
    }

    /// Whether anything is heard, so that names are worth remembering.
    pub(crate) fn is_open(&self) -> bool {
        self.state().is_open
    }

    /// A look at all that the lane knows begins: what is heard from now on makes another one due.
    pub(crate) fn begin_look(&self, known: Option<Known>) {
        let mut state = self.state();
        state.rung = None;
        state.known = known.filter(|_| state.is_open);
    }

    /// Adds what a pipeline has, or is about to have.
    pub(crate) fn know(&self, pipeline: &Pipeline, inventory: &Inventory) {
        if let Some(known) = &mut self.state().known {
            known.add(pipeline, inventory);
        }
    }

    /// Notes a step that is about to be written.
    pub(crate) fn expect(&self, step: &Step) {
        if self.is_open() {
            self.own().expect(step, self.began.elapsed());
        }
    }

    /// The user who changed an object last, where that was heard.
    pub(crate) fn author(&self, object: &str) -> Option<String> {
        self.state().authors.of(object)
    }

    /// The user who last wrote a policy that this text names.
    pub(crate) fn author_of_policy(&self, text: &str) -> Option<String> {
        self.state().authors.of_policy_in(text)
    }

    #[cfg(test)]
    pub(super) fn is_rung(&self) -> bool {
        self.state().rung.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::model::Destination;
    use crate::topology::news::Change;

    fn ear() -> Ear {
        Ear::new(Arc::default(), std::time::Instant::now(), true)
    }

    fn news(queue: &str) -> News {
        let change = Change::Deleted(Destination::Queue(queue.to_owned()));
        News { vhost: "/".to_owned(), change, by: Some("eve".to_owned()) }
    }

    #[tokio::test]
    async fn a_storm_makes_one_look_at_a_time_and_a_last_one_after_it() {
        let ear = ear();
        let storm = |numbers: std::ops::Range<u32>| numbers.for_each(|n| ear.hear(&news(&n.to_string())));
        storm(0..10_000);
        ear.rung(Instant::now()).await;
        ear.begin_look(None);
        assert!(!ear.is_rung(), "one look for all of them");
        storm(10_000..10_001);
        ear.rung(Instant::now()).await;
        ear.begin_look(None);
        let more = tokio::time::timeout(3 * GATHERING, ear.rung(Instant::now())).await;
        assert!(more.is_err(), "nothing is due any more");
    }

    #[tokio::test]
    async fn a_look_that_is_put_off_stays_due() {
        let ear = ear();
        ear.ring();
        let later = Instant::now() + 3 * GATHERING;
        let put_off = tokio::time::timeout(GATHERING, ear.rung(later)).await;
        assert!(put_off.is_err());
        ear.rung(later).await;
        assert!(Instant::now() >= later);
    }

    #[test]
    fn after_a_gap_nobody_is_named_and_everything_concerns() {
        let ear = ear();
        ear.hear(&news("q"));
        assert_eq!(ear.author("queue q").as_deref(), Some("eve"));
        ear.begin_look(Some(Known::default()));
        ear.forget();
        assert_eq!(ear.author("queue q"), None);
        ear.hear(&news("q"));
        assert!(ear.is_rung());
    }
}
