//! From a `clusterRef` to a broker: the RabbitmqCluster of the cluster operator, its Service, and
//! the Secrets of its user and of its authority.
//!
//! A cluster is read once in half a poll interval however many pipelines refer to it, and again
//! once the watch shows a change in what matters. Service and Secrets are read by name and never
//! listed or watched; what changes in them is found by a poll, or at the first refusal.
//! Where the cluster operator is not installed, nothing is there to refer to, and the operator
//! runs all the same.

mod error;
mod facts;
mod locate;
mod rights;
pub(crate) mod watch;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};

pub(crate) use error::Error;
pub(crate) use facts::{Facts, Key};
use locate::{Found, Needs, SecretData};
pub(crate) use rights::{check_names, check_namespace};

use crate::api::{Broker, RetryPipeline};
use crate::broker::Endpoint;

/// The cluster that a pipeline refers to, if it refers to one.
pub(crate) fn resource_of(object: &RetryPipeline) -> Option<Key> {
    let Broker::ClusterRef(cluster) = &object.spec.broker else { return None };
    let namespace = cluster.namespace.clone().or_else(|| object.namespace()).unwrap_or_default();
    Some(Key { namespace, name: cluster.name.clone() })
}

/// Reads clusters, and remembers them for a while.
pub(crate) struct Clusters {
    client: Client,
    fresh_for: Duration,
    memory: Mutex<Memory>,
    /// One reading at a time for each cluster, so that a thousand pipelines at the start cause
    /// one.
    reading: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>,
}

#[derive(Default)]
struct Memory {
    clusters: HashMap<Key, Known>,
    /// Counts what the watch has shown, so that a reading from before it is not kept.
    news: u64,
}

/// What is known of a cluster that somebody asked for.
#[derive(Default)]
struct Known {
    /// What the last answer was; nothing where there was no such cluster.
    said: Option<Arc<Facts>>,
    /// When, unless it has changed since.
    read: Option<Instant>,
    /// The endpoint by those facts, and when it was read.
    endpoint: Option<(Arc<Facts>, Arc<Endpoint>, Instant)>,
    /// The last endpoint, for deletions that come after a Secret's.
    last: Option<Arc<Endpoint>>,
}

impl Memory {
    /// Notes that somebody asks for a cluster, before it is read: what the watch shows meanwhile is
    /// news then. Returns how much news there was so far.
    fn begin(&mut self, key: &Key) -> u64 {
        self.clusters.entry(key.clone()).or_default();
        self.news
    }

    fn note(&mut self, key: &Key, shown: Option<&Facts>) -> bool {
        let Some(known) = self.clusters.get_mut(key) else { return false };
        if known.said.as_deref() == shown {
            return false;
        }
        (known.read, known.endpoint) = (None, None);
        self.news += 1;
        true
    }
}

impl Clusters {
    pub(crate) fn new(client: Client, fresh_for: Duration) -> Self {
        Self { client, fresh_for, memory: Mutex::default(), reading: Mutex::default() }
    }

    /// What a cluster says, as it is known.
    pub(crate) async fn facts(&self, key: &Key) -> Result<Arc<Facts>, Error> {
        if let Some(facts) = self.fresh_facts(key) {
            return Ok(facts);
        }
        let gate = self.gate(key);
        let _turn = gate.lock().await;
        match self.fresh_facts(key) {
            Some(facts) => Ok(facts),
            None => self.read_facts(key).await,
        }
    }

    /// Where the broker of a cluster is, as it is known. Failures are not remembered.
    pub(crate) async fn endpoint(&self, facts: &Arc<Facts>) -> Result<Arc<Endpoint>, Error> {
        if let Some(endpoint) = self.fresh_endpoint(facts) {
            return Ok(endpoint);
        }
        let gate = self.gate(&facts.key);
        let _turn = gate.lock().await;
        match self.fresh_endpoint(facts) {
            Some(endpoint) => Ok(endpoint),
            None => self.read_endpoint(facts).await,
        }
    }

    /// Where the broker of a cluster is, read now.
    pub(crate) async fn read(&self, key: &Key) -> Result<Arc<Endpoint>, Error> {
        let gate = self.gate(key);
        let _turn = gate.lock().await;
        let facts = self.read_facts(key).await?;
        self.read_endpoint(&facts).await
    }

    /// Where the broker of a cluster was when that could last be told.
    pub(crate) fn last_known(&self, key: &Key) -> Option<Arc<Endpoint>> {
        self.memory().clusters.get(key)?.last.clone()
    }

    /// Forgets a cluster unless somebody refers to it. Asked under the lock: whoever comes later
    /// begins anew.
    pub(crate) fn forget_unless(&self, key: &Key, is_referred_to: impl FnOnce() -> bool) {
        let mut memory = self.memory();
        if !is_referred_to() {
            memory.clusters.remove(key);
            self.reading.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        }
    }

    /// Takes note of what the watch shows; says whether it is news to whoever has asked. What was
    /// remembered is read again then.
    fn note(&self, key: &Key, shown: Option<&Facts>) -> bool {
        self.memory().note(key, shown)
    }

    /// The clusters that somebody asked for.
    fn asked_for(&self) -> Vec<Key> {
        self.memory().clusters.keys().cloned().collect()
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self, key: &Key) -> Arc<tokio::sync::Mutex<()>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_default().clone()
    }

    fn fresh_facts(&self, key: &Key) -> Option<Arc<Facts>> {
        let memory = self.memory();
        let known = memory.clusters.get(key)?;
        known.said.clone().filter(|_| known.read.is_some_and(|read| read.elapsed() < self.fresh_for))
    }

    fn fresh_endpoint(&self, facts: &Facts) -> Option<Arc<Endpoint>> {
        let memory = self.memory();
        let (of, endpoint, read) = memory.clusters.get(&facts.key)?.endpoint.as_ref()?;
        (**of == *facts && read.elapsed() < self.fresh_for).then(|| endpoint.clone())
    }

    async fn read_facts(&self, key: &Key) -> Result<Arc<Facts>, Error> {
        let before = self.memory().begin(key);
        let result = self.fetch_cluster(key).await;
        let mut memory = self.memory();
        let is_current = memory.news == before;
        let known = memory.clusters.entry(key.clone()).or_default();
        match &result {
            Ok(facts) => {
                known.said = Some(facts.clone());
                known.read = is_current.then(Instant::now);
            }
            Err(error) if error.is_cluster_gone() => *known = Known::default(),
            Err(_) => known.read = None,
        }
        result
    }

    async fn read_endpoint(&self, facts: &Arc<Facts>) -> Result<Arc<Endpoint>, Error> {
        let result = self.fetch_endpoint(facts).await;
        let mut memory = self.memory();
        let known = memory.clusters.entry(facts.key.clone()).or_default();
        match &result {
            Ok(endpoint) => {
                known.endpoint = Some((facts.clone(), endpoint.clone(), Instant::now()));
                known.last = Some(endpoint.clone());
            }
            Err(_) => known.endpoint = None,
        }
        result
    }

    async fn fetch_cluster(&self, key: &Key) -> Result<Arc<Facts>, Error> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &facts::resource());
        let object = answered(key, "the resource", api.get(&key.name)).await?;
        let object = object.ok_or_else(|| Error::NotFound(key.clone()))?;
        let facts = Facts::read(&object).map_err(|source| Error::Unknown { key: key.clone(), source })?;
        Ok(Arc::new(facts))
    }

    async fn fetch_endpoint(&self, facts: &Facts) -> Result<Arc<Endpoint>, Error> {
        let needs = locate::needs(facts)?;
        let found = self.fetch(facts, &needs).await?;
        locate::endpoint(facts, &needs, &found).map(Arc::new)
    }

    async fn fetch(&self, facts: &Facts, needs: &Needs) -> Result<Found, Error> {
        let mut found =
            Found { credentials: self.secret(&facts.key, &needs.credentials).await?, ..Found::default() };
        if let Some(secret) = &needs.authority {
            found.authority = self.secret(&facts.key, secret).await?;
        }
        if let Some(service) = &needs.service {
            found.ports = self.ports(&facts.key, service).await?;
        }
        Ok(found)
    }

    async fn secret(&self, key: &Key, name: &str) -> Result<SecretData, Error> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        let secret = answered(key, "a Secret", api.get(name)).await?;
        let secret =
            secret.ok_or_else(|| Error::SecretNotFound { key: key.clone(), name: name.to_owned() })?;
        Ok(secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect())
    }

    async fn ports(&self, key: &Key, name: &str) -> Result<BTreeMap<String, u16>, Error> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        let service = answered(key, "the Service", api.get(name)).await?;
        let service =
            service.ok_or_else(|| Error::ServiceNotFound { key: key.clone(), name: name.to_owned() })?;
        let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default().into_iter();
        Ok(ports.filter_map(|port| Some((port.name?, u16::try_from(port.port).ok()?))).collect())
    }
}

/// An answer of the API server; nothing where there is no such object.
async fn answered<T>(
    key: &Key,
    what: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<Option<T>, Error> {
    let key = || key.clone();
    let answer = tokio::time::timeout(super::api_server::API_TIMEOUT, call).await;
    match answer.map_err(|_| Error::Timeout { key: key(), what })? {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 => match is_unknown_kind(&status) {
            true => Err(Error::NotInstalled(key())),
            false => Ok(None),
        },
        Err(kube::Error::Api(status)) if status.code == 403 => Err(Error::Forbidden { key: key(), what }),
        Err(source) => Err(Error::Unreadable { key: key(), what, source: Box::new(source) }),
    }
}

/// Whether a 404 is about the kind: an object that is not there is named.
fn is_unknown_kind(status: &kube::core::Status) -> bool {
    status.details.as_ref().is_none_or(|details| details.name.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(spec: serde_json::Value, status: serde_json::Value) -> Facts {
        let object = json!({
            "metadata": {"name": "rmq", "namespace": "messaging", "uid": "1"}, "spec": spec, "status": status,
        });
        Facts::read(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn asked(said: Option<Facts>) -> (Memory, Key) {
        let key = Key { namespace: "messaging".to_owned(), name: "rmq".to_owned() };
        let known = Known { said: said.map(Arc::new), read: Some(Instant::now()), ..Known::default() };
        let clusters = HashMap::from([(key.clone(), known)]);
        (Memory { clusters, news: 0 }, key)
    }

    #[test]
    fn only_what_matters_is_news() {
        let one = facts(json!({"replicas": 3}), json!({}));
        let (mut memory, key) = asked(Some(one));
        let conditions = json!({"conditions": [{"type": "AllReplicasReady", "status": "False"}]});
        let unrelated = facts(json!({"replicas": 3, "image": "rabbitmq:4.3"}), conditions);
        assert!(!memory.note(&key, Some(&unrelated)));
        assert!(memory.clusters[&key].read.is_some(), "what is known stays known");
        assert!(memory.note(&key, Some(&facts(json!({"replicas": 0}), json!({})))));
        assert!(memory.clusters[&key].read.is_none(), "it is read again");
        assert!(memory.note(&key, None), "it is gone");
        assert_eq!(memory.news, 2);
    }

    #[test]
    fn a_cluster_that_comes_is_news_to_whoever_missed_it_and_to_nobody_else() {
        let (mut memory, key) = asked(None);
        let other = Key { name: "other".to_owned(), ..key.clone() };
        assert!(memory.note(&key, Some(&facts(json!({}), json!({})))));
        assert!(!memory.note(&key, None), "that it is not there is known");
        assert!(!memory.note(&other, Some(&facts(json!({}), json!({})))), "nobody has asked for it");
    }

    #[test]
    fn what_comes_during_the_first_reading_is_news() {
        let (mut memory, key) = asked(None);
        memory.clusters.clear();
        let before = memory.begin(&key);
        assert!(memory.note(&key, Some(&facts(json!({}), json!({})))));
        assert_ne!(memory.news, before, "what was read meanwhile is not kept");
    }

    #[tokio::test]
    async fn a_cluster_is_forgotten_with_the_last_pipeline_that_refers_to_it() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let clusters = Clusters::new(Client::try_from(nowhere).unwrap(), Duration::ZERO);
        let (_, key) = asked(None);
        clusters.memory().begin(&key);
        clusters.forget_unless(&key, || true);
        assert_eq!(clusters.asked_for(), vec![key.clone()]);
        clusters.forget_unless(&key, || false);
        assert_eq!(clusters.asked_for(), []);
    }

    #[test]
    fn a_kind_that_is_missing_is_told_from_an_object_that_is() {
        let status = |text: serde_json::Value| serde_json::from_value::<kube::core::Status>(text).unwrap();
        let object = json!({"status": "Failure", "code": 404, "message": "x", "reason": "NotFound",
            "details": {"name": "rmq", "group": "rabbitmq.com", "kind": "rabbitmqclusters"}});
        assert!(!is_unknown_kind(&status(object)));
        let page = json!({"status": "Failure", "code": 404, "message": "404 page not found", "reason": ""});
        assert!(is_unknown_kind(&status(page)));
    }
}
