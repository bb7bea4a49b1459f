use std::time::Duration;

use super::*;
use crate::replay::run::Canary;

fn guard() -> Guard {
    Guard {
        stop_on_return_percent: 20,
        sample: 50,
        min_returns: 10,
        canary: Canary { messages: 5, after: Duration::from_secs(300), tries: 3 },
        pause_above_target_depth: None,
        require_consumers: true,
        max_unroutable: 1,
    }
}

/// A look at a queue of 1,000 of which so many moved, and so many came back.
fn look(moved: u64, back: u64, held: u64, second: u64) -> Look {
    Look {
        ready: 1_000 - moved - held + back,
        held,
        expected: 1_000 - moved,
        moved,
        time: Duration::from_secs(second),
    }
}

fn started(usual: f64) -> Breaker {
    let mut breaker = Breaker::new(usual);
    breaker.begin_pass(0, Duration::ZERO);
    breaker
}

#[test]
fn it_trips_at_the_percentage_of_the_sample() {
    let mut breaker = started(0.0);
    breaker.note(look(50, 9, 20, 1));
    assert_eq!(breaker.trips(&guard()), None);
    breaker.note(look(60, 10, 20, 1));
    assert!(breaker.trips(&guard()).is_some_and(|why| why.contains("10 of the last 50")));
}

#[test]
fn few_returns_do_not_count() {
    let mut breaker = started(0.0);
    let mut strict = guard();
    strict.stop_on_return_percent = 1;
    breaker.note(look(50, 9, 0, 1));
    assert_eq!(breaker.trips(&strict), None);
}

#[test]
fn only_the_last_sample_counts() {
    let mut breaker = started(0.0);
    breaker.note(look(50, 8, 0, 1));
    breaker.note(look(100, 8, 0, 2));
    breaker.note(look(150, 16, 0, 3));
    assert_eq!(breaker.returns(50), 8);
    assert_eq!(breaker.trips(&guard()), None);
}

#[test]
fn what_arrives_anyhow_does_not_count() {
    let mut breaker = started(10.0);
    breaker.note(look(50, 50, 0, 5));
    assert_eq!(breaker.trips(&guard()), None);
    breaker.note(look(60, 70, 0, 6));
    assert_eq!(breaker.returns(60), 10);
}

#[test]
fn messages_that_are_under_way_to_us_are_no_returns_when_they_are_seen() {
    let mut breaker = started(0.0);
    // 54 were sent to us and not seen yet: neither ready nor held.
    breaker.note(Look { ready: 846, held: 50, ..look(50, 0, 0, 1) });
    breaker.note(look(100, 0, 100, 2));
    assert_eq!(breaker.returns(50), 0);
}

#[test]
fn a_new_pass_keeps_what_came_back_before() {
    let mut breaker = started(0.0);
    breaker.note(look(20, 8, 0, 1));
    breaker.begin_pass(20, Duration::from_secs(2));
    let in_pass = Look { ready: 980, held: 0, expected: 978, moved: 30, time: Duration::from_secs(3) };
    breaker.note(in_pass);
    assert_eq!(breaker.returns(50), 10);
    breaker.forget();
    assert_eq!(breaker.returns(50), 0);
}
