//! Replays in a test's own world.

use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use redrive::api::DlqReplay;
use redrive::controller::{ReplaySettings, RunnerKind};
use serde_json::{Value, json};

use super::broker::Broker;
use super::world::{World, merge};
use super::{eventually, kubernetes};

/// The dead-letter queue of the pipeline `orders`.
pub(crate) const DLQ: &str = "orders.queue.dlq";

/// Its work queue.
pub(crate) const SOURCE: &str = "orders.queue";

impl World {
    /// A world whose operator runs replays by itself, and believes approvals.
    pub(crate) async fn for_replays(purpose: &str) -> Self {
        Self::for_replays_on("43", purpose).await
    }

    /// Such a world on a version of the broker.
    pub(crate) async fn for_replays_on(version: &str, purpose: &str) -> Self {
        Self::for_replays_at(Broker::of(version), purpose).await
    }

    /// Such a world on this broker.
    pub(crate) async fn for_replays_at(broker: Broker, purpose: &str) -> Self {
        let mut world = Self::at(broker, purpose).await;
        world.settings.replays = ReplaySettings {
            runner: RunnerKind::InProcess,
            namespace: Some(world.namespace.clone()),
            allow_unverified_approval: true,
            print_records: false,
            patience: std::time::Duration::from_secs(15),
            ..ReplaySettings::default()
        };
        world
    }

    /// Such a world with a running operator, the pipeline `orders` with this policy, and so many
    /// dead letters.
    pub(crate) async fn with_dead_letters(purpose: &str, policy: Value, messages: usize) -> Self {
        let mut world = Self::for_replays(purpose).await;
        world.start();
        world.create_ready("orders", json!({"replayPolicy": policy})).await;
        world.broker.fill(&world.vhost, DLQ, messages).await;
        world
    }

    pub(crate) fn replays(&self) -> Api<DlqReplay> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Asks for a replay of `orders`; nobody consumes in these tests.
    pub(crate) async fn replay(&self, name: &str, spec: Value) -> DlqReplay {
        let mut object = json!({
            "apiVersion": "redrive.dev/v1alpha1",
            "kind": "DlqReplay",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "pipelineRef": {"name": "orders"},
                "justification": "the fix is deployed",
                "guard": {"requireConsumers": false},
            },
        });
        merge(&mut object["spec"], spec);
        kubernetes::create(&self.replays(), &object).await.unwrap()
    }

    pub(crate) async fn edit_replay(&self, name: &str, spec: Value) -> DlqReplay {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.replays().patch(name, &PatchParams::default().validation_strict(), &patch).await.unwrap()
    }

    /// Approves the plan that stands in the status.
    pub(crate) async fn approve(&self, name: &str, max_messages: i64) -> DlqReplay {
        let replay = self.replays().get(name).await.unwrap();
        let hash = replay.status.and_then(|status| status.plan).expect("a plan").hash;
        let approval =
            json!({"approvedBy": "approver@example.com", "maxMessages": max_messages, "planHash": hash});
        self.edit_replay(name, json!({"approval": approval})).await
    }

    pub(crate) async fn delete_replay(&self, name: &str) {
        self.replays().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until a replay is as the test wants it.
    pub(crate) async fn until_replay(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&DlqReplay) -> bool,
    ) -> DlqReplay {
        eventually(&format!("the replay {name}: {what}"), async || {
            let replay = self.replays().get(name).await.map_err(|error| error.to_string())?;
            let status = serde_json::to_string(&replay.status).unwrap();
            if holds(&replay) { Ok(replay) } else { Err(status) }
        })
        .await
    }

    /// Waits until a replay is in this phase, and fails at once if it has ended in another one.
    pub(crate) async fn until_phase(&self, name: &str, phase: &str) -> DlqReplay {
        self.until_replay(name, phase, |replay| {
            let (found, ended) =
                (phase_of(replay), replay.status.as_ref().is_some_and(|one| one.summary.is_some()));
            assert!(
                found == phase || !ended,
                "{name} has ended as {found}: {}",
                text_of(replay, "Succeeded")
            );
            found == phase
        })
        .await
    }

    pub(crate) async fn until_replay_is_gone(&self, name: &str) {
        eventually(&format!("the replay {name} is gone"), async || {
            match self.replays().get_opt(name).await {
                Ok(None) => Ok(()),
                Ok(Some(replay)) => Err(serde_json::to_string(&replay.status).unwrap()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    /// Waits until so many messages lie in two queues, none of them unacknowledged.
    pub(crate) async fn until_messages(&self, wanted: &[(&str, u64)]) {
        eventually(&format!("{wanted:?}"), async || {
            let mut found = Vec::new();
            for (queue, _) in wanted {
                let row = self.broker.totals(&self.vhost, queue).await;
                found.push((row["messages"].as_u64(), row["messages_unacknowledged"].as_u64()));
            }
            let right =
                wanted.iter().zip(&found).all(|((_, count), found)| *found == (Some(*count), Some(0)));
            if right { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }
}

/// The phase that a user sees.
pub(crate) fn phase_of(replay: &DlqReplay) -> String {
    part(replay, "Succeeded", |condition| condition.reason.clone())
}

/// `Status Reason` of a condition.
pub(crate) fn verdict_of(replay: &DlqReplay, kind: &str) -> String {
    part(replay, kind, |condition| format!("{} {}", condition.status, condition.reason))
}

/// The message of a condition.
pub(crate) fn text_of(replay: &DlqReplay, kind: &str) -> String {
    part(replay, kind, |condition| condition.message.clone())
}

fn part(replay: &DlqReplay, kind: &str, read: impl Fn(&redrive::api::Condition) -> String) -> String {
    let conditions = replay.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().find(|condition| condition.type_ == kind).map(read).unwrap_or_default()
}

/// How many messages a replay has moved.
pub(crate) fn moved(replay: &DlqReplay) -> i64 {
    let progress = replay.status.as_ref().and_then(|status| status.progress.as_ref());
    progress.map_or(0, |progress| progress.replayed)
}
