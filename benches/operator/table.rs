//! The figures as a table.

use std::time::Duration;

/// One row.
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) ours: String,
    /// What it is compared with, in the same run.
    pub(crate) reference: String,
    pub(crate) ratio: Option<f64>,
    pub(crate) limit: String,
    pub(crate) verdict: Verdict,
}

/// How a figure stands to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is no limit.
    Shown,
    /// Within.
    Kept,
    /// Beyond, but not by more than a busy machine explains.
    Missed,
    /// So far beyond that something must be wrong.
    Broken,
}

/// A figure beyond its limit by this factor is broken, and not a matter of noise.
const BY_FAR: f64 = 2.0;

impl Verdict {
    /// A value that should stay below a limit, and is subject to noise.
    pub(crate) fn below(value: f64, limit: f64) -> Self {
        match value {
            value if value <= limit => Self::Kept,
            value if value <= limit * BY_FAR => Self::Missed,
            _ => Self::Broken,
        }
    }

    /// A count that is exact, whatever the machine does.
    pub(crate) fn exactly(holds: bool) -> Self {
        if holds { Self::Kept } else { Self::Broken }
    }
}

impl Figure {
    /// A time against a limit.
    pub(crate) fn time(what: impl Into<String>, took: Duration, limit: Option<f64>) -> Self {
        let seconds = took.as_secs_f64();
        Self {
            what: what.into(),
            ours: format!("{seconds:.2} s"),
            reference: String::new(),
            ratio: None,
            limit: limit.map_or_else(String::new, |limit| format!("< {limit} s")),
            verdict: limit.map_or(Verdict::Shown, |limit| Verdict::below(seconds, limit)),
        }
    }

    /// A time against the bare script's.
    pub(crate) fn against_script(what: impl Into<String>, ours: Duration, script: Duration) -> Self {
        let ratio = ours.as_secs_f64() / script.as_secs_f64();
        Self {
            reference: format!("script {:.2} s", script.as_secs_f64()),
            ratio: Some(ratio),
            limit: "≤ 1.5×".to_owned(),
            verdict: Verdict::below(ratio, 1.5),
            ..Self::time(what, ours, None)
        }
    }

    /// A count that must hold exactly.
    pub(crate) fn count(what: impl Into<String>, count: impl ToString, limit: &str, holds: bool) -> Self {
        Self {
            what: what.into(),
            ours: count.to_string(),
            reference: String::new(),
            ratio: None,
            limit: limit.to_owned(),
            verdict: Verdict::exactly(holds),
        }
    }

    /// A quantity with a limit.
    pub(crate) fn quantity(what: impl Into<String>, value: f64, unit: &str, limit: Option<f64>) -> Self {
        Self {
            what: what.into(),
            ours: format!("{value:.1} {unit}"),
            reference: String::new(),
            ratio: None,
            limit: limit.map_or_else(String::new, |limit| format!("≤ {limit} {unit}")),
            verdict: limit.map_or(Verdict::Shown, |limit| Verdict::below(value, limit)),
        }
    }
}

/// Prints all rows, columns in line.
pub(crate) fn print(figures: &[Figure]) {
    let heads = ["figure", "ours", "against", "ratio", "limit", ""].map(str::to_owned);
    let rows = figures.iter().map(|figure| {
        let verdict = match figure.verdict {
            Verdict::Shown => "",
            Verdict::Kept => "ok",
            Verdict::Missed => "missed",
            Verdict::Broken => "BROKEN",
        };
        let ratio = figure.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}×"));
        let (what, ours, reference) = (figure.what.clone(), figure.ours.clone(), figure.reference.clone());
        [what, ours, reference, ratio, figure.limit.clone(), verdict.to_owned()]
    });
    let rows: Vec<[String; 6]> = std::iter::once(heads).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        println!("{}", cells.join("  ").trim_end());
    }
}
