//! What a message looks like that waits in another queue while its own is made anew.
//!
//! All of it stays, bit for bit, but what the broker would act upon once more, would refuse, or
//! counts itself.

use super::message::{Properties, Value};
use super::origin::header::USER_ID;
use super::rewrite::DIRECT_REPLY;

/// Headers that would lead the message elsewhere as well, and counts of the queue it was in.
const LEFT_OUT: [&str; 4] = ["CC", "BCC", "x-delivery-count", "x-acquired-count"];

/// The properties with which the message is published again.
#[must_use]
pub fn relocate(properties: Properties) -> Properties {
    let mut headers = properties.headers;
    if let Some(headers) = &mut headers {
        headers.retain(|name, _| !LEFT_OUT.contains(&name.as_str()));
    }
    // Only who logs in under a name may publish under it.
    if let Some(user) = properties.user_id {
        let known = headers.get_or_insert_default();
        known.entry(USER_ID.to_owned()).or_insert_with(|| Value::Text(user.into_bytes()));
    }
    // Its channel is not ours, and the broker refuses it from another.
    let reply_to = properties.reply_to.filter(|queue| queue != DIRECT_REPLY);
    Properties { headers, reply_to, user_id: None, ..properties }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::message::Table;

    fn headers(names: &[&str]) -> Table {
        names.iter().map(|name| ((*name).to_owned(), Value::I32(1))).collect()
    }

    #[test]
    fn all_of_a_message_stays_but_what_the_broker_would_act_upon() {
        let before = Properties {
            headers: Some(headers(&[
                "CC",
                "BCC",
                "x-delivery-count",
                "x-acquired-count",
                "x-death",
                "tenant",
            ])),
            reply_to: Some("answers".to_owned()),
            expiration: Some("1000".to_owned()),
            priority: Some(3),
            ..Properties::default()
        };
        let after = relocate(before.clone());
        assert_eq!(after, Properties { headers: Some(headers(&["x-death", "tenant"])), ..before });
    }

    #[test]
    fn the_user_is_kept_in_a_header_and_the_first_one_stays() {
        let of = |user: &str, headers: Option<Table>| {
            let user_id = Some(user.to_owned());
            relocate(Properties { user_id, headers, ..Properties::default() })
        };
        let once = of("billing", None);
        assert_eq!(once.user_id, None);
        assert_eq!(once.header(USER_ID).and_then(Value::as_text), Some("billing"));
        let twice = of("redrive", once.headers);
        assert_eq!(twice.header(USER_ID).and_then(Value::as_text), Some("billing"));
    }

    #[test]
    fn a_direct_reply_is_left_out() {
        let reply_to = Some(DIRECT_REPLY.to_owned());
        assert_eq!(relocate(Properties { reply_to, ..Properties::default() }), Properties::default());
    }
}
