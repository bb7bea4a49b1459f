//! A report for people.

use std::fmt::Write as _;

use super::cost::Cost;
use super::notes::{Level, Note};
use super::report::{Planned, Report};
use crate::cli::capacity::Capacity;
use crate::cli::units::{bytes, count, span};
use crate::topology::model::Queue;

/// Columns of running text.
const WIDTH: usize = 96;

/// Everything but the errors, which go to standard error.
pub(super) fn render(report: &Report) -> String {
    let mut out = String::new();
    for skipped in &report.skipped {
        let _ = writeln!(
            out,
            "skipped: {}, document {}: {} {} is no RetryPipeline",
            skipped.file, skipped.document, skipped.kind, skipped.name
        );
    }
    for planned in &report.pipelines {
        if !out.is_empty() {
            out.push('\n');
        }
        pipeline(&mut out, planned);
    }
    out
}

fn pipeline(out: &mut String, planned: &Planned) {
    let Planned { file, document, namespace, name, vhost, broker, plan, .. } = planned;
    let _ = writeln!(out, "{namespace}/{name} ({file}, document {document})");
    let _ = match &broker.address {
        Some(address) => {
            writeln!(out, "compared with RabbitMQ {} at {address}, vhost {vhost:?}", broker.version)
        }
        None => {
            writeln!(out, "for an empty vhost {vhost:?} of RabbitMQ {}; no broker was asked", broker.version)
        }
    };
    let _ = writeln!(out, "\nSteps\n{}", indented(&plan.to_string()));
    cost(out, &planned.cost);
    contract(out, &planned.client_contract);
    notes(out, &planned.notes);
    if let Some(table) = &planned.capacity {
        capacity(out, table);
    }
}

fn indented(text: &str) -> String {
    text.lines().fold(String::new(), |out, line| out + "  " + line + "\n")
}

fn cost(out: &mut String, cost: &Cost) {
    let writes = match cost.policy_writes {
        0 => return,
        1 => "1 policy write".to_owned(),
        writes => format!("{writes} policy writes"),
    };
    let text = match &cost.vhost {
        Some(vhost) => format!(
            "{writes}, about {} s in all with the {} queues and {} policies of this vhost (an estimate). Each write \
             matches every queue against every policy.",
            vhost.estimated_seconds, vhost.queues, vhost.policies
        ),
        None => format!(
            "{writes}. Each matches every queue of the vhost against every policy: about 0.01 s in a small vhost, \
             0.08 s with 200 queues and 200 policies, 1.1 s with 1,000 and 1,000."
        ),
    };
    out.push_str("Cost\n");
    paragraph(out, "  ", &text);
    out.push('\n');
}

fn contract(out: &mut String, queues: &[Queue]) {
    out.push_str("Applications may declare these queues, durable and with exactly these arguments\n");
    for queue in queues {
        let arguments: Vec<String> =
            queue.arguments.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        let _ = writeln!(out, "  {} {{{}}}", queue.name, arguments.join(", "));
    }
    out.push('\n');
}

fn notes(out: &mut String, notes: &[Note]) {
    out.push_str("Notes\n");
    for note in notes {
        paragraph(out, if note.level == Level::Warning { "  ! " } else { "  - " }, &note.text);
    }
}

fn capacity(out: &mut String, capacity: &Capacity) {
    out.push_str("\nCapacity (an estimate)\n");
    let head = ["queue", "arrivals", "held for", "messages", "memory", "disk", "members"];
    let mut rows = vec![head.map(str::to_owned)];
    for row in &capacity.rows {
        rows.push([
            row.queue.clone(),
            format!("{}/s", rate(row.arrivals_per_second)),
            held(row.held_seconds),
            count(row.messages),
            bytes(row.memory_bytes),
            bytes(row.disk_bytes),
            format!("× {}", row.replicas),
        ]);
    }
    let total = &capacity.total;
    rows.push([
        "all members".to_owned(),
        String::new(),
        String::new(),
        count(total.messages),
        bytes(total.memory_bytes),
        bytes(total.disk_bytes),
        String::new(),
    ]);
    table(out, &rows);
    for assumption in &capacity.assumptions {
        paragraph(out, "  - ", assumption);
    }
}

/// The first column to the left, numbers to the right.
fn table<const N: usize>(out: &mut String, rows: &[[String; N]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let padding = " ".repeat(widths[column] - cell.chars().count());
            let _ = if column == 0 {
                write!(line, " {cell}{padding}")
            } else {
                write!(line, "  {padding}{cell}")
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

fn rate(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[expect(clippy::cast_possible_truncation, reason = "at most ten years, or what was typed in days")]
fn held(seconds: f64) -> String {
    // Whole seconds are enough for all but the shortest delays.
    let milliseconds = (seconds * 1000.0).round() as i64;
    span(if milliseconds > 5_000 { milliseconds / 1000 * 1000 } else { milliseconds })
}

/// Text in lines that are not too long; the first begins with a mark.
fn paragraph(out: &mut String, mark: &str, text: &str) {
    let indent = " ".repeat(mark.chars().count());
    let mut line = mark.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            out.push_str(&line);
            out.push('\n');
            line.clone_from(&indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    out.push_str(&line);
    out.push('\n');
}
