//! Changes to topology: idempotent, one request each (unbinding takes two).
//!
//! Bodies always say `durable: true`, `auto_delete: false` and an explicit
//! `x-queue-type`: what is left out becomes a transient classic queue (IMM-08),
//! and `exclusive` is never sent (IMM-09). Nothing is ever null (API-17).

use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::error::BrokerError;
use super::http::{About, Call};
use super::management::Management;
use super::path;
use super::wire::BindingRow;
use crate::topology::model::{Arg, Args, Binding, Destination, Exchange, Policy, Queue};

/// What a declaration found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// It was not there (201): it is ours.
    Created,
    /// It was there and is equal, or is a policy and was replaced (204).
    Existed,
}

/// What a removal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It was there.
    Gone,
    /// It, or its whole vhost, was not there.
    Absent,
}

impl Management {
    /// Declares a queue: durable, not auto-delete, not exclusive, of its
    /// explicit type. The next snapshot shows the type that it really has
    /// (IMM-11: a node setting relaxes the broker's own check).
    ///
    /// # Errors
    /// [`BrokerError::Inequivalent`] if it exists and differs,
    /// [`BrokerError::QuotaExceeded`] at the vhost's queue limit,
    /// [`BrokerError::Refused`] if the broker does not accept an argument,
    /// [`BrokerError::VhostNotFound`], [`BrokerError::Forbidden`] without
    /// configure permission on it, or read and write on its dead-letter
    /// exchange (VHO-06).
    pub async fn put_queue(&self, vhost: &str, queue: &Queue) -> Result<Declared, BrokerError> {
        let mut arguments = object(&queue.arguments);
        arguments.insert("x-queue-type".to_owned(), Value::from(queue.kind.as_str()));
        let body = json!({"durable": true, "auto_delete": false, "arguments": arguments});
        let about = About::new("declare", format!("queue {:?}", queue.name), vhost);
        self.put(path::api(&["queues", vhost, &queue.name])?, body, about).await
    }

    /// Declares an exchange: durable, not auto-delete.
    ///
    /// # Errors
    /// As [`Management::put_queue`]; an exchange type that the broker does not
    /// know is [`BrokerError::Refused`].
    pub async fn put_exchange(&self, vhost: &str, exchange: &Exchange) -> Result<Declared, BrokerError> {
        let body = json!({
            "type": exchange.kind,
            "durable": true,
            "auto_delete": false,
            "internal": exchange.internal,
            "arguments": object(&exchange.arguments),
        });
        let about = About::new("declare", format!("exchange {:?}", exchange.name), vhost);
        self.put(path::api(&["exchanges", vhost, &exchange.name])?, body, about).await
    }

    /// Writes a user policy, whole; one of the same name is replaced without a
    /// question (POL-20), so look at the snapshot first.
    ///
    /// # Errors
    /// [`BrokerError::Refused`] for keys or values that the broker does not
    /// accept, [`BrokerError::Forbidden`] without the tag `policymaker`.
    pub async fn put_policy(&self, vhost: &str, policy: &Policy) -> Result<Declared, BrokerError> {
        let body = json!({
            "pattern": policy.pattern,
            "definition": object(&policy.definition),
            "priority": policy.priority,
            "apply-to": policy.apply_to.as_str(),
        });
        let about = About::new("write", format!("policy {:?}", policy.name), vhost);
        self.put(path::api(&["policies", vhost, &policy.name])?, body, about).await
    }

    async fn put(&self, path: String, body: Value, about: About<'_>) -> Result<Declared, BrokerError> {
        let call = Call { method: Method::PUT, path, query: "", body: Some(body), about };
        let answer = self.send(call, &[]).await?;
        Ok(if answer.status() == StatusCode::CREATED { Declared::Created } else { Declared::Existed })
    }

    /// Creates a binding. The broker answers the same if it was there already,
    /// and there is still only one.
    ///
    /// # Errors
    /// [`BrokerError::NotFound`] if one of its ends does not exist,
    /// [`BrokerError::Forbidden`] without read on the source and write on the
    /// destination, [`BrokerError::Unaddressable`] for arguments together with
    /// a `~` before the key's last character: the broker would create that
    /// binding, answer 500, and fail to list any binding of the vhost after it.
    pub async fn bind(&self, vhost: &str, binding: &Binding) -> Result<(), BrokerError> {
        if breaks_lists(binding) {
            return Err(BrokerError::Unaddressable { name: binding.routing_key.clone() });
        }
        let body = json!({"routing_key": binding.routing_key, "arguments": object(&binding.arguments)});
        let call = Call {
            method: Method::POST,
            path: path::api(&pair(vhost, binding))?,
            query: "",
            body: Some(body),
            about: About::new("create", format!("binding {binding}"), vhost),
        };
        self.send(call, &[]).await.map(|_| ())
    }

    /// Removes exactly this binding. The broker's key of it is looked up, never
    /// made up: a wrong guess removes nothing, or another one (NAM-14).
    ///
    /// # Errors
    /// Every error of a connection.
    pub async fn unbind(&self, vhost: &str, binding: &Binding) -> Result<Removed, BrokerError> {
        let about = About::new("remove", format!("binding {binding}"), vhost);
        let segments = pair(vhost, binding);
        let mut key = None;
        let list = Call::get(path::api(&segments)?, "", about.clone());
        let answer = match self.send(list, &[]).await {
            Err(error) if means_absent(&error) => return Ok(Removed::Absent),
            answer => answer?,
        };
        answer
            .rows(|mut row: BindingRow| {
                let properties_key = row.properties_key.take();
                if row.into_binding().as_ref() == Some(binding) {
                    key = properties_key;
                }
            })
            .await?;
        let Some(key) = key else { return Ok(Removed::Absent) };
        // No path can hold dots alone; but this segment the broker decodes once more.
        let key = if matches!(key.as_str(), "." | "..") { key.replace('.', "%2E") } else { key };
        let path = path::api(&[&segments[..], &[key.as_str()]].concat())?;
        self.delete(path, "", about).await
    }

    /// Deletes a user policy.
    ///
    /// # Errors
    /// [`BrokerError::Forbidden`] without the tag `policymaker`.
    pub async fn delete_policy(&self, vhost: &str, name: &str) -> Result<Removed, BrokerError> {
        let about = About::new("delete", format!("policy {name:?}"), vhost);
        self.delete(path::api(&["policies", vhost, name])?, "", about).await
    }

    /// Deletes an exchange with all bindings from and to it; with `if_unused`
    /// only if nothing is bound to it. Queues that dead-letter to it and
    /// exchanges that fall back to it do not count as use (DEL-05).
    ///
    /// # Errors
    /// [`BrokerError::InUse`] with `if_unused`.
    pub async fn delete_exchange(
        &self,
        vhost: &str,
        name: &str,
        if_unused: bool,
    ) -> Result<Removed, BrokerError> {
        // DEL-02: any other spelling means "delete unconditionally".
        let query = if if_unused { "?if-unused=true" } else { "" };
        let about = About::new("delete", format!("exchange {name:?}"), vhost);
        self.delete(path::api(&["exchanges", vhost, name])?, query, about).await
    }

    /// Deletes a queue **with its messages**, whatever it holds: quorum queues
    /// know no `if-empty` (DEL-01). Prove it empty first.
    ///
    /// # Errors
    /// [`BrokerError::Forbidden`] without configure permission.
    pub async fn delete_queue(&self, vhost: &str, name: &str) -> Result<Removed, BrokerError> {
        let about = About::new("delete", format!("queue {name:?}"), vhost);
        self.delete(path::api(&["queues", vhost, name])?, "", about).await
    }

    async fn delete(
        &self,
        path: String,
        query: &'static str,
        about: About<'_>,
    ) -> Result<Removed, BrokerError> {
        let call = Call { method: Method::DELETE, path, query, body: None, about };
        match self.send(call, &[]).await {
            Ok(_) => Ok(Removed::Gone),
            Err(error) if means_absent(&error) => Ok(Removed::Absent),
            Err(error) => Err(error),
        }
    }
}

/// What is not there needs no removal, and a vhost that is not there took
/// everything with it.
fn means_absent(error: &BrokerError) -> bool {
    matches!(error, BrokerError::NotFound { .. } | BrokerError::VhostNotFound { .. })
}

/// See [`BrokerError::Unlistable`].
fn breaks_lists(binding: &Binding) -> bool {
    let key = binding.routing_key.as_str();
    let all_but_last = key.char_indices().next_back().map_or("", |(last, _)| &key[..last]);
    // The key "~" alone is fine, and so is one that ends with its only tilde.
    !binding.arguments.is_empty() && all_but_last.contains('~')
}

/// The path of all bindings between two ends.
fn pair<'a>(vhost: &'a str, binding: &'a Binding) -> [&'a str; 6] {
    let (kind, destination) = match &binding.destination {
        Destination::Queue(name) => ("q", name),
        Destination::Exchange(name) => ("e", name),
    };
    ["bindings", vhost, "e", &binding.source, kind, destination]
}

/// Typed arguments as JSON: an integer stays an integer (IMM-02, IMM-03).
fn object(arguments: &Args) -> Map<String, Value> {
    arguments
        .iter()
        .map(|(key, value)| {
            let value = match value {
                Arg::Bool(value) => Value::from(*value),
                Arg::Int(value) => Value::from(*value),
                Arg::Str(value) => Value::from(value.as_str()),
                // Only ever observed, or put back as it was (a merged policy).
                Arg::Other(text) => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
            };
            (key.clone(), value)
        })
        .collect()
}
