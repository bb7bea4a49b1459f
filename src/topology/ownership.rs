//! Who owns what: the inventory in the resource's status, and markers on the broker.
//!
//! A marker is a binding from the internal exchange [`OWNER_EXCHANGE`] to a queue
//! or exchange; its arguments name the owner. It survives a restore of the
//! Kubernetes cluster and tells two operators apart. Only where inventory *and*
//! marker agree is anything ever deleted. A policy's name is its marker.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Arg, Args, Binding, Destination, Exchange, ObjectKey};
use super::names::OWNER_EXCHANGE;
use super::observed::Observed;
use super::spec::Identity;

/// How far Redrive got with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// About to be declared; recorded before the first write.
    Intended,
    /// Declared by us.
    Created,
    /// Existed before and was taken over; never deleted unless asked for.
    Adopted,
}

/// An inventory's record of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// How far we got.
    pub state: State,
    /// The object's generation.
    pub generation: u32,
}

/// Everything that a pipeline has, or is about to have, on its broker.
pub type Inventory = BTreeMap<ObjectKey, Record>;

/// The exchange that markers hang on. Of type headers, since its bindings never
/// have to be matched: it is internal and nobody publishes to it.
#[must_use]
pub fn owner_exchange() -> Exchange {
    Exchange {
        name: OWNER_EXCHANGE.to_owned(),
        kind: "headers".to_owned(),
        internal: true,
        arguments: Args::new(),
    }
}

/// The argument that only markers of adopted objects have.
const ADOPTED: &str = "adopted";

/// The binding that marks an object as a pipeline's own.
#[must_use]
pub fn marker(owner: &Identity, object: Destination) -> Binding {
    let fields = [
        ("cluster", &owner.cluster),
        ("namespace", &owner.namespace),
        ("name", &owner.name),
        ("uid", &owner.uid),
    ];
    Binding {
        source: OWNER_EXCHANGE.to_owned(),
        destination: object,
        routing_key: String::new(),
        arguments: fields.into_iter().map(|(key, value)| (key.to_owned(), Arg::Str(value.clone()))).collect(),
    }
}

/// The binding that marks an object which was there before. The difference must
/// survive the loss of a status, since what was adopted is not ours to delete.
#[must_use]
pub fn adopted_marker(owner: &Identity, object: Destination) -> Binding {
    let mut marker = marker(owner, object);
    marker.arguments.insert(ADOPTED.to_owned(), true.into());
    marker
}

/// The marker that belongs to an object in this state.
#[must_use]
pub fn marker_for(owner: &Identity, object: Destination, state: State) -> Binding {
    if state == State::Adopted { adopted_marker(owner, object) } else { marker(owner, object) }
}

/// All markers by which a pipeline owns an object.
pub fn markers_of<'a>(
    observed: &'a Observed,
    object: &Destination,
    owner: &'a Identity,
) -> impl Iterator<Item = &'a Binding> {
    markers(observed, object).filter(move |marker| owner_fields(marker) == Some(fields_of(owner)))
}

fn markers<'a>(observed: &'a Observed, object: &Destination) -> impl Iterator<Item = &'a Binding> {
    observed.bindings_to(object).filter(|binding| binding.source == OWNER_EXCHANGE)
}

/// Reads the owner out of a marker; `None` where it is none of ours.
#[must_use]
pub fn owner_of(marker: &Binding) -> Option<Identity> {
    owner_fields(marker).map(identity)
}

/// The owner's cluster, namespace, name and UID. A shared exchange may have a
/// thousand markers, so they are read without a copy.
fn owner_fields(marker: &Binding) -> Option<[&str; 4]> {
    let field = |key: &str| match marker.arguments.get(key) {
        Some(Arg::Str(value)) => Some(value.as_str()),
        _ => None,
    };
    Some([field("cluster")?, field("namespace")?, field("name")?, field("uid")?])
}

fn fields_of(owner: &Identity) -> [&str; 4] {
    [&owner.cluster, &owner.namespace, &owner.name, &owner.uid]
}

/// What the markers of an object say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody marked it.
    Unmarked,
    /// It is ours, and of `others` as well.
    Ours {
        /// Whether it was there before us.
        adopted: bool,
        /// Further owners.
        others: Vec<Identity>,
    },
    /// It belonged to a resource of our name that is gone: ours again, once the
    /// marker is replaced.
    Inherited {
        /// Whether it was there before that resource.
        adopted: bool,
        /// The markers to replace.
        stale: Vec<Binding>,
        /// Further owners.
        others: Vec<Identity>,
    },
    /// It is somebody else's.
    Foreign {
        /// Whether it was there before one of them.
        adopted: bool,
        /// Whose.
        owners: Vec<Identity>,
    },
}

impl Standing {
    /// Whether a marker says that it is ours, or was.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Ours { .. } | Self::Inherited { .. })
    }
}

/// Reads the markers of an object.
#[must_use]
pub fn standing(observed: &Observed, object: &Destination, us: &Identity) -> Standing {
    let mut ours = false;
    let mut adopted = false;
    let mut stale = Vec::new();
    let mut others = BTreeSet::new();
    let own = fields_of(us);
    for marker in markers(observed, object) {
        adopted |= marker.arguments.contains_key(ADOPTED);
        match owner_fields(marker) {
            Some(owner) if owner == own => ours = true,
            // One name can only belong to one live resource, and that is us.
            Some(owner) if owner[..3] == own[..3] => stale.push(marker.clone()),
            Some(owner) => {
                others.insert(owner);
            }
            // A marker that can't be read is somebody's.
            None => {
                others.insert(["unknown"; 4]);
            }
        }
    }
    let others: Vec<Identity> = others.into_iter().map(identity).collect();
    match (ours, stale.is_empty(), others.is_empty()) {
        (true, true, _) => Standing::Ours { adopted, others },
        (_, false, _) => Standing::Inherited { adopted, stale, others },
        (false, true, true) => Standing::Unmarked,
        (false, true, false) => Standing::Foreign { adopted, owners: others },
    }
}

fn identity([cluster, namespace, name, uid]: [&str; 4]) -> Identity {
    let [cluster, namespace, name, uid] = [cluster, namespace, name, uid].map(str::to_owned);
    Identity { cluster, namespace, name, uid }
}

/// Names owners for a message.
#[must_use]
pub fn describe(owners: &[Identity]) -> String {
    let names: Vec<String> =
        owners.iter().map(|owner| format!("{}/{}", owner.namespace, owner.name)).collect();
    names.join(", ")
}

/// A pipeline's claim on a name that nobody owns yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// When the resource was created, in seconds since 1970.
    pub created: i64,
    /// Its UID, which decides between equals.
    pub uid: String,
    /// `namespace/name`, for messages.
    pub who: String,
}

/// The claim that wins: the older resource, then the smaller UID.
#[must_use]
pub fn winner<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> Option<&'a Claim> {
    claims.into_iter().min()
}
