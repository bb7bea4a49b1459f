//! A dead-letter queue with numbered messages, a worker that replays it, and what it wrote.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use lapin::BasicProperties;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions};
use lapin::types::FieldTable;
use redrive::broker::replay::{Assignment, Entry, Journal, Judge, Orders, Report, Site, run};
use redrive::broker::{BrokerError, amqp};
use redrive::replay::message::{Message, Outgoing, Value};
use redrive::replay::outcome::{Checkpoint, Counts, Ended, Outcome};
use redrive::replay::run::{Canary, Fate, Fence, Guard, Left, Limits, Pace, Target};
use redrive::topology::model::QueueType;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, Version, Vhost, eventually, guard, in_vhost};

pub(crate) const DLQ: &str = "orders.dlq";
pub(crate) const WORK: &str = "orders";

/// Runs a test on both series.
pub(crate) async fn on_both<F: Future<Output = ()>>(name: &str, test: impl Fn(Vhost) -> F) {
    for version in [Version::V43, Version::V40] {
        in_vhost(version, name, &test).await;
    }
}

/// Queues without a delivery limit, as a replay demands.
pub(crate) async fn queues(vhost: &Vhost, dlq: QueueType) {
    match dlq {
        QueueType::Quorum => vhost.queue(DLQ, dlq, [("x-delivery-limit", (-1i64).into())]).await,
        _ => vhost.queue(DLQ, dlq, []).await,
    }
    vhost.queue(WORK, QueueType::Quorum, [("x-delivery-limit", (-1i64).into())]).await;
}

/// Puts so many numbered messages into a queue.
pub(crate) async fn fill(vhost: &Vhost, queue: &str, count: usize) {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let numbers: Vec<usize> = (0..count).collect();
    for chunk in numbers.chunks(1_000) {
        let sent = futures::future::join_all(chunk.iter().map(|number| {
            let properties =
                BasicProperties::default().with_delivery_mode(2).with_message_id(number.to_string().into());
            vhost.channel.basic_publish("".into(), queue.into(), options, b"body", properties)
        }))
        .await;
        for confirm in sent {
            assert!(confirm.unwrap().await.unwrap().is_ack());
        }
    }
    vhost.wait_ready(queue, u32::try_from(count).unwrap()).await;
}

/// Takes everything out of a queue, in its order.
pub(crate) async fn deliveries(vhost: &Vhost, queue: &str) -> Vec<lapin::message::Delivery> {
    let count = vhost.ready(queue).await as usize;
    let channel = vhost.connection.create_channel().await.unwrap();
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await;
    let taken: Vec<_> = consumer.unwrap().take(count).collect().await;
    channel.close(200, "OK".into()).await.unwrap();
    taken.into_iter().map(Result::unwrap).collect()
}

/// Takes everything out of a queue: the numbers in their order.
pub(crate) async fn empty(vhost: &Vhost, queue: &str) -> Vec<usize> {
    let number = |delivery: lapin::message::Delivery| {
        delivery.properties.message_id().as_ref().unwrap().as_str().parse().unwrap()
    };
    deliveries(vhost, queue).await.into_iter().map(number).collect()
}

/// Which messages move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    All,
    Odd,
    None,
}

struct ByNumber {
    pick: Pick,
    to: (String, String),
}

impl Judge for ByNumber {
    fn judge(&mut self, message: Message, _: Fence) -> Fate {
        let id = message.properties.message_id.clone().unwrap();
        let number: usize = id.parse().unwrap();
        let wanted = match self.pick {
            Pick::All => true,
            Pick::Odd => number % 2 == 1,
            Pick::None => false,
        };
        if !wanted {
            return Fate::Leave(Left::NotSelected);
        }
        let mut properties = message.properties;
        let mut headers = properties.headers.take().unwrap_or_default();
        headers.retain(|name, _| !name.starts_with("x-death") && !name.starts_with("x-first-death"));
        headers.insert("x-redrive-replay-id".to_owned(), Value::from(id.as_str()));
        properties.headers = Some(headers);
        let (exchange, routing_key) = self.to.clone();
        let message = Box::new(Outgoing { exchange, routing_key, properties, body: message.body });
        Fate::Publish { message, over_limit: false }
    }
}

/// What outlives a worker.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    pub(crate) entries: Arc<Mutex<Vec<Entry>>>,
    pub(crate) checkpoints: Arc<Mutex<Vec<Checkpoint>>>,
    pub(crate) fails: Arc<AtomicBool>,
}

impl Journal for Memory {
    async fn record(&self, entries: Vec<Entry>) -> Result<(), String> {
        if self.fails.load(Ordering::SeqCst) {
            return Err("no room".to_owned());
        }
        self.entries.lock().unwrap().extend(entries);
        Ok(())
    }

    async fn checkpoint(&self, checkpoint: Checkpoint) -> Result<(), String> {
        self.checkpoints.lock().unwrap().push(checkpoint);
        Ok(())
    }
}

impl Memory {
    pub(crate) fn last(&self) -> Option<Checkpoint> {
        self.checkpoints.lock().unwrap().last().cloned()
    }

    pub(crate) fn recorded(&self) -> usize {
        self.entries.lock().unwrap().len()
    }
}

/// A replay that is about to start; tests change what they are about.
pub(crate) struct Start {
    pub(crate) pick: Pick,
    pub(crate) to: (String, String),
    pub(crate) orders: Orders,
    pub(crate) limits: Limits,
    pub(crate) memory: Memory,
    pub(crate) watched: Option<String>,
    pub(crate) sets_consumer_timeout: bool,
}

impl Start {
    /// As fast as it goes, to the work queue, with guards that never trip.
    pub(crate) fn all(window: u32) -> Self {
        Self {
            pick: Pick::All,
            to: (String::new(), WORK.to_owned()),
            orders: Orders {
                pace: Pace { per_second: 100_000, batch: 100_000, pause: Duration::ZERO, ramp: None, window },
                guard: Guard {
                    stop_on_return_percent: 100,
                    sample: 100_000,
                    min_returns: 100_000,
                    canary: Canary { messages: 5, after: Duration::from_secs(1), tries: 1 },
                    pause_above_target_depth: None,
                    require_consumers: false,
                    max_unroutable: 1,
                },
                hold: None,
                cancel: false,
            },
            limits: Limits {
                messages: None,
                scan: 1_000_000,
                deadline: Duration::from_secs(300),
                hold: None,
            },
            memory: Memory::default(),
            watched: None,
            sets_consumer_timeout: false,
        }
    }

    pub(crate) fn picking(mut self, pick: Pick) -> Self {
        self.pick = pick;
        self
    }

    pub(crate) fn paced(mut self, per_second: u32, batch: u32) -> Self {
        self.orders.pace.per_second = per_second;
        self.orders.pace.batch = batch;
        self
    }

    pub(crate) fn go(self, vhost: &Vhost) -> Worker {
        let (exchange, routing_key) = self.to.clone();
        let judge = ByNumber { pick: self.pick, to: self.to.clone() };
        let target = if exchange.is_empty() {
            Target::Queue(routing_key)
        } else {
            Target::Exchange { name: exchange, routing_key }
        };
        self.go_by(vhost, judge, target)
    }

    /// With another judge, who says where messages go.
    pub(crate) fn go_by(self, vhost: &Vhost, judge: impl Judge, target: Target) -> Worker {
        let (orders, ordered) = watch::channel(self.orders.clone());
        let (reports, reported) = watch::channel(Report {
            activity: redrive::replay::outcome::Activity::Running,
            fence: None,
            counts: Counts::default(),
            rate: 0.0,
        });
        let stop = CancellationToken::new();
        let assignment = Assignment {
            site: Site {
                endpoint: Arc::new(vhost.version.endpoint()),
                guard: guard(),
                vhost: vhost.name.clone(),
                queue: DLQ.to_owned(),
            },
            target,
            judge,
            limits: self.limits,
            checkpoint: self.memory.last(),
            planned: None,
            watched: self.watched,
            sets_consumer_timeout: self.sets_consumer_timeout,
        };
        let task = tokio::spawn(run(assignment, ordered, reports, self.memory.clone(), stop.clone()));
        Worker { orders, reports: reported, stop, task, memory: self.memory }
    }
}

/// A worker at work.
pub(crate) struct Worker {
    pub(crate) orders: watch::Sender<Orders>,
    pub(crate) reports: watch::Receiver<Report>,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<Result<Ended, BrokerError>>,
    pub(crate) memory: Memory,
}

impl Worker {
    pub(crate) fn counts(&self) -> Counts {
        self.reports.borrow().counts.clone()
    }

    /// Waits until a report shows what is asked for.
    pub(crate) async fn shows(&mut self, what: &str, condition: impl FnMut(&Report) -> bool) {
        let wait = tokio::time::timeout(PATIENCE, self.reports.wait_for(condition));
        let shown = wait.await.map(|shown| shown.is_ok());
        match shown {
            Ok(shown) => assert!(shown, "it ended before it showed {what}: {:?}", self.reports.borrow()),
            Err(_) => panic!("it does not show {what}: {:?}", self.reports.borrow()),
        }
    }

    /// Waits for its end.
    pub(crate) async fn ends(self) -> (Ended, Counts) {
        let ended = tokio::time::timeout(Duration::from_secs(240), self.task).await;
        let ended = ended.unwrap_or_else(|_| panic!("it does not end: {:?}", self.reports.borrow()));
        let counts = self.reports.borrow().counts.clone();
        (ended.unwrap().unwrap(), counts)
    }

    pub(crate) async fn finishes(self) -> (Outcome, Counts) {
        match self.ends().await {
            (Ended::Finished(outcome), counts) => (outcome, counts),
            (Ended::Interrupted, _) => panic!("it was interrupted"),
        }
    }

    /// Kills it: nothing is settled, the connections just go.
    pub(crate) async fn dies(self) -> Memory {
        self.task.abort();
        let _ = self.task.await;
        self.memory
    }
}

/// Waits until nothing of a queue is unacknowledged.
pub(crate) async fn nothing_held(vhost: &Vhost, queue: &str, total: u32) {
    eventually(&format!("{total} ready in {queue}"), async || vhost.ready(queue).await == total).await;
}

/// A consumer that rejects whatever it gets, for as long as its connection lives.
pub(crate) async fn failing_consumer(vhost: &Vhost) -> lapin::Connection {
    let endpoint = vhost.version.endpoint();
    let connection = amqp::connect(&endpoint, &guard(), &vhost.name, "fails").await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.basic_qos(200, lapin::options::BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions::default();
    let mut consumer =
        channel.basic_consume(WORK.into(), "".into(), options, FieldTable::default()).await.unwrap();
    tokio::spawn(async move {
        let _channel = channel;
        while let Some(Ok(delivery)) = consumer.next().await {
            let options = lapin::options::BasicRejectOptions { requeue: false };
            if delivery.acker.reject(options).await.is_err() {
                return;
            }
        }
    });
    connection
}

/// Runs `rabbitmqctl` on the development cluster's broker.
fn rabbitmqctl(version: Version, arguments: &[&str]) {
    let dev = std::env::var("REDRIVE_DEV").expect("REDRIVE_DEV: eval \"$(hack/dev env)\"");
    let output =
        Command::new(dev).args(["broker", "ctl", version.series()]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A setting of a running broker, which goes back with this.
pub(crate) struct Setting {
    version: Version,
    back: Vec<String>,
}

impl Setting {
    /// Both are Erlang.
    pub(crate) fn change(version: Version, to: &str, back: &str) -> Self {
        Self::by(version, &["eval", to], &["eval", back])
    }

    /// Both are what `rabbitmqctl` is called with.
    pub(crate) fn by(version: Version, to: &[&str], back: &[&str]) -> Self {
        let back = back.iter().map(|&part| part.to_owned()).collect();
        // Goes back even where the change fails half-way.
        let setting = Self { version, back };
        rabbitmqctl(version, to);
        setting
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let back: Vec<&str> = self.back.iter().map(String::as_str).collect();
        rabbitmqctl(self.version, &back);
    }
}

/// How often the broker logged that it took messages of this vhost back from a consumer.
pub(crate) fn consumer_timeouts(vhost: &Vhost) -> usize {
    let variable = |name: &str| std::env::var(name).expect("eval \"$(hack/dev env)\"");
    let series = vhost.version.series();
    let log = format!(
        "{}/{}/logs/broker-{series}.log",
        variable("REDRIVE_DEV_STATE"),
        variable("REDRIVE_DEV_NAME")
    );
    let text = std::fs::read(&log).unwrap_or_else(|error| panic!("{log}: {error}"));
    let place = format!("in vhost '{}' has timed out", vhost.name);
    String::from_utf8_lossy(&text).lines().filter(|line| line.contains(&place)).count()
}
