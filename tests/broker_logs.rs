//! What the AMQP client logs of messages, on a real broker: start one with `hack/dev up brokers`
//! and name it with `eval "$(hack/dev env)"`.
//!
//! Alone in its process, since the client logs from a thread of its own, which only a subscriber
//! of the whole process hears.

#![allow(clippy::unwrap_used)] // a test fails by panicking

#[path = "support/broker.rs"]
mod support;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use redrive::broker::is_loggable;
use support::{Version, eventually, in_vhost};
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt};

const BODY: &str = "card 4929-1234-5678-9012";

/// Asks for all there is, in every way that a filter knows: by level, module and span.
const ALL: &str = "trace,lapin=trace,lapin::returned_messages=trace,lapin::channels=trace,[io_loop]=trace";

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// Whether the body is there, as text or as the numbers of its bytes.
    fn show_the_body(&self) -> bool {
        let bytes: Vec<String> = BODY.bytes().map(|byte| byte.to_string()).collect();
        let text = self.text();
        text.contains(BODY) || text.contains(&bytes.join(", "))
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A layer without colours, so that texts can be found.
fn into(lines: &Lines) -> fmt::Layer<Registry, DefaultFields, Format, BoxMakeWriter> {
    let lines = lines.clone();
    fmt::layer().with_ansi(false).with_writer(BoxMakeWriter::new(move || lines.clone()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_a_returned_message_is_in_no_line_that_may_be_seen() {
    let (asked, shown, warned) = (Lines::default(), Lines::default(), Lines::default());
    let layers = vec![
        into(&asked).with_filter(EnvFilter::new(ALL)).boxed(),
        into(&shown).with_filter(EnvFilter::new(ALL).and(filter_fn(is_loggable))).boxed(),
        into(&warned).with_filter(LevelFilter::WARN).boxed(),
    ];
    Registry::default().with(layers).init();
    in_vhost(Version::V43, "logs", async |vhost| {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = vhost.channel.basic_publish(
            "".into(),
            "nowhere".into(),
            options,
            BODY.as_bytes(),
            BasicProperties::default(),
        );
        assert!(sent.await.unwrap().await.unwrap().is_ack());
        // Else there would be nothing to keep away. Whoever warns is told last.
        eventually("the client logs the body", async || asked.show_the_body() && warned.show_the_body())
            .await;
    })
    .await;
    assert!(shown.text().contains("lapin::"), "lines of the client without bodies are seen");
    assert!(!shown.show_the_body(), "{}", shown.text());
}
