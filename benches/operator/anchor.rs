//! The messaging-topology-operator, with the same queues as our mode Application: a
//! chain is an exchange, five queues, a policy for each queue, and a binding.
//!
//! `benches/anchor/build` makes it from its Go module; it runs here, outside the
//! cluster, with its webhooks off, and reaches the broker through a Secret.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::Result;
use crate::broker::Broker;
use crate::cluster::{Cluster, PARALLEL};
use crate::process::resident;

/// The kinds of a chain, each with how many a chain has.
const KINDS: [(&str, &str, usize); 4] = [
    ("Policy", "policies", 5),
    ("Exchange", "exchanges", 1),
    ("Queue", "queues", 5),
    ("Binding", "bindings", 1),
];

/// Longer than it ever took.
const PATIENCE: Duration = Duration::from_secs(1_200);

/// What was measured.
pub(crate) struct Anchor {
    pub(crate) ready: Duration,
    pub(crate) deleted: Duration,
    /// In KiB.
    pub(crate) resident: f64,
}

/// Applies chains in a vhost that is there and empty, and deletes them.
pub(crate) async fn measure(
    chains: usize,
    vhost: &str,
    broker: &Broker,
    cluster: &Cluster,
) -> Result<Anchor> {
    let directory = build()?;
    define(&cluster.client, &directory).await?;
    cluster
        .set_secret("topology", broker.plain_secret(), json!({"rabbitmq.com/topology-operator": "true"}))
        .await?;
    let mut running = Running::start(&directory, &cluster.namespace)?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let apis: Vec<Api<DynamicObject>> = KINDS
        .iter()
        .map(|(kind, plural, _)| {
            let kind = GroupVersionKind::gvk("rabbitmq.com", "v1beta1", kind);
            let resource = ApiResource::from_gvk_with_plural(&kind, plural);
            Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource)
        })
        .collect();

    let began = Instant::now();
    let waits = apis.iter().zip(KINDS).map(|(api, (_, _, each))| all_ready(api, chains * each));
    let ready = async {
        tokio::select! {
            ready = futures::future::try_join_all(waits) => ready.map(|_| began.elapsed()).map_err(Into::into),
            ended = running.ended() => Err(ended),
            () = tokio::time::sleep(PATIENCE) => Err("never Ready".into()),
        }
    };
    let (created, ready) = futures::join!(create(&apis, chains, vhost), ready);
    created?;
    let ready: Result<Duration> = ready;
    let resident = resident(running.0.id())?;

    let began = Instant::now();
    for api in &apis {
        api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    }
    for api in &apis {
        while !api.list_metadata(&ListParams::default().limit(1)).await?.items.is_empty() {
            if began.elapsed() > PATIENCE {
                return Err("the chains never go".into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(Anchor { ready: ready?, deleted: began.elapsed(), resident })
}

fn build() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/anchor/build");
    let built = Command::new(script).stderr(Stdio::inherit()).output()?;
    if !built.status.success() {
        return Err("the messaging-topology-operator can't be built".into());
    }
    Ok(PathBuf::from(String::from_utf8(built.stdout)?.trim()))
}

async fn define(client: &Client, directory: &Path) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for file in std::fs::read_dir(directory.join("crds"))? {
        let definition: CustomResourceDefinition =
            serde_yaml::from_str(&std::fs::read_to_string(file?.path())?)?;
        let params = PatchParams::apply("redrive-bench").force();
        definitions.patch(&definition.name_any(), &params, &Patch::Apply(&definition)).await?;
    }
    // Served a moment later.
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(())
}

async fn create(apis: &[Api<DynamicObject>], chains: usize, vhost: &str) -> Result<()> {
    let objects = (0..chains).flat_map(|number| chain(number, vhost));
    futures::stream::iter(objects)
        .map(async |(kind, object)| {
            apis[kind]
                .create(&PostParams::default(), &serde_json::from_value(object)?)
                .await
                .map_err(Into::into)
        })
        .buffer_unordered(PARALLEL)
        .try_for_each(async |_| Result::Ok(()))
        .await
}

async fn all_ready(api: &Api<DynamicObject>, wanted: usize) -> std::result::Result<(), watcher::Error> {
    let changes = watcher(api.clone(), watcher::Config::default()).applied_objects();
    let mut changes = std::pin::pin!(changes);
    let mut ready = BTreeSet::new();
    while ready.len() < wanted {
        let Some(object) = changes.try_next().await? else { break };
        let conditions =
            object.data.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        if conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True") {
            ready.insert(object.name_any());
        }
    }
    Ok(())
}

/// The resources of a chain, each with its index in `KINDS`.
fn chain(number: usize, vhost: &str) -> Vec<(usize, Value)> {
    let source = format!("work-{number:04}.queue");
    let exchange = format!("work-{number:04}.exchange");
    let dlq = format!("{source}.dlq");
    let delays = [("0", 5_000), ("1", 30_000), ("2", 120_000)];
    let mut queues = vec![
        (
            source.clone(),
            json!({"dead-letter-exchange": "", "dead-letter-routing-key": dlq, "delivery-limit": 10}),
        ),
        (dlq.clone(), json!({"message-ttl": 1_209_600_000})),
    ];
    queues.extend(delays.map(|(tier, ttl)| {
        let definition =
            json!({"dead-letter-exchange": "", "dead-letter-routing-key": source, "message-ttl": ttl});
        (format!("{source}.retry.{tier}"), definition)
    }));
    let mut resources = Vec::new();
    for (name, definition) in queues {
        let pattern = format!("^{}$", name.replace('.', "\\."));
        let policy = json!({"name": name, "pattern": pattern, "applyTo": "queues", "definition": definition, "priority": 10});
        resources.push(resource(0, &name, vhost, policy));
        resources.push(resource(
            2,
            &name,
            vhost,
            json!({"name": name, "type": "quorum", "durable": true, "autoDelete": false}),
        ));
    }
    resources.push(resource(
        1,
        &exchange,
        vhost,
        json!({"name": exchange, "type": "topic", "durable": true, "autoDelete": false}),
    ));
    let binding = json!({"source": exchange, "destination": source, "destinationType": "queue", "routingKey": "work.#"});
    resources.push(resource(3, &exchange, vhost, binding));
    resources
}

fn resource(kind: usize, name: &str, vhost: &str, mut spec: Value) -> (usize, Value) {
    spec["vhost"] = json!(vhost);
    spec["rabbitmqClusterReference"] = json!({"connectionSecret": {"name": "topology"}});
    let object = json!({
        "apiVersion": "rabbitmq.com/v1beta1", "kind": KINDS[kind].0, "metadata": {"name": name}, "spec": spec,
    });
    (kind, object)
}

/// The running process, which ends with this.
struct Running(Child);

impl Running {
    fn start(directory: &Path, namespace: &str) -> Result<Self> {
        let log = std::env::temp_dir().join(format!("redrive-bench-anchor-{}.log", std::process::id()));
        let child = Command::new(directory.join("manager"))
            .args(["--health-probe-bind-address=0", "--metrics-bind-address=0", "--zap-log-level=error"])
            .env("ENABLE_WEBHOOKS", "false")
            .env("OPERATOR_NAMESPACE", namespace)
            .env("OPERATOR_SCOPE_NAMESPACE", namespace)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(log)?)
            .spawn()?;
        Ok(Self(child))
    }

    /// Waits until it ends by itself, which it should not.
    async fn ended(&mut self) -> crate::Error {
        loop {
            match self.0.try_wait() {
                Ok(None) => tokio::time::sleep(Duration::from_secs(1)).await,
                Ok(Some(status)) => return format!("the topology operator has ended: {status}").into(),
                Err(error) => return error.into(),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
