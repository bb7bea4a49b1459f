//! Who a pipeline in a file is on a broker, and what it has there.
//!
//! A file has no UID, and the operator's inventory is in a status that the file need
//! not have. The markers on the broker say both: the objects marked with the file's
//! namespace and name are the pipeline's. What they can't say: which bindings were
//! listed once and are not any more.

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::manifest::Manifest;
use crate::topology::desired::policy_name;
use crate::topology::model::{Binding, Destination, ObjectKey};
use crate::topology::names::OWNER_EXCHANGE;
use crate::topology::observed::Observed;
use crate::topology::ownership::{Inventory, Record, State, adopted_marker, owner_of};
use crate::topology::spec::Identity;

/// Stands where neither the arguments nor the file nor the broker know an id.
const UNKNOWN: &str = "plan";

/// Identity and inventory of a pipeline.
pub(super) fn read(
    manifest: &Manifest,
    cluster_id: Option<&str>,
    observed: &Observed,
) -> Result<(Identity, Inventory), String> {
    let marked: Vec<(Identity, &Binding)> = observed
        .bindings_from(OWNER_EXCHANGE)
        .filter_map(|marker| Some((owner_of(marker)?, marker)))
        .filter(|(owner, _)| owner.namespace == manifest.namespace && owner.name == manifest.name)
        .collect();
    let cluster = cluster(manifest, cluster_id, &marked)?;
    let uid = manifest.uid.clone().unwrap_or_else(|| uid(&cluster, &marked));
    let identity =
        Identity { cluster, namespace: manifest.namespace.clone(), name: manifest.name.clone(), uid };
    let inventory = inventory(&identity, &marked, observed);
    Ok((identity, inventory))
}

fn cluster(
    manifest: &Manifest,
    cluster_id: Option<&str>,
    marked: &[(Identity, &Binding)],
) -> Result<String, String> {
    if let Some(id) = cluster_id {
        return Ok(id.to_owned());
    }
    let of_uid = |owner: &Identity| manifest.uid.as_ref().is_none_or(|uid| *uid == owner.uid);
    let mut clusters: BTreeSet<&str> =
        marked.iter().filter(|(owner, _)| of_uid(owner)).map(|(owner, _)| owner.cluster.as_str()).collect();
    if clusters.is_empty() {
        clusters = marked.iter().map(|(owner, _)| owner.cluster.as_str()).collect();
    }
    match clusters.into_iter().collect::<Vec<_>>()[..] {
        [] => Ok(UNKNOWN.to_owned()),
        [one] => Ok(one.to_owned()),
        ref several => Err(format!(
            "the broker has objects of {}/{} from several clusters: pass --cluster-id with one of {}",
            manifest.namespace,
            manifest.name,
            several.join(", ")
        )),
    }
}

/// The UID that most of the cluster's markers have: others are of resources that are gone.
fn uid(cluster: &str, marked: &[(Identity, &Binding)]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (owner, _) in marked.iter().filter(|(owner, _)| owner.cluster == cluster) {
        *counts.entry(&owner.uid).or_default() += 1;
    }
    counts
        .into_iter()
        .max_by_key(|(_, count)| *count)
        .map_or_else(|| UNKNOWN.to_owned(), |(uid, _)| uid.to_owned())
}

fn inventory(us: &Identity, marked: &[(Identity, &Binding)], observed: &Observed) -> Inventory {
    let record = |state| Record { state, generation: 1 };
    let objects = marked.iter().filter(|(owner, _)| owner.cluster == us.cluster).map(|(owner, marker)| {
        let key = match &marker.destination {
            Destination::Queue(name) => ObjectKey::Queue(name.clone()),
            Destination::Exchange(name) => ObjectKey::Exchange(name.clone()),
        };
        let adopted = **marker == adopted_marker(owner, marker.destination.clone());
        (key, record(if adopted { State::Adopted } else { State::Created }))
    });
    let prefix = policy_name(us, "");
    let policies = observed.policies.iter().filter(|policy| policy.name.starts_with(&prefix));
    let policies = policies.map(|policy| (ObjectKey::Policy(policy.name.clone()), record(State::Created)));
    objects.chain(policies).collect()
}
