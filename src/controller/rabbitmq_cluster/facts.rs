//! What of a RabbitmqCluster matters, as the cluster operator writes it. Pure.
//!
//! Everything but these fields is passed over, so that later versions of that operator stay
//! readable. A field that has another form than expected is an error, and no default: what says
//! how to do TLS must never be taken for nothing.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde::Deserialize;

use crate::api::annotations::{AMQP_URI, GRANTS, OPERATOR_CONNECTION_URI, TOPOLOGY_ALLOWED_NAMESPACES};

/// The resource of the cluster operator.
pub(crate) fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("rabbitmq.com", "v1beta1", "RabbitmqCluster");
    ApiResource::from_gvk_with_plural(&kind, "rabbitmqclusters")
}

/// Where a RabbitmqCluster is: namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// All that the operator goes by: two clusters with equal facts are no news to any pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Facts {
    pub(crate) key: Key,
    /// Another one under the same name is another cluster.
    pub(crate) uid: String,
    /// Whether its deletion has begun.
    pub(crate) is_going: bool,
    /// Whether it has no nodes at present.
    pub(crate) is_scaled_to_zero: bool,
    /// The Secret with its user, and the namespace that the cluster operator says it is in.
    pub(crate) credentials: Option<Reference>,
    /// Whether its user is kept in Vault and in no Secret.
    pub(crate) has_vault_user: bool,
    /// The Service that leads to its nodes.
    pub(crate) service: Option<Reference>,
    /// How it does TLS; `None`: not at all.
    pub(crate) tls: Option<Tls>,
    /// What precedes `/api`, as it is configured; empty where nothing does.
    pub(crate) path_prefix: String,
    /// The vhost with the exchange of events, where one is configured.
    pub(crate) events_vhost: Option<String>,
    /// The management API's address, where its owner says so.
    pub(crate) uri: Option<String>,
    /// The AMQP address, where its owner says so.
    pub(crate) amqp_uri: Option<String>,
    /// Which namespaces may refer to it.
    pub(crate) allowed_namespaces: String,
    /// What they may use there.
    pub(crate) grants: String,
}

/// A name, and the namespace that was written beside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
}

/// The Secrets of a cluster's TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tls {
    /// With the server's certificate, and often with the authority that issued it.
    pub(crate) secret: String,
    /// With an authority of its own.
    pub(crate) ca_secret: Option<String>,
}

impl Facts {
    /// Reads a cluster.
    ///
    /// # Errors
    /// A field that has another form than the cluster operator's.
    pub(crate) fn read(object: &DynamicObject) -> Result<Self, serde_json::Error> {
        let spec: Spec = part(object, "spec")?;
        let status: Status = part(object, "status")?;
        let annotation = |key: &str| object.annotations().get(key).cloned().unwrap_or_default();
        let given = |key: &str| Some(annotation(key).trim().to_owned()).filter(|value| !value.is_empty());
        let default_user = status.default_user.unwrap_or_default();
        let config = spec.rabbitmq.unwrap_or_default().additional_config;
        let vault = spec.secret_backend.and_then(|backend| backend.vault);
        Ok(Self {
            key: key_of(&object.metadata),
            uid: object.uid().unwrap_or_default(),
            is_going: object.metadata.deletion_timestamp.is_some(),
            is_scaled_to_zero: spec.replicas == Some(0),
            credentials: status.binding.or(default_user.secret_reference).and_then(Named::reference),
            has_vault_user: vault.is_some_and(|vault| !vault.default_user_path.is_empty()),
            service: default_user.service_reference.and_then(Named::reference),
            tls: spec.tls.and_then(TlsSpec::read),
            path_prefix: configured(&config, "management.path_prefix").unwrap_or_default(),
            events_vhost: configured(&config, "event_exchange.vhost"),
            uri: given(OPERATOR_CONNECTION_URI),
            amqp_uri: given(AMQP_URI),
            allowed_namespaces: annotation(TOPOLOGY_ALLOWED_NAMESPACES),
            grants: annotation(GRANTS),
        })
    }
}

/// Where a resource is.
pub(crate) fn key_of(metadata: &ObjectMeta) -> Key {
    Key {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// A part of the resource, or its default where it is not there.
fn part<T: for<'a> Deserialize<'a> + Default>(
    object: &DynamicObject,
    name: &str,
) -> Result<T, serde_json::Error> {
    object.data.get(name).map_or_else(|| Ok(T::default()), T::deserialize)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    replicas: Option<i64>,
    tls: Option<TlsSpec>,
    rabbitmq: Option<Rabbitmq>,
    secret_backend: Option<SecretBackend>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TlsSpec {
    secret_name: String,
    ca_secret_name: String,
}

impl TlsSpec {
    fn read(self) -> Option<Tls> {
        let given = |name: String| Some(name).filter(|name| !name.is_empty());
        let secret = given(self.secret_name)?;
        Some(Tls { secret, ca_secret: given(self.ca_secret_name) })
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rabbitmq {
    additional_config: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SecretBackend {
    vault: Option<Vault>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Vault {
    default_user_path: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    binding: Option<Named>,
    default_user: Option<DefaultUser>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DefaultUser {
    secret_reference: Option<Named>,
    service_reference: Option<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
    namespace: Option<String>,
}

impl Named {
    fn reference(self) -> Option<Reference> {
        let namespace = self.namespace.filter(|namespace| !namespace.is_empty());
        (!self.name.is_empty()).then_some(Reference { name: self.name, namespace })
    }
}

/// A value of a `rabbitmq.conf`: one key a line, the last one counts, `#` begins a comment, and a
/// value may stand in single quotes.
fn configured(config: &str, wanted: &str) -> Option<String> {
    let mut values = config.lines().rev().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == wanted).then_some(value)
    });
    let value = values.next()?.trim();
    let value = match value.strip_prefix('\'').and_then(|rest| rest.split_once('\'')) {
        Some((quoted, _)) => quoted.trim(),
        None => value.split('#').next().unwrap_or_default().trim(),
    };
    Some(value.to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
pub(crate) mod tests;
