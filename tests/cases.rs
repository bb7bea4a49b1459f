//! Pages that name tests can't rot: every case has one line in docs/cases.md, every failure and every
//! threat a test, and every test named there exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What names tests.
const PAGES: [&str; 3] = ["docs/cases.md", "docs/failure-modes.md", "docs/security.md"];

/// The words that stand where a test is missing, or shows a part only.
const WORDS: [&str; 4] = ["**Replay**", "**Operations**", "**Not here**", "**Open**"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn read(below: &str) -> String {
    fs::read_to_string(root().join(below)).unwrap_or_else(|error| panic!("{below}: {error}"))
}

fn page() -> String {
    read("docs/cases.md")
}

/// All ids of the cases, one a line.
fn ids() -> Vec<String> {
    read("tests/cases/ids.txt").lines().map(str::to_owned).collect()
}

/// `IMM-01` and the like, or `T1` of replays.
fn is_id(text: &str) -> bool {
    if text.strip_prefix('T').is_some_and(|number| number.parse::<u32>().is_ok()) {
        return true;
    }
    let (letters, number) = text.split_once('-').unwrap_or_default();
    let is_upper = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    !letters.is_empty() && letters.bytes().all(is_upper) && number.parse::<u32>().is_ok()
}

/// The cells of each row that begins with an id.
fn rows(page: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim_matches('|').split('|');
        inner.map(|cell| cell.trim().to_owned()).collect()
    };
    page.lines().filter(|line| line.starts_with('|')).map(cells).filter(|cells| is_id(&cells[0])).collect()
}

/// What stands between backticks and looks like `file.rs: function`.
fn tests_in(text: &str) -> Vec<(String, String)> {
    let quoted = text.split('`').skip(1).step_by(2);
    let named = quoted.filter_map(|quoted| quoted.split_once(".rs: "));
    named.map(|(file, name)| (format!("{file}.rs"), name.to_owned())).collect()
}

/// Whether the function stands in the text behind an attribute that makes it a test.
fn is_test(source: &str, name: &str) -> bool {
    let Some(start) = source.find(&format!("fn {name}(")) else { return false };
    let before = &source[..start];
    let attributes = before.rfind("\n\n").map_or(before, |end| &before[end..]);
    ["#[test]", "#[tokio::test", "#[rstest]"].iter().any(|attribute| attributes.contains(attribute))
}

#[test]
fn every_case_has_exactly_one_line() {
    let mut found: BTreeMap<String, usize> = ids().into_iter().map(|id| (id, 0)).collect();
    assert_eq!(found.len(), 227, "each id stands once in tests/cases/ids.txt");
    for row in rows(&page()) {
        let count = found.get_mut(&row[0]).unwrap_or_else(|| panic!("{} is no case", row[0]));
        *count += 1;
    }
    found.retain(|_, count| *count != 1);
    assert!(found.is_empty(), "not exactly one line: {found:?}");
}

#[test]
fn every_line_names_a_test_or_says_why_there_is_none() {
    for row in rows(&page()) {
        assert_eq!(row.len(), 3, "{row:?}");
        assert!(!row[1].is_empty(), "{row:?}");
        let says_why = WORDS.iter().any(|word| row[2].contains(word));
        assert!(says_why || !tests_in(&row[2]).is_empty(), "{row:?}");
    }
}

/// The rows below the headings of tables whose last column is the test.
fn tested_rows(page: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_tested = false;
    for line in page.lines() {
        if line.ends_with("| test |") {
            is_tested = true;
        } else if !line.starts_with('|') {
            is_tested = false;
        } else if is_tested && !line.starts_with("|---") {
            found.push(line);
        }
    }
    found
}

#[test]
fn every_failure_and_every_threat_names_a_test() {
    for (page, least) in [("docs/failure-modes.md", 60), ("docs/security.md", 40)] {
        let text = read(page);
        let rows = tested_rows(&text);
        assert!(rows.len() >= least, "{page}: {} rows are found", rows.len());
        for row in rows {
            let last = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
            assert!(!tests_in(last).is_empty(), "{page}: {row}");
        }
    }
}

#[test]
fn every_test_that_is_named_exists() {
    let named: Vec<_> = PAGES.iter().flat_map(|page| tests_in(&read(page))).collect();
    assert!(named.len() > 300, "{} names are found", named.len());
    let missing: Vec<String> = named
        .iter()
        .filter(|(file, name)| !fs::read_to_string(root().join(file)).is_ok_and(|text| is_test(&text, name)))
        .map(|(file, name)| format!("{file}: {name}"))
        .collect();
    assert!(missing.is_empty(), "not there: {missing:#?}");
}

#[test]
fn a_disagreement_is_explained_where_a_line_says_so() {
    let page = page();
    let (_, explained) = page.split_once("## Where a case and the design disagree").expect("the section");
    for row in rows(&page) {
        if row[2].contains("see below") {
            assert!(explained.contains(&row[0]), "{} is not explained", row[0]);
        }
    }
}
