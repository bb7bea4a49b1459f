//! A reverse proxy before a management API, and before an API server where a test wants it: it
//! records every request, and answers or fails as a test tells it to.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::client::ConfigExt;
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Percent-encoded, with the query.
    pub(crate) path: String,
    /// Whether it is for the API server, and not for the broker.
    pub(crate) to_kubernetes: bool,
    pub(crate) body: String,
    /// When it came.
    pub(crate) at: Instant,
    /// How many writes came before this one, whomever they were for.
    pub(crate) writes_before: usize,
    /// The status of the answer, once there is one.
    pub(crate) answer: Option<u16>,
}

impl Request {
    pub(crate) fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    /// Whether it writes the status of a pipeline.
    pub(crate) fn is_status_write(&self) -> bool {
        let path = self.path.split('?').next().unwrap_or_default();
        self.to_kubernetes && self.is_write() && path.ends_with("/status")
    }
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// It is answered.
    Pass,
    /// It is answered, later.
    Delay(Duration),
    /// Nobody ever answers.
    Silence,
    /// The connection breaks before anybody has seen the request.
    Cut,
    /// What is asked is done, and the connection breaks before the answer.
    CutAnswer,
    /// Somebody else answers: status, further header, body.
    Answer(u16, &'static str, &'static str),
}

type Rule = Box<dyn FnMut(&Request) -> Action + Send>;

/// Where requests are passed on to.
struct Upstream {
    /// Scheme and address.
    base: Mutex<String>,
    client: Client,
    is_kubernetes: bool,
}

struct Shared {
    rule: Mutex<Rule>,
    seen: Mutex<Vec<Request>>,
    held: Semaphore,
    holding: Mutex<bool>,
    arrived: Notify,
}

/// The proxy; it ends with the test.
pub(crate) struct Proxy {
    /// Where it takes requests for the broker.
    pub(crate) address: String,
    broker: Arc<Upstream>,
    shared: Arc<Shared>,
    accepting: Vec<AbortHandle>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.iter().for_each(AbortHandle::abort);
    }
}

impl Proxy {
    /// Starts before a broker, `host:port` of its management API.
    pub(crate) async fn start(upstream: &str) -> Self {
        Self::at(ANYWHERE, upstream).await
    }

    /// The same, at an address of the caller's choice.
    pub(crate) async fn at(address: &str, upstream: &str) -> Self {
        let broker = Arc::new(Upstream {
            base: Mutex::new(format!("http://{upstream}")),
            client: Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap(),
            is_kubernetes: false,
        });
        let shared = Arc::new(Shared {
            rule: Mutex::new(Box::new(|_| Action::Pass)),
            seen: Mutex::default(),
            held: Semaphore::new(0),
            holding: Mutex::new(false),
            arrived: Notify::new(),
        });
        let (address, accepting) = listen(address, broker.clone(), shared.clone()).await;
        Self { address, broker, shared, accepting: vec![accepting] }
    }

    /// Stands before an API server as well, with the rights of this configuration, under the same
    /// rule and in the same record; says where it takes those requests, in plain HTTP.
    pub(crate) async fn before_kubernetes(&mut self, config: &kube::Config) -> String {
        let tls = config.rustls_client_config().unwrap();
        let upstream = Upstream {
            base: Mutex::new(config.cluster_url.to_string().trim_end_matches('/').to_owned()),
            client: Client::builder().no_proxy().tls_backend_preconfigured(tls).build().unwrap(),
            is_kubernetes: true,
        };
        let (address, accepting) = listen(ANYWHERE, Arc::new(upstream), self.shared.clone()).await;
        self.accepting.push(accepting);
        address
    }

    /// Decides over every request from now on.
    pub(crate) fn rule(&self, rule: impl FnMut(&Request) -> Action + Send + 'static) {
        *self.shared.rule.lock().unwrap() = Box::new(rule);
    }

    /// All is well again.
    pub(crate) fn heal(&self) {
        self.rule(|_| Action::Pass);
    }

    /// Another broker answers from now on.
    pub(crate) fn lead_to(&self, upstream: &str) {
        *self.broker.base.lock().unwrap() = format!("http://{upstream}");
    }

    /// Lets reads pass and keeps writes waiting, until [`Proxy::release`].
    pub(crate) fn hold_writes(&self) {
        *self.shared.holding.lock().unwrap() = true;
    }

    /// Waits until a write has come, held or not.
    pub(crate) async fn write_arrived(&self) {
        self.writes_arrived(1).await;
    }

    /// Waits until this many writes have come, held or not.
    pub(crate) async fn writes_arrived(&self, count: usize) {
        loop {
            let next = self.shared.arrived.notified();
            if self.writes().len() >= count {
                return;
            }
            let _ = tokio::time::timeout(Duration::from_millis(100), next).await;
        }
    }

    pub(crate) fn release(&self) {
        *self.shared.holding.lock().unwrap() = false;
        self.shared.held.add_permits(Semaphore::MAX_PERMITS >> 4);
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// All writes so far, the failed ones included.
    pub(crate) fn writes(&self) -> Vec<Request> {
        self.seen().into_iter().filter(Request::is_write).collect()
    }

    /// Forgets what it has seen.
    pub(crate) fn forget(&self) {
        self.shared.seen.lock().unwrap().clear();
    }
}

/// A free port.
const ANYWHERE: &str = "127.0.0.1:0";

async fn listen(address: &str, upstream: Arc<Upstream>, shared: Arc<Shared>) -> (String, AbortHandle) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accepting = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (upstream, shared) = (upstream.clone(), shared.clone());
            tokio::spawn(async move {
                let _ = serve(stream, &upstream, &shared).await;
            });
        }
    });
    (address, accepting.abort_handle())
}

/// What was read of a request.
struct Incoming {
    head: String,
    body: Vec<u8>,
}

async fn serve(mut stream: TcpStream, upstream: &Upstream, shared: &Shared) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    while let Some(incoming) = read_request(&mut stream, &mut buffer).await? {
        let (request, place, action) = {
            // One at a time, so that a rule may count.
            let mut seen = shared.seen.lock().unwrap();
            let request = parse(&incoming, upstream, &seen);
            seen.push(request.clone());
            let action = (shared.rule.lock().unwrap())(&request);
            (request, seen.len() - 1, action)
        };
        if request.is_write() {
            shared.arrived.notify_waiters();
            if *shared.holding.lock().unwrap() {
                let _ = shared.held.acquire().await.unwrap();
            }
        }
        let note = |status: u16| {
            if let Some(seen) = shared.seen.lock().unwrap().get_mut(place) {
                seen.answer = Some(status);
            }
        };
        match action {
            Action::Pass => {}
            Action::Delay(time) => tokio::time::sleep(time).await,
            // Until the client has had enough.
            Action::Silence => return drain(&mut stream).await,
            Action::Cut => return Ok(()),
            Action::CutAnswer => {
                if let Some(answer) = forward(upstream, &request, incoming).await {
                    let _ = answer.bytes().await;
                }
                return Ok(());
            }
            Action::Answer(status, header, body) => {
                note(status);
                let length =
                    if status == 204 { String::new() } else { format!("\r\nContent-Length: {}", body.len()) };
                let head = format!("HTTP/1.1 {status} x\r\n{header}{length}\r\n\r\n");
                stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await?;
                continue;
            }
        }
        let Some(answer) = forward(upstream, &request, incoming).await else { return Ok(()) };
        note(answer.status().as_u16());
        pass_on(answer, &mut stream).await?;
    }
    Ok(())
}

/// Reads until the other side is gone.
async fn drain(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut nothing = [0; 1024];
    while stream.read(&mut nothing).await? > 0 {}
    Ok(())
}

/// The next request; `None` at the end of the connection.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<Incoming>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            let length = header(&head, "content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
            while buffer.len() < end + 4 + length {
                if stream.read_buf(buffer).await? == 0 {
                    return Ok(None);
                }
            }
            let body = buffer[end + 4..end + 4 + length].to_vec();
            buffer.drain(..end + 4 + length);
            return Ok(Some(Incoming { head, body }));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

fn parse(incoming: &Incoming, upstream: &Upstream, seen: &[Request]) -> Request {
    let mut words = incoming.head.split(' ');
    let method = words.next().and_then(|word| Method::from_bytes(word.as_bytes()).ok()).unwrap_or_default();
    let path = words.next().unwrap_or_default().to_owned();
    let writes_before = seen.iter().filter(|request| request.is_write()).count();
    let body = String::from_utf8_lossy(&incoming.body).into_owned();
    let at = Instant::now();
    Request { method, path, to_kubernetes: upstream.is_kubernetes, body, at, writes_before, answer: None }
}

/// The answer, or `None` where there is nobody to give one.
async fn forward(upstream: &Upstream, request: &Request, incoming: Incoming) -> Option<Response> {
    let url = format!("{}{}", upstream.base.lock().unwrap(), request.path);
    let mut headers = HeaderMap::new();
    for name in ["authorization", "content-type", "accept"] {
        if let Some(value) = header(&incoming.head, name) {
            headers.insert(name, value.parse().unwrap());
        }
    }
    let sent = upstream.client.request(request.method.clone(), url).headers(headers).body(incoming.body);
    sent.send().await.ok()
}

/// Hands an answer on piece by piece as it comes: a watch has no end.
async fn pass_on(mut answer: Response, stream: &mut TcpStream) -> std::io::Result<()> {
    let kind = answer.headers().get("content-type").and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or("application/json").to_owned();
    let status = answer.status().as_u16();
    let has_body = status != 204;
    let framing = if has_body { "Transfer-Encoding: chunked\r\n" } else { "" };
    let head = format!("HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\n{framing}\r\n");
    stream.write_all(head.as_bytes()).await?;
    if !has_body {
        return Ok(());
    }
    loop {
        // A watch ends when its client has gone, which only shows in the reading.
        let mut nothing = [0; 1];
        let chunk = tokio::select! {
            chunk = answer.chunk() => chunk.map_err(std::io::Error::other)?,
            _ = stream.read(&mut nothing) => return Err(std::io::ErrorKind::ConnectionAborted.into()),
        };
        let Some(chunk) = chunk else { break };
        let framed = [format!("{:x}\r\n", chunk.len()).as_bytes(), &chunk, b"\r\n"].concat();
        stream.write_all(&framed).await?;
    }
    stream.write_all(b"0\r\n\r\n").await
}
