//! Names: templates, limits, generations, and patterns that match exactly one.
//!
//! A name is used byte for byte as the user wrote it. Case is never folded and
//! Unicode is never normalised, since the broker does neither.

/// The longest name that AMQP can carry, in bytes (`shortstr`).
pub const MAX_NAME_BYTES: usize = 255;

/// The longest policy pattern that the broker accepts, in bytes.
pub const MAX_PATTERN_BYTES: usize = 1024;

/// The internal exchange whose bindings mark what belongs to which resource.
pub const OWNER_EXCHANGE: &str = "redrive.owner";

/// Adds the suffix of a generation; the first one has none.
#[must_use]
pub fn generation(name: &str, generation: u32) -> String {
    if generation <= 1 { name.to_owned() } else { format!("{name}.g{generation}") }
}

/// Reads the generation of `name` back, given the name of generation one.
#[must_use]
pub fn generation_of(base: &str, name: &str) -> Option<u32> {
    let rest = name.strip_prefix(base)?;
    if rest.is_empty() {
        return Some(1);
    }
    let digits = rest.strip_prefix(".g")?;
    let number: u32 = digits.parse().ok()?;
    // "g02" or "g1" is never written, so it is somebody else's name.
    (number > 1 && number.to_string() == digits).then_some(number)
}

/// Ends the names of queues that stand in for another while that is made anew.
const STAND_IN: &str = ".moving";

/// The name of a queue that stands in for another.
#[must_use]
pub fn stand_in(queue: &str, number: u32) -> String {
    generation(&format!("{queue}{STAND_IN}"), number)
}

/// The queue that one of this name stands in for.
#[must_use]
pub fn stood_in_for(queue: &str) -> Option<&str> {
    let (original, _) = queue.rsplit_once(STAND_IN)?;
    generation_of(&format!("{original}{STAND_IN}"), queue).map(|_| original)
}

/// Expands `{queue}`, `{attempt}` and `{delay}`.
#[must_use]
pub fn expand(template: &str, queue: &str, attempt: u32, delay: &str) -> String {
    // One pass, so that a queue called "{attempt}" stays what it is.
    let mut out = String::with_capacity(template.len() + queue.len());
    let mut rest = template;
    while let Some(start) = rest.find('{') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let (token, value) = [
            ("{queue}", queue.to_owned()),
            ("{attempt}", attempt.to_string()),
            ("{delay}", delay.to_owned()),
        ]
        .into_iter()
        .find(|(token, _)| rest.starts_with(token))
        .unwrap_or(("{", "{".to_owned()));
        out.push_str(&value);
        rest = &rest[token.len()..];
    }
    out.push_str(rest);
    out
}

/// A pattern that matches `name` and nothing else.
///
/// The broker searches with Erlang's `re`, byte by byte and unanchored, so both
/// ends are anchored and every metacharacter is escaped. `\z`, because `$` also
/// matches before a trailing line break.
#[must_use]
pub fn exact_pattern(name: &str) -> String {
    format!("^{}\\z", escape(name))
}

/// Escapes every metacharacter of the broker's regular expressions.
#[must_use]
pub fn escape(literal: &str) -> String {
    let mut escaped = String::with_capacity(literal.len() + 8);
    for character in literal.chars() {
        if character.is_ascii() && !character.is_ascii_alphanumeric() && !"_-/: ".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// Why a name can't be used, or `None`. `what` starts the sentence.
#[must_use]
pub fn problem(what: &str, name: &str) -> Option<String> {
    if name.is_empty() {
        return Some(format!("{what} is empty: give it a name"));
    }
    if name.len() > MAX_NAME_BYTES {
        return Some(format!(
            "{what} {name:?} has {} bytes: at most {MAX_NAME_BYTES} are allowed, so shorten the queue's name or the template",
            name.len()
        ));
    }
    if name.chars().any(char::is_control) {
        return Some(format!(
            "{what} {name:?} has a control character: the broker would drop it silently, so remove it"
        ));
    }
    if name.trim() != name {
        return Some(format!("{what} {name:?} begins or ends with a blank: remove it"));
    }
    if name == "." || name == ".." {
        return Some(format!("{what} {name:?} can't be addressed over HTTP: use another name"));
    }
    None
}

/// Like [`problem`], and refuses the prefixes that are not for users.
#[must_use]
pub fn declared_problem(what: &str, name: &str) -> Option<String> {
    problem(what, name).or_else(|| {
        let reserved = ["amq.", "redrive."].into_iter().find(|prefix| name.starts_with(prefix))?;
        Some(format!("{what} {name:?} begins with {reserved:?}, which is reserved: use another name"))
    })
}

/// Milliseconds in the largest exact unit, such as `90s` or `2m`.
#[must_use]
pub fn duration(milliseconds: i64) -> String {
    const UNITS: [(i64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    UNITS
        .into_iter()
        .find(|(size, _)| milliseconds != 0 && milliseconds % size == 0)
        .map_or_else(|| format!("{milliseconds}ms"), |(size, unit)| format!("{}{unit}", milliseconds / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_read_back_as_it_was_written() {
        for number in [1, 2, 10] {
            let name = generation("orders.retry.0", number);
            assert_eq!(generation_of("orders.retry.0", &name), Some(number));
        }
        for foreign in [
            "orders.retry.0.g1",
            "orders.retry.0.g02",
            "orders.retry.01",
            "orders.retry",
            "orders.retry.0.gx",
        ] {
            assert_eq!(generation_of("orders.retry.0", foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_stand_in_tells_for_what() {
        for number in [1, 2, 4] {
            assert_eq!(stood_in_for(&stand_in("orders.dlq", number)), Some("orders.dlq"));
        }
        for other in ["orders.dlq", "orders.moving.dlq", "orders.dlq.moving.g1", "orders.dlq.movinge"] {
            assert_eq!(stood_in_for(other), None, "{other}");
        }
    }

    #[test]
    fn a_template_is_expanded_in_one_pass() {
        assert_eq!(expand("{queue}.retry.{attempt}", "{delay}", 3, "5s"), "{delay}.retry.3");
        assert_eq!(expand("{queue}-{delay}{x}", "q", 0, "2m"), "q-2m{x}");
    }

    #[test]
    fn patterns_escape_every_metacharacter_and_both_ends() {
        assert_eq!(exact_pattern("orders.retry.1"), "^orders\\.retry\\.1\\z");
        assert_eq!(exact_pattern("a+b(c)[d]$^?*{2}\\|"), "^a\\+b\\(c\\)\\[d\\]\\$\\^\\?\\*\\{2\\}\\\\\\|\\z");
        assert_eq!(exact_pattern("zakaz-é"), "^zakaz-é\\z");
    }

    #[test]
    fn durations_use_the_largest_exact_unit() {
        let cases = [
            (300, "300ms"),
            (5_000, "5s"),
            (90_000, "90s"),
            (120_000, "2m"),
            (1_209_600_000, "14d"),
            (0, "0ms"),
        ];
        for (milliseconds, text) in cases {
            assert_eq!(duration(milliseconds), text);
        }
    }

    #[test]
    fn the_pattern_of_the_longest_name_stays_below_the_limit() {
        for name in [".".repeat(MAX_NAME_BYTES), "+é".repeat(MAX_NAME_BYTES / 3), "\\".repeat(MAX_NAME_BYTES)]
        {
            assert!(exact_pattern(&name).len() <= MAX_PATTERN_BYTES);
        }
    }

    #[test]
    fn names_are_measured_in_bytes() {
        assert!(problem("queue", &"é".repeat(127)).is_none());
        assert!(problem("queue", &"é".repeat(128)).is_some_and(|text| text.contains("256 bytes")));
    }
}
