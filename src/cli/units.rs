//! Numbers with units, as people type them.

use std::fmt;
use std::str::FromStr;

/// A version of RabbitMQ that a plan is made for without asking a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// Major, minor, patch.
    pub(super) numbers: (u32, u32, u32),
    text: String,
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no version: write 4.3 or 4.3.6");
        let parts: Vec<u32> =
            text.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        let numbers = match parts[..] {
            // Delayed retry came with 4.3.1; who says 4.3 means a release that has it.
            [4, 3] => (4, 3, 1),
            [major, minor] => (major, minor, 0),
            [major, minor, patch] => (major, minor, patch),
            _ => return Err(wrong()),
        };
        Ok(Self { numbers, text: text.to_owned() })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Messages per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate(pub(super) f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, seconds) = match text.split_once('/') {
            None => (text, 1.0),
            Some((number, "s")) => (number, 1.0),
            Some((number, "m")) => (number, 60.0),
            Some((number, "h")) => (number, 3600.0),
            Some((number, "d")) => (number, 86_400.0),
            Some(_) => ("", 1.0),
        };
        positive(number)
            .map(|number| Self(number / seconds))
            .ok_or_else(|| format!("{text:?} is no rate: write messages per s, m, h or d, such as 50/s"))
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Size(pub(super) f64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, f64); 8] = [
            ("KiB", 1024.0),
            ("MiB", 1_048_576.0),
            ("GiB", 1_073_741_824.0),
            ("kB", 1e3),
            ("KB", 1e3),
            ("MB", 1e6),
            ("GB", 1e9),
            ("B", 1.0),
        ];
        let unit = UNITS.into_iter().find(|(unit, _)| text.ends_with(unit)).unwrap_or(("", 1.0));
        positive(text.strip_suffix(unit.0).unwrap_or(text))
            .map(|number| Self(number * unit.1))
            .ok_or_else(|| format!("{text:?} is no size: write bytes, kB, KiB, MB or MiB, such as 4KiB"))
    }
}

/// A share in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Percent(pub(super) f64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.strip_suffix('%')
            .unwrap_or(text)
            .parse()
            .ok()
            .filter(|number| (0.0..=100.0).contains(number))
            .map(Self)
            .ok_or_else(|| format!("{text:?} is no percentage: write a number from 0 to 100"))
    }
}

/// A number of days.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Days(pub(super) f64);

impl FromStr for Days {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        positive(text).map(Self).ok_or_else(|| format!("{text:?} is no number of days: write one such as 14"))
    }
}

fn positive(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)
}

/// Bytes in the unit that leaves one to four digits.
pub(super) fn bytes(number: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut number = number;
    let mut unit = 0;
    while number >= 1024.0 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{number:.0} B") } else { format!("{number:.1} {}", UNITS[unit]) }
}

/// A count with commas between thousands.
pub(super) fn count(number: f64) -> String {
    let digits = format!("{:.0}", number.ceil());
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Milliseconds as the two largest units that matter, such as `12m35s`.
pub(super) fn span(milliseconds: i64) -> String {
    const UNITS: [(i64, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let mut rest = milliseconds;
    let mut text = String::new();
    for (size, unit) in UNITS {
        if rest >= size {
            text.push_str(&format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("4.3", (4, 3, 1))]
    #[case("4.0", (4, 0, 0))]
    #[case("4.3.0", (4, 3, 0))]
    fn a_version_has_two_or_three_numbers(#[case] text: &str, #[case] numbers: (u32, u32, u32)) {
        assert_eq!(text.parse::<Version>().unwrap().numbers, numbers);
    }

    #[rstest]
    #[case("4")]
    #[case("4.3.1.2")]
    #[case("4.x")]
    #[case("")]
    fn anything_else_is_no_version(#[case] text: &str) {
        assert!(text.parse::<Version>().is_err());
    }

    #[test]
    fn rates_and_sizes_are_brought_to_one_unit() {
        assert_eq!("50/s".parse(), Ok(Rate(50.0)));
        assert_eq!("50".parse(), Ok(Rate(50.0)));
        assert_eq!("120/m".parse(), Ok(Rate(2.0)));
        assert_eq!("4KiB".parse(), Ok(Size(4096.0)));
        assert_eq!("4kB".parse(), Ok(Size(4000.0)));
        assert_eq!("512".parse(), Ok(Size(512.0)));
        assert_eq!("1.5MiB".parse(), Ok(Size(1_572_864.0)));
    }

    #[rstest]
    #[case("-1/s")]
    #[case("0")]
    #[case("5/w")]
    #[case("inf")]
    #[case("NaN/s")]
    fn a_rate_is_a_positive_number(#[case] text: &str) {
        assert!(text.parse::<Rate>().is_err());
    }

    #[test]
    fn numbers_print_short() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(count(1_234_567.2), "1,234,568");
        assert_eq!(count(999.0), "999");
        assert_eq!(span(755_000), "12m35s");
        assert_eq!(span(0), "0s");
        assert_eq!(span(86_400_500), "1d500ms");
    }
}
