//! Paths of the management API.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::error::BrokerError;

/// Everything but RFC 3986's unreserved characters.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Joins segments behind `/api`, encoding each exactly once.
///
/// # Errors
/// [`BrokerError::Unaddressable`] for `.`, `..` and empty segments: clients and
/// broker drop them even when encoded (NAM-05, NAM-06), so that the request
/// would hit another resource. A vhost named `..` would turn the deletion of a
/// queue into that of something else.
pub(crate) fn api(segments: &[&str]) -> Result<String, BrokerError> {
    let mut path = String::with_capacity(64);
    path.push_str("/api");
    for segment in segments {
        if matches!(*segment, "" | "." | "..") {
            return Err(BrokerError::Unaddressable { name: (*segment).to_owned() });
        }
        path.push('/');
        path.extend(utf8_percent_encode(segment, SEGMENT));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_segment_is_encoded_exactly_once() {
        let cases = [
            ("/", "%2F"),
            ("a/b", "a%2Fb"),
            ("100%", "100%25"),
            ("%2F", "%252F"),
            ("a+b c?#;&", "a%2Bb%20c%3F%23%3B%26"),
            ("é", "%C3%A9"),
            ("a.b-c_d~", "a.b-c_d~"),
        ];
        for (name, encoded) in cases {
            assert_eq!(api(&["queues", name]).unwrap(), format!("/api/queues/{encoded}"));
        }
    }

    #[test]
    fn a_segment_that_would_vanish_is_refused() {
        for name in ["", ".", ".."] {
            assert!(matches!(api(&["queues", name, "q"]), Err(BrokerError::Unaddressable { .. })));
        }
        assert!(api(&["queues", "..."]).is_ok());
    }
}
