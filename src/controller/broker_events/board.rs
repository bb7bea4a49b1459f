//! Which lanes hear of which broker, and how drift is noticed there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::Ear;
use crate::topology::news::{News, Own};

/// How drift is noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Detection {
    /// The broker tells, and polls look as well.
    Events,
    /// By polls alone, and why.
    Polling(String),
}

/// What it takes, where nobody listens.
const NOBODY_LISTENS: &str = "events are read with the credentials of a RabbitmqCluster, or of a Secret that the operator's setting --events-secret names, and never with a pipeline's own Secret";

/// All brokers that lanes work on, by the address of their management API.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    by_address: HashMap<String, Arc<Place>>,
    /// Whether it was decided once who listens where.
    is_settled: bool,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ear of a lane; it hears as long as it is kept.
    pub(crate) fn ear(&self, address: &str, vhost: &str) -> Arc<Ear> {
        let mut places = self.lock();
        places.by_address.retain(|_, place| place.is_in_use());
        // Still under the lock: nobody may take the place away in between.
        places.by_address.entry(address.to_owned()).or_default().ear(vhost)
    }

    /// How drift is noticed on a broker; nothing while that is being found out. `may_listen` tells
    /// whether somebody may begin to listen because of the pipeline that asks.
    pub(crate) fn detection(&self, address: &str, may_listen: bool) -> Option<Detection> {
        let places = self.lock();
        let place = places.by_address.get(address).map(|place| place.state().listening.clone());
        match place {
            Some(Listening::Known(detection)) => Some(detection),
            Some(Listening::Expected) => None,
            Some(Listening::Nobody) | None if may_listen || !places.is_settled => None,
            Some(Listening::Nobody) | None => Some(Detection::Polling(NOBODY_LISTENS.to_owned())),
        }
    }

    /// Whether each broker is heard, by its address, where somebody would listen.
    pub(crate) fn listening(&self) -> Vec<(String, bool)> {
        let places = self.lock();
        let heard = |place: &Place| match place.state().listening {
            Listening::Nobody => None,
            Listening::Expected | Listening::Known(Detection::Polling(_)) => Some(false),
            Listening::Known(Detection::Events) => Some(true),
        };
        places
            .by_address
            .iter()
            .filter_map(|(address, place)| Some((address.clone(), heard(place)?)))
            .collect()
    }

    /// Somebody is about to listen; says to which broker.
    pub(super) fn expect(&self, address: &str) -> Arc<Place> {
        let mut places = self.lock();
        let place = places.by_address.entry(address.to_owned()).or_default().clone();
        place.state().listening = Listening::Expected;
        place
    }

    /// Nobody listens any more.
    pub(super) fn left(&self, address: &str) {
        let place = self.lock().by_address.get(address).cloned();
        place.iter().for_each(|place| place.set(Listening::Nobody));
    }

    /// It was decided who listens where: whoever waited for that may say so now.
    pub(super) fn settle(&self) {
        let mut places = self.lock();
        if std::mem::replace(&mut places.is_settled, true) {
            return;
        }
        let all: Vec<_> = places.by_address.values().cloned().collect();
        drop(places);
        all.iter().for_each(|place| place.ring_all());
    }
}

/// One broker.
#[derive(Debug, Default)]
pub(super) struct Place(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    listening: Listening,
    vhosts: HashMap<String, Vhost>,
}

/// Whether anybody listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Listening {
    #[default]
    Nobody,
    /// Somebody begins to, or has lost the connection a moment ago.
    Expected,
    Known(Detection),
}

#[derive(Debug)]
struct Vhost {
    /// What lanes write there, whatever their credentials.
    own: Arc<Mutex<Own>>,
    ears: Vec<Weak<Ear>>,
    /// When the times in `own` began.
    began: Instant,
}

impl Default for Vhost {
    fn default() -> Self {
        Self { own: Arc::default(), ears: Vec::new(), began: Instant::now() }
    }
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_in_use(&self) -> bool {
        let mut state = self.state();
        state.vhosts.retain(|_, vhost| vhost.ears.iter().any(|ear| ear.strong_count() > 0));
        !state.vhosts.is_empty() || state.listening != Listening::Nobody
    }

    fn ear(&self, vhost: &str) -> Arc<Ear> {
        let mut state = self.state();
        let is_open = state.listening == Listening::Known(Detection::Events);
        let vhost = state.vhosts.entry(vhost.to_owned()).or_default();
        let ear = Arc::new(Ear::new(vhost.own.clone(), vhost.began, is_open));
        vhost.ears.retain(|ear| ear.strong_count() > 0);
        vhost.ears.push(Arc::downgrade(&ear));
        ear
    }

    /// From now on every change is heard; what was before, a look at everything shows.
    pub(super) fn hears(&self) {
        self.each_ear(Ear::open);
        self.set(Listening::Known(Detection::Events));
    }

    /// Changes may have been missed.
    pub(super) fn missed(&self) {
        self.each_ear(Ear::forget);
        self.ring_all();
    }

    /// Nothing is heard for the moment. What the lanes say of it stays.
    pub(super) fn lost(&self) {
        self.each_ear(Ear::close);
    }

    /// Nothing is heard, and will not be before somebody does something about it.
    pub(super) fn deaf(&self, why: String) {
        self.each_ear(Ear::close);
        self.set(Listening::Known(Detection::Polling(why)));
    }

    /// What there is to say of this broker has changed, or all is to be looked at.
    fn set(&self, listening: Listening) {
        let is_news = std::mem::replace(&mut self.state().listening, listening.clone()) != listening;
        if listening == Listening::Nobody {
            self.each_ear(Ear::close);
        }
        if is_news || listening == Listening::Known(Detection::Events) {
            self.ring_all();
        }
    }

    /// Passes on what is heard to those whom it concerns.
    pub(super) fn tell(&self, news: &[News]) {
        let state = self.state();
        for news in news {
            let Some(vhost) = state.vhosts.get(&news.vhost) else { continue };
            let now: Duration = vhost.began.elapsed();
            let is_own = vhost.own.lock().unwrap_or_else(PoisonError::into_inner).is_own(&news.change, now);
            if !is_own {
                vhost.ears.iter().filter_map(Weak::upgrade).for_each(|ear| ear.hear(news));
            }
        }
    }

    fn ring_all(&self) {
        self.each_ear(Ear::ring);
    }

    fn each_ear(&self, what: fn(&Ear)) {
        let state = self.state();
        let ears = state.vhosts.values().flat_map(|vhost| &vhost.ears);
        ears.filter_map(Weak::upgrade).for_each(|ear| what(&ear));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::model::Destination;
    use crate::topology::news::{Change, Known};
    use crate::topology::plan::Step;

    fn deleted(vhost: &str, queue: &str) -> News {
        let change = Change::Deleted(Destination::Queue(queue.to_owned()));
        News { vhost: vhost.to_owned(), change, by: Some("eve".to_owned()) }
    }

    fn place(board: &Board, address: &str) -> Arc<Place> {
        board.lock().by_address[address].clone()
    }

    #[test]
    fn a_lane_hears_of_its_own_broker_and_vhost_alone() {
        let board = Board::default();
        let (here, other_vhost) = (board.ear("a", "/"), board.ear("a", "/shop"));
        let other_broker = board.ear("b", "/");
        board.expect("a").hears();
        for ear in [&here, &other_vhost] {
            assert!(ear.is_rung(), "all look once somebody listens");
            ear.begin_look(None);
        }
        assert!(!other_broker.is_rung());
        place(&board, "a").tell(&[deleted("/", "q")]);
        assert!(here.is_rung() && !other_vhost.is_rung() && !other_broker.is_rung());
        assert_eq!(here.author("queue q").as_deref(), Some("eve"));
        assert_eq!(other_vhost.author("queue q"), None);
    }

    #[test]
    fn what_a_lane_writes_is_news_to_no_lane_of_its_vhost() {
        let board = Board::default();
        board.expect("a").hears();
        let (one, another) = (board.ear("a", "/"), board.ear("a", "/"));
        for ear in [&one, &another] {
            ear.begin_look(None);
        }
        one.expect(&Step::ClearPolicy("p".to_owned()));
        let cleared = News {
            vhost: "/".to_owned(),
            change: Change::PolicyCleared("p".to_owned()),
            by: Some("shared".to_owned()),
        };
        place(&board, "a").tell(std::slice::from_ref(&cleared));
        assert!(!one.is_rung() && !another.is_rung());
        place(&board, "a").tell(&[cleared]);
        assert!(one.is_rung() && another.is_rung(), "the second is somebody else's");
    }

    #[test]
    fn what_concerns_no_pipeline_is_passed_over() {
        let board = Board::default();
        board.expect("a").hears();
        let ear = board.ear("a", "/");
        ear.begin_look(Some(Known::default()));
        place(&board, "a").tell(&[deleted("/", "q")]);
        assert!(!ear.is_rung());
        assert_eq!(ear.author("queue q"), None);
    }

    #[test]
    fn how_drift_is_noticed_is_said_once_it_is_known() {
        let board = Board::default();
        let ear = board.ear("a", "/");
        assert_eq!(board.detection("a", false), None, "nothing is decided yet");
        board.settle();
        assert!(ear.is_rung(), "whoever waited may say so");
        assert_eq!(board.detection("a", false), Some(Detection::Polling(NOBODY_LISTENS.to_owned())));
        assert_eq!(board.detection("a", true), None, "because of this pipeline somebody may begin");
        board.expect("a");
        assert_eq!(board.detection("a", false), None);
        board.expect("a").hears();
        assert_eq!(board.detection("a", true), Some(Detection::Events));
        place(&board, "a").lost();
        assert_eq!(board.detection("a", true), Some(Detection::Events), "a moment is no news");
        ear.begin_look(None);
        place(&board, "a").deaf("why".to_owned());
        assert!(ear.is_rung());
        assert_eq!(board.detection("a", true), Some(Detection::Polling("why".to_owned())));
    }

    #[test]
    fn a_lane_that_has_ended_leaves_nothing_behind() {
        let board = Board::default();
        drop(board.ear("a", "/"));
        let _kept = board.ear("b", "/");
        assert_eq!(board.lock().by_address.len(), 1);
    }
}
