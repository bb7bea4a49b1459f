//! How long a run takes at its pace, if nothing holds it up.

use std::time::Duration;

use crate::replay::run::Pace;

/// The time for that many messages: the ramp, then the full rate, and a pause after each batch
/// but the last. The ramp grows while messages move, not in pauses.
#[must_use]
pub fn expected(messages: u64, pace: &Pace) -> Duration {
    if messages == 0 {
        return Duration::ZERO;
    }
    let pauses = (messages - 1) / u64::from(pace.batch.max(1));
    moving(messages, pace).saturating_add(times(pace.pause, pauses))
}

fn moving(messages: u64, pace: &Pace) -> Duration {
    let full = u64::from(pace.per_second.max(1));
    let Some(ramp) = pace.ramp.as_ref().filter(|ramp| !ramp.every.is_zero() && ramp.factor > 1) else {
        return at_rate(messages, full);
    };
    let mut rate = u64::from(ramp.from.max(1));
    let mut left = messages;
    let mut time = Duration::ZERO;
    while rate < full {
        let most = per_step(rate, ramp.every);
        if left <= most {
            return time.saturating_add(at_rate(left, rate));
        }
        left -= most;
        time = time.saturating_add(ramp.every);
        rate = rate.saturating_mul(ramp.factor.into());
    }
    time.saturating_add(at_rate(left, full))
}

/// Messages that a step of the ramp moves.
fn per_step(rate: u64, every: Duration) -> u64 {
    let messages = u128::from(rate) * every.as_millis() / 1_000;
    u64::try_from(messages).unwrap_or(u64::MAX)
}

fn at_rate(messages: u64, rate: u64) -> Duration {
    let millis = (u128::from(messages) * 1_000).div_ceil(u128::from(rate));
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

fn times(span: Duration, count: u64) -> Duration {
    let millis = span.as_millis().saturating_mul(count.into());
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::run::Ramp;

    fn pace(per_second: u32, batch: u32, pause: u64, ramp: Option<(u32, u64, u32)>) -> Pace {
        let ramp = ramp.map(|(from, every, factor)| Ramp { from, every: Duration::from_secs(every), factor });
        Pace { per_second, batch, pause: Duration::from_secs(pause), ramp, window: 500 }
    }

    #[test]
    fn it_is_the_rate_with_pauses_between_batches() {
        let cases = [
            (0, pace(10, 50, 10, None), 0),
            (1, pace(10, 50, 10, None), 100),
            (50, pace(10, 50, 10, None), 5_000),
            (51, pace(10, 50, 10, None), 15_100),
            (500, pace(20, 50, 10, None), 25_000 + 90_000),
        ];
        for (messages, pace, millis) in cases {
            assert_eq!(expected(messages, &pace).as_millis(), millis, "{messages} {pace:?}");
        }
    }

    #[test]
    fn a_ramp_takes_its_steps_first() {
        // 1/s for 30 s, 2/s for 30 s, 4/s for 30 s, then 5/s.
        let slow = pace(5, 1_000, 0, Some((1, 30, 2)));
        for (messages, seconds) in [(10, 10), (30, 30), (50, 40), (210, 90), (260, 100)] {
            assert_eq!(expected(messages, &slow).as_secs(), seconds, "{messages}");
        }
        // A ramp that starts at the full rate is none.
        assert_eq!(expected(100, &pace(5, 1_000, 0, Some((9, 30, 2)))).as_secs(), 20);
    }

    #[test]
    fn nothing_overflows() {
        let longest = pace(1, 1, u64::MAX / 1_000, Some((1, u64::MAX / 1_000, 2)));
        assert!(expected(u64::MAX, &longest) > Duration::from_secs(1));
        assert!(expected(u64::MAX, &pace(0, 0, 1, None)) > Duration::from_secs(1));
    }
}
