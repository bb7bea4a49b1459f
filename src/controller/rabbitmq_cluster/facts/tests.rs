use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// A cluster as the cluster operator 2.22 leaves it, defaults and conditions included.
pub(crate) fn as_written() -> Value {
    json!({
        "apiVersion": "rabbitmq.com/v1beta1",
        "kind": "RabbitmqCluster",
        "metadata": {
            "name": "rmq", "namespace": "messaging", "uid": "9d2b", "generation": 4,
            "finalizers": ["deletion.finalizers.rabbitmqclusters.rabbitmq.com"],
            "annotations": {
                "rabbitmq.com/topology-allowed-namespaces": "shop, billing",
                "redrive.dev/grants": "shop=/shop:orders.",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
        },
        "spec": {
            "delayStartSeconds": 30, "image": "rabbitmq:4.3.6-management", "replicas": 3,
            "override": {}, "persistence": {"storage": "10Gi"},
            "rabbitmq": {"additionalPlugins": ["rabbitmq_random_exchange"]},
            "resources": {"limits": {"cpu": "2", "memory": "2Gi"}},
            "secretBackend": {}, "service": {"type": "ClusterIP"},
            "terminationGracePeriodSeconds": 604_800, "tls": {},
        },
        "status": {
            "binding": {"name": "rmq-default-user"},
            "conditions": [{"type": "AllReplicasReady", "status": "True", "reason": "AllPodsAreReady"}],
            "defaultUser": {
                "secretReference": {
                    "keys": {"username": "username", "password": "password"},
                    "name": "rmq-default-user", "namespace": "messaging",
                },
                "serviceReference": {"name": "rmq", "namespace": "messaging"},
            },
            "observedGeneration": 4,
            "quorumStatus": "ok",
        },
    })
}

/// Merges as RFC 7386 says.
pub(crate) fn merged(base: &mut Value, patch: Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                match value {
                    Value::Null => drop(base.remove(&key)),
                    value => merged(base.entry(key).or_insert(Value::Null), value),
                }
            }
        }
        (base, patch) => *base = patch,
    }
}

fn read(patch: Value) -> Result<Facts, serde_json::Error> {
    let mut object = as_written();
    merged(&mut object, patch);
    Facts::read(&serde_json::from_value(object).unwrap())
}

/// The facts of a cluster as the cluster operator writes it, with changes.
pub(crate) fn facts(patch: Value) -> Facts {
    read(patch).unwrap()
}

fn named(name: &str) -> Reference {
    Reference { name: name.to_owned(), namespace: Some("messaging".to_owned()) }
}

#[test]
fn a_cluster_reads_as_its_operator_writes_it() {
    let facts = facts(json!({}));
    assert_eq!(facts.key.to_string(), "messaging/rmq");
    assert_eq!((facts.uid.as_str(), facts.is_going, facts.is_scaled_to_zero), ("9d2b", false, false));
    // The binding names no namespace: it is the cluster's.
    assert_eq!(facts.credentials, Some(Reference { name: "rmq-default-user".to_owned(), namespace: None }));
    assert_eq!(facts.service, Some(named("rmq")));
    assert_eq!((facts.tls, facts.uri, facts.amqp_uri, facts.path_prefix.as_str()), (None, None, None, ""));
    assert_eq!(facts.allowed_namespaces, "shop, billing");
    assert_eq!(facts.grants, "shop=/shop:orders.");
}

#[test]
fn a_cluster_that_its_operator_has_not_seen_yet_says_nothing() {
    let facts = facts(json!({"spec": null, "status": null}));
    assert_eq!((facts.credentials, facts.service, facts.is_scaled_to_zero), (None, None, false));
}

#[test]
fn the_binding_comes_before_the_default_user() {
    let external = json!({
        "spec": {"secretBackend": {"externalSecret": {"name": "from-elsewhere"}}},
        "status": {"binding": {"name": "from-elsewhere"}},
    });
    assert_eq!(facts(external).credentials.unwrap().name, "from-elsewhere");
    let older = json!({"status": {"binding": null}});
    assert_eq!(facts(older).credentials, Some(named("rmq-default-user")));
}

#[test]
fn a_user_in_vault_is_in_no_secret() {
    let vault = json!({
        "spec": {"secretBackend": {"vault": {"defaultUserPath": "secret/data/rmq", "role": "rabbitmq"}}},
        "status": {"binding": null, "defaultUser": {"secretReference": null}},
    });
    let facts = facts(vault);
    assert!(facts.has_vault_user && facts.credentials.is_none());
}

#[test]
fn tls_is_what_names_a_certificate() {
    assert_eq!(facts(json!({"spec": {"tls": {"caSecretName": "ca"}}})).tls, None);
    let both = facts(json!({"spec": {"tls": {"secretName": "cert", "caSecretName": "ca"}}})).tls;
    assert_eq!(both, Some(Tls { secret: "cert".to_owned(), ca_secret: Some("ca".to_owned()) }));
}

#[test]
fn what_has_another_form_is_no_default() {
    for patch in [
        json!({"spec": {"tls": {"secretName": ["cert"]}}}),
        json!({"spec": {"replicas": "0"}}),
        json!({"status": {"binding": "rmq-default-user"}}),
    ] {
        assert!(read(patch.clone()).is_err(), "{patch}");
    }
}

#[test]
fn another_uid_a_deletion_and_each_annotation_are_news_and_a_condition_is_not() {
    let before = facts(json!({}));
    let annotated = |key: &str| json!({"metadata": {"annotations": {key: "x"}}});
    for patch in [
        json!({"metadata": {"uid": "other"}}),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"spec": {"replicas": 0}}),
        json!({"spec": {"tls": {"secretName": "cert"}}}),
        json!({"spec": {"rabbitmq": {"additionalConfig": "management.path_prefix = /mq"}}}),
        json!({"status": {"binding": {"name": "other"}}}),
        json!({"status": {"defaultUser": {"serviceReference": {"name": "other"}}}}),
        annotated("rabbitmq.com/topology-allowed-namespaces"),
        annotated("rabbitmq.com/operator-connection-uri"),
        annotated("redrive.dev/grants"),
        annotated("redrive.dev/amqp-uri"),
    ] {
        assert_ne!(facts(patch.clone()), before, "{patch}");
    }
    for patch in [
        json!({"metadata": {"resourceVersion": "9", "generation": 5, "labels": {"a": "b"}}}),
        json!({"spec": {"replicas": 5, "image": "rabbitmq:4.3.7-management", "resources": null}}),
        json!({"spec": {"rabbitmq": {"additionalConfig": "log.console.level = debug"}}}),
        json!({"status": {"conditions": [], "quorumStatus": "unavailable", "observedGeneration": 5}}),
        annotated("example.com/note"),
    ] {
        assert_eq!(facts(patch.clone()), before, "{patch}");
    }
}

#[rstest]
#[case("management.path_prefix = /mq", "/mq")]
#[case("management.path_prefix=/mq/", "/mq/")]
#[case("  management.path_prefix   =   mq  ", "mq")]
#[case("management.path_prefix = '/m q'", "/m q")]
#[case("management.path_prefix = /mq # for the ingress", "/mq")]
#[case("# management.path_prefix = /old\nmanagement.path_prefix = /new", "/new")]
#[case("management.path_prefix = /one\nmanagement.path_prefix = /two", "/two")]
#[case("log.console.level = debug\r\nmanagement.path_prefix = /mq\r\n", "/mq")]
#[case("management.path_prefix =", "")]
#[case("management.path_prefixes = /mq", "")]
#[case("management.path_prefix", "")]
#[case("", "")]
fn the_prefix_is_read_as_the_broker_reads_it(#[case] config: &str, #[case] prefix: &str) {
    assert_eq!(configured(config, "management.path_prefix").unwrap_or_default(), prefix);
}

#[test]
fn the_vhost_of_the_events_is_read_beside_it() {
    let config = "event_exchange.vhost = events\nmanagement.path_prefix = /mq\n";
    let patch = json!({"spec": {"rabbitmq": {"additionalConfig": config}}});
    let facts = facts(patch);
    assert_eq!(facts.events_vhost.as_deref(), Some("events"));
    assert_eq!(facts.path_prefix, "/mq");
}
