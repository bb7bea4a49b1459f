//! Listens to one broker, and comes back whenever that ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::Wanted;
use super::board::Place;
use crate::broker::AddressGuard;
use crate::broker::events::{Deaf, Events};
use crate::controller::backoff::jittered;

/// How soon it is tried again; the wait doubles up to the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// A broker that is back within this time was never reported as silent.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often it is made sure that events still come.
const CHECK: Duration = Duration::from_secs(30);

/// Listens until it is aborted.
pub(super) async fn run(wanted: Wanted, place: Arc<Place>, guard: AddressGuard) {
    let address = wanted.endpoint.amqp.to_string();
    let (mut wait, mut silent_since) = (FIRST, Instant::now());
    let mut told = None;
    loop {
        let why = match Events::open(&wanted.endpoint, &guard, &wanted.vhost).await {
            Ok(mut events) => {
                tracing::info!(broker = address, vhost = wanted.vhost, "listening to the broker's events");
                place.hears();
                let why = listen(&mut events, &place).await;
                (wait, silent_since, told) = (FIRST, Instant::now(), None);
                why
            }
            Err(why) => why,
        };
        let text = explained(&why, &address);
        match why {
            Deaf::Broker(_) if silent_since.elapsed() < PATIENCE => place.lost(),
            _ => place.deaf(text.clone()),
        }
        if told.as_ref() != Some(&text) {
            tracing::warn!(broker = address, %why, "the broker's events are not heard");
            told = Some(text);
        }
        tokio::time::sleep(jittered(wait)).await;
        wait = (wait * 2).min(LONGEST);
    }
}

/// What a status says: as little of a failing connection as possible, since its errors change.
fn explained(why: &Deaf, address: &str) -> String {
    match why {
        Deaf::NoExchange { .. } | Deaf::Forbidden { .. } => why.to_string(),
        Deaf::Broker(_) => format!("the broker's events can't be read at {address}: see the operator's log"),
    }
}

/// Passes on what is heard, until nothing is heard any more.
async fn listen(events: &mut Events, place: &Place) -> Deaf {
    let mut check = tokio::time::interval(CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    check.tick().await;
    loop {
        tokio::select! {
            heard = events.next() => match heard {
                Ok(heard) => {
                    place.tell(&heard.news);
                    if !heard.complete {
                        tracing::warn!("more changes than the broker keeps: everything is looked at");
                        place.missed();
                    }
                }
                Err(why) => return why,
            },
            _ = check.tick() => if let Err(why) = events.check().await {
                return why;
            },
        }
    }
}
