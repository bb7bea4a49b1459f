//! A broker as an administrator sees it, past the proxy: what people do by hand.

use std::collections::BTreeMap;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Client, Method, StatusCode, Url};
use serde_json::{Value, json};

use super::{eventually, variable};

/// The management API with an administrator's rights.
#[derive(Clone)]
pub(crate) struct Broker {
    http: Client,
    /// `host:port` of the management API.
    pub(crate) address: String,
    /// The AMQP listener, without credentials.
    pub(crate) amqp: String,
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Broker {
    /// The broker of a version, `43` or `40`.
    pub(crate) fn of(version: &str) -> Self {
        let uri = variable(&format!("REDRIVE_BROKER_{version}_URI"));
        Self::at(&uri, &variable(&format!("REDRIVE_BROKER_{version}_AMQP_URI")))
    }

    /// The broker behind these URIs, which hold user and password.
    pub(crate) fn at(uri: &str, amqp: &str) -> Self {
        let (uri, amqp) = (Url::parse(uri).unwrap(), Url::parse(amqp).unwrap());
        let listener =
            |url: &Url| format!("{}:{}", url.host_str().unwrap(), url.port_or_known_default().unwrap());
        Self {
            http: Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap(),
            address: listener(&uri),
            amqp: format!("amqp://{}", listener(&amqp)),
            user: uri.username().to_owned(),
            password: uri.password().unwrap().to_owned(),
        }
    }

    /// The same broker as somebody else.
    pub(crate) fn as_user(&self, user: &str, password: &str) -> Self {
        Self { user: user.to_owned(), password: password.to_owned(), ..self.clone() }
    }

    /// One call; names are encoded, the answer is null where there is none.
    pub(crate) async fn call(&self, method: Method, path: &[&str], body: Value) -> (StatusCode, Value) {
        self.call_with(method, path, "?disable_stats=true", body).await
    }

    async fn call_with(
        &self,
        method: Method,
        path: &[&str],
        query: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        let path: Vec<String> =
            path.iter().map(|name| utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()).collect();
        let url = format!("http://{}/api/{}{query}", self.address, path.join("/"));
        let mut request = self.http.request(method, url).basic_auth(&self.user, Some(&self.password));
        if !body.is_null() {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status();
        (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default())
    }

    pub(crate) async fn get(&self, path: &[&str]) -> Value {
        let (status, answer) = self.call(Method::GET, path, Value::Null).await;
        assert!(status.is_success(), "GET {path:?}: {status} {answer}");
        answer
    }

    pub(crate) async fn put(&self, path: &[&str], body: Value) {
        let (status, answer) = self.call(Method::PUT, path, body).await;
        assert!(status.is_success(), "PUT {path:?}: {status} {answer}");
    }

    pub(crate) async fn post(&self, path: &[&str], body: Value) -> Value {
        let (status, answer) = self.call(Method::POST, path, body).await;
        assert!(status.is_success(), "POST {path:?}: {status} {answer}");
        answer
    }

    pub(crate) async fn delete(&self, path: &[&str]) {
        let (status, answer) = self.call(Method::DELETE, path, Value::Null).await;
        assert!(status.is_success(), "DELETE {path:?}: {status} {answer}");
    }

    /// Makes a vhost that the administrator may use.
    pub(crate) async fn create_vhost(&self, vhost: &str) {
        self.put(&["vhosts", vhost], json!({})).await;
        self.grant(vhost, &self.user, ".*").await;
    }

    /// Lets a user read and write all of a vhost, and configure what the pattern matches.
    pub(crate) async fn grant(&self, vhost: &str, user: &str, configure: &str) {
        let rights = json!({"configure": configure, "write": ".*", "read": ".*"});
        self.put(&["permissions", vhost, user], rights).await;
    }

    pub(crate) async fn create_user(&self, user: &str, password: &str, tags: &str) {
        self.put(&["users", user], json!({"password": password, "tags": tags})).await;
    }

    /// Names of one kind in a vhost (`queues`, `exchanges`, `policies`), without the broker's own.
    pub(crate) async fn names(&self, kind: &str, vhost: &str) -> Vec<String> {
        let rows = self.get(&[kind, vhost]).await;
        let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
        let mut names: Vec<String> = rows.as_array().unwrap().iter().map(name).collect();
        names.retain(|name| !name.is_empty() && !name.starts_with("amq."));
        names.sort();
        names
    }

    pub(crate) async fn queue(&self, vhost: &str, queue: &str) -> Value {
        self.get(&["queues", vhost, queue]).await
    }

    pub(crate) async fn exists(&self, kind: &str, vhost: &str, name: &str) -> bool {
        self.call(Method::GET, &[kind, vhost, name], Value::Null).await.0.is_success()
    }

    /// Everything in a vhost that a pipeline may have made, as text, in a fixed order; counts left out.
    pub(crate) async fn contents(&self, vhost: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for queue in self.get(&["queues", vhost]).await.as_array().unwrap() {
            lines.push(format!("queue {} {} {}", queue["name"], queue["type"], queue["arguments"]));
        }
        for exchange in self.get(&["exchanges", vhost]).await.as_array().unwrap() {
            let name = exchange["name"].as_str().unwrap();
            if !name.is_empty() && !name.starts_with("amq.") {
                lines.push(format!("exchange {name} {} {}", exchange["type"], exchange["arguments"]));
            }
        }
        lines.extend(self.bindings(vhost).await);
        for policy in self.get(&["policies", vhost]).await.as_array().unwrap() {
            let mut policy = policy.clone();
            policy.as_object_mut().unwrap().remove("vhost");
            lines.push(format!("policy {policy}"));
        }
        lines.sort();
        lines
    }

    /// All bindings but those of the default exchange.
    pub(crate) async fn bindings(&self, vhost: &str) -> Vec<String> {
        let rows = self.get(&["bindings", vhost]).await;
        let text = |row: &Value| {
            let field = |name: &str| row[name].as_str().unwrap().to_owned();
            let arguments: BTreeMap<String, Value> =
                serde_json::from_value(row["arguments"].clone()).unwrap_or_default();
            let arguments = serde_json::to_string(&arguments).unwrap();
            format!(
                "binding {} -> {} [{}] {arguments}",
                field("source"),
                field("destination"),
                field("routing_key")
            )
        };
        let from_default = |row: &&Value| row["source"] == "";
        let mut texts: Vec<String> =
            rows.as_array().unwrap().iter().filter(|row| !from_default(row)).map(text).collect();
        texts.sort();
        texts
    }

    /// Binds by hand.
    pub(crate) async fn bind(&self, vhost: &str, exchange: &str, kind: &str, to: &str, key: &str) {
        let body = json!({"routing_key": key, "arguments": {}});
        self.post(&["bindings", vhost, "e", exchange, kind, to], body).await;
    }

    /// Removes all bindings between two ends by hand.
    pub(crate) async fn unbind(&self, vhost: &str, exchange: &str, kind: &str, to: &str) {
        for row in self.get(&["bindings", vhost, "e", exchange, kind, to]).await.as_array().unwrap() {
            let key = row["properties_key"].as_str().unwrap();
            self.delete(&["bindings", vhost, "e", exchange, kind, to, key]).await;
        }
    }

    /// Puts messages straight into a queue.
    pub(crate) async fn fill(&self, vhost: &str, queue: &str, messages: usize) {
        for number in 0..messages {
            let body = json!({
                "properties": {"delivery_mode": 2}, "routing_key": queue,
                "payload": format!("body-9c2e41-{number}"), "payload_encoding": "string",
            });
            let answer = self.post(&["exchanges", vhost, "amq.default", "publish"], body).await;
            assert_eq!(answer["routed"], true, "{queue}");
        }
    }

    /// Waits until the policy whose name ends so applies to a queue, and returns what it sets there.
    pub(crate) async fn effective_policy(&self, vhost: &str, queue: &str, name: &str) -> Value {
        eventually(&format!("{queue} has the policy {name}"), async || {
            // Without statistics 4.0 leaves the policy out.
            let (_, found) = self.call_with(Method::GET, &["queues", vhost, queue], "", Value::Null).await;
            let applies = found["policy"].as_str().is_some_and(|policy| policy.ends_with(name));
            if applies { Ok(found["effective_policy_definition"].clone()) } else { Err(found.to_string()) }
        })
        .await
    }

    /// A queue with its counts, which the broker brings up to date every few seconds.
    pub(crate) async fn totals(&self, vhost: &str, queue: &str) -> Value {
        self.call_with(Method::GET, &["queues", vhost, queue], "", Value::Null).await.1
    }

    /// Takes all messages out of a queue.
    pub(crate) async fn purge(&self, vhost: &str, queue: &str) {
        self.delete(&["queues", vhost, queue, "contents"]).await;
    }
}
