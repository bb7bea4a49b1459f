//! Whether the API server serves the definitions of this version.
//!
//! With older ones it would prune what is new from specs and statuses, and say nothing: an inventory
//! that is not kept, or a setting that nobody obeys. So nobody works until they are there. Fields are
//! all that is compared: what else an earlier definition has is stricter or laxer, and loses nothing.

use std::time::Duration;

use http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::Instant;

use super::api_server::{API_TIMEOUT, within};
use super::{Error, Guarded};
use crate::api::{GROUP, VERSION, crds};

/// What the API server publishes of a definition that has just changed is some seconds old.
const PATIENCE: Duration = Duration::from_secs(30);

const RECHECK: Duration = Duration::from_secs(1);

/// How many missing fields a message names.
const NAMED: usize = 5;

/// Waits up to half a minute for the definitions of this version, or of a later one.
///
/// # Errors
/// Where the API server still serves none, or older ones, or can't be asked.
pub async fn check(client: &Client) -> Result<(), Error> {
    let end = Instant::now() + PATIENCE;
    let mut told = false;
    loop {
        match attempt(client).await {
            Err(error) if Instant::now() < end => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%error, "can't work yet; looking again for half a minute");
                }
                tokio::time::sleep(RECHECK).await;
            }
            outcome => return outcome,
        }
    }
}

/// Whether the kind is there and may be read: in one of the namespaces, since rights in another may
/// come later.
pub(super) async fn is_served(apis: &[Api<Guarded>]) -> Result<(), Error> {
    let (mut outcome, one) = (Ok(()), ListParams::default().limit(1));
    for api in apis {
        match within(API_TIMEOUT, api.list_metadata(&one)).await? {
            Ok(_) => return Ok(()),
            Err(error) => outcome = Err(Error::NotInstalled(error)),
        }
    }
    outcome
}

async fn attempt(client: &Client) -> Result<(), Error> {
    let what = "the definitions";
    let request = Request::get(format!("/openapi/v3/apis/{GROUP}/{VERSION}")).body(Vec::new());
    let request =
        request.map_err(|error| Error::Kubernetes { what, source: kube::Error::HttpError(error) })?;
    let served = match within(API_TIMEOUT, client.request::<Value>(request)).await? {
        Ok(served) => served,
        Err(source) => return unanswered(source, what),
    };
    let lacking: Vec<String> = crds::all().iter().flat_map(|crd| of_kind(crd, &served)).collect();
    match lacking.is_empty() {
        true => Ok(()),
        false => Err(Error::Outdated { lacking: list(&lacking) }),
    }
}

fn of_kind(crd: &CustomResourceDefinition, served: &Value) -> Vec<String> {
    let kind = &crd.spec.names.kind;
    let schema = crd.spec.versions.first().and_then(|version| version.schema.as_ref());
    let schema = serde_json::to_value(schema.and_then(|schema| schema.open_api_v3_schema.as_ref()));
    lacking(kind, &schema.unwrap_or_default(), published(served, kind))
}

/// Whoever may not read what everybody may by default has to do without the comparison.
fn unanswered(error: kube::Error, what: &'static str) -> Result<(), Error> {
    match &error {
        kube::Error::Api(status) if status.code == 404 => Err(Error::NotInstalled(error)),
        kube::Error::Api(status) if status.code == 403 => {
            tracing::warn!(%error, "it is not known whether the definitions are those of this version");
            Ok(())
        }
        _ => Err(Error::Kubernetes { what, source: error }),
    }
}

/// The schema of a kind, among all of its group and version.
fn published<'a>(document: &'a Value, kind: &str) -> Option<&'a Value> {
    let is_it = |schema: &&Value| {
        let names = schema["x-kubernetes-group-version-kind"].as_array();
        names.is_some_and(|names| names.iter().any(|name| name["group"] == GROUP && name["kind"] == kind))
    };
    document["components"]["schemas"].as_object()?.values().find(is_it)
}

/// The fields of a schema that the served one lacks.
fn lacking(path: &str, expected: &Value, served: Option<&Value>) -> Vec<String> {
    let Some(served) = served else { return vec![path.to_owned()] };
    let fields = expected["properties"].as_object().into_iter().flatten();
    let fields =
        fields.map(|(name, field)| (format!("{path}.{name}"), field, served["properties"].get(name)));
    let parts = ["items", "additionalProperties"].into_iter().filter(|part| expected[part].is_object());
    let parts = parts.map(|part| (path.to_owned(), &expected[part], served.get(part)));
    fields.chain(parts).flat_map(|(path, expected, served)| lacking(&path, expected, served)).collect()
}

fn list(lacking: &[String]) -> String {
    let named = lacking.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match lacking.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    fn schema(fields: &Value) -> Value {
        json!({"properties": {"spec": {"properties": fields}}})
    }

    #[test]
    fn what_an_older_definition_lacks_is_named() {
        let text = json!({"type": "string"});
        let old = json!({"queue": text, "tiers": {"items": {"properties": {"delay": text}}}});
        let new = json!({
            "queue": text, "mode": text,
            "tiers": {"items": {"properties": {"delay": text, "queue": text}}},
            "labels": {"additionalProperties": {"properties": {"value": text}}},
        });
        let (old, new) = (schema(&old), schema(&new));
        let found = lacking("Kind", &new, Some(&old));
        assert_eq!(found, ["Kind.spec.labels", "Kind.spec.mode", "Kind.spec.tiers.queue"]);
        assert_eq!(lacking("Kind", &old, Some(&new)), Vec::<String>::new(), "a later one may have more");
        assert_eq!(lacking("Kind", &old, None), ["Kind"]);
    }

    #[test]
    fn a_kind_is_found_by_what_it_is() {
        let of = |group: &str, kind: &str| json!({"x-kubernetes-group-version-kind": [{"group": group, "kind": kind}]});
        let document = json!({"components": {"schemas": {
            "a": of("", "RetryPipeline"), "b": of(GROUP, "RetryPipelineList"), "c": of(GROUP, "RetryPipeline"),
        }}});
        assert_eq!(published(&document, "RetryPipeline"), Some(&of(GROUP, "RetryPipeline")));
        assert_eq!(published(&document, "DlqReplay"), None);
    }

    #[test]
    fn only_who_may_not_ask_works_without_an_answer() {
        let answer = |code: u16| {
            let status = Status { code, ..Status::default() };
            unanswered(kube::Error::Api(Box::new(status)), "the definitions")
        };
        assert!(answer(403).is_ok());
        assert!(matches!(answer(404), Err(Error::NotInstalled(_))));
        assert!(matches!(answer(500), Err(Error::Kubernetes { .. })));
    }

    #[test]
    fn a_long_list_is_cut() {
        let lacking: Vec<String> = (0..7).map(|i| format!("f{i}")).collect();
        assert_eq!(list(&lacking), "f0, f1, f2, f3, f4 and 2 more");
        assert_eq!(list(&lacking[..1]), "f0");
    }
}
