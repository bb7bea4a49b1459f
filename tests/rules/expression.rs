//! What an expression of Prometheus names, as far as these tests need it.

use std::collections::BTreeSet;

use fancy_regex::Regex;

/// Words that are no metric. Functions and aggregations are known by the bracket behind them.
const KEYWORDS: [&str; 4] = ["and", "or", "unless", "bool"];

/// The metrics in an expression.
pub(crate) fn metrics(expression: &str) -> BTreeSet<String> {
    let mut rest = expression.to_owned();
    // Texts first, since they may hold brackets; then matchers and ranges, lists of labels, offsets.
    let labels = r"\b(by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)";
    for part in [r#""[^"]*""#, r"\{[^}]*\}", r"\[[^\]]*\]", labels, r"\boffset\s+\w+"] {
        rest = Regex::new(part).unwrap().replace_all(&rest, " ").into_owned();
    }
    let word = Regex::new(r"(?<![\w:.])[A-Za-z_:][\w:]*+(?!\s*\()").unwrap();
    let words = word.find_iter(&rest).map(|found| found.unwrap().as_str().to_owned());
    words.filter(|word| !KEYWORDS.contains(&word.as_str())).collect()
}

/// Name and labels of a series or a sample, such as `up{job="a"}`; the name may be missing.
pub(crate) fn series(notation: &str) -> (String, BTreeSet<String>) {
    let (name, labels) = notation.split_once('{').unwrap_or((notation, ""));
    let label = Regex::new(r#"(\w+)="[^"]*""#).unwrap();
    let names = label.captures_iter(labels).map(|found| found.unwrap()[1].to_owned()).collect();
    (name.to_owned(), names)
}

#[test]
fn metrics_are_told_from_functions_labels_and_words() {
    let expression = r#"sum by (a, b) (rate(x_total{c="up(d)",e=~"f"}[5m] offset 1h)) / on (g) group_left ()
        max_over_time(job:y:rate5m[1h:1m]) > bool 1e3 and absent(z) unless w == 0.5"#;
    assert_eq!(metrics(expression), ["job:y:rate5m", "w", "x_total", "z"].map(str::to_owned).into());
}
