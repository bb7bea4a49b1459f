//! What one record says.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::super::progress::cut;
use crate::api::{AdmittedBy, DlqReplay, RetryPipeline};
use crate::broker::replay::Entry;
use crate::replay::message::{Table, Value};
use crate::replay::origin;

/// The version of the schema of records.
const VERSION: u32 = 1;

/// The longest text of one header, in bytes.
const MAX_HEADER: usize = 1_024;

/// A resource in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// An exchange and a routing key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Place {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fate {
    /// The target has it.
    Replayed,
    /// The queue for messages that were replayed too often has it.
    Quarantined,
    /// It was deleted.
    Discarded,
}

/// What is the same in all records of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct About {
    pub(crate) run: Named,
    pub(crate) pipeline: Named,
    pub(crate) vhost: String,
    pub(crate) queue: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) requested_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) approved_by: Option<String>,
    pub(crate) justification: String,
    /// Headers that may be kept.
    #[serde(skip)]
    pub(crate) headers: Vec<String>,
    /// Where messages go that were replayed too often.
    #[serde(skip)]
    pub(crate) replay_limit_queue: Option<String>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) version: u32,
    #[serde(flatten)]
    pub(crate) about: About,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replay_id: Option<String>,
    /// Where the message was first published, else what it came with when it was read.
    pub(crate) origin: Place,
    /// Where it went; nothing where it was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<Place>,
    pub(crate) outcome: Fate,
    /// When the broker had confirmed it.
    pub(crate) time: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, Json>,
}

impl About {
    /// What is the same in all records of a replay.
    pub(crate) fn new(
        replay: &DlqReplay,
        pipeline: &RetryPipeline,
        queue: &str,
        replay_limit_queue: Option<String>,
    ) -> Self {
        let named = |namespace: Option<String>, name: String, uid: Option<String>| Named {
            namespace: namespace.unwrap_or_default(),
            name,
            uid: uid.unwrap_or_default(),
        };
        let admission = replay.status.as_ref().and_then(|status| status.admission.as_ref());
        let is_approved = admission.is_some_and(|admission| admission.by == AdmittedBy::Approval);
        let approval = replay.spec.approval.as_ref().filter(|_| is_approved);
        let policy = pipeline.spec.replay_policy.as_ref();
        Self {
            run: named(replay.namespace(), replay.name_any(), replay.uid()),
            pipeline: named(pipeline.namespace(), pipeline.name_any(), pipeline.uid()),
            vhost: pipeline.spec.vhost().to_owned(),
            queue: queue.to_owned(),
            requested_by: replay.spec.requested_by.clone(),
            approved_by: approval.map(|approval| approval.approved_by.clone()),
            justification: replay.spec.justification.clone(),
            headers: policy.map(|policy| policy.audit_headers.clone()).unwrap_or_default(),
            replay_limit_queue,
        }
    }
}

impl Record {
    /// The record of one message.
    pub(crate) fn new(about: &About, entry: &Entry) -> Self {
        let place = |(exchange, routing_key): (String, String)| Place { exchange, routing_key };
        let to_limit =
            |went: &(String, String)| went.0.is_empty() && Some(&went.1) == about.replay_limit_queue.as_ref();
        let outcome = match &entry.went {
            None => Fate::Discarded,
            Some(went) if to_limit(went) => Fate::Quarantined,
            Some(_) => Fate::Replayed,
        };
        let message = &entry.message;
        let kept = |name: &String| Some((name.clone(), json(message.properties.header(name)?)));
        Self {
            version: VERSION,
            about: about.clone(),
            message_id: message.properties.message_id.clone(),
            replay_id: entry.replay_id.clone(),
            origin: origin::origin(message).map_or_else(
                || place((message.exchange.clone(), message.routing_key.clone())),
                |origin| place((origin.exchange, origin.routing_key)),
            ),
            target: entry.went.clone().map(place),
            outcome,
            time: time(entry.time),
            headers: about.headers.iter().filter_map(kept).collect(),
        }
    }

    /// Whether it is about a replay of this name.
    pub(crate) fn is_about(&self, namespace: &str, name: &str) -> bool {
        self.about.run.namespace == namespace && self.about.run.name == name
    }
}

fn time(millis: u64) -> String {
    let time = i64::try_from(millis).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
    time.unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// A header as JSON, shortened where it is a text; what is no text is told by its kind.
fn json(value: &Value) -> Json {
    match value {
        Value::Bool(value) => json!(value),
        Value::I8(value) => json!(value),
        Value::U8(value) => json!(value),
        Value::I16(value) => json!(value),
        Value::U16(value) => json!(value),
        Value::I32(value) => json!(value),
        Value::U32(value) => json!(value),
        Value::I64(value) => json!(value),
        Value::F32(value) => json!(value),
        Value::F64(value) => json!(value),
        Value::Timestamp(seconds) => json!(seconds),
        Value::Decimal { scale, value } => json!(f64::from(*value) / 10_f64.powi(i32::from(*scale))),
        Value::Void => Json::Null,
        Value::Short(_) | Value::Text(_) => {
            value.as_text().map_or_else(|| json!("(bytes)"), |text| json!(cut(text, MAX_HEADER)))
        }
        Value::Array(_) => json!("(list)"),
        Value::Table(Table { .. }) => json!("(table)"),
        Value::Bytes(_) => json!("(bytes)"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::replay::message::{Message, Properties};

    fn about() -> About {
        About {
            run: Named { namespace: "shop".to_owned(), name: "r".to_owned(), uid: "u".to_owned() },
            justification: "the fix is deployed".to_owned(),
            headers: vec!["x-tenant-id".to_owned(), "x-missing".to_owned()],
            replay_limit_queue: Some("dlq.quarantine.replay-limit".to_owned()),
            ..About::default()
        }
    }

    fn entry(went: Option<(&str, &str)>) -> Entry {
        let headers: Table =
            [("x-tenant-id".to_owned(), Value::from("42")), ("x-card".to_owned(), Value::from("4111"))]
                .into();
        let properties = Properties {
            headers: Some(headers),
            message_id: Some("m-1".to_owned()),
            ..Properties::default()
        };
        let message = Message { routing_key: "orders.created".to_owned(), properties, ..Message::default() };
        let message = Arc::new(message);
        let went = went.map(|(exchange, key)| (exchange.to_owned(), key.to_owned()));
        Entry { message, went, replay_id: Some("id".to_owned()), time: 1_800_000_000_123 }
    }

    #[test]
    fn a_record_reads_as_the_page_says() {
        let record = Record::new(&about(), &entry(Some(("", "orders.queue"))));
        assert_eq!(
            serde_json::to_value(&record).unwrap(),
            json!({
                "version": 1,
                "run": {"namespace": "shop", "name": "r", "uid": "u"},
                "pipeline": {"namespace": "", "name": "", "uid": ""},
                "vhost": "", "queue": "", "justification": "the fix is deployed",
                "messageId": "m-1", "replayId": "id",
                "origin": {"exchange": "", "routingKey": "orders.created"},
                "target": {"exchange": "", "routingKey": "orders.queue"},
                "outcome": "Replayed", "time": "2027-01-15T08:00:00.123Z",
                "headers": {"x-tenant-id": "42"},
            })
        );
        assert!(record.is_about("shop", "r") && !record.is_about("other", "r"));
    }

    #[test]
    fn the_outcome_tells_a_discard_and_a_quarantine_from_a_replay() {
        let outcome = |went| Record::new(&about(), &entry(went)).outcome;
        assert_eq!(outcome(None), Fate::Discarded);
        assert_eq!(outcome(Some(("", "dlq.quarantine.replay-limit"))), Fate::Quarantined);
        assert_eq!(outcome(Some(("e", "dlq.quarantine.replay-limit"))), Fate::Replayed);
    }

    #[test]
    fn long_texts_are_cut_and_bytes_are_not_shown() {
        assert_eq!(json(&Value::Text(vec![b'x'; 5_000])).as_str().unwrap().len(), MAX_HEADER);
        assert_eq!(json(&Value::Text(vec![0xff])), json!("(bytes)"));
    }
}
