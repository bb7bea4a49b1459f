//! When reading is over though less came than the fence said.

use std::time::Duration;

use redrive::replay::outcome::Outcome;

use crate::model::Kinds;
use crate::properties::{Run, Step, orders, unlimited};

const ALL: Kinds = Kinds { unselected: 0, discarded: 0, over_limit: 0, unroutable: 0 };

/// A run that has read three of six messages.
fn half_read() -> Run {
    let mut run = Run::new(6, ALL, orders(100, 10, 10), unlimited(None));
    run.take(Step::Answer);
    run.take(Step::Deliver(3));
    run
}

/// A look that finds nothing ready, so much later.
fn look_in_vain(run: &mut Run, after: Duration) {
    run.wait(after);
    run.broker.shows_nothing_ready();
    run.take(Step::Answer);
}

#[test]
fn messages_that_are_long_on_their_way_are_waited_for() {
    let mut run = half_read();
    for _ in 0..8 {
        look_in_vain(&mut run, Duration::from_secs(1));
    }
    assert_eq!(run.finish(), Outcome::Completed);
    assert!(run.broker.origin().is_empty(), "all have moved");
    assert_eq!(run.engine.counts().replayed, 6);
}

#[test]
fn messages_that_somebody_else_took_are_not_waited_for_forever() {
    let mut run = half_read();
    run.broker.is_emptied();
    assert_eq!(run.finish(), Outcome::Completed);
    assert_eq!(run.engine.counts().replayed, 3);
}
