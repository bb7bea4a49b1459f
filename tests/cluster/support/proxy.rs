//! A reverse proxy before the management API: it records every request, and answers or fails as
//! a test tells it to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
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
    /// How many writes came before this one.
    pub(crate) writes_before: usize,
    /// The status of the broker's answer, once there is one.
    pub(crate) answer: Option<u16>,
}

impl Request {
    pub(crate) fn is_write(&self) -> bool {
        self.method != Method::GET
    }
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// The broker answers.
    Pass,
    /// The broker answers, later.
    Delay(Duration),
    /// Nobody ever answers.
    Silence,
    /// The connection breaks before the broker has seen the request.
    Cut,
    /// The broker does what is asked, and the connection breaks before its answer.
    CutAnswer,
    /// Somebody else answers: status, further header, body.
    Answer(u16, &'static str, &'static str),
}

type Rule = Box<dyn FnMut(&Request) -> Action + Send>;

struct Shared {
    upstream: Mutex<String>,
    client: reqwest::Client,
    rule: Mutex<Rule>,
    seen: Mutex<Vec<Request>>,
    held: Semaphore,
    holding: Mutex<bool>,
    arrived: Notify,
}

/// The proxy; it ends with the test.
pub(crate) struct Proxy {
    pub(crate) address: String,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Proxy {
    /// Starts before a broker, `host:port` of its management API.
    pub(crate) async fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream.to_owned()),
            client: reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap(),
            rule: Mutex::new(Box::new(|_| Action::Pass)),
            seen: Mutex::default(),
            held: Semaphore::new(0),
            holding: Mutex::new(false),
            arrived: Notify::new(),
        });
        let serving = shared.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = serving.clone();
                tokio::spawn(async move {
                    let _ = serve(stream, &shared).await;
                });
            }
        });
        Self { address, shared, accepting: accepting.abort_handle() }
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
        upstream.clone_into(&mut self.shared.upstream.lock().unwrap());
    }

    /// Lets reads pass and keeps writes waiting, until [`Proxy::release`].
    pub(crate) fn hold_writes(&self) {
        *self.shared.holding.lock().unwrap() = true;
    }

    /// Waits until a write has come, held or not.
    pub(crate) async fn write_arrived(&self) {
        loop {
            let next = self.shared.arrived.notified();
            if !self.writes().is_empty() {
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

async fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await? {
        let (request, authorization) = parse(&head, shared);
        let (place, action) = {
            let mut seen = shared.seen.lock().unwrap();
            seen.push(request.clone());
            (seen.len() - 1, (shared.rule.lock().unwrap())(&request))
        };
        if request.is_write() {
            shared.arrived.notify_waiters();
            if *shared.holding.lock().unwrap() {
                let _ = shared.held.acquire().await.unwrap();
            }
        }
        let answer = match action {
            Action::Pass => forward(shared, &request, &authorization, body).await,
            Action::Delay(time) => {
                tokio::time::sleep(time).await;
                forward(shared, &request, &authorization, body).await
            }
            Action::Silence => std::future::pending().await,
            Action::Cut => return Ok(()),
            Action::CutAnswer => {
                forward(shared, &request, &authorization, body).await;
                return Ok(());
            }
            Action::Answer(status, header, body) => Some((status, header.to_owned(), body.into())),
        };
        let Some((status, header, body)) = answer else { return Ok(()) };
        if let Some(seen) = shared.seen.lock().unwrap().get_mut(place) {
            seen.answer = Some(status);
        }
        let head = format!("HTTP/1.1 {status} x\r\n{header}\r\nContent-Length: {}\r\n\r\n", body.len());
        let head = if status == 204 { format!("HTTP/1.1 204 x\r\n{header}\r\n\r\n") } else { head };
        stream.write_all(&[head.as_bytes(), &body].concat()).await?;
    }
    Ok(())
}

/// Head and body of the next request; `None` at the end of the connection.
async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> std::io::Result<Option<(String, Vec<u8>)>> {
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
            return Ok(Some((head, body)));
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

fn parse(head: &str, shared: &Shared) -> (Request, String) {
    let mut words = head.split(' ');
    let method = words.next().and_then(|word| Method::from_bytes(word.as_bytes()).ok()).unwrap_or_default();
    let path = words.next().unwrap_or_default().to_owned();
    let writes_before = shared.seen.lock().unwrap().iter().filter(|request| request.is_write()).count();
    let authorization = header(head, "authorization").unwrap_or_default().to_owned();
    (Request { method, path, writes_before, answer: None }, authorization)
}

/// The broker's answer, or `None` where it can't be reached.
async fn forward(
    shared: &Shared,
    request: &Request,
    authorization: &str,
    body: Vec<u8>,
) -> Option<(u16, String, Vec<u8>)> {
    let url = format!("http://{}{}", shared.upstream.lock().unwrap(), request.path);
    let answer = shared
        .client
        .request(request.method.clone(), url)
        .header("authorization", authorization)
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        .ok()?;
    let status = answer.status().as_u16();
    Some((status, "Content-Type: application/json".to_owned(), answer.bytes().await.ok()?.to_vec()))
}
