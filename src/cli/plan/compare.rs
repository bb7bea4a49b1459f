//! One pipeline against the ground that it will stand on.

use std::collections::{BTreeMap, BTreeSet};

use super::cost::Cost;
use super::notes::{self, Circumstances};
use super::ownership;
use super::report::{BrokerReport, Planned};
use crate::broker::Overview;
use crate::cli::manifest::Manifest;
use crate::cli::units::Version;
use crate::topology::diff::{self, Context, Diff};
use crate::topology::effective::PolicyIndex;
use crate::topology::model::{Args, ObjectKey};
use crate::topology::observed::{BrokerFacts, Observed, ObservedExchange, ObservedQueue, Totals};
use crate::topology::ownership::Inventory;
use crate::topology::plan::{Blocked, BlockedBy};
use crate::topology::spec::Ownership;
use crate::topology::validate::{self, Pipeline, Unsupported};

/// A broker with what its vhosts hold, real or assumed.
pub(super) struct Ground {
    facts: BrokerFacts,
    version: String,
    /// `None` where no broker was asked.
    address: Option<String>,
    vhosts: BTreeMap<String, Result<Observed, String>>,
}

impl Ground {
    /// An empty broker with every plugin that a pipeline can need.
    pub(super) fn empty(version: &Version) -> Self {
        let types = ["direct", "fanout", "headers", "topic", "x-random"];
        let exchange_types = types.into_iter().map(str::to_owned).collect();
        Self {
            facts: BrokerFacts { version: version.numbers, exchange_types },
            version: version.to_string(),
            address: None,
            vhosts: BTreeMap::new(),
        }
    }

    /// A broker that was asked.
    pub(super) fn observed(
        address: String,
        overview: Overview,
        vhosts: BTreeMap<String, Result<Observed, String>>,
    ) -> Self {
        Self { facts: overview.facts, version: overview.version, address: Some(address), vhosts }
    }

    /// Within one place a name stands for one thing.
    fn place(&self, manifest: &Manifest) -> String {
        match &self.address {
            Some(_) => manifest.spec.vhost().to_owned(),
            // Other brokers may well have queues of the same name.
            None => format!("{:?} {}", manifest.spec.broker, manifest.spec.vhost()),
        }
    }
}

/// Names that the files so far declare, by broker and vhost, with whose they are.
#[derive(Default)]
pub(super) struct Claims(BTreeMap<(String, ObjectKey), String>);

impl Claims {
    /// Claims all that a pipeline declares; returns what others claimed before.
    fn stake(&mut self, place: &str, who: &str, diff: &Diff) -> Vec<Blocked> {
        let queues = diff.desired.queues.iter().map(|queue| ObjectKey::Queue(queue.queue.name.clone()));
        let exchanges = diff.desired.exchanges.iter().filter(|exchange| !exchange.shared);
        let exchanges = exchanges.map(|exchange| ObjectKey::Exchange(exchange.exchange.name.clone()));
        let mut taken = Vec::new();
        for key in queues.chain(exchanges) {
            let object = key.to_string();
            let owner = self.0.entry((place.to_owned(), key)).or_insert_with(|| who.to_owned());
            if owner != who {
                let why = format!("{owner}, in the same files, declares it as well: use another name");
                taken.push(Blocked { by: BlockedBy::Conflict, object, why });
            }
        }
        taken
    }
}

/// Plans one pipeline, or says why its broker can't take it.
pub(super) fn pipeline(
    manifest: &Manifest,
    ground: &Ground,
    cluster_id: Option<&str>,
    claims: &mut Claims,
) -> Result<Planned, Vec<String>> {
    let nothing = Observed::default();
    let observed = match ground.vhosts.get(manifest.spec.vhost()) {
        Some(Err(why)) => return Err(vec![why.clone()]),
        Some(Ok(observed)) => observed,
        None => &nothing,
    };
    let (identity, inventory) = ownership::read(manifest, cluster_id, observed).map_err(|why| vec![why])?;
    let pipeline = manifest
        .pipeline(identity)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    let unsupported = validate::check_broker(&pipeline, &ground.facts);
    if !unsupported.is_empty() {
        let text = |unsupported| match unsupported {
            Unsupported::Version(text) | Unsupported::Plugin(text) => text,
        };
        return Err(unsupported.into_iter().map(text).collect());
    }

    let assumed = ground.address.is_none().then(|| assume(&pipeline));
    let observed = assumed.as_ref().unwrap_or(observed);
    let mut diff = difference(manifest, &pipeline, ground, observed, &inventory);
    let taken =
        claims.stake(&ground.place(manifest), &format!("{}/{}", manifest.namespace, manifest.name), &diff);
    if !taken.is_empty() {
        diff.plan.steps.clear();
        diff.plan.blocked.extend(taken);
    }
    let circumstances = Circumstances {
        pipeline: &pipeline,
        spec: &manifest.spec,
        facts: &ground.facts,
        desired: &diff.desired,
        observed: ground.address.is_some().then_some(observed),
    };
    let notes = notes::notes(&circumstances);
    let cost = Cost::new(&diff.plan, ground.address.is_some().then_some(observed));
    let mut client_contract = diff::client_contract(&pipeline, &diff.desired);
    // The arguments of an External source are its application's own choice.
    let declared =
        |name: &str| diff.desired.queues.iter().any(|wanted| wanted.declared && wanted.queue.name == name);
    client_contract.retain(|queue| declared(&queue.name));
    Ok(Planned {
        file: manifest.file.clone(),
        document: manifest.document,
        namespace: manifest.namespace.clone(),
        name: manifest.name.clone(),
        vhost: manifest.spec.vhost().to_owned(),
        broker: BrokerReport { version: ground.version.clone(), address: ground.address.clone() },
        pipeline,
        desired: diff.desired,
        plan: diff.plan,
        client_contract,
        notes,
        cost,
        capacity: None,
    })
}

fn difference(
    manifest: &Manifest,
    pipeline: &Pipeline,
    ground: &Ground,
    observed: &Observed,
    inventory: &Inventory,
) -> Diff {
    diff::diff(&Context {
        pipeline,
        facts: &ground.facts,
        observed,
        policies: &PolicyIndex::new(&observed.policies, observed.operator_policies.as_deref()),
        inventory,
        adopt: manifest.spec.adopt,
        proven_empty: &BTreeSet::new(),
        contested: &BTreeMap::new(),
        // A file is taken for an edit: no status says that it was carried out before.
        edited: true,
        consent: manifest.consent.as_deref(),
    })
}

/// An empty vhost, but for what the pipeline expects others to have declared.
fn assume(pipeline: &Pipeline) -> Observed {
    let source = &pipeline.spec.source;
    let mut observed = Observed::default();
    observed.operator_policies = Some(Vec::new());
    if source.ownership == Ownership::External {
        let queue = ObservedQueue {
            kind: source.kind,
            durable: true,
            auto_delete: false,
            exclusive: false,
            arguments: Args::new(),
            totals: Totals::default(),
        };
        observed.queues.insert(source.queue.clone(), queue);
    }
    for exchange in foreign_exchanges(pipeline) {
        let assumed = ObservedExchange {
            kind: "topic".to_owned(),
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: Args::new(),
        };
        observed.exchanges.insert(exchange.to_owned(), assumed);
    }
    observed
}

/// Exchanges that bindings name and the pipeline does not declare.
pub(super) fn foreign_exchanges(pipeline: &Pipeline) -> BTreeSet<&str> {
    let source = &pipeline.spec.source;
    let ours = source.exchange.as_ref().map(|exchange| exchange.name.as_str());
    source
        .bindings
        .iter()
        .map(|binding| binding.exchange.as_str())
        .filter(|exchange| Some(*exchange) != ours)
        .collect()
}
