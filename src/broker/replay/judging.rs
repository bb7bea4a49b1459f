//! The judge's own thread: expressions and rewriting keep no IO waiting.

use std::sync::Arc;

use lapin::message::Delivery;
use tokio::sync::mpsc;

use super::largest::Largest;
use super::publisher::Parcel;
use super::reader::Brought;
use super::{Judge, convert};
use crate::replay::engine::{Tag, Verdict};
use crate::replay::message::Message;
use crate::replay::run::{Fate, Fence, Left};
use crate::replay::size;

/// What is kept of a selected message until it is settled.
#[derive(Debug)]
pub(super) struct Content {
    /// What is to be published; nothing for a discard, and while it is under way.
    pub(super) parcel: Option<Arc<Parcel>>,
    /// What was read, without its body, where records are kept.
    pub(super) original: Option<Arc<Message>>,
    /// Where it goes.
    pub(super) went: Option<(String, String)>,
    pub(super) replay_id: Option<String>,
}

/// A judged message. What stays has no content any more.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) tag: Tag,
    pub(super) bytes: u64,
    pub(super) verdict: Verdict,
    pub(super) content: Option<Content>,
}

/// What comes out of the judge's thread, in the order in which it went in.
#[derive(Debug)]
pub(super) enum Said {
    Judged(Vec<Judged>),
    Cancelled,
}

/// Something on its way through, with its session and the fence of that time.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) session: u32,
    pub(super) fence: Fence,
    pub(super) brought: Brought,
}

/// The judge with what it needs.
pub(super) struct Judging<J> {
    pub(super) judge: J,
    pub(super) keeps_records: bool,
    pub(super) largest: Largest,
}

impl<J: Judge> Judging<J> {
    /// Judges until no more cases can come, or nobody listens. Blocks its thread.
    pub(super) fn run(mut self, mut cases: mpsc::Receiver<Case>, said: &mpsc::Sender<(u32, Said)>) {
        while let Some(Case { session, fence, brought }) = cases.blocking_recv() {
            let what = match brought {
                Brought::Cancelled => Said::Cancelled,
                Brought::Messages(messages) => {
                    let judged = messages.into_iter().map(|(tag, delivery)| self.one(tag, delivery, fence));
                    Said::Judged(judged.collect())
                }
            };
            if said.blocking_send((session, what)).is_err() {
                return;
            }
        }
    }

    fn one(&mut self, tag: Tag, delivery: Delivery, fence: Fence) -> Judged {
        let message = convert::message(delivery);
        let size = size::header_frame(&message.properties).saturating_add(message.body.len());
        let judged = |verdict, content| Judged { tag, bytes: size as u64, verdict, content };
        let name = message.properties.message_id.clone();
        let original = self.keeps_records.then(|| Arc::new(without_body(&message)));
        match self.judge.judge(message, fence) {
            Fate::Publish { message, over_limit } => {
                let went = Some((message.exchange.clone(), message.routing_key.clone()));
                let fits = self.largest.takes(message.body.len());
                let Some(parcel) = fits.then(|| Parcel::pack(*message).ok()).flatten() else {
                    let verdict = Verdict::Leave { why: Left::Unmovable, name };
                    return judged(verdict, None);
                };
                let replay_id = Some(parcel.id.clone());
                let parcel = Some(Arc::new(parcel));
                let content = Some(Content { parcel, original, went, replay_id });
                judged(Verdict::Publish { over_limit }, content)
            }
            Fate::Discard => {
                let content = Some(Content { parcel: None, original, went: None, replay_id: None });
                judged(Verdict::Discard, content)
            }
            Fate::Leave(why) => {
                let name = if why == Left::Unmovable { name } else { None };
                judged(Verdict::Leave { why, name }, None)
            }
        }
    }
}

fn without_body(message: &Message) -> Message {
    Message {
        exchange: message.exchange.clone(),
        routing_key: message.routing_key.clone(),
        redelivered: message.redelivered,
        properties: message.properties.clone(),
        body: Vec::new(),
    }
}
