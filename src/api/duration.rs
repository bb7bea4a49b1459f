//! A span of time as it is written in a manifest.
//!
//! What it guarantees: two spellings of the same span (`90s`, `1m30s`) are equal, and what is
//! printed is the largest unit that divides the span exactly (`336h` prints as `14d`). What it
//! leaves out: fractions (`1.5s`), signs, weeks and months.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Each unit with its length in milliseconds and the most digits that may stand before it, from
/// the longest to the shortest. The digits are those of ten years, the broker's own limit, and
/// keep every sum inside what the API server's nanoseconds can hold.
const UNITS: [(&str, i64, usize); 5] =
    [("d", 86_400_000, 4), ("h", 3_600_000, 5), ("m", 60_000, 7), ("s", 1_000, 9), ("ms", 1, 12)];

/// The pattern a duration has to match: each unit at most once, the longest first.
///
/// The empty string matches as well; the schema refuses it by `minLength`.
pub const PATTERN: &str = "^([0-9]{1,4}d)?([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,12}ms)?$";

/// A span of time in whole milliseconds, never negative, such as `500ms`, `5s`, `1h30m` or `14d`.
///
/// Compared by value, not by spelling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(i64);

impl Duration {
    /// A span of that many milliseconds; a negative number counts as zero.
    pub const fn from_millis(millis: i64) -> Self {
        Self(if millis < 0 { 0 } else { millis })
    }

    /// A span of that many seconds; a negative number counts as zero.
    pub const fn from_secs(secs: i64) -> Self {
        Self::from_millis(secs.saturating_mul(1_000))
    }

    /// The span in milliseconds.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The span for the clocks of the standard library.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0.unsigned_abs())
    }
}

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no duration: write whole numbers with d, h, m, s or ms, such as 5s, 1h30m or 14d")]
pub struct NotADuration(String);

impl FromStr for Duration {
    type Err = NotADuration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(Self).ok_or_else(|| NotADuration(text.to_owned()))
    }
}

/// The milliseconds of a text that matches [`PATTERN`] and isn't empty.
fn parse(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut millis = 0_i64;
    let mut units = UNITS.iter();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        // `find` on the iterator consumes the units before it: no unit twice, none out of order.
        let (_, factor, most) = units.find(|(name, ..)| *name == unit)?;
        if number.len() > *most {
            return None;
        }
        millis = millis.checked_add(number.parse::<i64>().ok()?.checked_mul(*factor)?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(millis)
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let exact = UNITS.iter().find(|(_, factor, _)| self.0 % factor == 0);
        let (unit, factor, _) = exact.unwrap_or(&("ms", 1, 12));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // `format: duration` makes CEL see a duration instead of a text, so that rules compare by
        // value. The API server's parser of it knows days, other than Go's own.
        json_schema!({
            "type": "string",
            "format": "duration",
            "minLength": 2,
            "maxLength": 32,
            "pattern": PATTERN,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    fn parsed(text: &str) -> Duration {
        text.parse().unwrap()
    }

    #[test]
    fn every_unit_is_understood() {
        for (text, millis) in
            [("500ms", 500), ("5s", 5_000), ("2m", 120_000), ("336h", 1_209_600_000), ("14d", 1_209_600_000)]
        {
            assert_eq!(parsed(text).as_millis(), millis, "{text}");
        }
    }

    #[test]
    fn units_combine_from_the_longest_to_the_shortest() {
        assert_eq!(parsed("1h30m").as_millis(), 5_400_000);
        assert_eq!(parsed("1d12h30m15s250ms").as_millis(), 131_415_250);
    }

    #[test]
    fn two_spellings_of_one_span_are_equal() {
        assert_eq!(parsed("90s"), parsed("1m30s"));
        assert_eq!(parsed("336h"), parsed("14d"));
    }

    #[test]
    fn it_prints_in_the_largest_exact_unit() {
        for (text, printed) in [
            ("336h", "14d"),
            ("90s", "90s"),
            ("60s", "1m"),
            ("1h30m", "90m"),
            ("1500ms", "1500ms"),
            ("0s", "0s"),
        ] {
            assert_eq!(parsed(text).to_string(), printed);
        }
    }

    #[test]
    fn what_is_printed_reads_back_as_the_same_span() {
        for millis in [0, 1, 999, 1_000, 61_000, 3_600_000, 315_360_000_000] {
            let span = Duration::from_millis(millis);
            assert_eq!(parsed(&span.to_string()), span);
        }
    }

    #[test]
    fn ten_years_can_be_written_in_every_unit() {
        let decade = Duration::from_millis(315_360_000_000);
        for text in ["3650d", "87600h", "5256000m", "315360000s", "315360000000ms"] {
            assert_eq!(parsed(text), decade, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "5", "s", "1.5s", "-5s", "5 s", "30m1h", "5s5s", "2w", "1y", "99999d", "5S"] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        assert_eq!(
            "2w".parse::<Duration>().unwrap_err().to_string(),
            "\"2w\" is no duration: write whole numbers with d, h, m, s or ms, such as 5s, 1h30m or 14d"
        );
    }
}
