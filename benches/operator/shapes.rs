//! The pipelines that are measured, and the plans that a script would write.

use std::collections::{BTreeMap, BTreeSet};

use redrive::api::RetryPipeline;
use redrive::topology::diff::{Context, diff};
use redrive::topology::effective::PolicyIndex;
use redrive::topology::observed::{BrokerFacts, Observed};
use redrive::topology::ownership::Inventory;
use redrive::topology::plan::Plan;
use redrive::topology::spec::Identity;
use redrive::topology::validate::validate;
use serde_json::{Value, json};

use crate::Result;

/// What a pipeline looks like.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// As the topology operator's chain: five queues, three of them with delays, an
    /// exchange and a binding.
    Application,
    /// The default ladder of four, all numbers in arguments.
    BrokerArguments,
    /// The default ladder of four, numbers in policies.
    BrokerPolicies,
    /// As `Application`, with short delays: a deletion waits for the longest.
    ShortApplication,
    /// A ladder of four short delays.
    ShortBroker,
}

/// Pipelines of one shape, spread over vhosts.
pub(crate) fn pipelines(
    shape: Shape,
    count: usize,
    vhosts: &[String],
    deletion: &str,
) -> Result<Vec<RetryPipeline>> {
    (0..count)
        .map(|number| {
            let name = format!("work-{number:04}");
            let spec = spec(shape, &name, &vhosts[number % vhosts.len()], deletion);
            let object = json!({
                "apiVersion": "redrive.dev/v1alpha1", "kind": "RetryPipeline",
                "metadata": {"name": name}, "spec": spec,
            });
            Ok(serde_json::from_value(object)?)
        })
        .collect()
}

fn spec(shape: Shape, name: &str, vhost: &str, deletion: &str) -> Value {
    let queue = format!("{name}.queue");
    let exchange = format!("{name}.exchange");
    let retry = match shape {
        Shape::Application => json!({"mode": "Application", "delays": ["5s", "30s", "2m"]}),
        Shape::BrokerArguments | Shape::BrokerPolicies => json!({"delays": ["5s", "30s", "2m", "10m"]}),
        Shape::ShortApplication => json!({"mode": "Application", "delays": ["1s", "1s", "2s"]}),
        Shape::ShortBroker => json!({"delays": ["1s", "1s", "2s", "2s"]}),
    };
    let settings = match shape {
        Shape::BrokerArguments => json!({"arguments": {}}),
        _ => json!({"policy": {}}),
    };
    json!({
        "broker": {"secretRef": {"name": "rabbit"}},
        "vhost": vhost,
        "source": {
            "queue": {"name": queue},
            "exchange": {"name": exchange, "type": "topic"},
            "bindings": [{"exchange": exchange, "routingKey": "work.#"}],
            "deliveryLimit": 10,
        },
        "retry": retry,
        "deadLetter": {"retention": "14d"},
        "settings": settings,
        "deletionPolicy": deletion,
    })
}

/// What a script must write for these pipelines, by vhost.
pub(crate) fn plans(pipelines: &[RetryPipeline], overview: &Value) -> Result<Vec<(String, Plan)>> {
    let facts = facts(overview).ok_or("the broker's overview has another shape")?;
    pipelines.iter().map(|object| Ok((object.spec.vhost().to_owned(), plan(object, &facts)?))).collect()
}

fn facts(overview: &Value) -> Option<BrokerFacts> {
    let mut numbers = overview["rabbitmq_version"].as_str()?.split(['.', '-', '+']).map(str::parse);
    let mut next = || numbers.next()?.ok();
    let version = (next()?, next()?, next()?);
    let types = overview["exchange_types"].as_array()?.iter();
    let exchange_types = types.filter_map(|kind| Some(kind["name"].as_str()?.to_owned())).collect();
    Some(BrokerFacts { version, exchange_types })
}

fn plan(object: &RetryPipeline, facts: &BrokerFacts) -> Result<Plan> {
    let identity = Identity {
        cluster: "0d5a8f5c-9a8f-4f0e-8b39-1c5b7a4a6f10".to_owned(),
        namespace: "bench-script-0".to_owned(),
        name: object.metadata.name.clone().unwrap_or_default(),
        uid: "4b1c7c52-6c5f-4a6e-b0a4-2f1de0f0a001".to_owned(),
    };
    let pipeline =
        validate(identity, object.spec.to_topology()).map_err(|problems| format!("{problems:?}"))?;
    let observed = Observed::default();
    let comparison = diff(&Context {
        pipeline: &pipeline,
        facts,
        observed: &observed,
        policies: &PolicyIndex::new(&[], None),
        inventory: &Inventory::new(),
        adopt: false,
        proven_empty: &BTreeSet::new(),
        contested: &BTreeMap::new(),
        edited: true,
        consent: None,
    });
    Ok(comparison.plan)
}
