//! Who did what, until it is found.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Change, News};
use crate::topology::names::OWNER_EXCHANGE;

/// No more objects are remembered; the older half goes then.
const MOST: usize = 1_024;

/// The user of the last change of each object, by the object's name as findings have it.
///
/// As long as every change is heard, the last one is whoever made what a look finds. Once
/// changes may have been missed, forget all.
#[derive(Clone, Debug, Default)]
pub struct Authors {
    last: HashMap<String, (Arc<str>, u64)>,
    changes: u64,
}

impl Authors {
    /// Notes a change.
    pub fn note(&mut self, news: &News) {
        let Some(user) = &news.by else { return };
        let user = Arc::<str>::from(user.as_str());
        // An object without its marker is found by its own name, and many by that of the exchange.
        if let Change::Unbound(binding) = &news.change
            && binding.source == OWNER_EXCHANGE
        {
            self.put(binding.destination.to_string(), &user);
            self.put(format!("exchange {OWNER_EXCHANGE}"), &user);
        } else {
            self.put(news.change.to_string(), &user);
        }
    }

    fn put(&mut self, object: String, user: &Arc<str>) {
        if self.last.len() >= MOST && !self.last.contains_key(&object) {
            let middle = self.changes.saturating_sub(u64::try_from(MOST / 2).unwrap_or_default());
            self.last.retain(|_, (_, change)| *change > middle);
        }
        self.changes += 1;
        self.last.insert(object, (user.clone(), self.changes));
    }

    /// Who changed an object last. Of a binding the arguments were not told, and stand at its end.
    #[must_use]
    pub fn of(&self, object: &str) -> Option<String> {
        let ends = object.match_indices(" {").map(|(end, _)| end).filter(|_| object.starts_with("binding "));
        let names = std::iter::once(object.len()).chain(ends).map(|end| &object[..end]);
        names.filter_map(|name| self.last.get(name)).map(|(user, _)| user.to_string()).next()
    }

    /// Who last wrote a policy that a text names in quotes.
    #[must_use]
    pub fn of_policy_in(&self, text: &str) -> Option<String> {
        let policies =
            self.last.iter().filter_map(|(object, last)| Some((object.strip_prefix("policy ")?, last)));
        let named = policies.filter(|(name, _)| text.contains(&format!("policy {name:?}")));
        named.max_by_key(|(_, (_, change))| *change).map(|(_, (user, _))| user.to_string())
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.last = HashMap::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::model::{Args, Binding, Destination};

    fn news(change: Change, by: &str) -> News {
        News { vhost: "/".to_owned(), change, by: Some(by.to_owned()) }
    }

    fn deleted(queue: &str, by: &str) -> News {
        news(Change::Deleted(Destination::Queue(queue.to_owned())), by)
    }

    #[test]
    fn the_last_one_counts() {
        let mut authors = Authors::default();
        authors.note(&deleted("q", "first"));
        authors.note(&news(Change::Declared(Destination::Queue("q".to_owned())), "second"));
        authors.note(&News { by: None, ..deleted("q", "") });
        assert_eq!(authors.of("queue q").as_deref(), Some("second"));
        assert_eq!(authors.of("exchange q"), None);
        authors.clear();
        assert_eq!(authors.of("queue q"), None);
    }

    #[test]
    fn a_binding_is_named_as_findings_do_and_a_marker_by_what_it_marks() {
        let mut authors = Authors::default();
        let binding = Binding {
            source: "a".to_owned(),
            destination: Destination::Queue("q".to_owned()),
            routing_key: "k".to_owned(),
            arguments: Args::new(),
        };
        authors.note(&news(Change::Unbound(binding.clone()), "eve"));
        let rule =
            Binding { arguments: Args::from([("x-match".to_owned(), "all".into())]), ..binding.clone() };
        let object = format!("binding {rule}");
        assert_eq!(object, "binding a -> queue q key \"k\" {x-match: \"all\"}");
        assert_eq!(authors.of(&object).as_deref(), Some("eve"));
        assert_eq!(authors.of(&format!("binding {binding}")).as_deref(), Some("eve"));
        assert_eq!(authors.of("binding a -> queue q"), None);
        assert_eq!(authors.of("queue q"), None);
        authors.note(&news(Change::Unbound(Binding { source: OWNER_EXCHANGE.to_owned(), ..binding }), "bob"));
        assert_eq!(authors.of("queue q").as_deref(), Some("bob"));
        assert_eq!(authors.of("exchange redrive.owner").as_deref(), Some("bob"));
    }

    #[test]
    fn a_policy_is_found_in_what_it_stands_in_the_way_of() {
        let mut authors = Authors::default();
        authors.note(&news(Change::PolicySet("wild\"card".to_owned()), "eve"));
        authors.note(&news(Change::PolicySet("card".to_owned()), "bob"));
        let text = "policy \"wild\\\"card\" sets expires to 60000, which deletes the queue";
        assert_eq!(authors.of_policy_in(text).as_deref(), Some("eve"));
        assert_eq!(authors.of_policy_in("operator policy \"card\" sets it").as_deref(), Some("bob"));
        assert_eq!(authors.of_policy_in("policy \"other\""), None);
    }

    #[test]
    fn no_more_is_remembered_than_fits_and_the_newest_stays() {
        let mut authors = Authors::default();
        for number in 0..10 * MOST {
            authors.note(&deleted(&number.to_string(), "eve"));
        }
        assert!(authors.last.len() <= MOST);
        assert!(authors.of(&format!("queue {}", 10 * MOST - 1)).is_some());
        assert!(authors.of(&format!("queue {}", 10 * MOST - MOST / 4)).is_some());
    }
}
