//! A control beside what is measured.
//!
//! Messages of a delay that has nothing to do with the topology under test wait on the
//! same broker and are received by the same process at the same time. How late they are
//! is how busy the machine is, so that a busy machine fails no test, but a wrong delay does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as Lock};
use std::time::{Duration, Instant, SystemTime};

use redrive::topology::model::{Arg, Args, Queue, QueueType};

use super::{
    Act, Background, Broker, Consumer, Lab, PATIENCE, Publisher, block_on, connect, delete_vhost, id,
    make_vhost,
};

/// Where control messages wait.
const WAIT: &str = "wait";

/// Where they are received.
const DONE: &str = "done";

const DELAY: Duration = Duration::from_millis(200);

/// Shorter than the delay: there is always one on its way, so that no stall goes unseen.
const EVERY: Duration = Duration::from_millis(100);

/// What a wait may be longer than its delay: a tenth of it, and this.
const SLACK: Duration = Duration::from_millis(500);

/// Control messages in a vhost of their own, until it is dropped.
pub(crate) struct Control {
    broker: Broker,
    vhost: String,
    sent: Arc<Lock<BTreeMap<String, Instant>>>,
    received: Consumer,
    _task: Background,
}

impl Control {
    /// Starts the control of a lab, and waits for the first message of it.
    pub(crate) async fn start(lab: &Lab) -> Self {
        let (broker, vhost) = (lab.broker.clone(), format!("{}-control", lab.vhost));
        make_vhost(&broker, &vhost).await;
        for (name, arguments) in [(DONE, Vec::new()), (WAIT, waiting())] {
            let quorum = ("x-queue-type", Arg::from("quorum"));
            let arguments = arguments.into_iter().chain([quorum]);
            let arguments: Args = arguments.map(|(key, value)| (key.to_owned(), value)).collect();
            let queue = Queue { name: name.into(), kind: QueueType::Quorum, arguments };
            lab.management.put_queue(&vhost, &queue).await.expect("declared");
        }
        let received = Consumer::on(vec![broker.clone()], &vhost, DONE, 50, |_| Act::Ack);
        let publisher = Publisher::new(connect(&broker, &vhost).await).await.expect("a publisher");
        let sent = Arc::default();
        let task = Background(tokio::spawn(publish(publisher, Arc::clone(&sent))));
        received.sees_within(1, PATIENCE).await;
        Self { broker, vhost, sent, received, _task: task }
    }

    /// What the control messages tell until now.
    pub(crate) fn read(&self) -> Lateness {
        let now = Instant::now();
        let sent = self.sent.lock().expect("no panic").clone();
        let received: BTreeMap<String, Instant> =
            self.received.seen().into_iter().map(|seen| (seen.id, seen.at)).collect();
        // One that is still on its way is as late as it is by now.
        let arrived = |id: &String| received.get(id).copied().unwrap_or(now);
        Lateness { probes: sent.iter().map(|(id, sent)| (*sent, arrived(id))).collect(), now }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let (broker, vhost) = (self.broker.clone(), self.vhost.clone());
        block_on(async move { delete_vhost(&broker, &vhost).await });
    }
}

/// As the tiers are: at least once, by the clock of the broker.
fn waiting() -> Vec<(&'static str, Arg)> {
    vec![
        ("x-message-ttl", i64::try_from(DELAY.as_millis()).expect("short").into()),
        ("x-dead-letter-exchange", "".into()),
        ("x-dead-letter-routing-key", DONE.into()),
        ("x-dead-letter-strategy", "at-least-once".into()),
        ("x-overflow", "reject-publish".into()),
    ]
}

async fn publish(publisher: Publisher, sent: Arc<Lock<BTreeMap<String, Instant>>>) {
    for number in 0.. {
        let id = id(number);
        sent.lock().expect("no panic").insert(id.clone(), Instant::now());
        if !publisher.send("", WAIT, &id, Publisher::properties(&id)).await.unwrap_or_default() {
            return;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// How late control messages were.
pub(crate) struct Lateness {
    /// When each was sent, and when it was received.
    probes: Vec<(Instant, Instant)>,
    now: Instant,
}

impl Lateness {
    /// The latest of the control messages that were on their way at some time in between.
    pub(crate) fn between(&self, from: Instant, to: Instant) -> Duration {
        let meanwhile = self.probes.iter().filter(|(sent, arrived)| *sent <= to && *arrived >= from);
        let late = meanwhile.map(|(sent, arrived)| (*arrived - *sent).saturating_sub(DELAY));
        late.max().expect("a control message was on its way")
    }

    /// Checks a wait: never shorter than its delay but for what clocks differ by, and at most
    /// ten percent and half a second longer, beside what control messages were late by.
    pub(crate) fn assert_delay(&self, from: Instant, to: Instant, delay: u64, what: &str) {
        let (waited, delay) = (to - from, Duration::from_millis(delay));
        let late = self.between(from, to);
        let (shortest, longest) = (delay * 9 / 10, delay * 11 / 10 + SLACK + late);
        assert!(
            (shortest..=longest).contains(&waited),
            "{what} waited {waited:?} where {delay:?} is wanted, and control messages were late by {late:?}"
        );
    }

    /// The same for times that another process has written down.
    pub(crate) fn assert_delay_unix(&self, from: f64, to: f64, delay: u64, what: &str) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a later year");
        let past = now.saturating_sub(self.now.elapsed());
        let at = |time: f64| self.now - past.saturating_sub(Duration::from_secs_f64(time));
        self.assert_delay(at(from), at(to), delay, what);
    }
}
