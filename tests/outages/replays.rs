//! Nodes of a broker's cluster are killed while a replay runs at full speed.
//!
//! Its connections lead to all nodes in turn, as over a Service. So a node that dies may take the
//! reading one along, or the publishing one, or none; and it may lead the queues, or not.

use redrive::api::ReplayProgress;
use serde_json::{Value, json};

use crate::parts::alone;
use crate::support::amqp::{Wire, numbered};
use crate::support::broker::Broker;
use crate::support::replays::{DLQ, SOURCE, phase_of};
use crate::support::tcp::Tunnel;
use crate::support::world::World;
use crate::support::{below, eventually, full};
use crate::trio::Trio;

/// Messages in flight, and so the most that one kill may double.
const WINDOW: usize = 500;

/// Per second: more than any broker can.
const AT_FULL_SPEED: usize = 100_000;

/// Per second: as good as nothing, while a node starts.
const SLOWLY: usize = 20;

/// A node dies once at most so many more messages have moved.
const SHARE: usize = 500;

/// A world on three nodes.
struct Stage {
    // Goes before its brokers.
    world: World,
    _tunnel: Tunnel,
    nodes: Vec<Broker>,
    trio: Trio,
}

fn pace(per_second: usize) -> Value {
    json!({"pace": {"messagesPerSecond": per_second, "batch": 500, "window": WINDOW}})
}

impl Stage {
    /// A running operator, and a pipeline whose queues are on all nodes.
    async fn new(version: &str, purpose: &str) -> Self {
        let trio = Trio::start("replayed", version).await;
        let nodes: Vec<Broker> = trio.uris.iter().map(|(http, amqp)| Broker::at(http, amqp)).collect();
        let listener = |node: &Broker| node.amqp.trim_start_matches("amqp://").to_owned();
        let tunnel = Tunnel::start(nodes.iter().map(listener).collect()).await;
        let mut world = World::for_replays_at(nodes[0].clone(), purpose).await;
        let mut secret = world.secret();
        secret.insert("amqpUri", format!("amqp://{}", tunnel.address));
        world.write_secret(&secret).await;
        world.start();
        let policy = json!({"maxRate": AT_FULL_SPEED});
        let spec = json!({
            "source": {"queue": {"groupSize": 3}}, "deadLetter": {"groupSize": 3}, "replayPolicy": policy,
        });
        world.create_ready("orders", spec).await;
        Self { world, _tunnel: tunnel, nodes, trio }
    }

    /// Leads the operator's HTTP calls, and the test, to a node that lives on while this one dies.
    fn away_from(&mut self, victim: usize) {
        let other = &self.nodes[victim % self.nodes.len()];
        self.world.proxy.lead_to(&other.address);
        self.world.broker = other.clone();
    }

    async fn progress(&self) -> ReplayProgress {
        let replay = self.world.replays().get("r").await.unwrap();
        replay.status.and_then(|status| status.progress).unwrap_or_default()
    }

    /// Kills a node in the midst of it, starts it again, and comes back when messages move again.
    async fn kill(&mut self, victim: usize) {
        self.world.edit_replay("r", pace(AT_FULL_SPEED)).await;
        self.away_from(victim);
        let wire = Wire::open(&self.world).await;
        let enough = wire.ready(SOURCE).await + 1 + below(SHARE);
        eventually("some more have moved", async || {
            let moved = wire.ready(SOURCE).await;
            if moved >= enough { Ok(()) } else { Err(format!("{moved} of {enough} have")) }
        })
        .await;
        self.trio.kill(victim).await;
        // Enough must be left for the next one.
        self.world.edit_replay("r", pace(SLOWLY)).await;
        let replay = self.world.replays().get("r").await.unwrap();
        assert_eq!(phase_of(&replay), "Running", "it has not ended: {replay:?}");
        // The lock of the reading connection lives on until the node is back that it led to.
        self.trio.start_again(victim).await;
        let before = self.progress().await;
        println!(
            "node {victim} was killed: {} moved, {} possibly doubled",
            before.replayed, before.duplicates_possible
        );
        eventually("messages move again", async || {
            let now = self.progress().await;
            if now.replayed > before.replayed { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
    }
}

/// Kills these nodes one after the other.
async fn kills_lose_nothing(version: &str, purpose: &str, messages: usize, victims: &[usize]) {
    let _alone = alone().await;
    let mut stage = Stage::new(version, purpose).await;
    Wire::open(&stage.world).await.publish("", DLQ, numbered(0..messages)).await;
    stage.world.replay("r", pace(AT_FULL_SPEED)).await;
    for victim in victims {
        stage.kill(*victim).await;
    }
    stage.world.edit_replay("r", pace(AT_FULL_SPEED)).await;
    stage.world.until_phase("r", "Completed").await;
    let progress = stage.progress().await;

    let wire = Wire::open(&stage.world).await;
    let left = wire.copies(DLQ).await;
    let copies = wire.copies(SOURCE).await;
    let possible = usize::try_from(progress.duplicates_possible).unwrap();
    println!(
        "{version}: {messages} messages, {} nodes killed: {} lost, {} doubled, {possible} said to be possible",
        victims.len(),
        copies.lost(messages).len(),
        copies.doubled(),
    );
    assert!(
        left.ids().is_empty(),
        "{progress:?}, left {:?}, not moved {:?}",
        left.ids(),
        copies.lost(messages)
    );
    assert!(copies.lost(messages).is_empty(), "{:?}", copies.lost(messages));
    assert!(copies.doubled() <= possible, "{progress:?}");
    assert!(possible <= WINDOW * victims.len(), "{progress:?}");
    copies.assert_alike();
    let Stage { world, trio: _trio, .. } = stage;
    world.leave().await;
}

/// T27
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_killed_under_a_replay_loses_nothing() {
    // The queues were declared through it, so that it leads them.
    kills_lose_nothing("43", "node", 20_000, &[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_nodes_that_are_killed_under_a_replay_lose_nothing() {
    if full("nodes of a cluster killed ten times under a replay") {
        // Each in its turn, so that those that the connections lead to are among them.
        let first = below(3);
        let victims: Vec<usize> = (first..first + 10).map(|number| 1 + number % 3).collect();
        kills_lose_nothing("43", "nodes", 50_000, &victims).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_4_0_that_are_killed_under_a_replay_lose_nothing() {
    if full("each node of a cluster of 4.0 killed once under a replay") {
        kills_lose_nothing("40", "nodes40", 20_000, &[1, 2, 3]).await;
    }
}
