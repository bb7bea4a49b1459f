//! Connection Secrets, read by name and never listed or watched.
//!
//! A Secret is read once per poll interval however many pipelines share it, and
//! once more where a broker says that its password is wrong.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::broker::{Endpoint, EndpointError};

/// Why a Secret gives no endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It does not exist.
    #[error(
        "the Secret {0:?} does not exist in this namespace: create it with the keys uri, username and password"
    )]
    NotFound(String),
    /// A key is missing or malformed.
    #[error("the Secret {name:?} can't be used: {source}")]
    Invalid {
        /// Its name.
        name: String,
        /// Which key, and what to write.
        source: EndpointError,
    },
    /// The operator lacks the right.
    #[error("the operator may not read the Secret {0:?}: bind the role redrive-operator to its account")]
    Forbidden(String),
    /// The API server fails.
    #[error("the Secret {name:?} can't be read")]
    Unreadable {
        /// Its name.
        name: String,
        /// What the API server said.
        #[source]
        source: kube::Error,
    },
    /// The API server does not answer.
    #[error("the Secret {0:?} can't be read in time")]
    Timeout(String),
}

/// Namespace and name of a Secret.
pub(crate) type SecretKey = (String, String);

struct Cached {
    endpoint: Arc<Endpoint>,
    read: Instant,
}

/// Reads and remembers endpoints.
pub(crate) struct Secrets {
    client: Client,
    fresh_for: Duration,
    cache: Mutex<HashMap<SecretKey, Cached>>,
    /// The last endpoint of each name, for deletions that come after the Secret's.
    last: Mutex<HashMap<SecretKey, Arc<Endpoint>>>,
    /// One reading at a time for each name, so that a thousand pipelines at the
    /// start cause one request.
    reading: Mutex<HashMap<SecretKey, Arc<tokio::sync::Mutex<()>>>>,
}

impl Secrets {
    pub(crate) fn new(client: Client, fresh_for: Duration) -> Self {
        Self { client, fresh_for, cache: Mutex::default(), last: Mutex::default(), reading: Mutex::default() }
    }

    /// The endpoint of a Secret, at most a poll interval old. Failures are not
    /// remembered.
    pub(crate) async fn endpoint(&self, key: &SecretKey) -> Result<Arc<Endpoint>, Error> {
        if let Some(endpoint) = self.cached(key) {
            return Ok(endpoint);
        }
        let gate = {
            let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            reading.entry(key.clone()).or_default().clone()
        };
        let _turn = gate.lock().await;
        if let Some(endpoint) = self.cached(key) {
            return Ok(endpoint);
        }
        self.read(key).await
    }

    /// Reads a Secret now.
    pub(crate) async fn read(&self, key: &SecretKey) -> Result<Arc<Endpoint>, Error> {
        let result = self.fetch(key).await;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        match &result {
            Ok(endpoint) => {
                cache.insert(key.clone(), Cached { endpoint: endpoint.clone(), read: Instant::now() });
                self.last
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(key.clone(), endpoint.clone());
            }
            Err(_) => {
                cache.remove(key);
                self.reading.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
            }
        }
        result
    }

    /// What a Secret said when it was last there.
    pub(crate) fn last_known(&self, key: &SecretKey) -> Option<Arc<Endpoint>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn cached(&self, key: &SecretKey) -> Option<Arc<Endpoint>> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache
            .get(key)
            .filter(|cached| cached.read.elapsed() < self.fresh_for)
            .map(|cached| cached.endpoint.clone())
    }

    async fn fetch(&self, (namespace, name): &SecretKey) -> Result<Arc<Endpoint>, Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = tokio::time::timeout(super::api_server::API_TIMEOUT, secrets.get_opt(name))
            .await
            .map_err(|_| Error::Timeout(name.clone()))?
            .map_err(|source| match source {
                kube::Error::Api(status) if status.code == 403 => Error::Forbidden(name.clone()),
                source => Error::Unreadable { name: name.clone(), source },
            })?
            .ok_or_else(|| Error::NotFound(name.clone()))?;
        let data = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
        let endpoint =
            Endpoint::from_secret(&data).map_err(|source| Error::Invalid { name: name.clone(), source })?;
        Ok(Arc::new(endpoint))
    }
}
