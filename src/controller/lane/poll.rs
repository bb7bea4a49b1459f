//! The look at a vhost, regular or because the broker has told of a change: wakes the pipelines
//! that differ, writes nothing.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tracing::Span;

use super::super::Guarded;
use super::super::retry_pipeline::{Source, is_welcome, polled, prepare, source, update_status};
use super::compare::{Decision, View, decide};
use super::identity::KnownBroker;
use super::{Lane, numbers};
use crate::api::RetryPipeline;
use crate::broker::BrokerError;
use crate::topology::effective::PolicyIndex;
use crate::topology::news::Known;
use crate::topology::observed::Observed;

impl Lane {
    /// Looks at the vhost once for all members. A difference on the broker, other
    /// credentials, or a status that is not up to date wakes the pipeline.
    #[tracing::instrument(level = "debug", skip_all, fields(vhost = self.key.vhost, pipelines = members.len()))]
    pub(super) async fn poll(&mut self, members: Vec<ObjectRef<Guarded>>) {
        let known = self.known(&members);
        let mut members = self.objects(&members);
        self.wake_rotated(&mut members).await;
        self.ear.begin_look(known);
        self.compare(&members, true).await;
    }

    /// Looks at the vhost because the broker has told of a change. What no change tells of,
    /// credentials and what queues do, is left to the next poll.
    #[tracing::instrument(level = "debug", skip_all, fields(vhost = self.key.vhost, pipelines))]
    pub(super) async fn look(&mut self) {
        let members = self.shared.members_of(&self.key);
        Span::current().record("pipelines", members.len());
        self.ear.begin_look(self.known(&members));
        // Whoever is at work on a pipeline may have looked before the change: it is looked at once
        // more when that is done, or the change would wait for the next poll.
        if self.is_any_in_hand(&members) {
            self.ear.ring();
        }
        self.compare(&self.objects(&members), false).await;
    }

    /// What concerns the members, those included that somebody is at work on.
    fn known(&self, members: &[ObjectRef<Guarded>]) -> Option<Known> {
        if !self.ear.is_open() {
            return None;
        }
        let mut known = Known::default();
        for object in members.iter().filter_map(|member| self.shared.store.get(member)) {
            let Ok(object) = &object.0 else { continue };
            if let Ok(task) = prepare(Arc::new(object.clone()), &self.shared.cluster) {
                known.add(&task.pipeline, &task.inventory);
            }
        }
        Some(known)
    }

    async fn compare(&mut self, members: &[Arc<Guarded>], is_poll: bool) {
        let started = Instant::now();
        if members.is_empty() {
            return;
        }
        let Some((broker, observed)) = self.read(members).await else { return };
        if is_poll || self.watch.is_new() {
            self.look_at_queues(&observed).await;
        }
        let policies = PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref());
        let (shared, seen) = (self.shared.clone(), self.watch.seen());
        let view = View {
            broker: &broker,
            observed: &observed,
            policies: &policies,
            claims: &shared.claims,
            seen: &seen,
            ear: &self.ear,
        };
        self.drifted.clear();
        let mut woken = 0;
        for object in members {
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
            let Decision { mut maintained, act, findings, comparison } =
                decide(&task, &task.inventory, &BTreeSet::new(), view);
            let known = numbers::Known { observed: &observed, watch: &self.watch };
            shared.numbers.note(&task.pipeline, &comparison.desired, &known);
            maintained.blocked.extend(self.moves.obstacles(&comparison.plan.moves));
            let has_drifted = act || !findings.is_empty();
            if has_drifted {
                self.drifted.insert(task.pipeline.identity.uid.clone());
            }
            let differs = has_drifted || {
                maintained.findings.extend(findings);
                maintained.detection = shared.detection(object, &self.endpoint);
                update_status::differs(object, &update_status::maintained(object, &task, &maintained))
            };
            if differs {
                woken += 1;
                self.wake(object).await;
            }
        }
        tracing::debug!(pipelines = members.len(), woken, elapsed = ?started.elapsed(), vhost = self.key.vhost, is_poll, "polled");
    }

    /// Who answers, and what the vhost holds. Where it can't be read, all members are woken.
    async fn read(&mut self, members: &[Arc<Guarded>]) -> Option<(KnownBroker, Observed)> {
        let read = async {
            let broker = self.known_broker().await?;
            Ok((broker, self.management.snapshot(&self.key.vhost).await?))
        };
        let read: Result<_, BrokerError> = read.await;
        self.shared.numbers.looked(&self.address(), &self.key.vhost, read.is_ok());
        if let Err(error) = &read {
            // Another broker may answer next time.
            self.facts = None;
            tracing::warn!(%error, vhost = self.key.vhost, pipelines = members.len(), "the vhost can't be read");
            self.wake_all(members).await;
        }
        read.ok()
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

    /// Whether a reconciliation is at work on one of these.
    fn is_any_in_hand(&self, members: &[ObjectRef<Guarded>]) -> bool {
        let busy = super::lock(&self.shared.busy).clone();
        let uid = |member| self.shared.store.get(member)?.0.as_ref().ok()?.metadata.uid.clone();
        members.iter().filter_map(uid).any(|uid| busy.contains(&uid))
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
