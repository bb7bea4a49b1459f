//! The Kubernetes cluster that the operator works in.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::{Api, Client, ResourceExt};

use super::Error;
use super::api_server::{API_TIMEOUT, within};

/// What names it in markers, by default: the UID of a namespace that every cluster has.
pub(super) async fn id(client: &Client) -> Result<String, Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let system = within(API_TIMEOUT, namespaces.get("kube-system")).await?.map_err(|source| {
        Error::Kubernetes { what: "the namespace kube-system (or give --cluster-id)", source }
    })?;
    Ok(system.uid().unwrap_or_default())
}

/// Where the API server is, so that no Secret can point us at it.
pub(crate) async fn api_server_addresses(client: &Client) -> Vec<IpAddr> {
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let service = tokio::time::timeout(API_TIMEOUT, services.get_opt("kubernetes")).await;
    let Ok(Ok(Some(service))) = service else { return Vec::new() };
    let addresses = service.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
    addresses.iter().filter_map(|address| address.parse().ok()).collect()
}
