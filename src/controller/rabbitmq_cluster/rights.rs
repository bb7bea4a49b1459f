//! What a cluster's owner lets a namespace do there, as sentences for conditions. Pure.
//!
//! The cluster's own user may do everything on it, so that the broker holds nobody back: a
//! namespace other than the cluster's needs its place in the list of namespaces, and a grant for
//! every name that it uses.

use super::error::Error;
use super::facts::Facts;
use crate::api::annotations::{GRANTS, TOPOLOGY_ALLOWED_NAMESPACES};
use crate::topology::rights::{Grants, Missing, Use, lists_namespace};

/// How many names a sentence lists.
const NAMED: usize = 4;

/// Whether a namespace may refer to the cluster at all.
///
/// # Errors
/// `NotAllowed`, with the annotation that would allow it.
pub(crate) fn check_namespace(facts: &Facts, namespace: &str) -> Result<(), Error> {
    if namespace == facts.key.namespace || lists_namespace(&facts.allowed_namespaces, namespace) {
        return Ok(());
    }
    Err(Error::NotAllowed(format!(
        "the RabbitmqCluster {} does not allow the namespace {namespace:?}: its owner adds it to the annotation \
         {TOPOLOGY_ALLOWED_NAMESPACES}",
        facts.key
    )))
}

/// Whether a namespace may use these names on a vhost. With `everything`, whoever may refer to
/// the cluster may use all of it.
///
/// # Errors
/// `NotAllowed`, with the names and the narrowest grant that would allow them.
pub(crate) fn check_names(
    facts: &Facts,
    namespace: &str,
    vhost: &str,
    uses: &[Use],
    everything: bool,
) -> Result<(), Error> {
    check_namespace(facts, namespace)?;
    if namespace == facts.key.namespace || everything {
        return Ok(());
    }
    let grants = Grants::parse(&facts.grants).map_err(|error| {
        Error::NotAllowed(format!(
            "the annotation {GRANTS} of the RabbitmqCluster {} grants nobody anything, since its {error}",
            facts.key
        ))
    })?;
    match grants.missing(namespace, vhost, uses) {
        None => Ok(()),
        Some(missing) => Err(Error::NotAllowed(sentence(facts, namespace, vhost, &missing))),
    }
}

fn sentence(facts: &Facts, namespace: &str, vhost: &str, missing: &Missing) -> String {
    let (key, remedy) = (&facts.key, missing.remedy(namespace, vhost));
    if missing.vhost {
        return format!(
            "the RabbitmqCluster {key} grants the namespace {namespace:?} nothing on the vhost {vhost:?}: its owner \
             adds {remedy:?} to the annotation {GRANTS}, or a grant that goes further"
        );
    }
    let more = missing.uses.len().saturating_sub(NAMED);
    let mut names: Vec<String> = missing.uses.iter().take(NAMED).map(ToString::to_string).collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    format!(
        "the RabbitmqCluster {key} does not grant the namespace {namespace:?} on the vhost {vhost:?}: {}: use names \
         that are granted, or its owner adds {remedy:?} to the annotation {GRANTS}",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests;
