//! What an unwelcome answer means.
//!
//! The management API gives 401 two meanings, 404 four, and wraps errors of
//! the broker's core into 400 (API-06, API-08, API-09, NAM-08); only the body
//! tells them apart: `{"error": "…", "reason": "…"}`.

use serde_json::Value;

use super::error::BrokerError;
use super::http::{About, Http};

/// As much of a broker's sentence as goes into a message, in characters.
const MAX_REASON: usize = 500;

/// The two fields of an error's body, empty where they are not strings.
#[derive(Default)]
struct Refusal {
    error: String,
    reason: String,
}

impl Refusal {
    fn parse(body: &[u8]) -> Option<Self> {
        let Ok(Value::Object(mut fields)) = serde_json::from_slice(body) else { return None };
        let mut take = |key| match fields.remove(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        Some(Self { error: take("error")?, reason: bounded(&unescaped(&take("reason").unwrap_or_default())) })
    }
}

/// 4.0 escapes `<`, `>` and `&` for HTML, 4.3 does not.
fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// Cuts a sentence and removes line breaks and other control characters.
pub(crate) fn bounded(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect()
}

/// Turns an answer into an error. Words of the body are used only once the
/// server has proved to be a RabbitMQ.
pub(crate) fn classify(http: &Http, status: u16, body: &[u8], about: &About<'_>) -> BrokerError {
    let address = http.address();
    let not_rabbit = |why| BrokerError::NotRabbit { address: address.clone(), why };
    let refusal = Refusal::parse(body);
    let proved = http.proved.initialized();
    match (status, &refusal) {
        (401, Some(refusal)) => unauthorized(http, refusal, proved, about),
        (401, None) => not_rabbit("it asks for credentials in another way"),
        (403, _) => forbidden(http, refusal.filter(|_| proved).map(|r| r.reason), about),
        (404, _) if !proved => not_rabbit("it has no /api/overview: check the path in uri"),
        (404, refusal) => not_found(http, refusal.as_ref(), about),
        (429 | 500.., _) => BrokerError::ServerError { action: about.to_string(), status },
        (400, Some(refusal)) if proved => bad_request(http, &refusal.reason, about),
        (_, refusal) if proved => {
            let reason =
                refusal.as_ref().map_or_else(|| "(without a reason)".to_owned(), |r| r.reason.clone());
            BrokerError::Refused { action: about.to_string(), status, reason }
        }
        _ => not_rabbit("it does not know /api/overview"),
    }
}

/// `not_authorized` means the credentials, `not_authorised` a permission, a
/// tag or a reserved name. The spelling is the only difference.
fn unauthorized(http: &Http, refusal: &Refusal, proved: bool, about: &About<'_>) -> BrokerError {
    if refusal.error == "not_authorised" {
        return forbidden(http, proved.then(|| refusal.reason.clone()), about);
    }
    BrokerError::Unauthorized { address: http.address(), username: http.username().to_owned() }
}

fn forbidden(http: &Http, reason: Option<String>, about: &About<'_>) -> BrokerError {
    let reason = reason.filter(|text| !text.is_empty());
    BrokerError::Forbidden {
        username: http.username().to_owned(),
        action: about.to_string(),
        reason: reason.unwrap_or_else(|| "it lacks a permission or a tag such as management".to_owned()),
    }
}

/// PUT and POST into a missing vhost say `vhost_not_found`, bindings name what
/// is missing, and all else says `Object Not Found` for a missing vhost and a
/// missing object alike. Two answers must not be taken for absence, or things
/// would count as cleaned up that are still there: 4.3 hides a vhost that the
/// user has no permission in behind `not_found` / `Not Found` (4.0 says 401),
/// and a 404 of another shape comes from something before the broker.
fn not_found(http: &Http, refusal: Option<&Refusal>, about: &About<'_>) -> BrokerError {
    let (error, reason) =
        refusal.map_or(("", ""), |refusal| (refusal.error.as_str(), refusal.reason.as_str()));
    if is_missing_vhost(error) || is_missing_vhost(reason) {
        return BrokerError::VhostNotFound { vhost: about.vhost.to_owned() };
    }
    match (error, reason) {
        ("not_found", "Not Found") => {
            forbidden(http, Some("it has no permission in the vhost".to_owned()), about)
        }
        ("not_found", reason) => {
            BrokerError::NotFound { action: about.to_string(), reason: reason.to_owned() }
        }
        ("Object Not Found", _) => {
            BrokerError::NotFound { action: about.to_string(), reason: "it does not exist".to_owned() }
        }
        _ => BrokerError::ServerError { action: about.to_string(), status: 404 },
    }
}

pub(crate) fn is_missing_vhost(text: &str) -> bool {
    text.contains("vhost_not_found") || text.contains("vhost_or_user_not_found") || {
        text.contains("vhost") && text.contains("not found")
    }
}

/// Errors of the broker's core arrive as 400, some with an AMQP code in the
/// text.
pub(crate) fn bad_request(http: &Http, reason: &str, about: &About<'_>) -> BrokerError {
    let action = about.to_string();
    if let Some((key, wanted, found)) = inequivalent(reason, about.vhost) {
        return BrokerError::Inequivalent { object: about.what.clone(), key, wanted, found };
    }
    if reason.contains("limit") && reason.contains("is reached") {
        return BrokerError::QuotaExceeded { action, reason: reason.to_owned() };
    }
    if reason.contains("ACCESS_REFUSED") {
        return forbidden(http, Some(reason.to_owned()), about);
    }
    if is_missing_vhost(reason) {
        return BrokerError::VhostNotFound { vhost: about.vhost.to_owned() };
    }
    if reason.ends_with("in use") {
        return BrokerError::InUse { action };
    }
    if is_crash(reason) {
        return BrokerError::ServerError { action, status: 400 };
    }
    BrokerError::Refused { action, status: 400, reason: reason.to_owned() }
}

/// Whether the call crashed inside the broker, which is no refusal: 4.3 does so where a
/// queue is deleted while a binding to it is made, and the next try finds it gone.
fn is_crash(reason: &str) -> bool {
    reason.starts_with("Request to node ")
        && reason.contains("failed with {'EXIT'")
        && !reason.contains("amqp_error")
}

/// Takes `inequivalent arg 'K' for queue 'Q' in vhost 'V': received W but
/// current is F` apart: (K, W, F). Names may contain any of these words, so
/// the known vhost marks where the values begin.
pub(crate) fn inequivalent(reason: &str, vhost: &str) -> Option<(String, String, String)> {
    let rest = &reason[reason.find("inequivalent arg '")? + "inequivalent arg '".len()..];
    let (key, rest) = rest.split_once("' for ")?;
    let marker = format!("in vhost '{vhost}': received ");
    let (_, values) = rest.rsplit_once(&marker).or_else(|| rest.split_once(": received "))?;
    let (wanted, found) = values.split_once(" but current is ")?;
    Some((key.to_owned(), value(wanted), value(found)))
}

/// `the value 'x' of type 'longstr'` becomes `'x' (longstr)`; `'x'` becomes
/// `x`; `none` stays.
fn value(text: &str) -> String {
    if let Some(rest) = text.strip_prefix("the value '")
        && let Some((value, kind)) = rest.rsplit_once("' of type '")
    {
        return format!("{value} ({})", kind.trim_end_matches('\''));
    }
    text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')).unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three(reason: &str, vhost: &str) -> (String, String, String) {
        inequivalent(reason, vhost).unwrap()
    }

    fn strings(key: &str, wanted: &str, found: &str) -> (String, String, String) {
        (key.to_owned(), wanted.to_owned(), found.to_owned())
    }

    #[test]
    fn the_broker_tells_what_differs_in_several_ways() {
        let cases = [
            ("received '60000' but current is '30000'", "60000", "30000"),
            ("received none but current is the value 'x' of type 'longstr'", "none", "x (longstr)"),
            ("received the value 'y' of type 'longstr' but current is none", "y (longstr)", "none"),
        ];
        for (values, wanted, found) in cases {
            let reason = format!("inequivalent arg 'k' for queue 'q' in vhost '/': {values}");
            assert_eq!(three(&reason, "/"), strings("k", wanted, found));
        }
    }

    #[test]
    fn names_that_look_like_the_sentence_do_not_confuse() {
        let reason = "inequivalent arg 'durable' for queue ': received ' but current is ' in vhost 'a': received \
            'true' but current is 'false'";
        assert_eq!(three(reason, "a"), strings("durable", "true", "false"));
        assert_eq!(inequivalent("queue limit in vhost 'v' (1) is reached", "v"), None);
    }

    #[test]
    fn a_sentence_is_cut_and_has_no_line_breaks() {
        let text = bounded(&"a\n\u{1b}é".repeat(500));
        assert_eq!(text.chars().count(), MAX_REASON);
        assert!(!text.contains(['\n', '\u{1b}']));
    }
}
