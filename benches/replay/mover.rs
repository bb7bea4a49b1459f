//! One replay in a process of its own, so that its memory and time are its own.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redrive::broker::AddressGuard;
use redrive::broker::replay::{self, Assignment, Entry, Journal, Orders, Report, Site};
use redrive::replay::judge::RunJudge;
use redrive::replay::outcome::{Activity, Checkpoint, Counts};
use redrive::replay::rewrite::Wire;
use redrive::replay::run::{Canary, Guard, Limits, OnFailure, Pace, Rewriting, Target};
use redrive::replay::selection::{Criteria, Selection};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::lab::{ORIGIN, TARGET, VHOST, endpoint};
use crate::{Result, process};

/// The word that makes the bench one replay.
pub(crate) const WORD: &str = "move";

/// What to move, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) per_second: u32,
    pub(crate) batch: u32,
    pub(crate) window: u32,
    /// Whether only the rare messages move.
    pub(crate) rare: bool,
    /// Whether each message is recorded on standard error, as a worker does on its output.
    pub(crate) audit: bool,
    /// Ends after this time, where it is to be measured over a time.
    pub(crate) seconds: Option<u64>,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Moved {
    pub(crate) ended: String,
    pub(crate) replayed: u64,
    pub(crate) examined: u64,
    pub(crate) seconds: f64,
    /// Processor seconds of the process.
    pub(crate) processor: f64,
    /// Highest resident memory, in KiB.
    pub(crate) peak: f64,
    /// Messages in each tenth of a second, where they were recorded.
    pub(crate) tenths: Vec<u64>,
}

impl Order {
    /// As fast as it can.
    pub(crate) fn fast(window: u32) -> Self {
        Self { per_second: 100_000, batch: 100_000, window, rare: false, audit: false, seconds: None }
    }

    /// Carries it out in a process of its own.
    pub(crate) async fn send(&self) -> Result<Moved> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(WORD).arg(serde_json::to_string(self)?);
        command.stderr(if self.audit { Stdio::null() } else { Stdio::inherit() });
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        if !output.status.success() {
            return Err(format!("the replay failed: {}", output.status).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Notes when messages moved.
#[derive(Clone)]
struct Notes {
    began: Instant,
    audit: bool,
    tenths: Arc<Mutex<BTreeMap<u64, u64>>>,
    timed: bool,
}

impl Journal for Notes {
    fn keeps_records(&self) -> bool {
        self.audit || self.timed
    }

    async fn record(&self, entries: Vec<Entry>) -> std::result::Result<(), String> {
        if self.timed {
            let tenth = u64::try_from(self.began.elapsed().as_millis() / 100).unwrap_or_default();
            let count = u64::try_from(entries.len()).unwrap_or_default();
            *self.tenths.lock().unwrap_or_else(PoisonError::into_inner).entry(tenth).or_default() += count;
        }
        if self.audit {
            write_records(&entries)?;
        }
        Ok(())
    }

    async fn checkpoint(&self, _: Checkpoint) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// One line for each message, as a worker writes them.
fn write_records(entries: &[Entry]) -> std::result::Result<(), String> {
    use std::io::Write;
    let mut lines = String::new();
    for entry in entries {
        let record = serde_json::json!({
            "schema": 1, "run": "bench", "request": "bench/replay", "messageId": entry.message.properties.message_id,
            "replayId": entry.replay_id, "went": entry.went, "time": entry.time,
            "from": {"exchange": entry.message.exchange, "routingKey": entry.message.routing_key},
        });
        lines.push_str(&record.to_string());
        lines.push('\n');
    }
    std::io::stderr().write_all(lines.as_bytes()).map_err(|error| error.to_string())
}

/// Carries out an order, and prints what came of it.
pub(crate) async fn carry_out(order: &str) -> Result<()> {
    let order: Order = serde_json::from_str(order)?;
    let began = Instant::now();
    let notes = Notes { began, audit: order.audit, tenths: Arc::default(), timed: order.seconds.is_some() };
    let (_keep, orders) = watch::channel(orders(&order));
    let nothing = Report { activity: Activity::Running, fence: None, counts: Counts::default(), rate: 0.0 };
    let (reports, seen) = watch::channel(nothing);
    let stop = CancellationToken::new();
    if let Some(seconds) = order.seconds {
        let stop = stop.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            stop.cancel();
        });
    }
    let ended = replay::run(assignment(&order)?, orders, reports, notes.clone(), stop).await?;
    let counts = seen.borrow().counts.clone();
    let tenths = notes.tenths.lock().unwrap_or_else(PoisonError::into_inner);
    let last = tenths.keys().next_back().copied().unwrap_or_default();
    let moved = Moved {
        ended: format!("{ended:?}"),
        replayed: counts.replayed,
        examined: counts.examined,
        seconds: began.elapsed().as_secs_f64(),
        processor: process::cpu("self")?,
        peak: peak()?,
        tenths: (0..=last).map(|tenth| tenths.get(&tenth).copied().unwrap_or_default()).collect(),
    };
    println!("{}", serde_json::to_string(&moved)?);
    Ok(())
}

fn orders(order: &Order) -> Orders {
    let canary = Canary { messages: 5, after: Duration::from_secs(300), tries: 3 };
    Orders {
        pace: Pace {
            per_second: order.per_second,
            batch: order.batch,
            pause: Duration::ZERO,
            ramp: None,
            window: order.window,
        },
        guard: Guard {
            stop_on_return_percent: 20,
            sample: 50,
            min_returns: 10,
            canary,
            pause_above_target_depth: None,
            require_consumers: false,
            max_unroutable: 1,
        },
        hold: None,
        cancel: false,
    }
}

fn assignment(order: &Order) -> Result<Assignment<RunJudge>> {
    let mut criteria = Criteria::default();
    if order.rare {
        criteria.headers.insert("x-rare".to_owned(), "yes".to_owned());
    }
    let rewriting = Rewriting {
        request: "bench/replay".to_owned(),
        run: "00000000-0000-0000-0000-000000000000".to_owned(),
        on_failure: OnFailure::DeadLetter,
        keep_expiration: false,
        idempotency: None,
        max_replays: 3,
        replay_limit_queue: None,
    };
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(0))
    };
    let judge = RunJudge::new(
        Selection::new(criteria, false)?,
        Target::Queue(TARGET.to_owned()),
        rewriting,
        Wire { frame_max: 131_072, max_body: None },
        Box::new(now),
    );
    Ok(Assignment {
        site: Site {
            endpoint: Arc::new(endpoint()?),
            guard: AddressGuard::new(true, []),
            vhost: VHOST.to_owned(),
            queue: ORIGIN.to_owned(),
        },
        target: Target::Queue(TARGET.to_owned()),
        judge,
        limits: Limits { messages: None, scan: 10_000_000, deadline: Duration::from_secs(3_600), hold: None },
        checkpoint: None,
        planned: None,
        watched: None,
        sets_consumer_timeout: true,
    })
}

fn peak() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}
