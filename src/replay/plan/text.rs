//! A plan as text, for people.

use std::fmt;

use super::Plan;
use super::preflight::Severity;
use super::sketch::Top;
use super::survey::Summary;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "in the queue: {}", self.in_source)?;
        match &self.summary {
            Some(summary) => write_summary(f, summary)?,
            None => writeln!(f, "not read, as a finding forbids it")?,
        }
        if self.scan_limit_reached {
            writeln!(f, "more messages stand behind those that may be read")?;
        }
        match self.routes.as_slice() {
            [] => writeln!(f, "routes: none known")?,
            routes => writeln!(f, "routes: {} ({})", routes.len(), routes.join(", "))?,
        }
        if let Some(expected) = self.expected {
            writeln!(f, "expected duration: {}.{:03} s", expected.as_secs(), expected.subsec_millis())?;
        }
        for finding in &self.findings {
            let severity = match finding.severity {
                Severity::Info => "info",
                Severity::Warning => "warning",
                Severity::Error => "error",
            };
            writeln!(f, "{severity}: {}: {}", finding.check, finding.message)?;
        }
        writeln!(f, "hash: {}", self.hash)
    }
}

fn write_summary(f: &mut fmt::Formatter<'_>, summary: &Summary) -> fmt::Result {
    writeln!(f, "read: {}, matching: {}", summary.examined, summary.matching)?;
    for (left, count) in &summary.left {
        writeln!(f, "  left ({left:?}): {count}")?;
    }
    let histogram = &summary.histogram;
    let parts = [
        ("reason", &histogram.reasons),
        ("error type", &histogram.error_types),
        ("category", &histogram.categories),
        ("stack hash", &histogram.stack_hashes),
        ("origin", &histogram.origins),
        ("age", &histogram.ages),
    ];
    for (name, top) in parts {
        write_top(f, name, top)?;
    }
    histogram.headers.iter().try_for_each(|(name, top)| write_top(f, name, top))
}

fn write_top(f: &mut fmt::Formatter<'_>, name: &str, top: &Top) -> fmt::Result {
    if top.values.is_empty() {
        return Ok(());
    }
    let at_least = if top.lower_bounds { " (at least)" } else { "" };
    writeln!(f, "by {name}{at_least}:")?;
    for bucket in &top.values {
        writeln!(f, "  {:>8}  {}", bucket.count, bucket.value)?;
    }
    if top.other > 0 {
        writeln!(f, "  {:>8}  (other)", top.other)?;
    }
    Ok(())
}
