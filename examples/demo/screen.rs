//! What the demo shows: on a terminal a table that is drawn again in its place,
//! elsewhere lines that are appended.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _, stdout};
use std::time::{Duration, Instant};

use crate::broker::Counts;
use crate::orders::{Book, Kind, Order, Outcome, Place};
use crate::topology::Topology;

/// The rows of the table.
const ROWS: [Kind; 4] = [Kind::Fine, Kind::FailsOnce, Kind::FailsAlways, Kind::Crashes];

/// The time between two lines where the table can't be drawn again.
const LINE_EVERY: Duration = Duration::from_secs(1);

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const MAGENTA: &str = "35";

/// Writes to standard output.
pub(crate) struct Screen {
    live: bool,
    colours: bool,
    start: Instant,
    /// The order that is shown step by step, and how many of its steps were.
    followed: usize,
    steps: usize,
    /// How many lines the table has taken.
    drawn: usize,
    with_table: bool,
    table: Vec<String>,
    last_line: (Instant, String),
}

impl Screen {
    pub(crate) fn new(plain: bool) -> Self {
        let live = !plain && stdout().is_terminal();
        let now = Instant::now();
        Self {
            live,
            colours: live && std::env::var_os("NO_COLOR").is_none(),
            start: now,
            followed: 0,
            steps: 0,
            drawn: 0,
            with_table: false,
            table: Vec::new(),
            last_line: (now, String::new()),
        }
    }

    pub(crate) fn title(&self, text: &str) {
        println!("\n{}", self.paint(BOLD, text));
    }

    /// Begins to show orders; the one with the number `followed` step by step.
    pub(crate) fn begin(&mut self, start: Instant, followed: usize, with_table: bool) {
        (self.start, self.followed, self.with_table) = (start, followed, with_table);
        (self.steps, self.drawn) = (0, 0);
        if self.live && with_table {
            // No cursor, and long lines are cut: a wrapped one could not be drawn over.
            print!("\x1b[?25l\x1b[?7l");
        }
    }

    /// Shows how things are.
    pub(crate) fn show(&mut self, book: &Book, topology: &Topology, counts: &Counts) {
        let steps = self.story(&book.orders[self.followed], topology);
        if self.with_table {
            self.table = self.draw_table(book, topology, counts);
        }
        if self.live && self.with_table {
            self.draw_frame(book, topology, &steps);
            return;
        }
        for step in &steps[self.steps.min(steps.len())..] {
            println!("{step}");
        }
        self.steps = steps.len();
        if self.with_table {
            self.append_line(book, topology, counts);
        }
    }

    /// Ends what [`Self::begin`] began.
    pub(crate) fn end(&mut self) {
        if !self.with_table {
            return;
        }
        if self.live {
            self.restore();
        } else {
            println!();
            self.table.iter().for_each(|line| println!("{line}"));
        }
        self.with_table = false;
    }

    fn restore(&self) {
        print!("\x1b[?7h\x1b[?25h");
        let _ = stdout().flush();
    }

    fn draw_frame(&mut self, book: &Book, topology: &Topology, steps: &[String]) {
        let mut lines = self.table.clone();
        lines.push(String::new());
        let title = format!("Order {}, step by step", book.orders[self.followed].name);
        lines.push(self.paint(BOLD, &title));
        lines.extend_from_slice(steps);
        // Room for every step, so that nothing below moves.
        lines.resize(self.table.len() + 2 + topology.tiers.len() + 2, String::new());
        lines.push(String::new());
        lines.push(self.paint(DIM, &consumers(book)));
        let mut frame = String::new();
        if self.drawn > 0 {
            let _ = write!(frame, "\x1b[{}A", self.drawn);
        }
        for line in &lines {
            let _ = writeln!(frame, "\r{line}\x1b[K");
        }
        self.drawn = lines.len();
        let mut out = stdout().lock();
        let _ = out.write_all(frame.as_bytes()).and_then(|()| out.flush());
    }

    fn append_line(&mut self, book: &Book, topology: &Topology, counts: &Counts) {
        let totals = totals(book.orders.iter(), topology, counts);
        let mut line = String::new();
        for (name, total) in columns(topology).iter().zip(totals) {
            let _ = write!(line, "  {name} {total}");
        }
        let (at, last) = &self.last_line;
        if *last != line && (last.is_empty() || at.elapsed() >= LINE_EVERY) {
            println!("{:7.2} s{line}", self.start.elapsed().as_secs_f64());
            self.last_line = (Instant::now(), line);
        }
    }

    fn draw_table(&self, book: &Book, topology: &Topology, counts: &Counts) -> Vec<String> {
        let names = columns(topology);
        let line = |first: &str, cells: &mut dyn Iterator<Item = (String, &str)>| {
            let mut line = format!("{first:16}");
            for (name, (cell, colour)) in names.iter().zip(cells) {
                let width = name.len().max(7) + 3;
                line += &self.paint(colour, &format!("{cell:>width$}"));
            }
            line
        };
        let seconds = format!("{:.1} s", self.start.elapsed().as_secs_f64());
        let delays = ["", ""].into_iter().map(str::to_owned);
        let delays = delays.chain(topology.tiers.iter().map(|tier| tier.wanted.clone()));
        let mut lines = vec![
            line("orders", &mut names.iter().map(|name| (name.clone(), BOLD))),
            line(&seconds, &mut delays.chain(vec![String::new(); 3]).map(|delay| (delay, DIM))),
        ];
        for kind in ROWS {
            let totals = totals(book.of(kind), topology, counts);
            lines.push(line(
                kind.word(),
                &mut colours(topology).zip(totals).map(|(colour, total)| number(total, colour)),
            ));
        }
        let broker = ["".to_owned()].into_iter().chain(from_the_broker(topology, counts));
        lines.push(line("broker's counts", &mut broker.map(|count| (count, DIM))));
        lines
    }

    /// The steps of one order.
    fn story(&self, order: &Order, topology: &Topology) -> Vec<String> {
        let since = |at: Instant| at.saturating_duration_since(self.start).as_secs_f64();
        let waits = order.waits().zip(&topology.tiers).map(Some);
        let mut steps = Vec::new();
        for (delivery, wait) in order.deliveries.iter().zip([None].into_iter().chain(waits)) {
            let (verb, colour) = match delivery.report.result {
                Outcome::Processed => ("processed", GREEN),
                Outcome::Rejected => ("rejected", YELLOW),
                Outcome::Crashed => ("crashed", MAGENTA),
            };
            let done = format!("{} by {}", self.paint(colour, verb), delivery.report.consumer);
            let time = since(delivery.at);
            steps.push(match wait {
                None => format!("{time:7.2} s  {done}"),
                Some((waited, tier)) => format!(
                    "{time:7.2} s  {done}, after {:.3} s in {} (wanted: {})",
                    waited.as_secs_f64(),
                    tier.queue,
                    tier.wanted
                ),
            });
        }
        if order.place(topology.tiers.len()) == Place::Dead {
            steps.push(format!("           {} in {}", self.paint(RED, "ends"), topology.dead));
        }
        steps
    }

    /// Says that the check went well, with the figures behind it.
    pub(crate) fn summary(&self, book: &Book, topology: &Topology) {
        self.title(&format!(
            "All {} orders are where they belong, read from the queues themselves:",
            book.orders.len()
        ));
        let count = |kind| book.of(kind).count();
        let processed = count(Kind::Fine) + count(Kind::FailsOnce) + count(Kind::FailsTwice);
        println!("  {processed} processed, {} of them at once", count(Kind::Fine));
        println!(
            "  {} in {} after {} attempts",
            count(Kind::FailsAlways),
            topology.dead,
            topology.tiers.len() + 1
        );
        let crashes: Vec<usize> = book.of(Kind::Crashes).map(|order| order.deliveries.len()).collect();
        let (least, most) = (crashes.iter().min().unwrap_or(&0), crashes.iter().max().unwrap_or(&0));
        let range = if least == most { most.to_string() } else { format!("{least} to {most}") };
        println!(
            "  {} in {} after {range} crashes each, which is the delivery limit",
            crashes.len(),
            topology.poison
        );
        println!("Every wait was as long as the pipeline says, and until a consumer was free:");
        for (number, tier) in topology.tiers.iter().enumerate() {
            let patient = book.orders.iter().filter(|order| order.kind != Kind::Crashes);
            let waits: Vec<Duration> = patient.filter_map(|order| order.waits().nth(number)).collect();
            if let (Some(least), Some(most)) = (waits.iter().min(), waits.iter().max()) {
                let (least, most) = (least.as_secs_f64(), most.as_secs_f64());
                println!(
                    "  {}  wanted {:>3}, {:2} waits of {least:.3} to {most:.3} s",
                    tier.queue,
                    tier.wanted,
                    waits.len()
                );
            }
        }
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colours && !colour.is_empty() {
            format!("\x1b[{colour}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.live && self.with_table {
            self.restore();
        }
    }
}

/// The columns' names.
fn columns(topology: &Topology) -> Vec<String> {
    let prefix = format!("{}.", topology.source);
    let tiers = topology.tiers.iter().map(|tier| tier.queue.trim_start_matches(&prefix).to_owned());
    let fixed = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    fixed(&["published", "in queue"])
        .into_iter()
        .chain(tiers)
        .chain(fixed(&["processed", "DLQ", "quarantine"]))
        .collect()
}

fn colours(topology: &Topology) -> impl Iterator<Item = &'static str> {
    let tiers = vec![YELLOW; topology.tiers.len()];
    ["", ""].into_iter().chain(tiers).chain([GREEN, RED, MAGENTA])
}

fn number(count: usize, colour: &str) -> (String, &str) {
    if count == 0 { ("·".to_owned(), DIM) } else { (count.to_string(), colour) }
}

/// How many of these orders are in each column.
fn totals<'a>(orders: impl Iterator<Item = &'a Order>, topology: &Topology, counts: &Counts) -> Vec<usize> {
    let tiers = topology.tiers.len();
    let mut totals = vec![0; tiers + 5];
    let mut crashing = 0;
    for order in orders {
        let column = match order.place(tiers) {
            Place::NotPublished => continue,
            Place::Source => 1,
            Place::Tier(number) => 2 + number,
            Place::Processed => 2 + tiers,
            Place::Dead => 3 + tiers,
        };
        totals[0] += 1;
        totals[column] += 1;
        crashing += usize::from(order.kind == Kind::Crashes && column == 1);
    }
    // The broker does not say which of them it has put into quarantine.
    let poisoned = crashing.min(counts.get(&topology.poison).copied().flatten().unwrap_or(0) as usize);
    totals[1] -= poisoned;
    totals[tiers + 4] += poisoned;
    totals
}

/// The messages ready in the queue of each column but the first.
fn from_the_broker<'a>(topology: &'a Topology, counts: &'a Counts) -> impl Iterator<Item = String> {
    let count = |queue: &str| match counts.get(queue).copied().flatten() {
        Some(count) => count.to_string(),
        None => "missing".to_owned(),
    };
    let tiers = topology.tiers.iter().map(move |tier| count(&tier.queue));
    let rest = [String::new(), count(&topology.dead), count(&topology.poison)];
    [count(&topology.source)].into_iter().chain(tiers).chain(rest)
}

/// What each consumer has done so far.
fn consumers(book: &Book) -> String {
    let mut done: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for report in book.orders.iter().flat_map(|order| &order.deliveries).map(|delivery| &delivery.report) {
        let (settled, crashes) = done.entry(&report.consumer).or_default();
        match report.result {
            Outcome::Crashed => *crashes += 1,
            Outcome::Processed | Outcome::Rejected => *settled += 1,
        }
    }
    let each =
        done.iter().map(|(name, (settled, crashes))| format!("{name}: {settled} settled, {crashes} crashes"));
    each.collect::<Vec<_>>().join("   ")
}
