//! Opening the origin queue, again and again where that can help.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::session::{Plan, Session};
use crate::broker::BrokerError;

/// The first wait before trying again.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// How long the lock of a worker that died may outlive it: until the broker misses its
/// heartbeats.
const LOCK_PATIENCE: Duration = Duration::from_secs(150);

type Future1 = Pin<Box<dyn Future<Output = Result<(Session, u64), BrokerError>> + Send>>;

/// An opening under way, if there is one.
pub(super) struct Opening {
    under_way: Option<Future1>,
    sessions: u32,
    /// A session that must be closed before the next opens, since it has the lock.
    closing: Option<Session>,
    /// Whether a lock that is taken may be that of this run's own past.
    had_lock: bool,
}

impl Opening {
    /// `resumes` says that a worker before may have left its lock behind.
    pub(super) fn new(resumes: bool) -> Self {
        Self { under_way: None, sessions: 0, closing: None, had_lock: resumes }
    }

    /// Begins to open, with the session that is open already if there is one.
    pub(super) fn begin(&mut self, plan: Plan, session: Option<Session>, expected: u64) {
        self.sessions += 1;
        let number = self.sessions;
        let closing = self.closing.take();
        let patient = self.had_lock;
        self.had_lock = true;
        self.under_way = Some(Box::pin(async move {
            if let Some(closing) = closing {
                closing.close().await;
            }
            open(number, plan, session, expected, patient).await
        }));
    }

    /// Closes a session with the next opening, or at the end.
    pub(super) fn close_first(&mut self, session: Session) {
        self.closing = Some(session);
    }

    /// Gives up, with the session that is still to be closed if there is one.
    pub(super) fn abandon(&mut self) -> Option<Session> {
        self.under_way = None;
        self.closing.take()
    }

    /// Waits until it is open.
    pub(super) async fn done(&mut self) -> Result<(Session, u64), BrokerError> {
        let Some(under_way) = &mut self.under_way else { return std::future::pending().await };
        let done = under_way.await;
        self.under_way = None;
        done
    }
}

async fn open(
    number: u32,
    plan: Plan,
    mut session: Option<Session>,
    expected: u64,
    patient: bool,
) -> Result<(Session, u64), BrokerError> {
    let began = Instant::now();
    let mut wait = FIRST_WAIT;
    loop {
        let error = match attempt(number, &plan, session.take(), expected).await {
            Ok(opened) => return Ok(opened),
            Err(error) => error,
        };
        let again = match &error {
            BrokerError::InUse { .. } => patient && began.elapsed() < LOCK_PATIENCE,
            BrokerError::NotFound { .. } => false,
            error => error.is_transient(),
        };
        if !again {
            return Err(error);
        }
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn attempt(
    number: u32,
    plan: &Plan,
    session: Option<Session>,
    expected: u64,
) -> Result<(Session, u64), BrokerError> {
    let session = match session {
        Some(session) => session,
        None => Session::open(number, plan).await?,
    };
    match session.counting.settled(expected).await {
        Ok(ready) => Ok((session, ready)),
        Err(error) => {
            session.close().await;
            Err(error)
        }
    }
}
