//! Watches the replay and its pipeline for a worker, and turns what changes into orders.

use std::sync::{Arc, OnceLock};

use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::follow::{Newest, follow};
use super::orders::{Directive, Verdict, directive};
use crate::api::{DlqReplay, RetryPipeline};
use crate::broker::replay::Orders;

/// What a worker is told, kept up to date as long as this lives.
pub(super) struct Supervision {
    pub(super) orders: watch::Receiver<Orders>,
    /// Cancelled once the run is to end for good.
    pub(super) ended: CancellationToken,
    verdict: Arc<OnceLock<Verdict>>,
    /// Aborted when dropped.
    _tasks: JoinSet<()>,
}

impl Supervision {
    /// Begins with what was read, or says at once why there is nothing to do.
    pub(super) fn start(
        client: &Client,
        replay: &Arc<DlqReplay>,
        pipeline: Option<&Arc<RetryPipeline>>,
        has_trail: bool,
    ) -> Result<Self, Verdict> {
        let first = match directive(Some(replay), pipeline.map(Arc::as_ref), has_trail) {
            Directive::Go(orders) => orders,
            Directive::End(verdict) => return Err(verdict),
        };
        let namespace = replay.namespace().unwrap_or_default();
        let (seen_replay, replays) = watch::channel(Some(replay.clone()));
        let (seen_pipeline, pipelines) = watch::channel(pipeline.cloned());
        let (sender, orders) = watch::channel(first);
        let verdict = Arc::new(OnceLock::new());
        let ended = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let api: Api<DlqReplay> = Api::namespaced(client.clone(), &namespace);
        tasks.spawn(follow(api, replay.name_any(), replay.uid(), seen_replay));
        let api: Api<RetryPipeline> = Api::namespaced(client.clone(), &namespace);
        let uid = pipeline.and_then(|pipeline| pipeline.uid());
        tasks.spawn(follow(api, replay.spec.pipeline_ref.name.clone(), uid, seen_pipeline));
        let (said, token) = (verdict.clone(), ended.clone());
        tasks.spawn(async move {
            if let Some(end) = give_orders(replays, pipelines, has_trail, &sender).await {
                let _ = said.set(end);
                sender.send_modify(|orders| orders.cancel = true);
                token.cancel();
                // Keeps the channel open: the engine still reads its last orders.
                sender.closed().await;
            }
        });
        Ok(Self { orders, ended, verdict, _tasks: tasks })
    }

    /// Why the run was told to end, if it was.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        self.verdict.get().cloned()
    }
}

/// Sends orders whenever they change, until the run is to end.
async fn give_orders(
    mut replays: watch::Receiver<Newest<DlqReplay>>,
    mut pipelines: watch::Receiver<Newest<RetryPipeline>>,
    has_trail: bool,
    orders: &watch::Sender<Orders>,
) -> Option<Verdict> {
    loop {
        let (replay, pipeline) = (replays.borrow_and_update().clone(), pipelines.borrow_and_update().clone());
        match directive(replay.as_deref(), pipeline.as_deref(), has_trail) {
            Directive::Go(next) => drop(orders.send_if_modified(|orders| {
                let changed = *orders != next;
                if changed {
                    tracing::info!(?next, "the orders have changed");
                    *orders = next;
                }
                changed
            })),
            Directive::End(verdict) => return Some(verdict),
        }
        let changed = tokio::select! {
            changed = replays.changed() => changed,
            changed = pipelines.changed() => changed,
        };
        if changed.is_err() {
            return None;
        }
    }
}
