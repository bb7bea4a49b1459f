//! What delays, back-off, templates and jitter expand to.

use super::names;
use super::pipeline::{Shard, Tier};
use super::spec::{Delays, Jitter, Spec};

/// The delays that a specification lists or computes, at most `limit` of them;
/// impossible numbers give delays that the checks refuse.
pub(super) fn delays(delays: &Delays, limit: usize) -> Vec<i64> {
    match delays {
        Delays::List(list) => list.iter().copied().take(limit).collect(),
        Delays::Backoff { initial, factor, max, steps } => {
            let steps = usize::try_from(*steps).unwrap_or(usize::MAX).min(limit);
            (0..).take(steps).map(|step| backoff_delay(*initial, *factor, *max, step)).collect()
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "clamped to max before the cast back"
)]
fn backoff_delay(initial: i64, factor: f64, max: i64, step: i32) -> i64 {
    let exact = initial as f64 * factor.powi(step);
    exact.min(max as f64).round() as i64
}

/// The ladder that the delays make.
pub(super) fn tiers(spec: &Spec, delays: &[i64], jitter: Option<Jitter>) -> Vec<Tier> {
    let numbers = (0_u32..).map(|index| spec.number_from.saturating_add(index));
    numbers
        .zip(delays)
        .map(|(number, delay)| Tier {
            number,
            delay: *delay,
            name: names::expand(&spec.retry_template, &spec.source.queue, number, &names::duration(*delay)),
            shards: spread(*delay, jitter),
        })
        .collect()
}

/// The delays of a tier's queues, shortest first, evenly spread over ± percent.
pub(super) fn spread(delay: i64, jitter: Option<Jitter>) -> Vec<Shard> {
    let Some(Jitter { percent, shards }) = jitter.filter(|jitter| jitter.shards > 1) else {
        return vec![Shard { number: None, ttl: delay }];
    };
    let width = i128::from(delay) * i128::from(percent);
    let gaps = i128::from(shards - 1);
    (0..shards)
        .map(|number| {
            // Runs from -gaps to +gaps in steps of two.
            let position = 2 * i128::from(number) - gaps;
            let shift = width * position / (gaps * 100);
            let ttl = (i128::from(delay) + shift).clamp(1, i128::from(i64::MAX));
            Shard { number: Some(number), ttl: i64::try_from(ttl).unwrap_or(i64::MAX) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backoff_grows_by_its_factor_up_to_its_maximum() {
        let backoff = Delays::Backoff { initial: 5_000, factor: 4.0, max: 60_000, steps: 4 };
        assert_eq!(delays(&backoff, 33), [5_000, 20_000, 60_000, 60_000]);
    }

    #[test]
    fn shards_spread_evenly_around_the_delay() {
        let ttls = |percent, shards| -> Vec<i64> {
            spread(10_000, Some(Jitter { percent, shards })).iter().map(|shard| shard.ttl).collect()
        };
        assert_eq!(ttls(10, 3), [9_000, 10_000, 11_000]);
        assert_eq!(ttls(10, 2), [9_000, 11_000]);
        assert_eq!(ttls(100, 3), [1, 10_000, 20_000]);
        assert_eq!(ttls(50, 1), [10_000]);
    }

    #[test]
    fn numbers_near_the_end_of_their_range_do_not_overflow() {
        let far = Some(Jitter { percent: u32::MAX, shards: 2 });
        assert_eq!(spread(i64::MAX, far).last().map(|shard| shard.ttl), Some(i64::MAX));
        let steep = Delays::Backoff { initial: i64::MAX, factor: 1e300, max: i64::MAX, steps: u32::MAX };
        assert_eq!(delays(&steep, 33), [i64::MAX; 33]);
    }
}
