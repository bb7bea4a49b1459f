//! Who claims which queue, so that two pipelines never work on one.
//!
//! A marker on the broker decides once there is one. Before, among claims on an
//! unowned name, the older resource wins, then the smaller UID.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::topology::model::ObjectKey;
use crate::topology::ownership::{Claim, Inventory, State, winner};

/// All claims of all pipelines.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<Index>);

/// A vhost of a broker, by the broker's identity and the vhost's name.
type Place = (String, String);

/// Who claims each queue of a vhost.
type Claimants = HashMap<Arc<str>, Vec<Arc<Claim>>>;

#[derive(Debug, Default)]
struct Index {
    by_place: HashMap<Arc<Place>, Claimants>,
    by_uid: HashMap<String, Claimed>,
}

/// What one pipeline claims.
#[derive(Debug)]
struct Claimed {
    claim: Arc<Claim>,
    place: Arc<Place>,
    queues: Vec<Arc<str>>,
}

impl Claims {
    /// Replaces what a pipeline claims.
    pub(crate) fn set(
        &self,
        claim: &Claim,
        broker: &str,
        vhost: &str,
        queues: impl IntoIterator<Item = String>,
    ) {
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        index.drop_claims(&claim.uid);
        let place = (broker.to_owned(), vhost.to_owned());
        let known = index.by_place.get_key_value(&place).map(|(known, _)| known.clone());
        let place = known.unwrap_or_else(|| Arc::new(place));
        let claim = Arc::new(claim.clone());
        let names = index.by_place.entry(place.clone()).or_default();
        let queues = queues.into_iter().map(|queue| {
            let name = names.get_key_value(queue.as_str()).map(|(name, _)| name.clone());
            let name = name.unwrap_or_else(|| Arc::from(queue));
            names.entry(name.clone()).or_default().push(claim.clone());
            name
        });
        let queues = queues.collect();
        index.by_uid.insert(claim.uid.clone(), Claimed { claim, place, queues });
    }

    /// Forgets a pipeline that is gone.
    pub(crate) fn remove(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drop_claims(uid);
    }

    /// The names that a pipeline claims, does not have yet, and that an older
    /// claim takes; with whose it is.
    pub(crate) fn contested(&self, uid: &str, inventory: &Inventory) -> BTreeMap<ObjectKey, String> {
        let index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(claimed) = index.by_uid.get(uid) else { return BTreeMap::new() };
        let Some(names) = index.by_place.get(&claimed.place) else { return BTreeMap::new() };
        let has = |key: &ObjectKey| inventory.get(key).is_some_and(|record| record.state != State::Intended);
        let first_of = |name: &Arc<str>| winner(names.get(name)?.iter().map(Arc::as_ref));
        let lost = claimed.queues.iter().filter_map(|name| {
            let first = first_of(name).filter(|first| first.uid != uid)?;
            Some((ObjectKey::Queue(name.to_string()), first.who.clone()))
        });
        lost.filter(|(key, _)| !has(key)).collect()
    }
}

impl Index {
    fn drop_claims(&mut self, uid: &str) {
        let Some(Claimed { claim, place, queues }) = self.by_uid.remove(uid) else { return };
        let Some(names) = self.by_place.get_mut(&place) else { return };
        for name in queues {
            if let Some(claims) = names.get_mut(&name) {
                claims.retain(|other| other.uid != claim.uid);
                if claims.is_empty() {
                    names.remove(&name);
                }
            }
        }
        if names.is_empty() {
            self.by_place.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::ownership::Record;

    fn claim(created: i64, uid: &str) -> Claim {
        Claim { created, uid: uid.to_owned(), who: format!("shop/{uid}") }
    }

    #[test]
    fn the_older_claim_wins_until_the_other_has_the_queue() {
        let claims = Claims::default();
        let queue = || ["orders".to_owned()];
        claims.set(&claim(2, "b"), "broker", "/", queue());
        assert!(claims.contested("b", &Inventory::new()).is_empty());
        claims.set(&claim(1, "a"), "broker", "/", queue());
        let key = ObjectKey::Queue("orders".to_owned());
        assert_eq!(claims.contested("b", &Inventory::new()), [(key.clone(), "shop/a".to_owned())].into());
        assert!(claims.contested("a", &Inventory::new()).is_empty());
        let has = Inventory::from([(key, Record { state: State::Created, generation: 1 })]);
        assert!(claims.contested("b", &has).is_empty());
        claims.remove("a");
        assert!(claims.contested("b", &Inventory::new()).is_empty());
    }

    #[test]
    fn another_broker_or_vhost_is_no_conflict() {
        let claims = Claims::default();
        claims.set(&claim(1, "a"), "one", "/", ["orders".to_owned()]);
        claims.set(&claim(2, "b"), "two", "/", ["orders".to_owned()]);
        claims.set(&claim(3, "c"), "one", "/shop", ["orders".to_owned()]);
        assert!(claims.contested("b", &Inventory::new()).is_empty());
        assert!(claims.contested("c", &Inventory::new()).is_empty());
    }
}
