//! A vhost of a real broker, with a pipeline in it, an operator that keeps it
//! true, and clients that publish, consume, fail and count.

mod audit;
mod broker;
mod client;
mod consumer;
mod control;
mod operator;
mod publisher;
#[path = "../../support/trio.rs"]
mod trio;
mod turn;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Lock};
use std::time::{Duration, Instant};

use redrive::api::RetryPipelineSpec;
use redrive::broker::{Management, amqp};
use redrive::topology::model::Binding;
use redrive::topology::spec::Identity;
use redrive::topology::validate::{Pipeline, check_broker, validate};
use reqwest::Method;
use serde_json::json;
use tokio::sync::Mutex;

pub(crate) use audit::Audit;
pub(crate) use broker::{Broker, variable};

pub(crate) use client::{Python, full};
pub(crate) use consumer::{Act, Consumer, Seen, own_headers};
pub(crate) use control::{Control, Lateness};
pub(crate) use operator::Operator;
pub(crate) use publisher::{Publisher, body_of, id, ids};
pub(crate) use trio::Trio;
pub(crate) use turn::Turn;

/// How long anything may take that is not a delay under test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// How long dead letters may wait after what they waited for was repaired: every three
/// minutes the broker tries again what has waited for three minutes by then.
pub(crate) const DEAD_LETTER_PATIENCE: Duration = Duration::from_secs(400);

static VHOSTS: AtomicUsize = AtomicUsize::new(0);

/// One vhost with one pipeline.
pub(crate) struct Lab {
    pub(crate) broker: Broker,
    pub(crate) vhost: String,
    pub(crate) management: Management,
    pub(crate) operator: Arc<Mutex<Operator>>,
    /// The broker's version.
    pub(crate) version: (u32, u32, u32),
    /// What the operator could not do, but for what a repair finds half done.
    pub(crate) troubles: Arc<Lock<Vec<String>>>,
    observer: lapin::Connection,
    _turn: Turn,
}

/// Checks the YAML of a pipeline's `spec` (without `broker`), as the API server
/// and the controller would.
pub(crate) fn pipeline(yaml: &str) -> Pipeline {
    // By way of JSON, as from the API server: YAML alone writes enums another way.
    let mut spec: serde_json::Value = serde_yaml::from_str(yaml).expect("YAML");
    spec["broker"] = json!({"secretRef": {"name": "lab"}});
    let spec: RetryPipelineSpec = serde_json::from_value(spec).expect("a specification");
    let identity = Identity {
        cluster: "lab".into(),
        namespace: "tests".into(),
        name: "orders".into(),
        uid: "0000-1111".into(),
    };
    validate(identity, spec.to_topology()).expect("a valid specification")
}

impl Lab {
    /// A vhost of its own, with the pipeline declared.
    pub(crate) async fn new(broker: Broker, purpose: &str, spec: &str) -> Self {
        Self::with_turn(Turn::one().await, broker, purpose, spec).await
    }

    /// The same, for a test that has its turn already.
    pub(crate) async fn with_turn(turn: Turn, broker: Broker, purpose: &str, spec: &str) -> Self {
        let number = VHOSTS.fetch_add(1, Ordering::Relaxed);
        let vhost = format!("messages-{}-{number}-{purpose}", std::process::id());
        let management = broker.management();
        let facts = management.overview().await.expect("a broker").facts;
        let pipeline = pipeline(spec);
        assert_eq!(check_broker(&pipeline, &facts), [], "the broker can do what the pipeline asks");
        make_vhost(&broker, &vhost).await;
        let version = facts.version;
        let operator = Operator::new(management.clone(), broker.endpoint.clone(), &vhost, facts, pipeline);
        let observer = connect(&broker, &vhost).await;
        let lab = Self {
            broker,
            vhost,
            management,
            operator: Arc::new(Mutex::new(operator)),
            version,
            troubles: Arc::default(),
            observer,
            _turn: turn,
        };
        lab.converge().await;
        lab
    }

    /// Whether one count of deliveries follows a message from queue to queue.
    pub(crate) fn counts_over_the_whole_walk(&self) -> bool {
        self.version >= (4, 3, 0)
    }

    /// Changes what is wanted; the next round acts on it.
    pub(crate) async fn want(&self, spec: &str) {
        self.operator.lock().await.pipeline = pipeline(spec);
    }

    /// Runs the operator until nothing is left to write.
    pub(crate) async fn converge(&self) {
        eventually(PATIENCE, "the topology is as wanted", async || {
            let round =
                self.operator.lock().await.round(usize::MAX).await.map_err(|error| error.to_string())?;
            if round.steps.is_empty() && round.blocked.is_empty() {
                Ok(())
            } else {
                Err(format!("{round:?}"))
            }
        })
        .await;
    }

    /// Runs the operator in the background until the guard goes, with at most so
    /// many steps a look, as if it died after them.
    pub(crate) fn repair(&self, every: Duration, most: usize) -> Background {
        let (operator, troubles) = (Arc::clone(&self.operator), Arc::clone(&self.troubles));
        Background(tokio::spawn(async move {
            loop {
                match operator.lock().await.round(most).await {
                    Ok(round) => troubles.lock().expect("no panic").extend(round.blocked),
                    Err(error) if error.is_transient() => {}
                    Err(error) => troubles.lock().expect("no panic").push(error.to_string()),
                }
                tokio::time::sleep(every).await;
            }
        }))
    }

    /// Ends the operator in the background between two of its looks, so that no call of it is
    /// still under way.
    pub(crate) async fn rest(&self, repair: Background) {
        let _between = self.operator.lock().await;
        drop(repair);
    }

    /// Waits until the operator in the background has nothing to write and
    /// nothing to drain.
    pub(crate) async fn settled(&self, patience: Duration) {
        eventually(patience, "nothing is left to do or to drain", async || {
            let round = self.operator.lock().await.round(0).await.map_err(|error| error.to_string())?;
            if round.left.is_empty() && round.draining.is_empty() && round.blocked.is_empty() {
                Ok(())
            } else {
                Err(format!("{round:?}"))
            }
        })
        .await;
    }

    pub(crate) async fn connect(&self) -> lapin::Connection {
        connect(&self.broker, &self.vhost).await
    }

    /// How many messages each queue holds in any state, up to five seconds ago.
    pub(crate) async fn counts(&self) -> BTreeMap<String, i64> {
        let observed = self.management.snapshot(&self.vhost).await.expect("a snapshot");
        let count = |queue: &redrive::topology::observed::ObservedQueue| queue.totals.messages.unwrap_or(-1);
        observed.queues.iter().map(|(name, queue)| (name.clone(), count(queue))).collect()
    }

    /// How many messages of a queue are ready: exact and current. 0 without a queue.
    pub(crate) async fn ready(&self, queue: &str) -> usize {
        let ready = amqp::ready_count(&self.observer, &self.broker.endpoint, &self.vhost, queue).await;
        usize::try_from(ready.expect("a count").unwrap_or_default()).expect("a count")
    }

    /// Waits until so many messages of a queue are ready.
    pub(crate) async fn holds(&self, queue: &str, messages: usize, patience: Duration) {
        eventually(patience, &format!("{queue} has {messages} messages ready"), async || {
            let ready = self.ready(queue).await;
            if ready == messages { Ok(()) } else { Err(format!("{ready} are; {:?}", self.counts().await)) }
        })
        .await;
    }

    /// Waits until a queue keeps so many messages in any state.
    pub(crate) async fn keeps(&self, queue: &str, messages: usize) {
        let wanted = i64::try_from(messages).expect("a count");
        eventually(PATIENCE, &format!("{queue} keeps {messages}"), async || {
            let counts = self.counts().await;
            if counts.get(queue) == Some(&wanted) { Ok(()) } else { Err(format!("{counts:?}")) }
        })
        .await;
    }

    /// Takes all that is ready in a queue.
    pub(crate) async fn drain(&self, queue: &str) -> Vec<Seen> {
        consumer::drain(&self.connect().await, queue).await
    }

    pub(crate) async fn unbind(&self, binding: &Binding) {
        self.management.unbind(&self.vhost, binding).await.expect("unbound");
    }

    /// Declares a queue beside the pipeline's and binds it.
    pub(crate) async fn other_queue(&self, name: &str, exchange: &str, key: &str) {
        let arguments = json!({"x-queue-type": "quorum", "x-delivery-limit": -1});
        let queue = json!({"durable": true, "arguments": arguments});
        let vhost = &self.vhost;
        assert_eq!(self.broker.call(Method::PUT, &format!("queues/{vhost}/{name}"), Some(queue)).await, 201);
        let path = format!("bindings/{vhost}/e/{exchange}/q/{name}");
        assert_eq!(self.broker.call(Method::POST, &path, Some(json!({"routing_key": key}))).await, 201);
    }

    /// What the operator could not do.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.troubles.lock().expect("no panic").clone()
    }
}

impl Drop for Lab {
    /// Deletes the vhost; after a failure it says first what was left in it.
    fn drop(&mut self) {
        let (broker, vhost, management) = (self.broker.clone(), self.vhost.clone(), self.management.clone());
        let failed = std::thread::panicking();
        let clean = async move {
            if failed && let Ok(observed) = management.snapshot(&vhost).await {
                for (name, queue) in &observed.queues {
                    eprintln!("{vhost}: {name} holds {:?}", queue.totals);
                }
            }
            delete_vhost(&broker, &vhost).await;
        };
        block_on(clean);
    }
}

/// Makes a vhost that the administrator may use.
async fn make_vhost(broker: &Broker, vhost: &str) {
    let status = broker.call(Method::PUT, &format!("vhosts/{vhost}"), Some(json!({}))).await;
    assert_eq!(status, 201, "the vhost {vhost} is new");
    let user = &broker.endpoint.credentials.username;
    let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    broker.call(Method::PUT, &format!("permissions/{vhost}/{user}"), Some(all)).await;
}

async fn delete_vhost(broker: &Broker, vhost: &str) {
    broker.call(Method::DELETE, &format!("vhosts/{vhost}"), None).await;
}

/// Runs to the end what a guard leaves to do: the test's own runtime may be on its way out.
fn block_on(work: impl Future<Output = ()> + Send + 'static) {
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(work);
    });
    let _ = thread.join();
}

async fn connect(broker: &Broker, vhost: &str) -> lapin::Connection {
    let connection = amqp::connect(&broker.endpoint, &Broker::guard(), vhost, "messages").await;
    connection.expect("an AMQP connection")
}

/// A task that ends with its owner.
pub(crate) struct Background(tokio::task::JoinHandle<()>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Asks until the answer is good; afterwards it says what was wrong with the last.
pub(crate) async fn eventually<T>(
    patience: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(problem) if start.elapsed() > patience => {
                panic!("after {patience:?} it still does not hold that {what}: {problem}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
