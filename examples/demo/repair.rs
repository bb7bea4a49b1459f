//! Deletes a queue by hand and shows that the operator notices and repairs it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::time::sleep;

use crate::Result;
use crate::orders::{Kind, Order};
use crate::show::Show;

/// How long the repair may take; the operator of the demo looks every 5 seconds.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn show(show: &mut Show, client: Client, namespace: &str, pipeline: &str) -> Result<()> {
    let queue = show.topology.tiers.get(1).ok_or("the pipeline has no second retry queue")?.queue.clone();
    let events = Findings { api: Api::namespaced(client, namespace), pipeline: pipeline.to_owned() };
    let mut known: HashSet<String> = events.list().await?.into_iter().map(|(name, _)| name).collect();

    show.screen.title("Somebody deletes a queue by hand (it is empty at this time)");
    let request = show.broker.delete_by_hand(&queue).await?;
    let start = Instant::now();
    let say = |text: &str| println!("{:7.1} s  {text}", start.elapsed().as_secs_f64());
    say(&request);

    let (mut told, mut back) = (false, false);
    while !(told && back) {
        if start.elapsed() > PATIENCE {
            return Err(format!(
                "{queue} was not repaired within {} s: see the operator's log",
                PATIENCE.as_secs()
            )
            .into());
        }
        sleep(Duration::from_millis(200)).await;
        if !back && show.broker.counts(&show.topology).await?[&queue].is_some() {
            back = true;
            say(&format!("{queue} is back"));
        }
        for (name, note) in events.list().await? {
            if known.insert(name) {
                told |= note.starts_with(&format!("queue {queue} "));
                say(&format!("Event DriftFound: {}", first_words(&note)));
            }
        }
    }

    show.screen.title("An order that fails twice passes through the new queue");
    show.walk(vec![Order::new(Kind::FailsTwice, 1)]).await
}

/// As much of a note as stands in one line.
fn first_words(note: &str) -> String {
    let mut words: String = note.chars().take(100).collect();
    if words.len() < note.len() {
        words.push('…');
    }
    words
}

/// The events that tell of drift.
struct Findings {
    api: Api<Event>,
    pipeline: String,
}

impl Findings {
    /// Names and notes.
    async fn list(&self) -> Result<Vec<(String, String)>> {
        let events = self.api.list(&ListParams::default().fields("reason=DriftFound")).await?;
        let ours = |event: &Event| {
            event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(self.pipeline.as_str())
        };
        let found = events.items.into_iter().filter(ours);
        Ok(found.map(|event| (event.name_any(), event.note.unwrap_or_default())).collect())
    }
}
