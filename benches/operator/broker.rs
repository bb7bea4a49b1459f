//! The broker under test: vhosts that come and go, and the bare script.
//!
//! The script writes exactly what the plans hold, markers included, with nothing
//! around it: policies first, then what is declared, then what is bound, over eight
//! connections that stay open. No program that writes one object per request can
//! do it much faster.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use redrive::topology::model::{Binding, Destination};
use redrive::topology::plan::{Plan, Step};
use reqwest::{Client, Method, Url};
use serde_json::{Value, json};

use crate::Result;
use crate::proxy::Proxy;

/// How many connections the script has.
const CONNECTIONS: usize = 8;

/// Where the broker is, and who we are there.
#[derive(Clone)]
pub(crate) struct Broker {
    base: String,
    user: String,
    password: String,
    amqp: String,
    client: Client,
    pub(crate) proxy: Proxy,
}

/// One request of the script.
struct Request {
    phase: u8,
    method: Method,
    path: String,
    body: Value,
}

impl Broker {
    /// The broker that the environment names.
    pub(crate) async fn from_env() -> Result<Self> {
        let named =
            |key: &str| std::env::var(key).map_err(|_| format!("{key} names no broker: see hack/README.md"));
        let uri = Url::parse(&named("REDRIVE_BROKER_43_URI")?)?;
        let amqp = Url::parse(&named("REDRIVE_BROKER_43_AMQP_URI")?)?;
        let address = |uri: &Url, port| {
            format!("{}:{}", uri.host_str().unwrap_or("127.0.0.1"), uri.port().unwrap_or(port))
        };
        let http = address(&uri, 15672);
        Ok(Self {
            base: format!("http://{http}"),
            user: uri.username().to_owned(),
            password: uri.password().unwrap_or_default().to_owned(),
            amqp: format!("amqp://{}", address(&amqp, 5672)),
            client: client()?,
            proxy: Proxy::start(http).await?,
        })
    }

    /// What a Secret must say for the operator to come through the proxy.
    pub(crate) fn secret(&self) -> Value {
        json!({
            "uri": format!("http://{}", self.proxy.address), "amqpUri": self.amqp,
            "username": self.user, "password": self.password,
        })
    }

    /// What a Secret must say for an operator that knows the broker's own address.
    pub(crate) fn plain_secret(&self) -> Value {
        json!({"uri": self.base, "username": self.user, "password": self.password})
    }

    /// The AMQP listener with user and vhost, as a client takes it.
    pub(crate) fn amqp_uri(&self, vhost: &str) -> String {
        let listener = self.amqp.trim_start_matches("amqp://");
        let (user, password) = (encoded(&self.user), encoded(&self.password));
        format!("amqp://{user}:{password}@{listener}/{}", encoded(vhost))
    }

    /// Reads something past the proxy, as people do.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.call(Method::GET, &format!("{path}?disable_stats=true"), None).await
    }

    /// Writes something past the proxy.
    pub(crate) async fn put(&self, path: &str, body: Value) -> Result<()> {
        self.call(Method::PUT, path, Some(body)).await.map(|_| ())
    }

    /// Deletes something past the proxy.
    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        self.call(Method::DELETE, path, None).await.map(|_| ())
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let url = format!("{}/api/{path}", self.base);
        let mut request = self.client.request(method, url).basic_auth(&self.user, Some(&self.password));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let text = request.send().await?.error_for_status()?.text().await?;
        Ok(if text.is_empty() { Value::Null } else { serde_json::from_str(&text)? })
    }

    /// What the broker says about itself.
    pub(crate) async fn overview(&self) -> Result<Value> {
        self.call(Method::GET, "overview", None).await
    }

    /// Makes an empty vhost.
    pub(crate) async fn fresh_vhost(&self, vhost: &str) -> Result<()> {
        self.drop_vhost(vhost).await?;
        self.call(Method::PUT, &format!("vhosts/{}", encoded(vhost)), Some(json!({}))).await?;
        let permissions = json!({"configure": ".*", "write": ".*", "read": ".*"});
        let path = format!("permissions/{}/{}", encoded(vhost), encoded(&self.user));
        self.call(Method::PUT, &path, Some(permissions)).await?;
        Ok(())
    }

    /// Empties the broker, so that no figure pays for the one before. A broker of
    /// `hack/dev` is reset, since the deletion of thousands of quorum queues takes
    /// minutes; of any other the vhosts are deleted.
    pub(crate) async fn clear(&self, vhosts: &[String]) -> Result<()> {
        let ours = std::env::var("REDRIVE_DEV_OURS").unwrap_or_default();
        if let (true, Ok(dev)) =
            (ours.contains(&self.base.replace("http://", "")), std::env::var("REDRIVE_DEV"))
        {
            for command in ["stop_app", "reset", "start_app"] {
                let done = Command::new(&dev).args(["broker", "ctl", "43", command]).output()?;
                if !done.status.success() {
                    return Err(String::from_utf8_lossy(&done.stderr).into_owned().into());
                }
            }
        }
        for vhost in vhosts {
            self.drop_vhost(vhost).await?;
        }
        // The next figure must not pay for it.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(())
    }

    async fn drop_vhost(&self, vhost: &str) -> Result<()> {
        let path = format!("vhosts/{}", encoded(vhost));
        let began = Instant::now();
        loop {
            match self.call(Method::DELETE, &path, None).await {
                Ok(_) => return Ok(()),
                Err(error) if error.to_string().contains("404") => return Ok(()),
                // With thousands of queues the broker goes on after the connection's end.
                Err(error) if began.elapsed() > Duration::from_secs(600) => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }

    /// The number of queues in a vhost.
    pub(crate) async fn queue_count(&self, vhost: &str) -> Result<usize> {
        let path = format!("queues/{}?disable_stats=true&columns=name", encoded(vhost));
        Ok(self.call(Method::GET, &path, None).await?.as_array().map_or(0, Vec::len))
    }

    /// Writes plans into their vhosts and says how long it took.
    pub(crate) async fn script(&self, plans: &[(String, Plan)]) -> Result<(Duration, usize)> {
        let mut requests: Vec<Request> =
            plans.iter().flat_map(|(vhost, plan)| written(vhost, plan)).collect();
        requests.sort_by_key(|request| request.phase);
        // Each plan brings the owner exchange: a script writes it once a vhost.
        let mut owners = BTreeSet::new();
        requests.retain(|request| request.phase > 0 || owners.insert(request.path.clone()));
        Ok((self.send(&requests).await?, requests.len()))
    }

    /// Deletes what plans declare, queues first and policies last, and says how long it took.
    pub(crate) async fn deletion_script(&self, plans: &[(String, Plan)]) -> Result<Duration> {
        let written = plans.iter().flat_map(|(vhost, plan)| written(vhost, plan));
        let own = written.filter(|request| request.method == Method::PUT && request.phase > 0);
        let mut requests: Vec<Request> = own
            .map(|request| {
                let phase = match request.path.split('/').next() {
                    Some("queues") => 1,
                    Some("exchanges") => 2,
                    _ => 3,
                };
                Request { phase, method: Method::DELETE, ..request }
            })
            .collect();
        requests.sort_by_key(|request| request.phase);
        self.send(&requests).await
    }

    /// Sends requests, phase after phase.
    async fn send(&self, requests: &[Request]) -> Result<Duration> {
        let clients = (0..CONNECTIONS).map(|_| client()).collect::<Result<Vec<_>>>()?;
        let began = Instant::now();
        for phase in requests.chunk_by(|a, b| a.phase == b.phase) {
            let next = Mutex::new(phase.iter());
            let workers = clients.iter().map(|client| self.work(client, &next));
            futures::future::try_join_all(workers).await?;
        }
        Ok(began.elapsed())
    }

    async fn work(&self, client: &Client, next: &Mutex<std::slice::Iter<'_, Request>>) -> Result<()> {
        loop {
            let request = next.lock().map_err(|_| "a worker has panicked")?.next();
            let Some(request) = request else { return Ok(()) };
            let url = format!("http://{}/api/{}", self.proxy.address, request.path);
            let call = client.request(request.method.clone(), url).json(&request.body);
            let answer = call.basic_auth(&self.user, Some(&self.password)).send().await?;
            answer.error_for_status()?.bytes().await?;
        }
    }
}

fn client() -> Result<Client> {
    Ok(Client::builder().no_proxy().tcp_nodelay(true).pool_max_idle_per_host(1).build()?)
}

pub(crate) fn encoded(segment: &str) -> String {
    utf8_percent_encode(segment, NON_ALPHANUMERIC).to_string()
}

/// The requests of a plan, each with the phase in which it can run.
fn written(vhost: &str, plan: &Plan) -> Vec<Request> {
    let mut requests = Vec::new();
    let put = |phase, kind: &str, name: &str, body| {
        let path = format!("{kind}/{}/{}", encoded(vhost), encoded(name));
        Request { phase, method: Method::PUT, path, body }
    };
    for planned in &plan.steps {
        match &planned.step {
            Step::SetPolicy(policy) => requests.push(put(
                1,
                "policies",
                &policy.name,
                json!({
                    "pattern": policy.pattern, "definition": policy.definition,
                    "priority": policy.priority, "apply-to": policy.apply_to.as_str(),
                }),
            )),
            Step::CreateExchange { exchange, marker } => {
                let body = json!({
                    "type": exchange.kind, "durable": true, "auto_delete": false,
                    "internal": exchange.internal, "arguments": exchange.arguments,
                });
                let phase = if marker.is_some() { 2 } else { 0 };
                requests.push(put(phase, "exchanges", &exchange.name, body));
                requests.extend(marker.as_ref().map(|marker| bind(vhost, marker)));
            }
            Step::CreateQueue { queue, marker } => {
                let body = json!({"durable": true, "auto_delete": false, "arguments": queue.arguments});
                requests.push(put(2, "queues", &queue.name, body));
                requests.push(bind(vhost, marker));
            }
            Step::Bind(binding) | Step::Mark(binding) => requests.push(bind(vhost, binding)),
            other => unreachable!("a first plan does not {other}"),
        }
    }
    requests
}

fn bind(vhost: &str, binding: &Binding) -> Request {
    let (kind, name) = match &binding.destination {
        Destination::Queue(name) => ("q", name),
        Destination::Exchange(name) => ("e", name),
    };
    let path = format!("bindings/{}/e/{}/{kind}/{}", encoded(vhost), encoded(&binding.source), encoded(name));
    let body = json!({"routing_key": binding.routing_key, "arguments": binding.arguments});
    Request { phase: 3, method: Method::POST, path, body }
}
