//! A server on loopback that answers HTTP as a test tells it to.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "for tests only")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What a real broker's overview has, shortened.
pub const OVERVIEW: &str = r#"{"rabbitmq_version":"4.3.6","product_name":"RabbitMQ","cluster_name":"fake",
    "disable_stats":false,"exchange_types":[{"name":"direct"},{"name":"headers"}]}"#;

/// One answer.
#[derive(Clone)]
pub enum Answer {
    /// Status, content type, body.
    Body(u16, &'static str, String),
    /// These bytes and the end.
    Raw(Vec<u8>),
    /// Nothing, for a long time.
    Silence,
    /// The head and the first half of this body, then nothing.
    Half(String),
}

impl Answer {
    /// A JSON answer.
    pub fn json(status: u16, body: &str) -> Self {
        Self::Body(status, "application/json", body.to_owned())
    }
}

type Script = dyn Fn(&str, &str) -> Answer + Send + Sync;

/// A running server; its threads end with the process.
pub struct Fake {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Fake {
    /// Answers `(method, path)` in plain HTTP.
    pub fn http(script: impl Fn(&str, &str) -> Answer + Send + Sync + 'static) -> Self {
        Self::start(None, Arc::new(script))
    }

    /// The same over TLS.
    pub fn https(
        config: ServerConfig,
        script: impl Fn(&str, &str) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::start(Some(Arc::new(config)), Arc::new(script))
    }

    /// Shows an overview, and answers everything else as told.
    pub fn rabbit(script: impl Fn(&str, &str) -> Answer + Send + Sync + 'static) -> Self {
        Self::http(move |method, path| match path {
            "/api/overview" => Answer::json(200, OVERVIEW),
            _ => script(method, path),
        })
    }

    fn start(tls: Option<Arc<ServerConfig>>, script: Arc<Script>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let fake = Self { address, requests: Arc::clone(&requests), connections: Arc::clone(&connections) };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let (tls, script, requests) = (tls.clone(), Arc::clone(&script), Arc::clone(&requests));
                connections.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || serve(stream, tls, &*script, &requests));
            }
        });
        fake
    }

    /// All requests so far, as `METHOD path`.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    script: &Script,
    requests: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    // A client that speaks something else waits for us as we wait for it.
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    match tls {
        None => answer(stream, script, requests),
        Some(config) => {
            let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
            answer(StreamOwned::new(connection, stream), script, requests)
        }
    }
}

fn answer(
    mut stream: impl Read + Write,
    script: &Script,
    requests: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..count]);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let mut words = text.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    requests.lock().unwrap().push(format!("{method} {target}"));
    let path = target.split('?').next().unwrap_or_default();
    write(&mut stream, script(method, path))
}

fn write(stream: &mut (impl Read + Write), answer: Answer) -> std::io::Result<()> {
    let head = |status: u16, kind: &str, length: usize| {
        format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        )
    };
    match answer {
        Answer::Body(status, kind, body) => {
            stream.write_all(head(status, kind, body.len()).as_bytes())?;
            stream.write_all(body.as_bytes())?;
        }
        Answer::Raw(bytes) => stream.write_all(&bytes)?,
        Answer::Silence => std::thread::sleep(Duration::from_secs(60)),
        Answer::Half(body) => {
            stream.write_all(head(200, "application/json", body.len()).as_bytes())?;
            stream.write_all(&body.as_bytes()[..body.len() / 2])?;
            stream.flush()?;
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    stream.flush()
}
