//! One message as text, with no more of it than the pipeline allows. Pure.

use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;

use crate::cli::replay::text::clean;
use crate::replay::death;
use crate::replay::message::{Message, Value};
use crate::replay::origin;

/// The longest body that is shown whole, in bytes.
const MAX_BODY: usize = 1_024;

/// The longest value of a header that is shown whole, in characters.
const MAX_VALUE: usize = 255;

/// A message with the headers that may be shown, and its body if that may be shown as well.
pub(super) fn sample(number: u64, message: &Message, headers: &[String], with_body: bool) -> String {
    let id = message.properties.message_id.as_deref().map_or("without an id".to_owned(), short);
    let mut out = format!("  {number}. {id}\n");
    let mut row = |name: &str, text: &str| {
        let _ = writeln!(out, "       {name:<12} {text}");
    };
    if let Some(origin) = origin::origin(message) {
        row("from", &format!("{:?} with key {:?}", short(&origin.exchange), short(&origin.routing_key)));
    }
    let deaths = death::deaths(message);
    let reason = deaths.last_reason.as_deref().map_or("unknown".to_owned(), short);
    let first = deaths.first.and_then(|death| death.queue);
    let first = first.map(|queue| format!(", first in {}", short(&queue))).unwrap_or_default();
    row("died", &format!("{reason}{first}{}", when(deaths.time)));
    for name in headers {
        if let Some(value) = message.properties.header(name).and_then(Value::printed) {
            row(&clean(name), &short(&value));
        }
    }
    if with_body {
        row("body", &body(&message.body));
    }
    out
}

fn when(seconds: Option<u64>) -> String {
    let moment = seconds.and_then(|seconds| Timestamp::from_second(i64::try_from(seconds).ok()?).ok());
    moment.map(|moment| format!(", at {moment} or later")).unwrap_or_default()
}

fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", clean(&text[..end])),
        None => clean(text),
    }
}

fn body(bytes: &[u8]) -> String {
    let more = bytes.len().saturating_sub(MAX_BODY);
    let shown = &bytes[..bytes.len() - more];
    let text = match std::str::from_utf8(shown) {
        Ok(text) => text,
        // Cut in the middle of a letter.
        Err(error) if more > 0 && error.error_len().is_none() => {
            std::str::from_utf8(&shown[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return format!("{} bytes that are no text", bytes.len()),
    };
    if more > 0 { format!("{}… ({} bytes in all)", clean(text), bytes.len()) } else { clean(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::message::Table;

    fn message() -> Message {
        let mut message = Message::default();
        message.properties.message_id = Some("m-1".to_owned());
        message.properties.headers = Some(Table::from([
            ("x-first-death-queue".to_owned(), Value::from("orders.queue")),
            ("x-first-death-reason".to_owned(), Value::from("rejected")),
            ("x-last-death-reason".to_owned(), Value::from("rejected")),
            ("x-tenant-id".to_owned(), Value::from("42\u{1b}[2J")),
            ("authorization".to_owned(), Value::from("secret")),
        ]));
        message.body = b"{\"card\": 1}".to_vec();
        message
    }

    #[test]
    fn only_what_is_allowed_is_shown() {
        let text = sample(1, &message(), &["x-tenant-id".to_owned(), "x-absent".to_owned()], false);
        let wanted = "  1. m-1\n       died         rejected, first in orders.queue\n       x-tenant-id  42\\u{1b}[2J\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_body_is_shown_where_that_is_allowed() {
        assert!(sample(1, &message(), &[], true).ends_with("       body         {\"card\": 1}\n"));
        assert_eq!(body(&[0xff, 0]), "2 bytes that are no text");
        let long = body("ä".repeat(2_000).as_bytes());
        assert!(long.ends_with("ä… (4000 bytes in all)"), "{long}");
        assert_eq!(body(b"a\nb"), "a\\nb");
    }
}
