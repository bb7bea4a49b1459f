use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::api::conditions::PipelineReason;
use crate::controller::rabbitmq_cluster::facts::tests::facts;

const PLAIN: [(&str, u16); 3] = [("amqp", 5672), ("management", 15_672), ("prometheus", 15_692)];
const SECURE: [(&str, u16); 3] = [("amqps", 5671), ("management-tls", 15_671), ("prometheus-tls", 15_691)];

fn found(ports: &[(&str, u16)]) -> Found {
    let credentials = [("username", "default_user_x"), ("password", "secret"), ("host", "rmq.messaging.svc")];
    Found {
        credentials: credentials.map(|(key, value)| (key.to_owned(), value.into())).into(),
        authority: SecretData::new(),
        ports: ports.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect(),
    }
}

fn located(patch: Value, found: &Found) -> Result<Endpoint, Error> {
    let facts = facts(patch);
    endpoint(&facts, &needs(&facts)?, found)
}

fn shown(patch: Value, found: &Found) -> (String, String, bool) {
    let endpoint = located(patch, found).unwrap();
    (endpoint.base_url(), endpoint.amqp.to_string(), endpoint.amqp.tls)
}

fn pem() -> Vec<u8> {
    b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".to_vec()
}

fn secure() -> Value {
    json!({"spec": {"tls": {"secretName": "cert"}}})
}

fn plain(base: &str) -> (String, String, bool) {
    (base.to_owned(), "rmq.messaging.svc:5672".to_owned(), false)
}

#[test]
fn a_plain_cluster_is_found_at_its_service() {
    assert_eq!(shown(json!({}), &found(&PLAIN)), plain("http://rmq.messaging.svc:15672"));
    let endpoint = located(json!({}), &found(&PLAIN)).unwrap();
    let (user, password) = (endpoint.credentials.username, endpoint.credentials.password);
    assert_eq!((user.as_str(), password.as_str(), endpoint.ca), ("default_user_x", "secret", None));
}

#[test]
fn the_service_may_have_other_ports_and_another_name() {
    let renamed = json!({"status": {"defaultUser": {"serviceReference": {"name": "front"}}}});
    let ports = [("management", 80), ("amqp", 4_000)];
    let wanted = ("http://front.messaging.svc:80".to_owned(), "front.messaging.svc:4000".to_owned(), false);
    assert_eq!(shown(renamed, &found(&ports)), wanted);
}

#[test]
fn tls_is_used_where_there_is_a_certificate_even_beside_plain_ports() {
    let both: Vec<_> = PLAIN.into_iter().chain(SECURE).collect();
    let wanted = ("https://rmq.messaging.svc:15671".to_owned(), "rmq.messaging.svc:5671".to_owned(), true);
    assert_eq!(shown(secure(), &found(&both)), wanted);
    let only = json!({"spec": {"tls": {"secretName": "cert", "disableNonTLSListeners": true}}});
    assert_eq!(shown(only, &found(&SECURE)), wanted);
}

#[test]
fn the_clusters_own_authority_comes_before_that_of_its_certificate() {
    let wanted = |patch: Value| needs(&facts(patch)).unwrap().authority;
    assert_eq!(wanted(json!({})), None);
    assert_eq!(wanted(secure()).as_deref(), Some("cert"));
    let own = || json!({"spec": {"tls": {"secretName": "cert", "caSecretName": "ca"}}});
    assert_eq!(wanted(own()).as_deref(), Some("ca"));

    let mut with = found(&SECURE);
    assert_eq!(located(secure(), &with).unwrap().ca, None, "the system's, where the certificate names none");
    let error = located(own(), &with).unwrap_err();
    assert_eq!(error.reason(), PipelineReason::SecretNotFound);
    assert!(error.to_string().contains("\"ca\", which spec.tls.caSecretName"), "{error}");
    with.authority = [("ca.crt".to_owned(), pem())].into();
    for patch in [secure(), own()] {
        assert_eq!(located(patch, &with).unwrap().ca, Some(pem()));
    }
    with.authority = [("ca.crt".to_owned(), b"no PEM".to_vec())].into();
    let error = located(own(), &with).unwrap_err().to_string();
    assert!(error.contains("the Secret \"ca\"") && error.contains("BEGIN CERTIFICATE"), "{error}");
}

#[rstest]
#[case("/mq", "http://rmq.messaging.svc:15672/mq")]
#[case("mq/", "http://rmq.messaging.svc:15672/mq")]
#[case("/a/b", "http://rmq.messaging.svc:15672/a/b")]
#[case("/api", "http://rmq.messaging.svc:15672/api")]
#[case("/", "http://rmq.messaging.svc:15672")]
fn a_path_prefix_precedes_api(#[case] prefix: &str, #[case] base: &str) {
    let config = format!("management.path_prefix = {prefix}");
    let patch = json!({"spec": {"rabbitmq": {"additionalConfig": config}}});
    assert_eq!(shown(patch, &found(&PLAIN)), plain(base));
}

fn annotated(pairs: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<_, _> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({
        "metadata": {"annotations": annotations},
        "spec": {"rabbitmq": {"additionalConfig": "management.path_prefix = /mq"}},
    })
}

#[test]
fn an_annotation_takes_the_place_of_the_management_address_alone() {
    let uri = ("rabbitmq.com/operator-connection-uri", "https://rabbit.example/front");
    assert_eq!(shown(annotated(&[uri]), &found(&PLAIN)), plain("https://rabbit.example:443/front"));
    let without_scheme = ("rabbitmq.com/operator-connection-uri", "rabbit.example:8080");
    assert_eq!(shown(annotated(&[without_scheme]), &found(&PLAIN)), plain("http://rabbit.example:8080"));
}

#[test]
fn with_both_addresses_named_no_service_is_read() {
    let both = annotated(&[
        ("rabbitmq.com/operator-connection-uri", "http://127.0.0.1:1"),
        ("redrive.dev/amqp-uri", "amqps://127.0.0.1:2"),
    ]);
    assert_eq!(needs(&facts(both.clone())).unwrap().service, None);
    let wanted = ("http://127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned(), true);
    assert_eq!(shown(both, &found(&[])), wanted);
}

/// Everything that may be missing, with its reason and what the sentence must name.
#[rstest]
#[case::going(
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    PipelineReason::ClusterNotFound,
    "messaging/rmq is being deleted"
)]
#[case::scaled_to_zero(
    json!({"spec": {"replicas": 0}}),
    PipelineReason::ClusterScaledToZero,
    "goes on by itself once there are some"
)]
#[case::no_credentials(
    json!({"status": null}),
    PipelineReason::SecretNotFound,
    "the cluster operator sets status.binding"
)]
#[case::vault(
    json!({
        "spec": {"secretBackend": {"vault": {"defaultUserPath": "p"}}},
        "status": {"binding": null, "defaultUser": {"secretReference": null}},
    }),
    PipelineReason::SecretNotFound,
    "in Vault, where it is not looked for: use secretRef"
)]
#[case::no_service(
    json!({"status": {"defaultUser": {"serviceReference": null}}}),
    PipelineReason::BrokerUnreachable,
    "sets status.defaultUser.serviceReference"
)]
#[case::service_elsewhere(
    json!({"status": {"defaultUser": {"serviceReference": {"namespace": "evil"}}}}),
    PipelineReason::SecretNotFound,
    "\"rmq\" in the namespace \"evil\": only what is in the cluster's own namespace"
)]
#[case::secret_elsewhere(
    json!({"status": {"binding": null, "defaultUser": {"secretReference": {"namespace": "kube-system"}}}}),
    PipelineReason::SecretNotFound,
    "in the namespace \"kube-system\""
)]
#[case::no_port(
    json!({"spec": {"tls": {"secretName": "cert"}}}),
    PipelineReason::BrokerUnreachable,
    "no port named \"management-tls\""
)]
#[case::uri_without_host(
    json!({"metadata": {"annotations": {"rabbitmq.com/operator-connection-uri": "http://"}}}),
    PipelineReason::BrokerUnreachable,
    "the annotation rabbitmq.com/operator-connection-uri"
)]
#[case::uri_of_amqp(
    json!({"metadata": {"annotations": {"rabbitmq.com/operator-connection-uri": "amqp://rabbit"}}}),
    PipelineReason::BrokerUnreachable,
    "is an AMQP address"
)]
#[case::amqp_uri(
    json!({"metadata": {"annotations": {"redrive.dev/amqp-uri": "http://rabbit"}}}),
    PipelineReason::BrokerUnreachable,
    "the annotation redrive.dev/amqp-uri"
)]
fn each_missing_piece_is_told(#[case] patch: Value, #[case] reason: PipelineReason, #[case] text: &str) {
    let error = located(patch, &found(&PLAIN)).unwrap_err();
    assert_eq!(error.reason(), reason, "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

#[rstest]
#[case("username", None, "the key username is missing")]
#[case("password", None, "the key password is missing")]
#[case("password", Some(&b"secret\n"[..]), "ends with a line break")]
#[case("username", Some(&b"\xff"[..]), "is not UTF-8")]
fn what_is_wrong_in_the_secret_is_told(#[case] key: &str, #[case] value: Option<&[u8]>, #[case] text: &str) {
    let mut found = found(&PLAIN);
    found.credentials.remove(key);
    found.credentials.extend(value.map(|value| (key.to_owned(), value.to_vec())));
    let error = located(json!({}), &found).unwrap_err();
    assert_eq!(error.reason(), PipelineReason::SecretNotFound);
    let said = error.to_string();
    assert!(said.contains("\"rmq-default-user\"") && said.contains(text), "{said}");
    assert!(!said.contains("secret\n"), "no value is repeated");
}
