//! Where the broker takes back what is held for too long, and the consumer can't ask for more time.

use std::time::Duration;

use redrive::replay::outcome::Outcome;
use redrive::replay::run::Ramp;

use crate::model::Kinds;
use crate::properties::{Run, orders, unlimited};

const HOLD: Duration = Duration::from_secs(60);

/// Every second message is selected, so that as many are held as move.
const HALF: Kinds = Kinds { unselected: 2, discarded: 0, over_limit: 0, unroutable: 0 };

#[test]
fn everything_is_returned_and_read_again_in_half_the_time() {
    for (hold, most) in [(Some(HOLD), HOLD / 2 + Duration::from_secs(1)), (None, Duration::MAX)] {
        let mut run = Run::new(400, HALF, orders(1, 10, 5), unlimited(hold));
        assert_eq!(run.finish(), Outcome::Completed);
        assert!(run.longest <= most, "one was held for {:?}", run.longest);
        // Without a limit the first is held until the end, more than three minutes later.
        assert!(hold.is_some() || run.longest > 3 * HOLD, "{:?}", run.longest);
        let counts = run.engine.counts();
        assert_eq!((counts.examined, counts.replayed, counts.duplicates_possible), (400, 200, 0));
        assert_eq!(run.broker.origin(), (1..400).step_by(2).collect::<Vec<_>>());
        assert_eq!((run.broker.duplicates(), run.broker.disordered), (0, false));
    }
}

#[test]
fn a_run_ends_where_messages_without_a_queue_take_all_the_time_of_a_pass() {
    let every_second = Kinds { unselected: 0, discarded: 0, over_limit: 0, unroutable: 2 };
    let mut run = Run::new(200, every_second, orders(1, 1, 1), unlimited(Some(HOLD)));
    assert_eq!(run.finish(), Outcome::Unroutable);
    // Those that find no queue stay in front, until they fill half of the broker's time.
    let counts = run.engine.counts();
    assert!(counts.replayed >= 29 && counts.replayed < 100, "{counts:?}");
    assert_eq!(run.broker.origin().len() as u64, 200 - counts.replayed);
}

#[test]
fn the_ramp_does_not_begin_again_with_it() {
    let mut slow = orders(4, 10, 5);
    slow.pace.ramp = Some(Ramp { from: 1, every: Duration::from_secs(10), factor: 2 });
    let mut run = Run::new(400, HALF, slow, unlimited(Some(HOLD)));
    let began = run.now;
    assert_eq!(run.finish(), Outcome::Completed);
    // 30 in the first 20 seconds, and 170 at four a second.
    let took = run.now - began;
    assert!(took < Duration::from_secs(65), "{took:?}");
}
