//! What a replay costs, side by side with the broker's own shovel in one run on one machine.
//!
//! Needs the broker of `hack/dev`, or another named by the same variables. Times on a busy
//! machine mean little alone: read the ratios.

mod lab;
#[path = "../operator/meter.rs"]
mod meter;
mod mover;
#[path = "../operator/process.rs"]
#[allow(dead_code)] // the other bench starts operators
mod process;
#[path = "../operator/table.rs"]
#[allow(dead_code)] // the other bench uses the rest
mod table;

use std::process::ExitCode;
use std::time::Duration;

use lab::{Lab, Link};
use meter::Meter;
use mover::Order;
use table::{Figure, Verdict};

/// As a worker: the system's allocator keeps what was needed for a moment.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Whatever goes wrong ends the run with its text.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Error>;

const USAGE: &str = "figures: shovel memory rate; none means all";

/// Messages of a comparison.
const MANY: u64 = 100_000;
/// Messages by which memory must not grow.
const A_MILLION: u64 = 1_000_000;
/// Rounds, alternating; the one with the middle ratio counts.
const ROUNDS: usize = 3;
/// Seconds over which a rate is measured.
const MINUTE: u64 = 60;
/// As the shovel's prefetch.
const WINDOW: u32 = 1_000;

fn main() -> ExitCode {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let Ok(runtime) = tokio::runtime::Runtime::new() else { return ExitCode::FAILURE };
    let result = match arguments.first().map(String::as_str) {
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            Ok(true)
        }
        Some(mover::WORD) => {
            let order = arguments.get(1).map_or("", String::as_str);
            runtime.block_on(mover::carry_out(order)).map(|()| true)
        }
        _ => runtime.block_on(measure(&arguments)),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures what is asked for, prints it, and says whether nothing is broken.
async fn measure(wanted: &[String]) -> Result<bool> {
    if let Some(unknown) =
        wanted.iter().find(|figure| !["shovel", "memory", "rate"].contains(&figure.as_str()))
    {
        return Err(format!("there is no figure {unknown:?}\n{USAGE}").into());
    }
    let wants = |figure: &str| wanted.is_empty() || wanted.iter().any(|name| name == figure);
    let lab = Lab::start().await?;
    let mut figures = Vec::new();
    if wants("shovel") {
        for audit in [false, true] {
            against_shovel(&lab, audit, &mut figures).await?;
        }
    }
    if wants("memory") {
        memory(&lab, &mut figures).await?;
    }
    if wants("rate") {
        for per_second in [1, 20, 200, 2_000] {
            rate(&lab, per_second, &mut figures).await?;
        }
    }
    lab.clean().await?;
    table::print(&figures);
    Ok(figures.iter().all(|figure| figure.verdict != Verdict::Broken))
}

/// How long each took in one round.
struct Round {
    ours: Duration,
    inside: Duration,
    network: Duration,
}

/// Alternating runs over the same messages.
async fn against_shovel(lab: &Lab, audit: bool, figures: &mut Vec<Figure>) -> Result<()> {
    let mut rounds = Vec::new();
    for number in 1..=ROUNDS {
        eprintln!("  round {number}, audit {audit}");
        rounds.push(round(lab, audit).await?);
    }
    let with = if audit { "audit to standard output" } else { "audit off" };
    // Inside the broker a shovel needs no connection: no client can be as cheap.
    for (link, limit) in [(Link::Network, Some(if audit { 0.8 } else { 1.0 })), (Link::Inside, None)] {
        let its = |round: &Round| if link == Link::Network { round.network } else { round.inside };
        let ratio = |round: &Round| its(round).div_duration_f64(round.ours);
        rounds.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let middle = &rounds[ROUNDS / 2];
        let per_second = |took: Duration| format!("{:.0}/s", 100_000.0 / took.as_secs_f64());
        figures.push(Figure {
            ours: per_second(middle.ours),
            reference: format!("shovel {}", per_second(its(middle))),
            ratio: Some(ratio(middle)),
            limit: limit.map_or_else(String::new, |least| format!("≥ {least:.1}×")),
            verdict: limit.map_or(Verdict::Shown, |least| Verdict::below(least / ratio(middle), 1.0)),
            ..Figure::time(format!("100,000 messages of 1 KiB, {with}, shovel: {link:?}"), middle.ours, None)
        });
    }
    Ok(())
}

async fn round(lab: &Lab, audit: bool) -> Result<Round> {
    let mut shovels = Vec::new();
    for link in [Link::Inside, Link::Network] {
        lab.fill(MANY).await?;
        let meter = Meter::start(None);
        let took = lab.shovel(MANY, link).await?;
        eprintln!("    shovel, {link:?}: {took:.2?}, {}", meter::text(&meter.used()));
        shovels.push(took);
    }
    lab.fill(MANY).await?;
    let meter = Meter::start(None);
    let moved = Order { audit, ..Order::fast(WINDOW) }.send().await?;
    let used = meter.used();
    whole(lab, MANY, &moved).await?;
    let ours = Duration::from_secs_f64(moved.seconds);
    let (worker, peak) = (moved.processor, moved.peak / 1024.0);
    eprintln!("    ours: {ours:.2?}, worker {worker:.1}, {}, peak {peak:.0} MiB", meter::text(&used));
    Ok(Round { ours, inside: shovels[0], network: shovels[1] })
}

/// Nothing may be lost, and nothing doubled where nothing failed.
async fn whole(lab: &Lab, count: u64, moved: &mover::Moved) -> Result<()> {
    let (left, arrived) = (lab.ready(lab::ORIGIN).await?, lab.ready(lab::TARGET).await?);
    if (left, arrived, moved.replayed) != (0, count, count) {
        return Err(format!("of {count} messages {left} are left and {arrived} arrived: {moved:?}").into());
    }
    Ok(())
}

async fn memory(lab: &Lab, figures: &mut Vec<Figure>) -> Result<()> {
    for rare in [false, true] {
        let what = if rare { "1 in 1,000 selected" } else { "all selected" };
        let mut first = None;
        for count in [MANY, A_MILLION] {
            lab.fill(count).await?;
            let moved = Order { rare, ..Order::fast(500) }.send().await?;
            let selected = if rare { count / lab::ONE_IN } else { count };
            if moved.replayed != selected || lab.ready(lab::ORIGIN).await? != count - selected {
                return Err(format!("{selected} of {count} were to move: {moved:?}").into());
            }
            let peak = moved.peak / 1024.0;
            figures.push(Figure::quantity(
                format!("peak with {count} messages, {what}"),
                peak,
                "MiB",
                Some(64.0),
            ));
            match first {
                None => first = Some(peak),
                Some(first) => {
                    figures.push(Figure::quantity("… growth from 100,000", peak - first, "MiB", Some(8.0)));
                }
            }
        }
    }
    Ok(())
}

async fn rate(lab: &Lab, per_second: u32, figures: &mut Vec<Figure>) -> Result<()> {
    let batch = 50.min(per_second);
    lab.fill(u64::from(per_second) * (MINUTE + 30)).await?;
    let order = Order { per_second, batch, seconds: Some(MINUTE + 5), ..Order::fast(500) };
    let moved = order.send().await?;
    // From the first message on, over whole seconds.
    let first = moved.tenths.iter().position(|count| *count > 0).ok_or("nothing moved")?;
    let tenths = &moved.tenths[first..];
    let minute = usize::try_from(MINUTE * 10)?;
    // The first batch may come at once.
    let within: u64 = tenths.iter().skip(10).take(minute - 10).sum();
    let mean = within as f64 / (MINUTE as f64 - 1.0);
    let off = (mean / f64::from(per_second) - 1.0).abs() * 100.0;
    figures.push(Figure::quantity(format!("{per_second}/s over a minute: off by"), off, "%", Some(3.0)));
    let most = tenths.iter().max().copied().unwrap_or_default();
    let allowed = u64::from(batch) + u64::from(per_second.div_ceil(10));
    let holds = most <= allowed;
    figures.push(Figure::count("… most in a tenth of a second", most, &format!("≤ {allowed}"), holds));
    Ok(())
}
