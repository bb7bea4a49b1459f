//! The read itself: a queue gets every message back in its place, a stream loses none by being read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::sample::sample;
use super::source::Source;
use crate::broker::replay::convert;
use crate::broker::replay::examine::Examination;
use crate::broker::replay::preflight::{Look, Touched};
use crate::broker::{AddressGuard, Management, amqp, stream};
use crate::replay::judge::RunJudge;
use crate::replay::message::Message;
use crate::replay::plan::facts::{Facts, Kind};
use crate::replay::plan::preflight::{Asked, Severity, findings};
use crate::replay::plan::survey::{Summary, Survey};
use crate::replay::rewrite::Wire;
use crate::replay::run::{Canary, Fence, Guard, OnFailure, Rewriting, Target};
use crate::replay::selection::{Criteria, Selection};

/// How the connection is called on the broker.
const NAME: &str = "redrive inspect";

/// What was found.
pub(super) struct Reading {
    pub(super) queue: String,
    /// Messages in the queue; a stream does not say.
    pub(super) ready: Option<u64>,
    pub(super) summary: Summary,
    /// The oldest messages, as text.
    pub(super) samples: Vec<String>,
}

/// Reads at most so many messages, and keeps the text of the first ones.
pub(super) async fn read(source: &Source, most: u64, samples: u32) -> Result<Reading, String> {
    // Who may read the Secret or types an address may mean this machine.
    let guard = AddressGuard::new(true, []);
    let error = |error: crate::broker::BrokerError| error.to_string();
    let management = Management::new(&source.endpoint, guard.clone()).map_err(error)?;
    let broker = management.overview().await.map_err(error)?;
    let connection = amqp::connect(&source.endpoint, &guard, &source.vhost, NAME).await.map_err(error)?;
    let look = Look {
        management: &management,
        connection: &connection,
        endpoint: &source.endpoint,
        vhost: &source.vhost,
    };
    let touched = Touched { origin: &source.queue, target: &Target::Discard, limit_queue: None };
    let facts = look.facts(&broker.facts, touched).await.map_err(error)?;
    let queue = facts.origin_queue.clone().ok_or_else(|| format!("there is no queue {:?}", source.queue))?;
    let mut census = Census::new(source, samples)?;
    let ready = if queue.kind == Kind::Stream {
        let count = |delivery| census.count(convert::message(delivery));
        stream::read(&connection, &source.queue, None, most, count).await?;
        None
    } else {
        refuse(&facts)?;
        let examination = Examination {
            connection: &connection,
            endpoint: &source.endpoint,
            vhost: &source.vhost,
            queue: &source.queue,
            most,
            hold: None,
        };
        examination.run(|message| census.count(message)).await.map_err(|error| error.to_string())?;
        Some(queue.ready.unwrap_or_default())
    };
    let _ = connection.close(200, "OK".into()).await;
    Ok(Reading {
        queue: source.queue.clone(),
        ready,
        summary: census.survey.summary(),
        samples: census.samples,
    })
}

/// Whether a read would harm the messages, or find none.
fn refuse(facts: &Facts) -> Result<(), String> {
    let asked = Asked { allow_fanout: true, keep_expiration: false, deadline: Duration::ZERO };
    let texts: Vec<String> = findings(facts, &asked, &unguarded(), None)
        .into_iter()
        // A classic queue that drops its oldest would drop what is returned; all of these are about the origin.
        .filter(|finding| finding.severity == Severity::Error)
        .map(|finding| finding.message)
        .collect();
    if texts.is_empty() { Ok(()) } else { Err(texts.join("; ")) }
}

/// Nothing moves, so nothing is guarded.
fn unguarded() -> Guard {
    Guard {
        stop_on_return_percent: 100,
        sample: 1,
        min_returns: 1,
        canary: Canary { messages: 1, after: Duration::ZERO, tries: 1 },
        pause_above_target_depth: None,
        require_consumers: false,
        max_unroutable: 1,
    }
}

/// Counts messages, and keeps the text of the first ones.
struct Census<'a> {
    source: &'a Source,
    survey: Survey,
    wanted: usize,
    samples: Vec<String>,
}

impl<'a> Census<'a> {
    fn new(source: &'a Source, samples: u32) -> Result<Self, String> {
        let selection = Selection::new(Criteria::default(), false).map_err(|error| error.to_string())?;
        // Never used: nothing is rewritten.
        let rewriting = Rewriting {
            request: String::new(),
            run: String::new(),
            on_failure: OnFailure::DeadLetter,
            keep_expiration: true,
            idempotency: None,
            max_replays: u32::MAX,
            replay_limit_queue: None,
        };
        let wire = Wire { frame_max: 0, max_body: None };
        let judge = RunJudge::new(selection, Target::Discard, rewriting, wire, Box::new(now));
        let fence = Fence { count: u64::MAX, time: now() };
        let survey = Survey::new(judge, "", fence, &source.headers);
        Ok(Self {
            source,
            survey,
            wanted: usize::try_from(samples).unwrap_or(usize::MAX),
            samples: Vec::new(),
        })
    }

    fn count(&mut self, message: Message) {
        if self.samples.len() < self.wanted {
            let number = self.samples.len() as u64 + 1;
            self.samples.push(sample(number, &message, &self.source.headers, self.source.bodies));
        }
        self.survey.observe(message);
    }
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
