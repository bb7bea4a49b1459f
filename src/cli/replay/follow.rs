//! Follows a replay to its end: a bar on a terminal, lines elsewhere.
//!
//! Results go to standard output, everything in between to standard error.

use std::io::{IsTerminal as _, Write as _};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use indicatif::{ProgressBar, ProgressStyle};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watch_object};

use super::ending::Ending;
use super::text;
use crate::api::DlqReplay;
use crate::cli::cluster::{Connected, refusal};
use crate::cli::print;

/// The shortest time between two lines that only say how far it is.
const APART: Duration = Duration::from_secs(10);

/// Until when to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Until {
    /// Until it has ended.
    Ended,
    /// Until it has ended or waits for a second person.
    Person,
}

/// Follows a replay. It ends with an error if the replay goes away before it has ended.
///
/// `knows_plan` says that the plan was shown already.
pub(in crate::cli) async fn follow(
    cluster: &Connected,
    replay: &DlqReplay,
    until: Until,
    knows_plan: bool,
) -> Result<Ending, String> {
    let name = replay.metadata.name.clone().unwrap_or_default();
    let mut screen = Screen::new(knows_plan);
    let mut seen = pin!(watch_object(cluster.api::<DlqReplay>(), &name).default_backoff());
    while let Some(event) = seen.next().await {
        match event {
            Ok(Some(found)) if found.metadata.uid == replay.metadata.uid => {
                screen.show(&found);
                if let Some(ending) = ending(&found, until) {
                    screen.end(&found);
                    return Ok(ending);
                }
            }
            Ok(_) => return Err(format!("the replay {name} was deleted before it had ended")),
            Err(error) => screen.trouble(&for_good(error)?),
        }
    }
    Err(format!("the API server ended the watch of {name}"))
}

/// What is tried again, or else why that is of no use.
fn for_good(error: watcher::Error) -> Result<String, String> {
    match &error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if (400..429).contains(&status.code) =>
        {
            Err(refusal(status))
        }
        other => Ok(crate::cli::controller::chain(other)),
    }
}

/// How it ended, if it has, or if it waits for a person who is not waited for here.
fn ending(replay: &DlqReplay, until: Until) -> Option<Ending> {
    let status = replay.status.as_ref()?;
    if let Some(summary) = &status.summary {
        return Some(Ending::of(&summary.result));
    }
    let waits = |one: &crate::api::Condition| one.type_ == "Succeeded" && one.reason == "AwaitingApproval";
    let is_waiting = replay.spec.approval.is_none() && status.conditions.iter().any(waits);
    (until == Until::Person && is_waiting).then_some(Ending::AwaitingApproval)
}

/// What is shown meanwhile.
struct Screen {
    bar: Option<ProgressBar>,
    lines: Lines,
    began: Instant,
    knows_plan: bool,
}

impl Screen {
    fn new(knows_plan: bool) -> Self {
        let bar = std::io::stderr().is_terminal().then(bar);
        Self { bar, lines: Lines::default(), began: Instant::now(), knows_plan }
    }

    fn show(&mut self, replay: &DlqReplay) {
        let status = replay.status.as_ref();
        if let Some(plan) = status.and_then(|status| status.plan.as_ref()).filter(|_| !self.knows_plan) {
            self.knows_plan = true;
            self.result(&format!("{}\n", text::plan(replay, plan)));
        }
        let Some(bar) = &self.bar else {
            for line in self.lines.next(replay, self.began.elapsed()) {
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            return;
        };
        if let Some(plan) = status.and_then(|status| status.plan.as_ref()) {
            bar.set_length(text::most(replay, plan).max(0).unsigned_abs());
        }
        let mut message = text::phase(replay);
        if let Some(progress) = status.and_then(|status| status.progress.as_ref()) {
            bar.set_position(progress.replayed.max(0).unsigned_abs());
            let line = text::progress(replay, progress);
            // Why nothing moves comes first: the end of a long line is cut off.
            message = if text::is_moving(replay) { line } else { format!("{message}  {line}") };
        }
        bar.set_message(message);
    }

    fn end(&self, replay: &DlqReplay) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let summary = replay.status.as_ref().and_then(|status| status.summary.as_ref());
        match summary {
            Some(summary) => self.result(&text::summary(replay, summary)),
            None => self.result(&format!("{}\n", text::phase(replay))),
        }
    }

    fn trouble(&self, why: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("trying again: {why}")),
            None => drop(writeln!(std::io::stderr(), "trying again: {why}")),
        }
    }

    fn result(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| print(text)),
            None => print(text),
        };
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {wide_msg}") {
        bar.set_style(style);
    }
    bar
}

/// Decides which lines are worth writing where there is no bar.
#[derive(Debug, Default)]
struct Lines {
    phase: String,
    progress: String,
    /// When the last line about progress was written.
    last: Option<Duration>,
}

impl Lines {
    /// Each new phase, and at most every ten seconds how far it is.
    fn next(&mut self, replay: &DlqReplay, now: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        let phase = text::phase(replay);
        if phase != self.phase {
            lines.push(phase.clone());
            self.phase = phase;
        }
        let progress = replay.status.as_ref().and_then(|status| status.progress.as_ref());
        let Some(progress) = progress.map(|progress| text::progress(replay, progress)) else { return lines };
        if progress != self.progress && self.last.is_none_or(|last| now.saturating_sub(last) >= APART) {
            lines.push(progress.clone());
            self.progress = progress;
            self.last = Some(now);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn replay(reason: &str, replayed: Option<i64>, approval: Value) -> DlqReplay {
        let progress = replayed.map(|replayed| {
            json!({
                "examined": 9, "matched": 9, "replayed": replayed, "failed": 0, "unroutable": 0, "nacked": 0,
                "quarantined": 0, "unmovable": 0, "skipped": 0, "duplicatesPossible": 0, "beyondFence": 0, "underWay": 0, "inFlight": 0,
            })
        });
        serde_json::from_value(json!({
            "apiVersion": "redrive.dev/v1alpha1", "kind": "DlqReplay", "metadata": {"name": "r"},
            "spec": {
                "pipelineRef": {"name": "orders"}, "justification": "the fix is deployed", "approval": approval,
            },
            "status": {
                "conditions": [{
                    "type": "Succeeded", "status": "Unknown", "reason": reason, "message": "",
                    "lastTransitionTime": "2026-11-29T22:00:00Z",
                }],
                "progress": progress,
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_phase_is_written_once_and_progress_now_and_then() {
        let mut lines = Lines::default();
        let at = Duration::from_secs;
        let running = |replayed| replay("Running", Some(replayed), Value::Null);
        assert_eq!(lines.next(&replay("Planning", None, Value::Null), at(0)), ["Planning"]);
        assert_eq!(lines.next(&replay("Planning", None, Value::Null), at(1)), [""; 0]);
        assert_eq!(lines.next(&running(1), at(2)), ["Running", "1 moved, 9 read"]);
        assert_eq!(lines.next(&running(2), at(3)), [""; 0]);
        assert_eq!(lines.next(&running(3), at(12)), ["3 moved, 9 read"]);
        assert_eq!(lines.next(&running(3), at(30)), [""; 0]);
    }

    #[test]
    fn waiting_for_a_person_ends_only_what_does_not_wait_for_one() {
        let waiting = replay("AwaitingApproval", None, Value::Null);
        assert_eq!(ending(&waiting, Until::Person), Some(Ending::AwaitingApproval));
        assert_eq!(ending(&waiting, Until::Ended), None);
        // Approved a moment ago, and not seen by the operator yet.
        let approval = json!({"approvedBy": "a", "maxMessages": 1, "planHash": "h"});
        assert_eq!(ending(&replay("AwaitingApproval", None, approval), Until::Person), None);
    }

    #[test]
    fn a_summary_is_an_end() {
        let mut ended = replay("Stopped", None, Value::Null);
        let summary = json!({
            "result": "Stopped", "message": "it came back", "finished": "2026-11-29T22:00:00Z", "matched": 1,
            "replayed": 1, "failed": 0, "skipped": 0, "duplicatesPossible": 0,
        });
        ended.status.as_mut().unwrap().summary = serde_json::from_value(summary).unwrap();
        assert_eq!(ending(&ended, Until::Ended), Some(Ending::Stopped));
    }
}
