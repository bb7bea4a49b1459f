//! What a moved message looks like: everything stays but the lists on this page.
//!
//! Guarantees: the body and every property and header that no list names stay bit for bit;
//! what comes out can be published, or [`Unmovable`] says why not. Left out: what only the
//! broker knows, such as a body above its own limit.

use super::death;
use super::id::replay_id;
use super::message::{Message, Outgoing, Properties, Table, Value};
use super::origin::header as origin;
use super::run::{OnFailure, Rewriting};
use super::size;

/// Headers that Redrive gives to every message that it moves.
pub mod header {
    /// The id by which consumers recognise what a crash published twice, a text.
    pub const ID: &str = "x-redrive-replay-id";
    /// How often the message was replayed, over all runs; the broker's own count ends at a
    /// publish. A whole number.
    pub const COUNT: &str = "x-redrive-replay-count";
    /// When it was replayed, in milliseconds since 1970.
    pub const AT: &str = "x-redrive-replayed-at";
    /// The replay as `namespace/name`.
    pub const REQUEST: &str = "x-redrive-request";
    /// `dead-letter` where a message that fails again is to go straight to the DLQ.
    pub const ON_FAILURE: &str = "x-redrive-on-failure";
}

/// Headers that say how the message came here, or that would lead it astray.
pub const STRIPPED: [&str; 16] = [
    "CC",
    "BCC",
    "x-delivery-count",
    "x-acquired-count",
    "x-opt-redrive",
    "x-opt-category",
    header::ON_FAILURE,
    "x-death",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-first-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
    "x-last-death-exchange",
    // A delayed-message exchange would hold it again, and a deduplicating one drop it.
    "x-delay",
    "x-deduplication-header",
];

/// The counters of client libraries: with them, a replayed message would have no retry left.
pub const RETRY_COUNTERS: [&str; 7] = [
    "x-rabbitkit-retry-count",
    "x-retry-count",
    "x-retries",
    "retry-count",
    "MT-Redelivery-Count",
    "NServiceBus.Retries",
    "NServiceBus.FLRetries",
];

/// The name that stands for "answer on this channel", which nobody else's channel can do.
pub(super) const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to";

/// The longest time to live that the broker takes, in milliseconds.
const MAX_EXPIRATION: u64 = 315_360_000_000;

/// What a connection can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// The largest frame that was agreed on; zero for no limit.
    pub frame_max: u32,
    /// The largest body that the broker takes, where it is known.
    pub max_body: Option<u64>,
}

/// Where one message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// The exchange; empty for the default one.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
}

/// Why a message is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be worked on again.
    Replay,
    /// To be put aside: this is no replay, so its count stays.
    PutAside,
}

/// Why a message can't be published, however it is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmovable {
    /// Its properties alone need a larger frame.
    Headers {
        /// What they need, in bytes.
        bytes: usize,
    },
    /// Its body is larger than the broker takes.
    Body {
        /// Its size in bytes.
        bytes: usize,
    },
    /// It asks for an answer on the channel that publishes it, which the broker refuses.
    DirectReply,
    /// It keeps a time to live that is none.
    Expiration,
}

/// How often a message was replayed so far; a header that is no number counts as never.
#[must_use]
pub fn replays(message: &Message) -> u64 {
    message.properties.header(header::COUNT).and_then(Value::as_count).unwrap_or_default()
}

/// The message as it will be published at `now`, in milliseconds since 1970.
///
/// Where the headers fit into a frame without ours alone, those of the origin are left out.
///
/// # Errors
/// [`Unmovable`], for a message that stays where it is.
pub fn rewrite(
    message: Message,
    to: Address<'_>,
    purpose: Purpose,
    rewriting: &Rewriting,
    wire: Wire,
    now: u64,
) -> Result<Outgoing, Unmovable> {
    check(&message, rewriting, wire)?;
    let id = replay_id(&rewriting.run, &message);
    let ours = ours(&message, purpose, rewriting, id, now);
    let origins = origins(&message);
    let mut properties = strip(message.properties, rewriting);
    properties.headers.get_or_insert_default().extend(ours);
    let fits = |bytes: usize| wire.frame_max == 0 || bytes <= wire.frame_max as usize;
    let bytes = size::header_frame(&properties);
    if !fits(bytes) {
        return Err(Unmovable::Headers { bytes });
    }
    if fits(bytes + size::fields(&origins)) {
        let headers = properties.headers.get_or_insert_default();
        for (name, value) in origins {
            headers.entry(name).or_insert(value);
        }
    }
    let exchange = to.exchange.to_owned();
    Ok(Outgoing { exchange, routing_key: to.routing_key.to_owned(), properties, body: message.body })
}

fn check(message: &Message, rewriting: &Rewriting, wire: Wire) -> Result<(), Unmovable> {
    let bytes = message.body.len();
    if wire.max_body.is_some_and(|most| bytes as u64 > most) {
        return Err(Unmovable::Body { bytes });
    }
    if message.properties.reply_to.as_deref() == Some(DIRECT_REPLY) {
        return Err(Unmovable::DirectReply);
    }
    let expiration = message.properties.expiration.as_deref().filter(|_| rewriting.keep_expiration);
    if expiration.is_some_and(|text| !is_expiration(text)) {
        return Err(Unmovable::Expiration);
    }
    Ok(())
}

fn is_expiration(text: &str) -> bool {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits && text.parse::<u64>().is_ok_and(|millis| millis <= MAX_EXPIRATION)
}

fn strip(properties: Properties, rewriting: &Rewriting) -> Properties {
    let kept = rewriting.idempotency.as_ref().map(|idempotency| idempotency.header.as_str());
    let strip = |name: &str| STRIPPED.contains(&name) || RETRY_COUNTERS.contains(&name);
    let headers = properties.headers.map(|mut headers| {
        headers.retain(|name, _| !strip(name) || kept == Some(name));
        headers
    });
    let expiration = properties.expiration.filter(|_| rewriting.keep_expiration);
    Properties { headers, expiration, user_id: None, delivery_mode: Some(2), ..properties }
}

/// What every consumer and the next replay must find.
fn ours(message: &Message, purpose: Purpose, rewriting: &Rewriting, id: String, now: u64) -> Table {
    let replayed = purpose == Purpose::Replay;
    let count = replays(message).saturating_add(u64::from(replayed));
    let mut headers = Table::from([
        (header::COUNT.to_owned(), Value::I64(i64::try_from(count).unwrap_or(i64::MAX))),
        (header::AT.to_owned(), Value::I64(i64::try_from(now).unwrap_or(i64::MAX))),
        (header::REQUEST.to_owned(), Value::from(rewriting.request.as_str())),
    ]);
    if replayed && rewriting.on_failure == OnFailure::DeadLetter {
        headers.insert(header::ON_FAILURE.to_owned(), Value::from("dead-letter"));
    }
    if let Some(idempotency) = &rewriting.idempotency
        && idempotency.generate
        && message.properties.header(&idempotency.header).is_none()
    {
        // Not the message id, which publishers may use twice: a consumer would drop the second.
        headers.insert(idempotency.header.clone(), Value::from(id.as_str()));
    }
    headers.insert(header::ID.to_owned(), Value::Text(id.into_bytes()));
    headers
}

/// Where the message first came from. What an earlier replay wrote stays as a whole.
fn origins(message: &Message) -> Table {
    let mut headers = Table::new();
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value.filter(|_| message.properties.header(name).is_none()) {
            headers.insert(name.to_owned(), value);
        }
    };
    let text = |text: String| Value::Text(text.into_bytes());
    add(origin::USER_ID, message.properties.user_id.clone().map(text));
    let names = [origin::QUEUE, origin::EXCHANGE, origin::KEYS, origin::REASON, origin::TIME];
    let known = names.iter().any(|name| message.properties.header(name).is_some());
    if let Some(first) = death::deaths(message).first.filter(|_| !known) {
        let keys = Value::Array(first.routing_keys.into_iter().map(text).collect());
        add(origin::QUEUE, first.queue.map(text));
        add(origin::EXCHANGE, first.exchange.map(text));
        add(origin::KEYS, Some(keys).filter(|keys| *keys != Value::Array(Vec::new())));
        add(origin::REASON, first.reason.map(text));
        add(origin::TIME, first.time.map(Value::Timestamp));
    }
    headers
}
