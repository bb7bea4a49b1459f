//! The regular look at a vhost: wakes the pipelines that differ, writes nothing.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::super::Guarded;
use super::super::retry_pipeline::{Source, is_welcome, polled, prepare, source, update_status};
use super::Lane;
use super::compare::{Decision, View, decide};
use crate::api::RetryPipeline;
use crate::broker::BrokerError;
use crate::topology::effective::PolicyIndex;

impl Lane {
    /// Looks at the vhost once for all members. A difference on the broker, other
    /// credentials, or a status that is not up to date wakes the pipeline.
    pub(super) async fn poll(&mut self, members: Vec<ObjectRef<Guarded>>) {
        let started = Instant::now();
        let mut members = self.objects(&members);
        self.wake_rotated(&mut members).await;
        if members.is_empty() {
            return;
        }
        let broker = match self.known_broker().await {
            Ok(broker) => broker,
            Err(error) => return self.wake_unread(&members, &error).await,
        };
        let observed = match self.management.snapshot(&self.key.vhost).await {
            Ok(observed) => observed,
            Err(error) => {
                // Another broker may answer next time.
                self.facts = None;
                return self.wake_unread(&members, &error).await;
            }
        };
        self.look_at_queues(&observed).await;
        let policies = PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref());
        let (shared, seen) = (self.shared.clone(), self.watch.seen());
        let view = View {
            broker: &broker,
            observed: &observed,
            policies: &policies,
            claims: &shared.claims,
            seen: &seen,
        };
        let mut woken = 0;
        for object in &members {
            // One copy at a time: a thousand of them are ten megabytes.
            let Ok(object) = &object.0 else { continue };
            let Ok(task) = prepare(Arc::new(object.clone()), &self.shared.cluster) else { continue };
            let everything = shared.tuning.cluster_wide_rights;
            if !is_welcome(object, &task.pipeline, &shared.clusters, everything).await {
                woken += 1;
                self.wake(object).await;
                continue;
            }
            // Pipelines that wait for a proof come back by themselves.
            let Decision { mut maintained, act, findings, .. } =
                decide(&task, &task.inventory, &BTreeSet::new(), view);
            let differs = act || !findings.is_empty() || {
                maintained.findings.extend(findings);
                update_status::differs(object, &update_status::maintained(object, &task, &maintained))
            };
            if differs {
                woken += 1;
                self.wake(object).await;
            }
        }
        tracing::debug!(pipelines = members.len(), woken, elapsed = ?started.elapsed(), vhost = self.key.vhost, "polled");
    }

    /// The members that are to be looked at: not suspended, not under deletion, and
    /// in nobody's hands.
    fn objects(&self, members: &[ObjectRef<Guarded>]) -> Vec<Arc<Guarded>> {
        let busy = super::lock(&self.shared.busy).clone();
        let is_due = |object: &Guarded| {
            object.0.as_ref().is_ok_and(|object| {
                object.metadata.deletion_timestamp.is_none()
                    && !object.spec.suspend
                    && !busy.contains(object.metadata.uid.as_deref().unwrap_or_default())
            })
        };
        let known = members.iter().filter_map(|member| self.shared.store.get(member));
        known.filter(|object| is_due(object)).collect()
    }

    /// Reads each Secret and cluster again and wakes those whose endpoint has changed.
    async fn wake_rotated(&mut self, members: &mut Vec<Arc<Guarded>>) {
        let source_of = |object: &Guarded| object.0.as_ref().ok().map(source);
        let mut same: BTreeMap<Source, bool> = BTreeMap::new();
        for object in members.iter() {
            let Some(source) = source_of(object) else { continue };
            if let Entry::Vacant(unread) = same.entry(source) {
                let endpoint = polled(unread.key(), &self.shared.secrets, &self.shared.clusters).await;
                let unchanged = endpoint.is_ok_and(|endpoint| endpoint.fingerprint() == self.key.endpoint);
                unread.insert(unchanged);
            }
        }
        let (stay, rotated): (Vec<_>, Vec<_>) = std::mem::take(members)
            .into_iter()
            .partition(|object| source_of(object).and_then(|source| same.get(&source)) == Some(&true));
        self.wake_all(&rotated).await;
        *members = stay;
    }

    async fn wake_unread(&self, members: &[Arc<Guarded>], error: &BrokerError) {
        tracing::warn!(%error, vhost = self.key.vhost, pipelines = members.len(), "the vhost can't be read");
        self.wake_all(members).await;
    }

    async fn wake_all(&self, members: &[Arc<Guarded>]) {
        for object in members.iter().filter_map(|object| object.0.as_ref().ok()) {
            self.wake(object).await;
        }
    }

    async fn wake(&self, object: &RetryPipeline) {
        tracing::debug!(namespace = object.namespace(), name = object.name_any(), "woken");
        // Only fails when the operator stops.
        let _ = self.shared.triggers.send(super::super::reference(object)).await;
    }
}
