//! Which replays of a pipeline have run: remembered in the pipeline's status, so that one that
//! is deleted and created again never runs twice.
//!
//! The last 50 stand there whole, 1,000 more as eight bytes each.

use k8s_openapi::ByteString;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::api::{DlqReplay, DlqReplaySpec, ReplayRecord, RetryPipeline, RetryPipelineStatus};
use crate::controller::api_server::{WriteError, written};
use crate::controller::patch_status::{patch_status, set};

/// Replays that are remembered whole.
pub(super) const WHOLE: usize = 50;

/// Replays of which a hash is remembered.
const HASHED: usize = 1_000;

/// How many bytes of the hash.
const BYTES: usize = 8;

/// How often a record is tried at once before it waits like any failure.
const ATTEMPTS: usize = 10;

/// A SHA-256 in hex over all of a spec that never changes.
pub(super) fn spec_hash(spec: &DlqReplaySpec) -> String {
    Sha256::digest(spec.immutable()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash by which an earlier replay is remembered.
fn short_hash(name: &str, spec_hash: &str) -> [u8; BYTES] {
    let digest = Sha256::digest(format!("{name}\n{spec_hash}"));
    let mut short = [0; BYTES];
    short.copy_from_slice(&digest[..BYTES]);
    short
}

/// Whether a replay of this name and spec has run, with what is remembered of it.
pub(super) fn has_run(status: &RetryPipelineStatus, name: &str, spec_hash: &str) -> Option<String> {
    let same = |record: &&ReplayRecord| record.name == name && record.spec_hash == spec_hash;
    if let Some(record) = status.replays.iter().rev().find(same) {
        return Some(format!(
            "a replay of this name and spec ended as {} and moved {} messages: give a new one another name",
            record.result, record.moved
        ));
    }
    let short = short_hash(name, spec_hash);
    let earlier = status.earlier_replays.as_ref().map(|bytes| bytes.0.as_slice()).unwrap_or_default();
    earlier
        .chunks_exact(BYTES)
        .any(|known| known == short)
        .then(|| "a replay of this name and spec ran long ago: give a new one another name".to_owned())
}

/// The remembered replays with one more; nothing where it is there already.
fn with(status: &RetryPipelineStatus, record: ReplayRecord) -> Option<(Vec<ReplayRecord>, Vec<u8>)> {
    if has_run(status, &record.name, &record.spec_hash).is_some() {
        return None;
    }
    let mut whole = status.replays.clone();
    let mut hashed = status.earlier_replays.clone().map(|bytes| bytes.0).unwrap_or_default();
    whole.push(record);
    while whole.len() > WHOLE {
        let oldest = whole.remove(0);
        hashed.extend(short_hash(&oldest.name, &oldest.spec_hash));
    }
    let surplus = (hashed.len() / BYTES).saturating_sub(HASHED) * BYTES;
    hashed.drain(..surplus);
    Some((whole, hashed))
}

/// Records a finished replay in its pipeline, once. A pipeline that is gone remembers nothing.
pub(super) async fn remember(
    client: &Client,
    replay: &DlqReplay,
    record: &ReplayRecord,
) -> Result<(), WriteError> {
    let api: Api<RetryPipeline> = Api::namespaced(client.clone(), &replay.namespace().unwrap_or_default());
    for _ in 0..ATTEMPTS {
        let pipeline = match written(api.get(&replay.spec.pipeline_ref.name)).await {
            Ok(pipeline) => pipeline,
            Err(WriteError::Gone) => return Ok(()),
            Err(error) => return Err(error),
        };
        let status = pipeline.status.clone().unwrap_or_default();
        let Some((whole, hashed)) = with(&status, record.clone()) else { return Ok(()) };
        // Nobody else's record is lost: whoever was faster makes this one look again.
        let version = json!({
            "op": "test", "path": "/metadata/resourceVersion", "value": pipeline.metadata.resource_version,
        });
        let mut steps = vec![version, set("replays", &json!(whole))];
        if !hashed.is_empty() {
            steps.push(set("earlierReplays", &json!(ByteString(hashed))));
        }
        let exists = pipeline.status.is_some();
        match patch_status(client, &pipeline, exists, steps, exists).await {
            Ok(_) | Err(WriteError::Gone) => return Ok(()),
            Err(WriteError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Err(WriteError::Conflict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::retry_pipeline::conditions::now;

    fn record(number: usize) -> ReplayRecord {
        ReplayRecord {
            name: format!("replay-{number}"),
            spec_hash: "ab".repeat(32),
            result: "Completed".to_owned(),
            finished: now(),
            moved: 7,
            approved: false,
        }
    }

    fn spec(more: serde_json::Value) -> DlqReplaySpec {
        let mut spec = json!({"pipelineRef": {"name": "orders"}, "justification": "the fix is deployed"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_spec_is_the_same_whatever_may_change_in_it() {
        let plain = spec_hash(&spec(json!({})));
        let changed = spec(json!({
            "pace": {"messagesPerSecond": 5}, "guard": {"sample": 9}, "suspend": true, "cancel": true,
            "approval": {"approvedBy": "b", "maxMessages": 3, "planHash": "h"},
        }));
        assert_eq!(spec_hash(&changed), plain);
        assert_ne!(spec_hash(&spec(json!({"select": {"limit": 5}}))), plain);
        assert_ne!(spec_hash(&spec(json!({"requestedBy": "a"}))), plain);
    }

    #[test]
    fn the_last_fifty_stay_whole_and_a_thousand_more_are_known() {
        let mut status = RetryPipelineStatus::default();
        for number in 0..1_200 {
            let (whole, hashed) = with(&status, record(number)).unwrap();
            status.replays = whole;
            status.earlier_replays = Some(ByteString(hashed));
        }
        assert_eq!(status.replays.len(), WHOLE);
        assert_eq!(status.earlier_replays.as_ref().unwrap().0.len(), HASHED * BYTES);
        let known = |number: usize| has_run(&status, &record(number).name, &record(number).spec_hash);
        assert!(known(149).is_none() && known(1_200).is_none());
        for number in [150, 1_149, 1_150, 1_199] {
            assert!(known(number).is_some(), "{number}");
        }
        assert!(with(&status, record(1_199)).is_none(), "a record is made once");
        assert!(has_run(&status, "replay-1199", "another spec").is_none());
    }
}
