//! What every test stands on.

pub(crate) mod amqp;
pub(crate) mod application;
#[path = "../../support/authority.rs"]
pub(crate) mod authority;
pub(crate) mod broker;
pub(crate) mod clusters;
#[path = "../../support/command.rs"]
pub(crate) mod command;
#[path = "../../support/helm.rs"]
pub(crate) mod helm;
#[path = "../../support/kubectl.rs"]
pub(crate) mod kubectl;
#[path = "../../support/kubernetes.rs"]
pub(crate) mod kubernetes;
pub(crate) mod log;
#[path = "../../support/promtool.rs"]
pub(crate) mod promtool;
pub(crate) mod proxy;
pub(crate) mod replays;
#[path = "../../support/rights.rs"]
pub(crate) mod rights;
pub(crate) mod scene;
pub(crate) mod tcp;
pub(crate) mod tls;
#[path = "../../support/tls_listener.rs"]
pub(crate) mod tls_listener;
pub(crate) mod worker;
pub(crate) mod world;

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// How often a condition is looked at.
const STEP: Duration = Duration::from_millis(100);

/// A variable that `hack/dev env` sets. Fails, never skips, where it is missing.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: start the development cluster with `hack/dev up` and name it with \
             `eval \"$(hack/dev env)\"`"
        )
    })
}

/// Whether the long series run as well; says of each that it is left out.
pub(crate) fn full(what: &str) -> bool {
    let full = std::env::var("REDRIVE_TEST_FULL").is_ok_and(|value| value == "1");
    if !full {
        eprintln!("left out without REDRIVE_TEST_FULL=1: {what}");
    }
    full
}

/// A number below this one that nobody foresees.
pub(crate) fn below(end: usize) -> usize {
    // Each RandomState has keys of its own, which is all the chance that this needs.
    let draw = RandomState::new().hash_one(0) % u64::try_from(end).unwrap();
    usize::try_from(draw).unwrap()
}

/// Looks until there is an answer; fails with the last reason why not.
pub(crate) async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let started = Instant::now();
    loop {
        let reason = match look().await {
            Ok(value) => return value,
            Err(reason) => reason,
        };
        assert!(started.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}; last seen: {reason}");
        tokio::time::sleep(STEP).await;
    }
}

/// Waits until a count stays as it is for a while. Looked at in steps, so that a pause of the whole
/// process is not taken for rest: whatever was due meanwhile comes between two steps.
pub(crate) async fn at_rest(what: &str, count: impl Fn() -> usize) {
    const STEPS: usize = 25;
    let started = Instant::now();
    let (mut last, mut steps) = (count(), 0);
    while steps < STEPS {
        assert!(started.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}; {last} so far");
        tokio::time::sleep(STEP).await;
        let now = count();
        steps = if now == last { steps + 1 } else { 0 };
        last = now;
    }
}

/// Looks for a while and fails as soon as something is not as it must stay.
pub(crate) async fn steadily<F>(what: &str, during: Duration, mut look: impl FnMut() -> F)
where
    F: Future<Output = Result<(), String>>,
{
    let started = Instant::now();
    while started.elapsed() < during {
        if let Err(reason) = look().await {
            panic!("{what}: {reason}");
        }
        tokio::time::sleep(STEP).await;
    }
}
