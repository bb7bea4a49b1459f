//! Counts what passes to the broker's management API.
//!
//! Bytes are handed on as they come; only the first line and the length of each
//! request are read. The operator and the bare script both go through it, so that
//! what it costs is on both sides of a ratio.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::Result;

/// Requests by method and first path segment, such as `GET queues`.
pub(crate) type Counts = BTreeMap<String, u64>;

/// A proxy that runs until the process ends.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    counts: Arc<Mutex<Counts>>,
}

impl Proxy {
    /// Listens on a free port of the loopback interface.
    pub(crate) async fn start(broker: String) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let proxy = Self { address: listener.local_addr()?, counts: Arc::default() };
        let counts = proxy.counts.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (broker, counts) = (broker.clone(), counts.clone());
                tokio::spawn(async move {
                    // A broken connection shows on both sides; there is nothing to add.
                    let _ = pass(client, &broker, &counts).await;
                });
            }
        });
        Ok(proxy)
    }

    /// The counts since the last call.
    pub(crate) fn take(&self) -> Counts {
        std::mem::take(&mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How many of these requests change something.
pub(crate) fn writes(counts: &Counts) -> u64 {
    counts.iter().filter(|(what, _)| !what.starts_with("GET ")).map(|(_, count)| count).sum()
}

/// How many only read.
pub(crate) fn reads(counts: &Counts) -> u64 {
    counts.values().sum::<u64>() - writes(counts)
}

/// How often a vhost was looked at, whole or in part: each time its operator policies are listed once.
pub(crate) fn rounds(counts: &Counts) -> u64 {
    counts.get("GET operator-policies").copied().unwrap_or_default()
}

/// How many of them are about what is in a vhost, and not about who the broker is.
pub(crate) fn lists(counts: &Counts) -> u64 {
    let about_broker = ["GET overview", "GET global-parameters", "GET whoami"];
    reads(counts) - about_broker.iter().filter_map(|what| counts.get(*what)).sum::<u64>()
}

async fn pass(client: TcpStream, broker: &str, counts: &Mutex<Counts>) -> std::io::Result<()> {
    let server = TcpStream::connect(broker).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = tokio::spawn(async move {
        let copied = tokio::io::copy(&mut from_server, &mut to_client).await;
        let _ = to_client.shutdown().await;
        copied
    });
    let mut requests = Requests::default();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from_client.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        requests.feed(&buffer[..read], |what| {
            *counts.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
        });
        to_server.write_all(&buffer[..read]).await?;
    }
    to_server.shutdown().await?;
    let _ = back.await;
    Ok(())
}

/// Finds the requests in a connection's bytes.
#[derive(Default)]
struct Requests {
    head: Vec<u8>,
    body_left: usize,
}

impl Requests {
    fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(String)) {
        while !bytes.is_empty() {
            let body = self.body_left.min(bytes.len());
            self.body_left -= body;
            bytes = &bytes[body..];
            let Some((first, rest)) = bytes.split_first() else { return };
            self.head.push(*first);
            bytes = rest;
            if self.head.ends_with(b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.head).into_owned();
                self.body_left = content_length(&head);
                each(kind(&head));
                self.head.clear();
            }
        }
    }
}

fn content_length(head: &str) -> usize {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    lengths.next().and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}

/// `GET /api/queues/%2F?x=y HTTP/1.1` becomes `GET queues`.
fn kind(head: &str) -> String {
    let mut words = head.split(' ');
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default();
    let segment = path.trim_start_matches("/api/").split(['/', '?']).next().unwrap_or_default();
    format!("{method} {segment}")
}
