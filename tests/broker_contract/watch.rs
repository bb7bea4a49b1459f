//! What queues do beside being as declared, as the client reads it.

use std::collections::{BTreeMap, BTreeSet};

use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use redrive::broker::Management;
use redrive::topology::model::{ApplyTo, QueueType};
use rstest::rstest;
use serde_json::json;

use crate::support::Version::{V40, V43};
use crate::support::{Version, Vhost, encode, eventually, guard, in_vhost, requeue_by_reject};

/// Consumers are told by queue and user, and are gone from the list once they are cancelled.
#[rstest]
#[tokio::test]
async fn consumers_are_told_by_queue_and_user(#[values(V43, V40)] version: Version) {
    in_vhost(version, "consumers", async |v| {
        for (name, kind) in [("quorum", QueueType::Quorum), ("classic", QueueType::Classic)] {
            v.queue(name, kind, []).await;
        }
        v.queue("alone", QueueType::Quorum, []).await;
        let found = async || v.management.consumers(&v.name).await.unwrap();
        let consumers = async || found().await.users;
        assert_eq!(consumers().await, BTreeMap::new());
        let mut held = Vec::new();
        for (queue, tag) in [("quorum", "one"), ("quorum", "two"), ("classic", "three")] {
            let options = BasicConsumeOptions::default();
            let consumer = v.channel.basic_consume(queue.into(), tag.into(), options, FieldTable::default());
            held.push(consumer.await.unwrap());
        }
        let user = version.endpoint().credentials.username;
        let expected: BTreeMap<String, BTreeSet<String>> =
            ["quorum", "classic"].map(|queue| (queue.to_owned(), [user.clone()].into())).into();
        eventually("both queues have the user", async || consumers().await == expected).await;
        let counts: BTreeMap<String, u64> = [("quorum".to_owned(), 2), ("classic".to_owned(), 1)].into();
        eventually("each is counted", async || found().await.counts.as_ref() == Some(&counts)).await;
        // Who may not see the connections of others is told that there are some.
        let limited = as_policymaker(&v).await;
        let somebody: BTreeMap<String, BTreeSet<String>> =
            expected.into_keys().map(|queue| (queue, BTreeSet::new())).collect();
        eventually("somebody is told", async || {
            let found = limited.consumers(&v.name).await.unwrap();
            found.users == somebody && found.counts.as_ref() == Some(&counts)
        })
        .await;
        // A consumer that nobody holds is cancelled.
        drop(held);
        eventually("no consumer is left", async || consumers().await.is_empty()).await;
        v.raw("DELETE", &format!("/users/{}", encode(&v.name)), None).await;
    })
    .await;
}

/// A client whose user may write policies in the vhost, and see no connections but its own.
async fn as_policymaker(v: &Vhost) -> Management {
    let user = encode(&v.name);
    v.raw("PUT", &format!("/users/{user}"), Some(json!({"password": "pass", "tags": "policymaker"}))).await;
    let rights = json!({"configure": ".*", "write": ".*", "read": ".*"});
    v.raw("PUT", &format!("/permissions/{user}/{user}"), Some(rights)).await;
    Management::new(&v.version.endpoint_as(&v.name, "pass"), guard()).unwrap()
}

/// Of all queues at once: dead letters that wait are counted, what is ready or delivered is not.
#[rstest]
#[tokio::test]
async fn dead_letters_that_wait_are_counted_for_all_queues_at_once(#[values(V43, V40)] version: Version) {
    in_vhost(version, "waiting", async |v| {
        v.safe_queue("held", "no-such-exchange", [("x-message-ttl", 50.into())]).await;
        v.queue("busy", QueueType::Quorum, []).await;
        for queue in ["held", "held", "busy", "busy"] {
            v.publish("", queue).await;
        }
        let delivered = v.wait("busy").await;
        let waiting = async || v.management.waiting(&v.name).await.unwrap();
        let expected = BTreeMap::from([("held".to_owned(), 2), ("busy".to_owned(), 0)]);
        eventually("two wait", async || waiting().await == expected).await;
        requeue_by_reject(delivered).await;
    })
    .await;
}

/// Delayed retries count as waiting, so that they must be told apart; 4.0 has none.
#[tokio::test]
async fn delayed_retries_are_told_apart_from_dead_letters() {
    in_vhost(V43, "delaying", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        let definition = [
            ("delayed-retry-type", "failed".into()),
            ("delayed-retry-min", 60_000.into()),
            ("delayed-retry-max", 60_000.into()),
        ];
        v.policy("p", "^q\\z", ApplyTo::QuorumQueues, definition).await;
        v.publish("", "q").await;
        requeue_by_reject(v.wait("q").await).await;
        let one = BTreeMap::from([("q".to_owned(), 1)]);
        let waiting = async || v.management.waiting(&v.name).await.unwrap();
        eventually("it waits", async || waiting().await == one).await;
        let delayed = async || v.management.delayed(&v.name).await.unwrap();
        eventually("it is delayed", async || delayed().await == one).await;
    })
    .await;
}
