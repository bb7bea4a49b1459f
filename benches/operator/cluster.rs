//! The API server under test: pipelines that are created and awaited, and what the
//! operator writes, as the audit log tells.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use redrive::api::{RetryPipeline, crds};
use serde_json::{Value, json};

use crate::Result;

/// How many requests of ours are under way at the same time.
pub(crate) const PARALLEL: usize = 8;

/// Longer than any figure takes.
const PATIENCE: Duration = Duration::from_secs(900);

/// A namespace of one figure.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) pipelines: Api<RetryPipeline>,
}

impl Cluster {
    /// A fresh namespace with the definitions and the Secret `rabbit` in place.
    pub(crate) async fn fresh(figure: &str, secret: Value) -> Result<Self> {
        let client = Client::try_default().await?;
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for crd in crds::all() {
            let params = PatchParams::apply("redrive-bench").force();
            definitions.patch(&crd.name_any(), &params, &Patch::Apply(&crd)).await?;
        }
        let namespace = format!("bench-{figure}-{}", std::process::id());
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        namespaces.create(&PostParams::default(), &object).await?;
        let pipelines = Api::namespaced(client.clone(), &namespace);
        let cluster = Self { client, namespace, pipelines };
        cluster.set_secret("rabbit", secret, json!({})).await?;
        cluster.served().await?;
        Ok(cluster)
    }

    /// Waits until the definitions are served.
    async fn served(&self) -> Result<()> {
        let began = Instant::now();
        while let Err(error) = self.pipelines.list(&ListParams::default().limit(1)).await {
            if began.elapsed() > Duration::from_secs(30) {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Writes a Secret.
    pub(crate) async fn set_secret(&self, name: &str, data: Value, labels: Value) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let metadata = json!({"name": name, "labels": labels});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data});
        let params = PatchParams::apply("redrive-bench").force();
        secrets.patch(name, &params, &Patch::Apply(secret)).await?;
        Ok(())
    }

    /// Creates pipelines all at once.
    pub(crate) async fn create(&self, objects: &[RetryPipeline]) -> Result<()> {
        futures::stream::iter(objects)
            .map(async |object| self.pipelines.create(&PostParams::default(), object).await)
            .buffer_unordered(PARALLEL)
            .try_for_each(async |_| Ok(()))
            .await?;
        Ok(())
    }

    /// Creates pipelines and says how long it takes until all are Ready, and until
    /// all are created.
    pub(crate) async fn apply(&self, objects: &[RetryPipeline]) -> Result<(Duration, Duration)> {
        let began = Instant::now();
        let create = async { self.create(objects).await.map(|()| began.elapsed()) };
        let (created, ready) = futures::join!(create, self.all_ready(objects.len()));
        ready?;
        Ok((began.elapsed(), created?))
    }

    /// Waits until so many pipelines are Ready in their current generation.
    pub(crate) async fn all_ready(&self, wanted: usize) -> Result<()> {
        let mut ready = BTreeSet::new();
        let mut reasons = BTreeMap::new();
        let watch = async {
            let changes = watcher(self.pipelines.clone(), watcher::Config::default()).applied_objects();
            let mut changes = std::pin::pin!(changes);
            while let Some(object) = changes.try_next().await? {
                if is_ready(&object) {
                    ready.insert(object.name_any());
                }
                reasons.insert(object.name_any(), reason(&object));
                if ready.len() >= wanted {
                    break;
                }
            }
            Ok::<(), watcher::Error>(())
        };
        match tokio::time::timeout(PATIENCE, watch).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(format!("only {} of {wanted} are Ready: {reasons:?}", ready.len()).into()),
        }
    }

    /// Changes a pipeline's specification and says how long it takes until that is
    /// applied and Ready.
    pub(crate) async fn edit(&self, name: &str, spec: Value) -> Result<Duration> {
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let changes = watcher(self.pipelines.clone(), only).applied_objects();
        let mut changes = std::pin::pin!(changes);
        changes.try_next().await?;
        let began = Instant::now();
        let patch = Patch::Merge(json!({ "spec": spec }));
        let edited = self.pipelines.patch(name, &PatchParams::default(), &patch).await?;
        let generation = edited.metadata.generation;
        let applied = async {
            while let Some(object) = changes.try_next().await? {
                let status = object.status.as_ref();
                if is_ready(&object) && status.and_then(|status| status.observed_generation) == generation {
                    break;
                }
            }
            Ok::<(), watcher::Error>(())
        };
        tokio::time::timeout(PATIENCE, applied).await.map_err(|_| "the edit is never applied")??;
        Ok(began.elapsed())
    }

    /// Deletes all pipelines and says how long it takes until they are gone.
    pub(crate) async fn delete_all(&self) -> Result<Duration> {
        let began = Instant::now();
        self.pipelines.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        while !self.pipelines.list_metadata(&ListParams::default().limit(1)).await?.items.is_empty() {
            if began.elapsed() > PATIENCE {
                return Err("the pipelines never go".into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(began.elapsed())
    }

    /// Removes the namespace; the operator must be stopped.
    pub(crate) async fn drop(self) -> Result<()> {
        let no_finalizers = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        for object in self.pipelines.list_metadata(&ListParams::default()).await?.items {
            if !object.finalizers().is_empty() {
                self.pipelines.patch(&object.name_any(), &PatchParams::default(), &no_finalizers).await?;
            }
        }
        self.delete_all().await?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.delete(&self.namespace, &DeleteParams::default()).await?;
        Ok(())
    }
}

fn is_ready(object: &RetryPipeline) -> bool {
    let Some(status) = &object.status else { return false };
    let current = status.observed_generation == object.metadata.generation;
    current
        && status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn reason(object: &RetryPipeline) -> String {
    let conditions = object.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.next().map_or_else(String::new, |ready| format!("{}: {}", ready.reason, ready.message))
}

/// Requests to the API server by verb and resource, such as `patch retrypipelines/status`.
pub(crate) type Calls = BTreeMap<String, u64>;

/// A place in the audit log.
pub(crate) struct Audit {
    path: String,
    from: u64,
}

impl Audit {
    /// The end of the log as it is now.
    pub(crate) fn now() -> Result<Self> {
        let path = std::env::var("REDRIVE_AUDIT_LOG").map_err(|_| "REDRIVE_AUDIT_LOG names no audit log")?;
        let from = std::fs::metadata(&path)?.len();
        Ok(Self { path, from })
    }

    /// What was asked of the API server since, about one namespace, without watches.
    pub(crate) fn since(&self, namespace: &str) -> Result<Calls> {
        let mut file = std::fs::File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.from))?;
        let mut calls = Calls::new();
        for line in BufReader::new(file).lines() {
            let Ok(event) = serde_json::from_str::<Value>(&line?) else { continue };
            let field = |pointer| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            if field("/objectRef/namespace") != namespace || field("/verb") == "watch" {
                continue;
            }
            let subresource = field("/objectRef/subresource");
            let slash = if subresource.is_empty() { "" } else { "/" };
            let what = format!("{} {}{slash}{subresource}", field("/verb"), field("/objectRef/resource"));
            *calls.entry(what).or_default() += 1;
        }
        Ok(calls)
    }
}
