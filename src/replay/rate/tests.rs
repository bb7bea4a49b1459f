use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::replay::run::Ramp;

fn pace(per_second: u32, batch: u32) -> Pace {
    Pace { per_second, batch, pause: Duration::ZERO, ramp: None, window: 500 }
}

/// Runs with a timer of a millisecond that is late by up to so much; the times of messages.
fn run(rate: &mut Rate, until: Duration, late: &[u64]) -> Vec<Duration> {
    let mut now = Duration::ZERO;
    let mut sent = Vec::new();
    let mut delays = late.iter().cycle();
    while now < until {
        while rate.open_batch(now) && rate.take(now) {
            sent.push(now);
        }
        let due = rate.due(now).max(now);
        let millis = due.as_millis() as u64 + 1 + delays.next().unwrap();
        now = Duration::from_millis(millis);
    }
    sent
}

#[test]
fn a_rate_is_kept_within_three_percent_over_a_minute() {
    for per_second in [1, 20, 200, 2_000] {
        let mut rate = Rate::new(pace(per_second, 50), Duration::ZERO);
        let sent = run(&mut rate, Duration::from_secs(60), &[0, 3, 1]).len();
        let wanted = 60.0 * f64::from(per_second);
        let off = (sent as f64 - wanted).abs();
        assert!(off <= (wanted * 0.03).max(1.0), "{sent} messages at {per_second} per second");
    }
}

#[test]
fn a_pause_follows_each_batch_and_nothing_makes_up_for_it() {
    let mut paced = pace(100, 10);
    paced.pause = Duration::from_secs(5);
    let mut rate = Rate::new(paced, Duration::ZERO);
    let sent = run(&mut rate, Duration::from_secs(11), &[0]);
    let in_first: Vec<_> = sent.iter().filter(|time| **time < Duration::from_secs(4)).collect();
    assert_eq!(in_first.len(), 10);
    assert!(sent[10] >= sent[9] + Duration::from_secs(5));
    assert!(sent[19] >= sent[10] + Duration::from_millis(80), "no burst after the pause: {sent:?}");
}

#[test]
fn a_ramp_multiplies_the_rate_step_by_step_up_to_the_full_one() {
    let mut paced = pace(20, 50);
    paced.ramp = Some(Ramp { from: 1, every: Duration::from_secs(30), factor: 2 });
    let rate = Rate::new(paced, Duration::ZERO);
    let at = |seconds| rate.per_second(Duration::from_secs(seconds));
    assert_eq!((at(0), at(29), at(30), at(95), at(10_000)), (1.0, 1.0, 2.0, 8.0, 20.0));
}

#[test]
fn an_edit_takes_effect_at_once_and_ends_the_batch() {
    let mut rate = Rate::new(pace(10, 50), Duration::ZERO);
    assert!(rate.open_batch(Duration::ZERO) && rate.take(Duration::ZERO));
    rate.edit(pace(1_000, 7), Duration::from_millis(1));
    assert!(rate.between_batches());
    let mut sent = 0;
    assert!(rate.open_batch(Duration::from_secs(1)));
    while rate.take(Duration::from_secs(1)) {
        sent += 1;
    }
    assert_eq!(sent, 7, "the new batch");
}

proptest! {
    /// Whatever is waited for, the burst that follows is a batch, or what timers can't tell apart.
    #[test]
    fn no_burst_exceeds_a_batch(per_second in 1u32..100_000, batch in 1u32..2_000, idle in 0u64..100_000) {
        let mut rate = Rate::new(pace(per_second, batch), Duration::ZERO);
        let now = Duration::from_millis(idle);
        let mut burst = 0;
        while rate.open_batch(now) && rate.take(now) {
            burst += 1;
        }
        prop_assert!(burst <= batch.max(per_second.div_ceil(500)).max(1));
    }

    #[test]
    fn waiting_until_it_is_due_is_enough(per_second in 1u32..100_000, batch in 1u32..100) {
        let mut rate = Rate::new(pace(per_second, batch), Duration::ZERO);
        let mut now = Duration::ZERO;
        for _ in 0..200 {
            now = rate.due(now).max(now);
            prop_assert!(rate.open_batch(now) && rate.take(now));
        }
    }
}

#[test]
fn the_meter_shows_the_last_ten_seconds() {
    let mut meter = Meter::default();
    for second in 0..60 {
        let moved = if second < 30 { second * 100 } else { 3_000 + (second - 30) * 10 };
        meter.mark(moved, Duration::from_secs(second));
    }
    let shown = meter.per_second(3_290, Duration::from_secs(59));
    assert!((shown - 10.0).abs() < 0.1, "{shown}");
}
