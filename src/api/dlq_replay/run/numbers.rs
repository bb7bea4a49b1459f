//! Pace and guard with their defaults; both may change while a run is under way.

use super::super::{Canary, DlqReplaySpec, Guard, Pace, Ramp, ReplayTo};
use super::add;
use crate::api::{Duration, ReplayPolicy, TargetKind};
use crate::replay::run as replay;
use crate::topology::validate::Problem;

/// The most messages per second where the pipeline names no number.
const DEFAULT_MAX_RATE: i32 = 100;

/// Messages per second where the replay names no number, unless the pipeline allows fewer.
const DEFAULT_RATE: i32 = 10;

impl DlqReplaySpec {
    /// The pace, with its defaults, held against the pipeline's most messages per second.
    ///
    /// # Errors
    /// Everything that can't be used, each with what to write instead.
    pub fn to_pace(&self, policy: &ReplayPolicy) -> Result<replay::Pace, Vec<Problem>> {
        let mut problems = Vec::new();
        let found = &mut problems;
        let pace = self.pace.clone().unwrap_or_default();
        let Pace { messages_per_second, batch, pause_between_batches, ramp, window } = pace;
        let most = policy.max_rate.unwrap_or(DEFAULT_MAX_RATE);
        let rate = messages_per_second.unwrap_or(DEFAULT_RATE.min(most));
        if rate > most {
            let message = format!(
                "{rate} is above what the pipeline allows: write at most {most}, or raise replayPolicy.maxRate in the RetryPipeline"
            );
            add(found, "pace.messagesPerSecond", message);
        }
        let pace = replay::Pace {
            per_second: within(found, "pace.messagesPerSecond", rate, 1, 100_000),
            batch: within(found, "pace.batch", batch.unwrap_or(50), 1, 100_000),
            pause: pause_between_batches.map_or(std::time::Duration::ZERO, Duration::to_std),
            ramp: ramp.map(|ramp| to_ramp(&ramp, rate, found)),
            window: within(found, "pace.window", window.unwrap_or(500), 1, 10_000),
        };
        if problems.is_empty() { Ok(pace) } else { Err(problems) }
    }

    /// The guard, with its defaults.
    ///
    /// # Errors
    /// Everything that can't be used, each with what to write instead.
    pub fn to_guard(&self) -> Result<replay::Guard, Vec<Problem>> {
        let mut problems = Vec::new();
        let found = &mut problems;
        let guard = self.guard.clone().unwrap_or_default();
        let Guard {
            stop_on_return_percent,
            sample,
            min_returns,
            canary,
            pause_above_target_depth,
            require_consumers,
            max_unroutable,
        } = guard;
        let sample = sample.unwrap_or(50);
        // A smaller sample than the default of minReturns must not silence the guard.
        let returns = min_returns.unwrap_or(10.min(sample));
        if returns > sample {
            let message = format!(
                "{returns} of the last {sample} can never come back: write at most {sample}, or a larger guard.sample"
            );
            add(found, "guard.minReturns", message);
        }
        let percent = stop_on_return_percent.unwrap_or(20);
        let guard = replay::Guard {
            stop_on_return_percent: within(found, "guard.stopOnReturnPercent", percent, 1, 100),
            sample: within(found, "guard.sample", sample, 1, 100_000),
            min_returns: within(found, "guard.minReturns", returns, 1, 100_000),
            canary: to_canary(canary.unwrap_or_default(), found),
            pause_above_target_depth: pause_above_target_depth
                .map(|depth| positive(found, "guard.pauseAboveTargetDepth", depth)),
            require_consumers: require_consumers.unwrap_or(self.is_to_be_worked_off()),
            max_unroutable: within(found, "guard.maxUnroutable", max_unroutable.unwrap_or(1), 1, 100_000),
        };
        if problems.is_empty() { Ok(guard) } else { Err(problems) }
    }

    /// Whether somebody should consume what this moves: messages set aside wait for people.
    fn is_to_be_worked_off(&self) -> bool {
        let target = self.to.as_ref().map_or(TargetKind::WorkQueue, ReplayTo::kind);
        match target {
            TargetKind::WorkQueue | TargetKind::Origin | TargetKind::Queue | TargetKind::Exchange => true,
            TargetKind::Quarantine | TargetKind::ParkingLot | TargetKind::Discard => false,
        }
    }
}

fn to_ramp(ramp: &Ramp, rate: i32, problems: &mut Vec<Problem>) -> replay::Ramp {
    if ramp.from > rate {
        let message = format!(
            "{} is above the full rate of {rate}: write at most {rate}, or a higher pace.messagesPerSecond",
            ramp.from
        );
        add(problems, "pace.ramp.from", message);
    }
    if ramp.every.as_millis() == 0 {
        add(
            problems,
            "pace.ramp.every",
            "0s is no step: write a longer one, such as 30s, or leave the ramp out",
        );
    }
    replay::Ramp {
        from: within(problems, "pace.ramp.from", ramp.from, 1, 100_000),
        every: ramp.every.to_std(),
        factor: within(problems, "pace.ramp.factor", ramp.factor, 2, 100),
    }
}

fn to_canary(canary: Canary, problems: &mut Vec<Problem>) -> replay::Canary {
    replay::Canary {
        messages: within(problems, "guard.canary.messages", canary.messages.unwrap_or(5), 1, 1_000),
        after: canary.after.unwrap_or(Duration::from_secs(300)).to_std(),
        tries: within(problems, "guard.canary.tries", canary.tries.unwrap_or(3), 1, 100),
    }
}

/// A number within its bounds, which the API server checks as well.
pub(super) fn within(problems: &mut Vec<Problem>, field: &str, number: i32, low: i32, high: i32) -> u32 {
    if !(low..=high).contains(&number) {
        add(problems, field, format!("{number} is out of range: write {low} to {high}"));
    }
    number.unsigned_abs()
}

/// A number of at least one.
pub(super) fn positive(problems: &mut Vec<Problem>, field: &str, number: i64) -> u64 {
    if number < 1 {
        add(problems, field, format!("{number} is out of range: write 1 or more"));
    }
    number.unsigned_abs()
}
