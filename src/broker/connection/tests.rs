use super::*;
use rstest::rstest;

fn secret(pairs: &[(&str, &str)]) -> Result<Endpoint, EndpointError> {
    let mut data: BTreeMap<String, Vec<u8>> =
        [("uri", "http://rabbit.shop.svc:15672"), ("username", "redrive"), ("password", "pass-word-1")]
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect();
    for (key, value) in pairs {
        data.insert((*key).to_owned(), value.as_bytes().to_vec());
    }
    Endpoint::from_secret(&data)
}

fn key_of(error: &EndpointError) -> &'static str {
    match error {
        EndpointError::Missing { key, .. } | EndpointError::Invalid { key, .. } => key,
    }
}

fn pem(kind: &str) -> String {
    // Only its shape is looked at here; TLS looks at the rest.
    format!("-----BEGIN {kind}-----\nMAA=\n-----END {kind}-----\n")
}

#[rstest]
#[case("http://rabbit:15672", "http://rabbit:15672", "rabbit:5672", false)]
#[case("rabbit:15672", "http://rabbit:15672", "rabbit:5672", false)]
#[case("rabbit.shop.svc", "http://rabbit.shop.svc:80", "rabbit.shop.svc:5672", false)]
#[case("https://rabbit.example", "https://rabbit.example:443", "rabbit.example:5671", true)]
#[case("https://ingress/rmq/", "https://ingress:443/rmq", "ingress:5671", true)]
#[case("https://ingress/a%20b/c", "https://ingress:443/a%20b/c", "ingress:5671", true)]
#[case("http://rabbit:15672/api/", "http://rabbit:15672", "rabbit:5672", false)]
#[case("http://[2001:db8::1]:15672", "http://[2001:db8::1]:15672", "[2001:db8::1]:5672", false)]
#[case(" http://rabbit:15672\n", "http://rabbit:15672", "rabbit:5672", false)]
fn a_uri_says_where_both_listeners_are(
    #[case] uri: &str,
    #[case] base: &str,
    #[case] amqp: &str,
    #[case] tls: bool,
) {
    let endpoint = secret(&[("uri", uri)]).unwrap();
    assert_eq!(endpoint.base_url(), base);
    assert_eq!(endpoint.amqp.to_string(), amqp);
    assert_eq!((endpoint.management.tls, endpoint.amqp.tls), (tls, tls));
}

#[rstest]
#[case("amqp://other", "other:5672", false)]
#[case("amqps://other", "other:5671", true)]
#[case("amqps://other:1234/%2Fshop", "other:1234", true)]
#[case("", "rabbit.shop.svc:5672", false)]
fn an_amqp_uri_takes_the_place_of_the_default(#[case] uri: &str, #[case] amqp: &str, #[case] tls: bool) {
    let endpoint = secret(&[("amqpUri", uri)]).unwrap();
    assert_eq!((endpoint.amqp.to_string().as_str(), endpoint.amqp.tls), (amqp, tls));
}

#[rstest]
#[case("uri", "")]
#[case("uri", "http://")]
#[case("uri", "http://user:pass-word-2@rabbit:15672")]
#[case("uri", "user@rabbit:15672")]
#[case("uri", "amqp://rabbit:5672")]
#[case("uri", "ftp://rabbit")]
#[case("uri", "http://rabbit:99999")]
#[case("uri", "http://rabbit?x=1")]
#[case("uri", "http://rabbit#x")]
#[case("amqpUri", "rabbit:5672")]
#[case("amqpUri", "http://rabbit:5672")]
#[case("amqpUri", "amqp://user:pass-word-2@rabbit")]
#[case("amqpUri", "amqp://")]
#[case("username", "")]
#[case("username", "a:b")]
#[case("username", "redrive\n")]
#[case("password", "")]
#[case("password", "pass-word-2\n")]
#[case("ca.crt", "no certificate")]
#[case("tls.crt", "anything")]
#[case("tls.key", "anything")]
fn what_is_wrong_names_its_key_and_repeats_no_value(#[case] key: &str, #[case] value: &str) {
    let error = secret(&[(key, value)]).unwrap_err();
    let named = key_of(&error);
    // Half of a client certificate is missed at the other half.
    let expected = match key {
        "tls.crt" => "tls.key",
        "tls.key" => "tls.crt",
        other => other,
    };
    assert_eq!(named, expected, "{error}");
    let text = format!("{error} {error:?}");
    assert!(!text.contains("pass-word"), "{text}");
    assert!(error.to_string().contains(": "), "it gives advice: {error}");
}

#[test]
fn a_key_that_is_not_text_is_named() {
    let mut data: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    data.insert("uri".to_owned(), b"http://rabbit".to_vec());
    data.insert("username".to_owned(), b"redrive".to_vec());
    data.insert("password".to_owned(), vec![0xff, 0xfe]);
    assert_eq!(key_of(&Endpoint::from_secret(&data).unwrap_err()), "password");
    data.remove("username");
    data.insert("password".to_owned(), b"p".to_vec());
    assert_eq!(key_of(&Endpoint::from_secret(&data).unwrap_err()), "username");
}

#[test]
fn certificates_are_taken_in_pem_and_both_halves_of_a_client_certificate() {
    let (certificate, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
    let endpoint =
        secret(&[("ca.crt", &certificate.repeat(2)), ("tls.crt", &certificate), ("tls.key", &key)]).unwrap();
    assert!(endpoint.ca.is_some() && endpoint.identity.is_some());
    let error = secret(&[("tls.crt", &certificate), ("tls.key", &certificate)]).unwrap_err();
    assert_eq!(key_of(&error), "tls.key");
    let empty = secret(&[("ca.crt", ""), ("tls.crt", ""), ("tls.key", "")]).unwrap();
    assert!(empty.ca.is_none() && empty.identity.is_none());
}

#[test]
fn debug_output_has_no_secret() {
    let (certificate, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
    let endpoint = secret(&[("tls.crt", &certificate), ("tls.key", &key)]).unwrap();
    let text = format!("{endpoint:?}");
    assert!(!text.contains("pass-word") && !text.contains("MAA"), "{text}");
}

#[test]
fn fingerprints_differ_with_every_part_and_are_stable() {
    let base = secret(&[]).unwrap().fingerprint();
    assert_eq!(base, secret(&[]).unwrap().fingerprint());
    for (key, value) in [
        ("uri", "https://rabbit.shop.svc:15672"),
        ("uri", "http://rabbit.shop.svc:15672/rmq"),
        ("amqpUri", "amqps://rabbit.shop.svc:5672"),
        ("username", "other"),
        ("password", "pass-word-2"),
        ("ca.crt", &pem("CERTIFICATE")),
    ] {
        assert_ne!(base, secret(&[(key, value)]).unwrap().fingerprint(), "{key}");
    }
    let moved = secret(&[("username", "redrivep"), ("password", "ass-word-1")]).unwrap();
    assert_ne!(base, moved.fingerprint());
}
