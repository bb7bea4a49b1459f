//! What the plugin `rabbitmq_event_exchange` tells, as the client reads it.

use std::collections::BTreeSet;

use redrive::broker::BrokerError;
use redrive::broker::events::{Deaf, Events, KEPT};
use redrive::topology::model::{ApplyTo, Args, Binding, Destination, QueueType};
use redrive::topology::news::{Change, News};
use rstest::rstest;
use serde_json::json;

use crate::support::Version::{V40, V43};
use crate::support::{Version, Vhost, encode, eventually, guard, in_vhost};

/// Where the brokers under test have the exchange.
const DEFAULT: &str = "/";

async fn listen(version: Version) -> Events {
    Events::open(&version.endpoint(), &guard(), DEFAULT).await.unwrap()
}

/// All that is told of a vhost, up to the change that the test makes last.
async fn until(events: &mut Events, vhost: &str, last: &Change) -> Vec<News> {
    let mut told = Vec::new();
    let all = async {
        while !told.iter().any(|news: &News| news.change == *last) {
            let heard = events.next().await.unwrap();
            told.extend(heard.news.into_iter().filter(|news| news.vhost == vhost));
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), all).await.expect("the last change is told");
    told
}

fn queue(name: &str) -> Destination {
    Destination::Queue(name.to_owned())
}

fn exchange(name: &str) -> Destination {
    Destination::Exchange(name.to_owned())
}

fn binding(source: &str, destination: Destination, key: &str) -> Binding {
    Binding { source: source.to_owned(), destination, routing_key: key.to_owned(), arguments: Args::new() }
}

/// Objects and names that need no care are told in this order, each with who did it.
#[rstest]
#[tokio::test]
async fn each_change_is_told_with_its_vhost_and_user(#[values(V43, V40)] version: Version) {
    in_vhost(version, "told", async |v| {
        let mut events = listen(version).await;
        v.queue("q", QueueType::Quorum, []).await;
        v.exchange("e", "headers", []).await;
        v.bind("e", "q", "k", [("x-match", "all-with-x".into()), ("n", 3.into())]).await;
        v.bind_exchange("e", "amq.fanout", "", []).await;
        v.policy("p", "^q$", ApplyTo::Queues, [("max-length", 9.into())]).await;
        v.policy("p", "^q$", ApplyTo::Queues, [("max-length", 8.into())]).await;
        v.management.delete_policy(&v.name, "p").await.unwrap();
        let rule = Binding {
            arguments: Args::from([("n".to_owned(), 3.into()), ("x-match".to_owned(), "all-with-x".into())]),
            ..binding("e", queue("q"), "k")
        };
        v.management.unbind(&v.name, &rule).await.unwrap();
        v.management.delete_exchange(&v.name, "e", false).await.unwrap();
        v.management.delete_queue(&v.name, "q").await.unwrap();
        let told = until(&mut events, &v.name, &Change::Deleted(queue("q"))).await;
        let user = version.endpoint().credentials.username;
        for news in &told {
            assert_eq!(news.by.as_ref(), Some(&user), "{news:?}");
        }
        let changes: Vec<Change> = told.into_iter().map(|news| news.change).collect();
        let expected = [
            Change::Declared(queue("q")),
            Change::Declared(exchange("e")),
            Change::Bound(binding("e", queue("q"), "k")),
            Change::Bound(binding("e", exchange("amq.fanout"), "")),
            Change::PolicySet("p".to_owned()),
            Change::PolicySet("p".to_owned()),
            Change::PolicyCleared("p".to_owned()),
            Change::Unbound(binding("e", queue("q"), "k")),
            Change::Deleted(exchange("e")),
            // It goes with its source, and is told a moment later.
            Change::Unbound(binding("e", exchange("amq.fanout"), "")),
            Change::Deleted(queue("q")),
        ];
        assert_eq!(changes, expected);
    })
    .await;
}

/// What is declared again tells nothing, while what is bound again tells it each time.
#[rstest]
#[tokio::test]
async fn a_binding_that_is_made_again_is_told_again(#[values(V43, V40)] version: Version) {
    in_vhost(version, "again", async |v| {
        let mut events = listen(version).await;
        for _ in 0..2 {
            v.queue("q", QueueType::Quorum, []).await;
            v.bind("amq.topic", "q", "k", []).await;
        }
        v.queue("last", QueueType::Classic, []).await;
        let told = until(&mut events, &v.name, &Change::Declared(queue("last"))).await;
        let count = |change: &Change| told.iter().filter(|news| news.change == *change).count();
        assert_eq!(count(&Change::Declared(queue("q"))), 1);
        assert_eq!(count(&Change::Bound(binding("amq.topic", queue("q"), "k"))), 2);
    })
    .await;
}

/// The bindings of a queue that goes are told one by one; on 4.0 it is the broker that did that.
#[rstest]
#[tokio::test]
async fn a_queue_that_goes_takes_its_bindings_along_one_by_one(#[values(V43, V40)] version: Version) {
    in_vhost(version, "along", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        for key in ["a", "b"] {
            v.bind("amq.topic", "q", key, []).await;
        }
        let mut events = listen(version).await;
        v.management.delete_queue(&v.name, "q").await.unwrap();
        v.queue("last", QueueType::Classic, []).await;
        let told = until(&mut events, &v.name, &Change::Declared(queue("last"))).await;
        let user = Some(version.endpoint().credentials.username);
        let of = |change: &Change| told.iter().find(|news| news.change == *change).unwrap().by.clone();
        assert_eq!(of(&Change::Deleted(queue("q"))), user);
        for key in ["a", "b"] {
            let by = of(&Change::Unbound(binding("amq.topic", queue("q"), key)));
            assert_eq!(by, if version == V43 { user.clone() } else { None });
        }
    })
    .await;
}

/// An operator policy is set like any other, and cleared by an event of its own name.
#[rstest]
#[tokio::test]
async fn an_operator_policy_is_told_as_a_policy(#[values(V43, V40)] version: Version) {
    in_vhost(version, "operator", async |v| {
        let mut events = listen(version).await;
        let path = format!("/operator-policies/{}/limits", encode(&v.name));
        let policy =
            json!({"pattern": "q", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"});
        v.raw("PUT", &path, Some(policy)).await;
        v.raw("DELETE", &path, None).await;
        let cleared = Change::PolicyCleared("limits".to_owned());
        let told = until(&mut events, &v.name, &cleared).await;
        let changes: BTreeSet<String> = told.iter().map(|news| format!("{:?}", news.change)).collect();
        let expected = [Change::PolicySet("limits".to_owned()), cleared].map(|change| format!("{change:?}"));
        assert_eq!(changes, expected.into());
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_vhost_is_told_when_it_comes_and_goes(#[values(V43, V40)] version: Version) {
    in_vhost(version, "vhosts", async |v| {
        let mut events = listen(version).await;
        let other = format!("{}-other", v.name);
        v.raw("PUT", &format!("/vhosts/{}", encode(&other)), Some(json!({}))).await;
        until(&mut events, &other, &Change::Vhost).await;
        v.raw("DELETE", &format!("/vhosts/{}", encode(&other)), None).await;
        until(&mut events, &other, &Change::Vhost).await;
    })
    .await;
}

/// In a vhost without the exchange, and with a user who may not read it.
#[rstest]
#[tokio::test]
async fn where_nothing_can_be_heard_it_is_said_what_is_missing(#[values(V43, V40)] version: Version) {
    in_vhost(version, "deaf", async |v| {
        let deaf = Events::open(&version.endpoint(), &guard(), &v.name).await.err().unwrap();
        assert!(matches!(&deaf, Deaf::NoExchange { vhost } if *vhost == v.name), "{deaf}");
        assert!(deaf.to_string().contains("enable the plugin rabbitmq_event_exchange"), "{deaf}");

        let user = encode(&v.name);
        v.raw("PUT", &format!("/users/{user}"), Some(json!({"password": "pass", "tags": ""}))).await;
        let listen_as = async |password: &str| {
            Events::open(&version.endpoint_as(&v.name, password), &guard(), DEFAULT).await
        };
        let unknown = listen_as("wrong").await.err().unwrap();
        assert!(matches!(unknown, Deaf::Broker(BrokerError::Unauthorized { .. })), "{unknown}");
        let outside = listen_as("pass").await.err().unwrap();
        assert!(matches!(&outside, Deaf::Forbidden { user, .. } if *user == v.name), "{outside}");
        // Everything but reading the exchange of events.
        let permissions = format!("/permissions/%2F/{user}");
        let grant = async |configure: &str, read: &str| {
            let rights = json!({"configure": configure, "write": "^amq\\.gen-", "read": read});
            v.raw("PUT", &permissions, Some(rights)).await
        };
        grant("^amq\\.gen-", "^amq\\.gen-").await;
        let unread = listen_as("pass").await.err().unwrap();
        assert!(matches!(unread, Deaf::Forbidden { .. }), "{unread}");
        assert!(!unread.to_string().contains("amq.gen-"), "no name that changes each time: {unread}");
        // And what is needed is enough.
        grant("^amq\\.gen-", "^amq\\.(gen-|rabbitmq\\.event$)").await;
        listen_as("pass").await.unwrap();
        v.raw("DELETE", &format!("/users/{user}"), None).await;
    })
    .await;
}

/// The queue from which a user consumes events, as the broker shows it.
async fn queue_of(v: &Vhost, user: &str) -> Option<serde_json::Value> {
    let list = async |path: &str| -> serde_json::Value {
        let (_, body) = v.raw("GET", path, None).await;
        serde_json::from_str(&body).unwrap()
    };
    let consumers = list("/consumers/%2F").await;
    let mut consumers = consumers.as_array().unwrap().iter();
    let ours = consumers.find(|consumer| consumer["channel_details"]["user"] == user)?;
    Some(list(&format!("/queues/%2F/{}", encode(ours["queue"]["name"].as_str().unwrap()))).await)
}

/// More changes than the broker keeps while nobody takes them: the oldest are dropped, the broker
/// keeps no more than that, and whoever listens learns that something is missing.
#[rstest]
#[tokio::test]
async fn a_storm_that_nobody_takes_costs_bounded_memory_and_is_told_to_be_incomplete(
    #[values(V43, V40)] version: Version,
) {
    in_vhost(version, "storm", async |v| {
        let user = v.name.clone();
        v.raw("PUT", &format!("/users/{user}"), Some(json!({"password": "pass", "tags": "monitoring"})))
            .await;
        for place in ["%2F", &encode(&v.name)] {
            let rights = json!({"configure": ".*", "write": ".*", "read": ".*"});
            v.raw("PUT", &format!("/permissions/{place}/{user}"), Some(rights)).await;
        }
        let mut events = Events::open(&version.endpoint_as(&user, "pass"), &guard(), DEFAULT).await.unwrap();
        v.queue("q", QueueType::Classic, []).await;
        let more = KEPT + 1_000;
        let storm = (0..more).map(async |number| {
            v.bind("amq.topic", "q", &number.to_string(), []).await;
        });
        let storm = futures::stream::iter(storm);
        futures::StreamExt::for_each_concurrent(storm, 16, |bind| bind).await;
        eventually("the broker's counts are up to date", async || {
            let kept = queue_of(&v, &user).await.unwrap_or_default();
            kept["messages"].as_u64().is_some_and(|messages| messages >= KEPT.into())
        })
        .await;
        let kept = queue_of(&v, &user).await.unwrap();
        let under_way = u64::from(redrive::broker::events::PREFETCH);
        assert!(kept["messages"].as_u64().unwrap() <= u64::from(KEPT) + under_way, "{kept}");
        let (mut told, mut complete) = (0, true);
        while complete {
            let heard = events.next().await.unwrap();
            told += heard.news.iter().filter(|news| news.vhost == v.name).count();
            complete = heard.complete;
        }
        assert!(told < more as usize, "{told}");
        // And from here on all is heard again.
        v.queue("last", QueueType::Classic, []).await;
        until(&mut events, &v.name, &Change::Declared(queue("last"))).await;
        drop(events);
        eventually("the queue goes with its connection", async || queue_of(&v, &user).await.is_none()).await;
        v.raw("DELETE", &format!("/users/{user}"), None).await;
    })
    .await;
}
