//! Who may see and do what, and how a refusal looks: 401 has two meanings, 404
//! has four.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use redrive::broker::{BrokerError, Management, amqp};
use redrive::topology::model::{ApplyTo, Args, Exchange, Policy, Queue, QueueType};
use rstest::rstest;
use serde_json::json;

use super::support::Version::{self, V40, V43};
use super::support::*;

/// Runs with a user of its own who has a tag and, if asked for, permissions on
/// everything that begins with `ours`.
async fn with_user<F: Future<Output = ()>>(
    v: &Vhost,
    tag: &str,
    permitted: bool,
    test: impl FnOnce(Management, String) -> F,
) {
    let user = format!("user-of-{}-{tag}-{permitted}", v.name);
    let path = format!("/users/{}", encode(&user));
    let (status, text) = v.raw("PUT", &path, Some(json!({"password": "secret", "tags": tag}))).await;
    assert_eq!(status, 201, "{text}");
    if permitted {
        let path = format!("/permissions/{}/{}", encode(&v.name), encode(&user));
        let body = json!({"configure": "^ours", "write": "^ours", "read": "^ours"});
        assert_eq!(v.raw("PUT", &path, Some(body)).await.0, 201);
    }
    let management = Management::new(&v.version.endpoint_as(&user, "secret"), guard()).unwrap();
    let outcome = AssertUnwindSafe(test(management, user)).catch_unwind().await;
    v.raw("DELETE", &path, None).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn quorum(name: &str) -> Queue {
    Queue { name: name.to_owned(), kind: QueueType::Quorum, arguments: Args::new() }
}

#[rstest]
#[tokio::test]
async fn a_wrong_password_is_not_a_missing_permission(#[values(V43, V40)] version: Version) {
    let endpoint = version.endpoint_as("nobody", "wrong");
    let error = Management::new(&endpoint, guard()).unwrap().overview().await.unwrap_err();
    assert!(matches!(error, BrokerError::Unauthorized { .. }), "{error:?}");
    assert_eq!(error.reason(), "Unauthorized");
    let error = amqp::connect(&endpoint, &guard(), "/", "contract test").await.unwrap_err();
    assert!(matches!(error, BrokerError::Unauthorized { .. }), "{error:?}");
}

#[rstest]
#[tokio::test]
async fn a_user_without_a_tag_is_forbidden_and_not_unauthorized(#[values(V43, V40)] version: Version) {
    in_vhost(version, "no-tag", async |v| {
        with_user(&v, "", true, async |management, _| {
            let error = management.overview().await.unwrap_err();
            assert!(matches!(error, BrokerError::Forbidden { .. }), "{error:?}");
        })
        .await;
    })
    .await;
}

/// The tag `management` shows everything in a permitted vhost; policies take
/// `policymaker`, and so does the cluster's identity.
#[rstest]
#[tokio::test]
async fn the_tag_management_reads_all_and_writes_all_but_policies(#[values(V43, V40)] version: Version) {
    in_vhost(version, "tags", async |v| {
        with_user(&v, "management", true, async |management, user| {
            let overview = management.overview().await.unwrap();
            assert!(overview.facts.exchange_types.contains("headers"));
            assert!(management.vhost_exists(&v.name).await.unwrap());
            assert!(!management.vhost_exists("no-such-vhost").await.unwrap());
            assert!(management.alarms().await.unwrap().is_empty());
            let observed = management.snapshot(&v.name).await.unwrap();
            assert_eq!(observed.operator_policies, Some(vec![]));
            let who = management.whoami().await.unwrap();
            assert_eq!(who.name, user);
            assert!(!who.may_write_policies());
            management.put_queue(&v.name, &quorum("ours")).await.unwrap();
            let policy = Policy {
                name: "p".to_owned(),
                pattern: "^ours".to_owned(),
                apply_to: ApplyTo::Queues,
                priority: 0,
                definition: args([("max-length", 1.into())]),
            };
            let error = management.put_policy(&v.name, &policy).await.unwrap_err();
            assert!(matches!(error, BrokerError::Forbidden { .. }), "{error:?}");
            let error = management.internal_cluster_id().await.unwrap_err();
            assert!(matches!(error, BrokerError::Forbidden { .. }), "{error:?}");
        })
        .await;
        with_user(&v, "policymaker", false, async |management, _| {
            assert!(management.whoami().await.unwrap().may_write_policies());
            let id = management.internal_cluster_id().await.unwrap().unwrap();
            assert!(id.starts_with("rabbitmq-cluster-id-"), "{id}");
        })
        .await;
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_name_outside_the_permission_is_forbidden_and_named(#[values(V43, V40)] version: Version) {
    in_vhost(version, "outside", async |v| {
        v.queue("theirs", QueueType::Quorum, []).await;
        with_user(&v, "management", true, async |management, user| {
            let error = management.put_queue(&v.name, &quorum("theirs")).await.unwrap_err();
            assert!(matches!(error, BrokerError::Forbidden { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("declare queue \"theirs\"") && text.contains(&user), "{text}");
            let error = management.delete_queue(&v.name, "theirs").await.unwrap_err();
            assert!(matches!(error, BrokerError::Forbidden { .. }), "{error:?}");
            // VHO-06: a dead-letter exchange takes permission as well.
            let mut queue = quorum("ours");
            queue.arguments = args([("x-dead-letter-exchange", "theirs".into())]);
            let error = management.put_queue(&v.name, &queue).await.unwrap_err();
            assert!(matches!(error, BrokerError::Forbidden { .. }), "{error:?}");
        })
        .await;
    })
    .await;
}

/// NAM-08: a reserved name answers like a missing permission.
#[rstest]
#[tokio::test]
async fn a_reserved_name_is_forbidden_and_not_unauthorized(#[values(V43, V40)] version: Version) {
    in_vhost(version, "reserved", async |v| {
        let error = v.management.put_queue(&v.name, &quorum("amq.mine")).await.unwrap_err();
        assert!(matches!(error, BrokerError::Forbidden { .. }), "{error:?}");
        let exchange = Exchange {
            name: "amq.mine".to_owned(),
            kind: "topic".to_owned(),
            internal: false,
            arguments: Args::new(),
        };
        let error = v.management.put_exchange(&v.name, &exchange).await.unwrap_err();
        assert!(matches!(error, BrokerError::Forbidden { .. }), "{error:?}");
    })
    .await;
}

/// 4.0 answers 401, 4.3 hides the vhost behind a 404 that differs from "no
/// such vhost" in its spelling only. Taken for absence, it would make every
/// deletion a success.
#[rstest]
#[tokio::test]
async fn a_vhost_without_permission_is_forbidden_and_never_absent(#[values(V43, V40)] version: Version) {
    in_vhost(version, "hidden", async |v| {
        v.queue("q", QueueType::Quorum, []).await;
        with_user(&v, "policymaker", false, async |management, _| {
            let results = [
                management.snapshot(&v.name).await.map(|_| ()),
                management.vhost_exists(&v.name).await.map(|_| ()),
                management.queue_totals(&v.name, "q").await.map(|_| ()),
                management.delete_queue(&v.name, "q").await.map(|_| ()),
                management.delete_policy(&v.name, "p").await.map(|_| ()),
                management.delete_exchange(&v.name, "x", false).await.map(|_| ()),
                management.put_queue(&v.name, &quorum("q")).await.map(|_| ()),
            ];
            for result in results {
                assert!(matches!(result, Err(BrokerError::Forbidden { .. })), "{result:?}");
            }
        })
        .await;
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn a_missing_vhost_is_called_so_by_every_call(#[values(V43, V40)] version: Version) {
    let management = version.management();
    let vhost = "no-such-vhost";
    assert!(!management.vhost_exists(vhost).await.unwrap());
    let results = [
        management.snapshot(vhost).await.map(|_| ()),
        management.queue_totals(vhost, "q").await.map(|_| ()),
        management.put_queue(vhost, &quorum("q")).await.map(|_| ()),
    ];
    for result in results {
        assert!(matches!(result, Err(BrokerError::VhostNotFound { .. })), "{result:?}");
    }
    let error = amqp::connect(&version.endpoint(), &guard(), vhost, "contract test").await.unwrap_err();
    assert!(matches!(error, BrokerError::VhostNotFound { .. }), "{error:?}");
}

/// VHO-05: AMQP fails while HTTP works on.
#[rstest]
#[tokio::test]
async fn a_connection_limit_is_a_quota(#[values(V43, V40)] version: Version) {
    in_vhost(version, "connections", async |v| {
        let path = format!("/vhost-limits/{}/max-connections", encode(&v.name));
        assert_eq!(v.raw("PUT", &path, Some(json!({"value": 0}))).await.0, 204);
        let error = amqp::connect(&version.endpoint(), &guard(), &v.name, "contract test").await.unwrap_err();
        assert!(matches!(error, BrokerError::QuotaExceeded { .. }), "{error:?}");
    })
    .await;
}
