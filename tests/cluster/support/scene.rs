//! A broker that tells of changes, and somebody who makes them.

use std::time::Duration;

use redrive::api::{DetectionMode, RetryPipeline};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::broker::Broker;
use super::clusters::{CLUSTER, Owner};
use super::world::{World, is_ready};
use super::{at_rest, eventually};

/// A poll that never comes within a test: what is found then, the broker has told.
const NEVER: Duration = Duration::from_secs(3_600);

/// The password of all users here.
pub(crate) use super::world::PASSWORD;

/// Held for reading by who counts looks or wants to be told who did something, and for writing by who
/// makes thousands of changes: a broker's events reach all who listen to it, and too many at once are
/// taken for a gap.
static STORMS: RwLock<()> = RwLock::const_new(());

/// A broker without storms for as long as this is kept.
pub(crate) type Calm = RwLockReadGuard<'static, ()>;

pub(crate) async fn calm() -> Calm {
    STORMS.read().await
}

/// The turn of a storm.
pub(crate) async fn storm() -> RwLockWriteGuard<'static, ()> {
    STORMS.write().await
}

/// A world whose broker is reached as a RabbitmqCluster, with a user of its own for that, and
/// somebody who changes things by hand.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) owner: Owner,
    /// The cluster's user.
    pub(crate) listener: String,
    pub(crate) alice: Broker,
    /// None in a test that makes a storm itself.
    pub(crate) calm: Option<Calm>,
}

impl Scene {
    pub(crate) async fn new(version: &str, purpose: &str) -> Self {
        let calm = Some(calm().await);
        let mut world = World::on(version, purpose).await;
        world.settings.poll_interval = NEVER;
        let owner = world.owner_here().await;
        let scene = Self {
            listener: format!("{}-mq", world.namespace),
            alice: world.broker.clone(),
            calm,
            world,
            owner,
        };
        scene.admit(&scene.listener).await;
        let alice = format!("{}-alice", scene.world.namespace);
        scene.admit(&alice).await;
        Self { alice: scene.world.broker.as_user(&alice, PASSWORD), ..scene }
    }

    /// Makes a user that may do everything in this world, and read the broker's events.
    pub(crate) async fn admit(&self, user: &str) {
        self.world.broker.create_user(user, PASSWORD, "administrator").await;
        self.world.broker.grant(&self.world.vhost, user, ".*").await;
        self.world.broker.grant("/", user, ".*").await;
    }

    /// The cluster, as a part of its specification changes it.
    pub(crate) async fn cluster(&self, spec: Value) {
        self.owner.write_user("rmq-default-user", &self.listener, PASSWORD).await;
        self.owner.create_with(CLUSTER, self.world.addresses(), spec, json!({})).await;
    }

    /// A settled pipeline of which the broker tells.
    pub(crate) async fn settled(version: &str, purpose: &str, spec: Value) -> Self {
        let mut scene = Self::new(version, purpose).await;
        scene.cluster(json!({})).await;
        scene.world.start();
        scene.world.create(scene.world.on_cluster(&scene.owner, "orders", spec)).await;
        scene.hears("orders").await;
        scene.is_quiet().await;
        scene
    }

    /// Waits until a pipeline is Ready, and says that the broker tells of changes.
    pub(crate) async fn hears(&self, name: &str) -> RetryPipeline {
        self.world
            .until(name, "hears of changes", |pipeline| {
                is_ready(pipeline) && detection(pipeline) == Some((DetectionMode::Events, None))
            })
            .await
    }

    /// Waits until a pipeline says why the broker does not tell.
    pub(crate) async fn is_deaf(&self, name: &str, why: &str) -> RetryPipeline {
        self.world
            .until(name, why, |pipeline| {
                detection(pipeline).is_some_and(|(mode, text)| {
                    mode == DetectionMode::Polling && text.is_some_and(|text| text.contains(why))
                })
            })
            .await
    }

    /// Looks at the whole vhost so far.
    pub(crate) fn looks(&self) -> usize {
        self.world.looks()
    }

    /// Waits until nobody has looked for a while.
    pub(crate) async fn is_quiet(&self) {
        at_rest("looks at the vhost", || self.looks()).await;
    }

    /// Waits for a finding that reads so, told with who did it and put right.
    pub(crate) async fn finds(&self, text: &str, ending: &str) {
        let by = format!("; by the user {}{ending}", self.alice.user);
        let said = async || {
            let events = self.world.events("orders").await;
            events.iter().find(|event| event.contains(text) && event.ends_with(&by)).cloned().ok_or(events)
        };
        eventually(&format!("{text:?}{by:?}"), async || said().await.map_err(|events| events.join("\n")))
            .await;
        let pipeline = self.world.get("orders").await;
        let last = pipeline.status.and_then(|status| status.drift).and_then(|drift| drift.last).unwrap();
        assert_eq!(last.by.as_ref(), Some(&self.alice.user), "{last:?}");
    }

    /// As [`Self::finds`], of something that is repaired.
    pub(crate) async fn repairs(&self, text: &str) {
        self.finds(text, "; repaired").await;
        self.world.ready("orders").await;
    }

    /// The connections that read events as a user.
    pub(crate) async fn connections(&self, user: &str) -> Vec<String> {
        let all = self.world.broker.get(&["connections"]).await;
        let all = all.as_array().unwrap().iter();
        // Nothing else leads there; of names 4.0 tells nothing.
        let theirs = all.filter(|connection| connection["user"] == user && connection["vhost"] == "/");
        theirs.map(|connection| connection["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until a user reads events over so many connections; the broker's list is late.
    pub(crate) async fn listens(&self, user: &str, connections: usize) {
        eventually(&format!("{user} listens {connections} times"), async || {
            let found = self.connections(user).await;
            if found.len() == connections { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    pub(crate) async fn leave(self) {
        let Self { world, listener, alice, calm: _calm, .. } = self;
        let broker = world.broker.clone();
        world.leave().await;
        for user in [&listener, &alice.user] {
            broker.call(Method::DELETE, &["users", user], Value::Null).await;
        }
    }

    /// Closes the connection that reads events, as an administrator does it.
    pub(crate) async fn cut(&self) {
        self.listens(&self.listener, 1).await;
        for name in self.connections(&self.listener).await {
            self.world.broker.call(Method::DELETE, &["connections", &name], Value::Null).await;
        }
    }
}

/// How drift is noticed, and what is missing where the broker does not tell.
pub(crate) fn detection(pipeline: &RetryPipeline) -> Option<(DetectionMode, Option<String>)> {
    let detection = pipeline.status.as_ref()?.drift_detection.clone()?;
    Some((detection.mode, detection.why))
}
