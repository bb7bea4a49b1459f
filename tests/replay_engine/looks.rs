//! What is seen of a batch is known before the next begins.

use std::time::Duration;

use redrive::replay::outcome::Outcome;

use crate::model::Kinds;
use crate::properties::{Run, Step, orders, unlimited};

const ALL: Kinds = Kinds { unselected: 0, discarded: 0, over_limit: 0, unroutable: 0 };
const BATCH: u32 = 50;

/// Lets so many milliseconds pass in which everybody answers, aside from looks.
fn without_looks(run: &mut Run, millis: u32) {
    for _ in 0..millis {
        run.wait(Duration::from_millis(1));
        for step in [Step::Deliver(5), Step::Confirm(0), Step::Record, Step::Keep] {
            run.take(step);
        }
        while !run.broker.next_is_look() && run.broker.is_asked() {
            run.take(Step::Answer);
        }
    }
}

#[test]
fn a_batch_waits_for_the_look_at_the_one_before() {
    let mut run = Run::new(200, ALL, orders(500, BATCH, 100), unlimited(None));
    let mut sent = Vec::new();
    for _ in 0..4 {
        without_looks(&mut run, 400);
        sent.push(run.broker.published());
        run.take(Step::Answer);
    }
    // Nothing before the first look, and a batch for each that is answered.
    assert_eq!(sent, [0, 50, 100, 150]);
    assert_eq!(run.finish(), Outcome::Completed);
}

#[test]
fn a_batch_that_is_shorter_than_a_look_waits_for_none() {
    let mut run = Run::new(200, ALL, orders(100_000, BATCH, 100), unlimited(None));
    let mut sent = Vec::new();
    for _ in 0..3 {
        without_looks(&mut run, 400);
        sent.push(run.broker.published());
        run.take(Step::Answer);
    }
    assert_eq!(sent, [0, 100, 150], "the second begins while its look is under way");
    assert_eq!(run.finish(), Outcome::Completed);
}
