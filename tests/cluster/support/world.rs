//! One test's own world: a namespace, a vhost, a proxy before the broker, and an operator.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use redrive::api::{InventoryEntry, RetryPipeline};
use redrive::controller::{self, Process, Settings};
use redrive::ops::metrics::Metrics;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::broker::Broker;
use super::log;
use super::proxy::Proxy;
use super::{eventually, kubernetes, steadily};

/// The Secret that all manifests of these tests name, as the examples do.
pub(crate) const SECRET: &str = "rabbit-connection";

/// The password of the operator's user on the broker.
/// The word in it stands in no other text, so that no output of any test may hold it (`hack/leaks`).
pub(crate) const PASSWORD: &str = "pass-9c2e41";

/// How often the operator under test looks at the broker.
pub(crate) const POLL: Duration = Duration::from_millis(800);

/// An operator that runs inside the test.
struct Operator {
    token: CancellationToken,
    task: JoinHandle<Result<(), controller::Error>>,
}

/// What a test has for itself.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) broker: Broker,
    pub(crate) vhost: String,
    pub(crate) proxy: Proxy,
    pub(crate) settings: Settings,
    /// The numbers of the operator that runs.
    pub(crate) metrics: Metrics,
    /// How the operator reaches the API server, if not as the test does.
    pub(crate) operators_client: Option<Client>,
    operator: Option<Operator>,
}

impl World {
    /// A world on RabbitMQ 4.3 with a connection Secret; no operator runs yet.
    pub(crate) async fn new(purpose: &str) -> Self {
        Self::on("43", purpose).await
    }

    /// A world on a version of the broker, and on its own.
    pub(crate) async fn on(version: &str, purpose: &str) -> Self {
        Self::at(Broker::of(version), purpose).await
    }

    /// A world on this broker.
    pub(crate) async fn at(broker: Broker, purpose: &str) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        log::begin();
        let client = kubernetes::client().await;
        kubernetes::with_definitions(&client).await;
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("redrive-{purpose}-{}-{number}", std::process::id());
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        broker.create_vhost(&namespace).await;
        let world = Self {
            vhost: namespace.clone(),
            settings: Settings {
                namespaces: vec![namespace.clone()],
                allow_local_brokers: true,
                poll_interval: POLL,
                release_after: Duration::from_secs(4),
                ..Settings::default()
            },
            client,
            namespace,
            proxy: Proxy::start(&broker.address).await,
            metrics: Metrics::default(),
            broker,
            operators_client: None,
            operator: None,
        };
        world.let_in(&world.broker).await;
        world.write_secret(&world.secret()).await;
        world
    }

    /// What the connection Secret says: the broker behind the proxy, and the operator's user there.
    pub(crate) fn secret(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("uri", format!("http://{}", self.proxy.address)),
            ("amqpUri", self.broker.amqp.clone()),
            ("username", self.namespace.clone()),
            ("password", PASSWORD.to_owned()),
        ])
    }

    pub(crate) async fn write_secret(&self, values: &BTreeMap<&'static str, String>) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": values,
        });
        let secret: Secret = serde_json::from_value(secret).unwrap();
        let params = PostParams::default();
        // In place, as a rotation does it: there is no moment without a Secret.
        if self.secrets().get_opt(SECRET).await.unwrap().is_some() {
            self.secrets().replace(SECRET, &params, &secret).await.unwrap();
        } else {
            self.secrets().create(&params, &secret).await.unwrap();
        }
    }

    /// Gives the operator a user on a broker, with no more rights than it needs in its vhost.
    pub(crate) async fn let_in(&self, broker: &Broker) {
        broker.create_user(&self.namespace, PASSWORD, "policymaker").await;
        broker.grant(&self.vhost, &self.namespace, ".*").await;
    }

    /// Has the operator come with this password, these tags and rights; says what the Secret holds then.
    pub(crate) async fn as_user(
        &self,
        password: &str,
        tags: &str,
        configure: &str,
    ) -> BTreeMap<&'static str, String> {
        let user = &self.namespace;
        self.broker.create_user(user, password, tags).await;
        self.broker.grant(&self.vhost, user, configure).await;
        let mut secret = self.secret();
        secret.extend([("username", user.clone()), ("password", password.to_owned())]);
        self.write_secret(&secret).await;
        secret
    }

    pub(crate) async fn delete_secret(&self) {
        let _ = self.secrets().delete(SECRET, &DeleteParams::default()).await;
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn pipelines(&self) -> Api<RetryPipeline> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A pipeline on this world's broker and vhost, with more of a specification merged in.
    pub(crate) fn manifest(&self, name: &str, spec: Value) -> Value {
        let mut object = json!({
            "apiVersion": "redrive.dev/v1alpha1",
            "kind": "RetryPipeline",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "broker": {"secretRef": {"name": SECRET}},
                "vhost": self.vhost,
                "source": {
                    "queue": {"name": format!("{name}.queue")},
                    "exchange": {"name": format!("{name}.exchange"), "type": "topic"},
                    "bindings": [{"exchange": format!("{name}.exchange"), "routingKey": "created"}],
                },
                "retry": {"delays": ["1s", "2s"]},
            },
        });
        merge(&mut object["spec"], spec);
        object
    }

    pub(crate) async fn create(&self, manifest: Value) -> RetryPipeline {
        kubernetes::create(&self.pipelines(), &manifest).await.unwrap()
    }

    /// Creates a pipeline and waits until it is Ready.
    pub(crate) async fn create_ready(&self, name: &str, spec: Value) -> RetryPipeline {
        self.create(self.manifest(name, spec)).await;
        self.ready(name).await
    }

    /// Changes a pipeline by a merge patch.
    pub(crate) async fn patch(&self, name: &str, patch: Value) -> RetryPipeline {
        self.pipelines()
            .patch(name, &PatchParams::default().validation_strict(), &Patch::Merge(&patch))
            .await
            .unwrap()
    }

    /// Changes a pipeline's specification.
    pub(crate) async fn edit(&self, name: &str, spec: Value) -> RetryPipeline {
        self.patch(name, json!({"spec": spec})).await
    }

    pub(crate) async fn get(&self, name: &str) -> RetryPipeline {
        self.pipelines().get(name).await.unwrap()
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.pipelines().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until a pipeline is as the test wants it.
    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&RetryPipeline) -> bool,
    ) -> RetryPipeline {
        eventually(&format!("{name}: {what}"), async || {
            let pipeline = self.pipelines().get(name).await.map_err(|error| error.to_string())?;
            if holds(&pipeline) { Ok(pipeline) } else { Err(describe(&pipeline)) }
        })
        .await
    }

    /// Waits until a pipeline is Ready and has observed its generation.
    pub(crate) async fn ready(&self, name: &str) -> RetryPipeline {
        self.until(name, "is ready", is_ready).await
    }

    /// Waits until Ready has this status and reason, for the current generation.
    pub(crate) async fn until_reason(&self, name: &str, reason: &str) -> RetryPipeline {
        self.until(name, reason, |pipeline| {
            let ready = condition(pipeline, "Ready");
            ready["reason"] == reason && ready["observedGeneration"] == json!(pipeline.metadata.generation)
        })
        .await
    }

    /// Waits until the deletion of `orders` says this; the generation moves with a deletion.
    pub(crate) async fn until_reason_of_deletion(&self, reason: &str) -> RetryPipeline {
        let wanted = format!("False {reason}");
        self.until("orders", reason, |pipeline| {
            pipeline.metadata.deletion_timestamp.is_some() && verdict(pipeline, "Ready") == wanted
        })
        .await
    }

    pub(crate) async fn until_gone(&self, name: &str) {
        eventually(&format!("{name} is gone"), async || match self.pipelines().get_opt(name).await {
            Ok(None) => Ok(()),
            Ok(Some(pipeline)) => Err(describe(&pipeline)),
            Err(error) => Err(error.to_string()),
        })
        .await;
    }

    /// All events about a pipeline as `type reason: note`, in the order of their times.
    pub(crate) async fn events(&self, name: &str) -> Vec<String> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut events = api.list(&ListParams::default()).await.unwrap().items;
        events.retain(|event| event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(name));
        events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        let text = |event: Event| {
            let word = |word: Option<String>| word.unwrap_or_default();
            format!("{} {}: {}", word(event.type_), word(event.reason), word(event.note))
        };
        events.into_iter().map(text).collect()
    }

    /// Waits for an event that contains this text.
    pub(crate) async fn until_event(&self, name: &str, text: &str) -> String {
        eventually(&format!("an event of {name} with {text:?}"), async || {
            let events = self.events(name).await;
            events.iter().find(|event| event.contains(text)).cloned().ok_or(events.join("\n"))
        })
        .await
    }

    /// Fails if there is an event about a pipeline that contains this text.
    pub(crate) async fn assert_no_event(&self, name: &str, text: &str) {
        let events = self.events(name).await;
        assert!(!events.iter().any(|event| event.contains(text)), "{events:#?}");
    }

    /// Waits until the status counts so many queues, which of a new one it does a moment later.
    pub(crate) async fn until_counted(&self, name: &str, queues: usize) {
        let knows_all = |pipeline: &RetryPipeline| pipeline.status.as_ref().unwrap().queues.len() == queues;
        self.until(name, "knows all counts", knows_all).await;
    }

    /// Looks at the whole vhost so far; that for consumers is a part of one.
    pub(crate) fn looks(&self) -> usize {
        let list = format!("/queues/{}?", self.vhost);
        let is_look = |path: &str| path.contains(&list) && !path.contains("columns=name,consumers");
        self.proxy.seen().iter().filter(|request| is_look(&request.path)).count()
    }

    /// Waits until the operator has looked at the whole vhost so many times more.
    pub(crate) async fn looked_at(&self, times: usize) {
        let before = self.looks();
        eventually(&format!("{times} looks at the vhost"), async || {
            let looks = self.looks() - before;
            if looks >= times { Ok(()) } else { Err(format!("{looks} looks")) }
        })
        .await;
    }

    /// Fails if anything was written, or is within this time.
    pub(crate) async fn writes_nothing(&self, why: &str, during: Duration) {
        steadily(why, during, async || {
            let writes = self.proxy.writes();
            if writes.is_empty() { Ok(()) } else { Err(format!("{writes:#?}")) }
        })
        .await;
    }

    /// Leads the operator's calls to the API server through the proxy too.
    pub(crate) async fn proxy_kubernetes(&mut self) {
        let address = self.proxy.before_kubernetes(&kubernetes::config().await).await;
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        self.operators_client = Some(Client::try_from(config).unwrap());
    }

    /// Starts the operator.
    pub(crate) fn start(&mut self) {
        assert!(self.operator.is_none(), "one operator at a time");
        let token = CancellationToken::new();
        let client = self.operators_client.as_ref().unwrap_or(&self.client).clone();
        self.metrics = Metrics::default();
        let process = Process { metrics: self.metrics.clone(), ..Process::alone(client) };
        let running = controller::run(process, self.settings.clone(), token.clone());
        self.operator = Some(Operator { token, task: tokio::spawn(running) });
    }

    /// Stops the operator as a signal does, and says how long that took.
    pub(crate) async fn stop(&mut self) -> Duration {
        let operator = self.operator.take().expect("an operator runs");
        let started = Instant::now();
        operator.token.cancel();
        operator.task.await.unwrap().unwrap();
        started.elapsed()
    }

    /// Removes the namespace and the vhost.
    pub(crate) async fn leave(mut self) {
        if self.operator.is_some() {
            self.stop().await;
        }
        if let Ok(left) = self.pipelines().list(&ListParams::default()).await {
            for pipeline in left {
                let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                let _ = self.pipelines().patch(&pipeline.name_any(), &PatchParams::default(), &patch).await;
            }
        }
        if let Ok(left) = self.replays().list(&ListParams::default()).await {
            for replay in left {
                let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                let _ = self.replays().patch(&replay.name_any(), &PatchParams::default(), &patch).await;
            }
        }
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let _ = namespaces.delete(&self.namespace, &DeleteParams::default()).await;
        for path in [["vhosts", &self.vhost], ["users", &self.namespace]] {
            let _ = self.broker.call(reqwest::Method::DELETE, &path, Value::Null).await;
        }
    }
}

/// Merges as RFC 7386 says, but without removing anything.
pub(crate) fn merge(base: &mut Value, patch: Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, patch) => *base = patch,
    }
}

/// A condition as JSON; null where it is not set.
pub(crate) fn condition(pipeline: &RetryPipeline, kind: &str) -> Value {
    let conditions = pipeline.status.iter().flat_map(|status| &status.conditions);
    let found = conditions.into_iter().find(|condition| condition.type_ == kind);
    found.map_or(Value::Null, |condition| serde_json::to_value(condition).unwrap())
}

/// `Status Reason` of a condition.
pub(crate) fn verdict(pipeline: &RetryPipeline, kind: &str) -> String {
    let condition = condition(pipeline, kind);
    let word = |key: &str| condition[key].as_str().unwrap_or("-").to_owned();
    format!("{} {}", word("status"), word("reason"))
}

/// The message of a condition.
pub(crate) fn message(pipeline: &RetryPipeline, kind: &str) -> String {
    condition(pipeline, kind)["message"].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn is_ready(pipeline: &RetryPipeline) -> bool {
    let observed = pipeline.status.as_ref().and_then(|status| status.observed_generation);
    verdict(pipeline, "Ready") == "True Reconciled" && observed == pipeline.metadata.generation
}

/// The conditions of a pipeline, for messages.
pub(crate) fn describe(pipeline: &RetryPipeline) -> String {
    let kinds = ["Ready", "AtLeastOnce", "Drifted", "Suspended", "Stalled", "Reconciling"];
    let line = |kind: &&str| format!("  {kind}: {} {}", verdict(pipeline, kind), message(pipeline, kind));
    let status = pipeline.status.as_ref();
    format!(
        "generation {:?}, observed {:?}, cleanup {:?}\n{}",
        pipeline.metadata.generation,
        status.and_then(|status| status.observed_generation),
        status.and_then(|status| status.cleanup.as_ref()),
        kinds.iter().map(line).collect::<Vec<_>>().join("\n")
    )
}

/// `kind name` of everything in the inventory in a state.
pub(crate) fn inventory(pipeline: &RetryPipeline, state: &str) -> Vec<String> {
    let entries = pipeline.status.iter().flat_map(|status| &status.inventory);
    let with_state = entries.filter(|entry| format!("{:?}", entry.state) == state);
    let text = |entry: &InventoryEntry| {
        let (kind, exchange) = (entry.kind, entry.exchange.clone().unwrap_or_default());
        let names = entry.names.iter().map(move |name| format!("{kind:?} {name}"));
        let keys = entry.routing_keys.iter().map(move |_| format!("{kind:?} {exchange}"));
        names.chain(keys).collect::<Vec<_>>()
    };
    with_state.flat_map(text).collect()
}
