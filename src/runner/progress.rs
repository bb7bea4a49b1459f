//! `status.progress`: the worker's part of the status, under its own field manager.
//!
//! Written at most once a second, and only where it differs. A checkpoint is written before it
//! returns: what it says must be durable before the next message moves.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use super::API_TIMEOUT;
use crate::api::{self, DlqReplay, ProgressOutcome, ProgressState, ReplayProgress, Time};
use crate::broker::replay::Report;
use crate::replay::outcome::{Activity, Checkpoint, Counts};
use crate::replay::run::Fence;

/// The field manager of a worker.
const MANAGER: &str = "redrive-worker";

/// The shortest time between two writes.
const APART: Duration = Duration::from_secs(1);

/// How old a write must be before news that nobody waits for makes another one. Checkpoints come
/// every second and carry the news along; this way they need not wait for each other.
const NEWS_AFTER: Duration = Duration::from_millis(1_500);

/// The longest text in progress, in bytes.
const MAX_TEXT: usize = 1_024;

/// What a worker has to say, and what it has said.
pub(super) struct Progress {
    api: Api<DlqReplay>,
    name: String,
    uid: Option<String>,
    /// How many messages there are to move, for the time that is left.
    total: i64,
    current: Mutex<ReplayProgress>,
    written: tokio::sync::Mutex<Written>,
}

struct Written {
    progress: ReplayProgress,
    at: Option<Instant>,
}

impl Progress {
    /// Goes on from what the replay's status says.
    pub(super) fn new(client: &Client, replay: &DlqReplay, total: i64) -> Self {
        let progress = replay.status.as_ref().and_then(|status| status.progress.clone()).unwrap_or_default();
        Self {
            api: Api::namespaced(client.clone(), &replay.namespace().unwrap_or_default()),
            name: replay.name_any(),
            uid: replay.uid(),
            total,
            current: Mutex::new(progress.clone()),
            written: tokio::sync::Mutex::new(Written { progress, at: None }),
        }
    }

    /// Notes something; it is written with the next write.
    pub(super) fn note(&self, change: impl FnOnce(&mut ReplayProgress)) {
        change(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes what the run shows of itself.
    pub(super) fn show(&self, report: &Report) {
        let total = self.total;
        self.note(|progress| {
            let (state, message) = match &report.activity {
                Activity::Running => (ProgressState::Running, None),
                Activity::Paused(why) => (ProgressState::Paused, Some(shortened(why))),
                Activity::Canary => (ProgressState::Canary, None),
            };
            progress.state = Some(state);
            progress.message = message;
            if let Some(fence) = report.fence {
                progress.fence = Some(fence_status(fence));
            }
            // What is counted by now is no longer uncounted.
            let before = moved(progress);
            set_counts(progress, &report.counts);
            progress.under_way = (progress.under_way - (moved(progress) - before)).max(0);
            progress.in_flight = progress.in_flight.min(progress.under_way);
            let moves = report.rate > 0.05 && state != ProgressState::Paused;
            progress.rate = moves.then(|| format!("{:.1}", report.rate));
            progress.eta = moves.then(|| time_left(total - progress.replayed, report.rate)).flatten();
        });
    }

    /// Writes what is new, if the last write is some time ago.
    pub(super) async fn write_news(&self) -> Result<(), String> {
        let mut written = self.written.lock().await;
        if written.at.is_some_and(|at| at.elapsed() < NEWS_AFTER) {
            return Ok(());
        }
        self.write(&mut written).await
    }

    /// Writes what is new, and returns once it is durable.
    pub(super) async fn write_now(&self) -> Result<(), String> {
        let mut written = self.written.lock().await;
        if let Some(at) = written.at {
            tokio::time::sleep_until(at + APART).await;
        }
        self.write(&mut written).await
    }

    /// Keeps a checkpoint.
    pub(super) async fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), String> {
        self.note(|progress| {
            progress.fence = Some(fence_status(checkpoint.fence));
            set_counts(progress, &checkpoint.counts);
            progress.started = checkpoint.started.map(second);
            progress.under_way = i64::try_from(checkpoint.under_way).unwrap_or(i64::MAX);
            progress.in_flight = i64::try_from(checkpoint.in_flight).unwrap_or(i64::MAX);
            progress.last_checkpoint = Some(now());
        });
        self.write_now().await
    }

    /// How far the run is, by this worker or those before it; nothing where it has not begun.
    pub(super) fn checkpoint_so_far(&self) -> Option<Checkpoint> {
        checkpoint_of(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes how it ended, and writes that.
    pub(super) async fn end(&self, outcome: &ProgressOutcome) -> Result<(), String> {
        self.note(|progress| {
            progress.outcome = Some(outcome.clone());
            progress.message = None;
            progress.rate = None;
            progress.eta = None;
        });
        self.write_now().await
    }

    async fn write(&self, written: &mut Written) -> Result<(), String> {
        let progress = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if written.at.is_some() && progress == written.progress {
            return Ok(());
        }
        let patch = json!({
            "apiVersion": "redrive.dev/v1alpha1",
            "kind": "DlqReplay",
            // A recreated twin has another UID, and must not get this one's numbers.
            "metadata": {"name": self.name, "uid": self.uid},
            "status": {"progress": progress},
        });
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&patch);
        let write = self.api.patch_status(&self.name, &params, &patch);
        written.at = Some(Instant::now());
        match tokio::time::timeout(API_TIMEOUT, write).await {
            Ok(Ok(_)) => {
                written.progress = progress;
                Ok(())
            }
            Ok(Err(error)) => Err(format!("the progress can't be written: {error}")),
            Err(_) => Err("the progress can't be written: the API server does not answer".to_owned()),
        }
    }
}

/// Where an earlier worker of the same run came to.
fn checkpoint_of(progress: &ReplayProgress) -> Option<Checkpoint> {
    let fence = progress.fence.as_ref()?;
    let time = fence.time.0.as_millisecond().max(0).unsigned_abs();
    let fence = Fence { count: fence.count.max(0).unsigned_abs(), time };
    let number = |value: i64| value.max(0).unsigned_abs();
    let counts = Counts {
        examined: number(progress.examined),
        matched: number(progress.matched),
        replayed: number(progress.replayed),
        unroutable: number(progress.unroutable),
        nacked: number(progress.nacked),
        quarantined: number(progress.quarantined),
        unmovable: number(progress.unmovable),
        unmovable_messages: progress.unmovable_messages.clone(),
        skipped: number(progress.skipped),
        duplicates_possible: number(progress.duplicates_possible),
        beyond_fence: number(progress.beyond_fence),
    };
    let started = progress.started.as_ref().map(|time| time.0.as_millisecond().max(0).unsigned_abs());
    let (under_way, in_flight) = (number(progress.under_way), number(progress.in_flight));
    Some(Checkpoint { fence, counts, started, under_way, in_flight })
}

/// Messages that left the origin queue.
fn moved(progress: &ReplayProgress) -> i64 {
    progress.replayed.saturating_add(progress.quarantined)
}

fn set_counts(progress: &mut ReplayProgress, counts: &Counts) {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    progress.examined = number(counts.examined);
    progress.matched = number(counts.matched);
    progress.replayed = number(counts.replayed);
    progress.failed = number(counts.unroutable.saturating_add(counts.unmovable));
    progress.unroutable = number(counts.unroutable);
    progress.nacked = number(counts.nacked);
    progress.quarantined = number(counts.quarantined);
    progress.unmovable = number(counts.unmovable);
    progress.unmovable_messages =
        counts.unmovable_messages.iter().take(10).map(|text| cut(text, 255)).collect();
    progress.skipped = number(counts.skipped);
    progress.duplicates_possible = number(counts.duplicates_possible);
    progress.beyond_fence = number(counts.beyond_fence);
}

/// In whole seconds, as deaths are timed too: a death is after the fence in both or in neither.
fn fence_status(fence: Fence) -> api::Fence {
    api::Fence { count: i64::try_from(fence.count).unwrap_or(i64::MAX), time: second(fence.time) }
}

/// A moment in whole seconds, from milliseconds since 1970.
fn second(millis: u64) -> Time {
    let second = i64::try_from(millis / 1_000).unwrap_or(i64::MAX);
    Time(Timestamp::from_second(second).unwrap_or(Timestamp::MAX))
}

/// The time in whole seconds, as Kubernetes keeps it.
pub(super) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// How long the rest takes at this rate, in whole seconds.
fn time_left(messages: i64, rate: f64) -> Option<api::Duration> {
    let messages = u32::try_from(messages.max(0)).ok()?;
    let seconds = (f64::from(messages) / rate).ceil().max(1.0);
    // Nothing that takes longer is worth a forecast.
    (seconds < 86_400.0 * 3_650.0).then(|| api::Duration::from_secs(seconds as i64))
}

pub(super) fn shortened(text: &str) -> String {
    cut(text, MAX_TEXT)
}

/// Cut at a character's end.
pub(super) fn cut(text: &str, most: usize) -> String {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= most).last();
    text[..end.unwrap_or(0)].to_owned()
}

/// How many messages there are to move, as far as the plan tells.
pub(super) fn total(replay: &DlqReplay) -> i64 {
    let status = replay.status.as_ref();
    let matching = status.and_then(|status| status.plan.as_ref()).map_or(i64::MAX, |plan| plan.matching);
    let limit = replay.spec.select.as_ref().and_then(|select| select.limit);
    let admitted = status.and_then(|status| status.admission.as_ref()).and_then(|one| one.max_messages);
    [limit, admitted].into_iter().flatten().fold(matching, i64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        Counts {
            examined: 1,
            matched: 2,
            replayed: 3,
            unroutable: 4,
            nacked: 5,
            quarantined: 6,
            unmovable: 7,
            unmovable_messages: vec!["m-1".to_owned()],
            skipped: 8,
            duplicates_possible: 9,
            beyond_fence: 10,
        }
    }

    #[test]
    fn a_checkpoint_survives_its_way_through_the_status() {
        let fence = Fence { count: 11, time: 1_800_000_000_000 };
        let mut progress = ReplayProgress {
            fence: Some(fence_status(fence)),
            started: Some(second(1_800_000_001_000)),
            under_way: 12,
            in_flight: 13,
            ..ReplayProgress::default()
        };
        set_counts(&mut progress, &counts());
        let json = serde_json::to_value(&progress).unwrap();
        let back: ReplayProgress = serde_json::from_value(json).unwrap();
        let (started, under_way, in_flight) = (Some(1_800_000_001_000), 12, 13);
        let checkpoint = Checkpoint { fence, counts: counts(), started, under_way, in_flight };
        assert_eq!(checkpoint_of(&back), Some(checkpoint));
        assert_eq!(back.failed, 11);
    }

    #[test]
    fn without_a_fence_there_is_nothing_to_go_on_from() {
        assert_eq!(checkpoint_of(&ReplayProgress::default()), None);
    }

    #[test]
    fn the_time_left_is_that_of_the_rest_at_this_rate() {
        assert_eq!(time_left(100, 20.0), Some(api::Duration::from_secs(5)));
        assert_eq!(time_left(0, 20.0), Some(api::Duration::from_secs(1)));
        assert_eq!(time_left(i64::MAX, 0.1), None);
    }

    #[test]
    fn texts_are_cut_at_a_characters_end() {
        assert_eq!(cut("éé", 3), "é");
    }
}
