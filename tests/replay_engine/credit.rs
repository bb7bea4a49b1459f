//! Where nearly all stays, credit grows by bytes, so that memory does not grow with the queue.

use std::time::Duration;

use redrive::replay::engine::{Command, Engine, Event, Setup, Tag, Verdict};
use redrive::replay::run::Left;

use crate::properties::{orders, unlimited};

const WINDOW: u32 = 10;
/// What may be on its way at once, as the engine has it.
const UNDER_WAY: u64 = 4 * 1024 * 1024;

/// The credit of each consumer while so many messages of this size are read and stay.
fn credits(messages: u64, bytes: u64) -> Vec<u64> {
    let setup =
        Setup { limits: unlimited(None), orders: orders(1_000, 10, WINDOW), checkpoint: None, planned: None };
    let mut engine = Engine::new(setup, Duration::ZERO);
    let mut commands = engine.step([Event::Tick], Duration::ZERO);
    commands.extend(engine.step([Event::Opened { ready: messages }], Duration::ZERO));
    let mut credits = Vec::new();
    let mut reading = None;
    for _ in 0..messages {
        for command in commands.drain(..) {
            if let Command::Consume { pass, channel, prefetch } = command {
                credits.push(u64::from(prefetch));
                reading = Some((pass, channel, 0));
            }
        }
        let (pass, channel, number) = reading.as_mut().expect("a consumer reads");
        *number += 1;
        let tag = Tag { pass: *pass, channel: *channel, number: *number };
        let verdict = Verdict::Leave { why: Left::NotSelected, name: None };
        commands = engine.step([Event::Read { tag, bytes, verdict }], Duration::ZERO);
    }
    credits
}

#[test]
fn credit_is_twice_the_window_at_first() {
    assert_eq!(credits(100, 1_000)[0], 2 * u64::from(WINDOW));
}

#[test]
fn credit_grows_to_what_may_be_on_its_way_and_no_further() {
    let small = credits(200_000, 1_000);
    let many = small.iter().max().copied().unwrap();
    assert_eq!(many, UNDER_WAY / 1_000, "{small:?}");
    let large = credits(10_000, 100_000);
    let few = large.iter().max().copied().unwrap();
    assert_eq!(few, UNDER_WAY / 100_000, "{large:?}");
}

#[test]
fn large_messages_take_no_more_channels_than_a_broker_has() {
    assert!(credits(1_000_000, 100_000).len() < 2_047);
}
