//! One kind, watched in all namespaces or in some of them, as a single stream for a single store.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// Where a kind is watched: one API for each namespace, or one for all where none is named.
pub(super) fn apis<K>(client: &Client, namespaces: &[String]) -> Vec<Api<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
{
    if namespaces.is_empty() {
        return vec![Api::all(client.clone())];
    }
    namespaces.iter().map(|namespace| Api::namespaced(client.clone(), namespace)).collect()
}

/// Watches all of these, each with a backoff of its own. `store` is what the stream fills.
pub(super) fn watch<K>(
    mut apis: Vec<Api<K>>,
    store: Store<K>,
) -> BoxStream<'static, Result<Event<K>, watcher::Error>>
where
    K: Resource<DynamicType: Default + Eq + Hash + Clone + Send + Sync>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let config = watcher::Config::default().any_semantic();
    if apis.len() == 1 {
        return watcher(apis.remove(0), config).default_backoff().boxed();
    }
    let mut merge = Merge::new(apis.len());
    let watched = apis.into_iter().enumerate().map(|(number, api)| {
        watcher(api, config.clone()).default_backoff().map(move |event| (number, event)).boxed()
    });
    let events = stream::select_all(watched).flat_map(move |(number, event)| {
        let find = |name: &Name| {
            let (namespace, name) = name;
            store.get(&ObjectRef::new(name).within(namespace)).map(|object| K::clone(&object))
        };
        stream::iter(match event {
            Ok(event) => merge.take(number, event, find).into_iter().map(Ok).collect(),
            Err(error) => {
                let mut events: Vec<_> = merge.failed(number).into_iter().map(Ok).collect();
                events.push(Err(error));
                events
            }
        })
    });
    stream::iter([Ok(Event::Init)]).chain(events).boxed()
}

/// Namespace and name.
type Name = (String, String);

/// Makes the events of several watches those of one.
///
/// A store that starts its list anew forgets everything. So only the first lists become the list of
/// the store, which is complete once every watch has had one, or has failed: whoever may not be
/// watched holds up nobody. A later list turns into changes.
struct Merge<K> {
    watches: Vec<Watched>,
    is_listed: bool,
    /// What was deleted while the list was not complete.
    deleted: Vec<K>,
}

#[derive(Clone, Default)]
struct Watched {
    /// What there is.
    known: BTreeSet<Name>,
    /// What the list under way has shown so far.
    listed: BTreeSet<Name>,
    /// Whether it was listed once, or failed to be.
    is_over: bool,
}

impl<K: ResourceExt + Clone> Merge<K> {
    fn new(watches: usize) -> Self {
        Self { watches: vec![Watched::default(); watches], is_listed: false, deleted: Vec::new() }
    }

    /// What an event of one watch is for all; `find` looks up what the store holds.
    fn take(&mut self, number: usize, event: Event<K>, find: impl Fn(&Name) -> Option<K>) -> Vec<Event<K>> {
        let watched = &mut self.watches[number];
        match event {
            Event::Init => {
                watched.listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                watched.listed.insert(name(&object));
                vec![self.apply(object)]
            }
            Event::Apply(object) => {
                watched.known.insert(name(&object));
                vec![self.apply(object)]
            }
            Event::Delete(object) => {
                watched.known.remove(&name(&object));
                if self.is_listed {
                    return vec![Event::Delete(object)];
                }
                self.deleted.push(object);
                Vec::new()
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut watched.listed);
                let before = std::mem::replace(&mut watched.known, listed);
                let gone = before.difference(&watched.known).filter_map(find);
                let mut events: Vec<_> = gone.map(Event::Delete).collect();
                events.extend(self.failed(number));
                events
            }
        }
    }

    /// A watch that has had its list, or its first failure.
    fn failed(&mut self, number: usize) -> Vec<Event<K>> {
        self.watches[number].is_over = true;
        if self.is_listed || !self.watches.iter().all(|watched| watched.is_over) {
            return Vec::new();
        }
        self.is_listed = true;
        let deleted = std::mem::take(&mut self.deleted).into_iter().map(Event::Delete);
        [Event::InitDone].into_iter().chain(deleted).collect()
    }

    fn apply(&self, object: K) -> Event<K> {
        if self.is_listed { Event::Apply(object) } else { Event::InitApply(object) }
    }
}

fn name(object: &impl ResourceExt) -> Name {
    (object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::reflector::store::Writer;

    use super::*;

    fn object(namespace: &str, name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.to_owned());
        object.metadata.name = Some(name.to_owned());
        object
    }

    /// A store that is filled by the merged events of two watches.
    struct Filled {
        merge: Merge<ConfigMap>,
        writer: Writer<ConfigMap>,
    }

    impl Filled {
        fn new() -> Self {
            let mut writer = Writer::default();
            writer.apply_watcher_event(&Event::Init);
            Self { merge: Merge::new(2), writer }
        }

        fn take(&mut self, number: usize, event: Event<ConfigMap>) -> &mut Self {
            let store = self.writer.as_reader();
            let find = |(namespace, name): &Name| {
                store.get(&ObjectRef::new(name).within(namespace)).map(|found| (*found).clone())
            };
            for event in self.merge.take(number, event, find) {
                self.writer.apply_watcher_event(&event);
            }
            self
        }

        fn list(&mut self, number: usize, namespace: &str, names: &[&str]) -> &mut Self {
            self.take(number, Event::Init);
            for name in names {
                self.take(number, Event::InitApply(object(namespace, name)));
            }
            self.take(number, Event::InitDone)
        }

        fn holds(&self) -> Vec<String> {
            let mut names: Vec<_> =
                self.writer.as_reader().state().iter().map(|one| one.name_any()).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn a_store_is_filled_once_all_were_listed() {
        let mut filled = Filled::new();
        filled.list(0, "a", &["one", "two"]);
        assert!(filled.holds().is_empty());
        filled.list(1, "b", &["three"]);
        assert_eq!(filled.holds(), ["one", "three", "two"]);
    }

    #[test]
    fn a_new_list_of_one_namespace_forgets_nothing_of_another() {
        let mut filled = Filled::new();
        filled.list(0, "a", &["one", "two"]).list(1, "b", &["three"]);
        filled.list(0, "a", &["two", "four"]);
        assert_eq!(filled.holds(), ["four", "three", "two"]);
        filled.take(1, Event::Delete(object("b", "three"))).list(1, "b", &[]);
        assert_eq!(filled.holds(), ["four", "two"]);
    }

    #[test]
    fn what_changes_before_all_were_listed_is_not_lost() {
        let mut filled = Filled::new();
        filled.list(0, "a", &["one", "two"]);
        filled.take(0, Event::Apply(object("a", "three"))).take(0, Event::Delete(object("a", "one")));
        filled.list(1, "b", &[]);
        assert_eq!(filled.holds(), ["three", "two"]);
    }

    #[test]
    fn a_namespace_that_may_not_be_watched_holds_up_nobody() {
        let mut filled = Filled::new();
        filled.list(0, "a", &["one"]);
        for event in filled.merge.failed(1) {
            filled.writer.apply_watcher_event(&event);
        }
        assert_eq!(filled.holds(), ["one"]);
        filled.list(1, "b", &["late"]);
        assert_eq!(filled.holds(), ["late", "one"]);
    }
}
