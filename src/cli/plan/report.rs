//! The result of planning, as text and JSON show it.
//!
//! JSON, version `plan.redrive.dev/v1`; within it fields are only ever added:
//!
//! ```text
//! apiVersion  "plan.redrive.dev/v1"
//! outcome     "nothing" | "changes" | "failed", as the exit codes 0, 2 and 1
//! pipelines[] file, document, namespace, name, vhost
//!             broker          {version, address}; no address: no broker was asked
//!             objects         {queues[], exchanges[], bindings[], policies[]} that are wanted
//!             steps[]         {stage, text, step} in the order of writes
//!             blocked[]       {by, object, why}
//!             draining[]      queues that go when they are empty
//!             moves[]         {from, to} of messages, so that some of these become empty
//!             pending?        {hash, why} of what takes a person's consent
//!             clientContract[] queues that applications may declare, with their arguments
//!             notes[]         {level: "info" | "warning", topic, text}
//!             cost            {policyWrites, queues?, policies?, estimatedSeconds?}
//!             capacity?       {load, rows[], total, assumptions[]}
//! skipped[]   file, document, kind, name
//! errors[]    file?, document?, line?, field?, message
//! ```

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use super::cost::Cost;
use super::notes::Note;
use crate::cli::Outcome;
use crate::cli::capacity::Capacity;
use crate::cli::manifest::{Problem, Skipped};
use crate::topology::desired::Desired;
use crate::topology::model::{Binding, Exchange, Policy, Queue};
use crate::topology::plan::{Plan, PlannedStep, Stage, Step};
use crate::topology::validate::Pipeline;

const API_VERSION: &str = "plan.redrive.dev/v1";

/// Everything that was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    api_version: &'static str,
    #[serde(serialize_with = "outcome")]
    pub(super) outcome: Outcome,
    pub(super) pipelines: Vec<Planned>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) errors: Vec<Problem>,
}

impl Report {
    pub(super) fn new(skipped: Vec<Skipped>, errors: Vec<Problem>) -> Self {
        Self { api_version: API_VERSION, outcome: Outcome::Nothing, pipelines: Vec::new(), skipped, errors }
    }

    /// Decides how it all ended.
    pub(super) fn finish(mut self) -> Self {
        let errors = if self.errors.is_empty() { Outcome::Nothing } else { Outcome::Failed };
        self.outcome = self.pipelines.iter().map(Planned::outcome).fold(errors, Outcome::max);
        self
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn outcome<S: Serializer>(outcome: &Outcome, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match outcome {
        Outcome::Nothing => "nothing",
        Outcome::Changes => "changes",
        Outcome::Failed => "failed",
    })
}

/// One pipeline's plan with what belongs to it.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) file: String,
    pub(super) document: usize,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) vhost: String,
    pub(super) broker: BrokerReport,
    pub(super) pipeline: Pipeline,
    pub(super) desired: Desired,
    pub(super) plan: Plan,
    pub(super) client_contract: Vec<Queue>,
    pub(super) notes: Vec<Note>,
    pub(super) cost: Cost,
    pub(super) capacity: Option<Capacity>,
}

/// What the plan was made for.
#[derive(Debug, Serialize)]
pub(super) struct BrokerReport {
    pub(super) version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<String>,
}

impl Planned {
    /// Without a broker there is nothing that changes: the file is valid, or not.
    fn outcome(&self) -> Outcome {
        if !self.plan.blocked.is_empty() {
            Outcome::Failed
        } else if self.broker.address.is_some() && !self.plan.is_empty() {
            Outcome::Changes
        } else {
            Outcome::Nothing
        }
    }
}

#[derive(Serialize)]
struct Objects<'a> {
    queues: Vec<&'a Queue>,
    exchanges: Vec<&'a Exchange>,
    bindings: Vec<&'a Binding>,
    policies: Vec<&'a Policy>,
}

impl<'a> Objects<'a> {
    fn new(desired: &'a Desired) -> Self {
        Self {
            queues: desired.queues.iter().map(|wanted| &wanted.queue).collect(),
            exchanges: desired.exchanges.iter().map(|wanted| &wanted.exchange).collect(),
            bindings: desired.bindings.iter().map(|wanted| &wanted.binding).collect(),
            policies: desired.policies.iter().map(|wanted| &wanted.policy).collect(),
        }
    }
}

#[derive(Serialize)]
struct ShownStep<'a> {
    stage: Stage,
    text: String,
    step: &'a Step,
}

impl<'a> ShownStep<'a> {
    fn new(planned: &'a PlannedStep) -> Self {
        Self { stage: planned.stage, text: planned.step.to_string(), step: &planned.step }
    }
}

impl Serialize for Planned {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Planned", 16)?;
        out.serialize_field("file", &self.file)?;
        out.serialize_field("document", &self.document)?;
        out.serialize_field("namespace", &self.namespace)?;
        out.serialize_field("name", &self.name)?;
        out.serialize_field("vhost", &self.vhost)?;
        out.serialize_field("broker", &self.broker)?;
        out.serialize_field("objects", &Objects::new(&self.desired))?;
        let steps: Vec<ShownStep<'_>> = self.plan.steps.iter().map(ShownStep::new).collect();
        out.serialize_field("steps", &steps)?;
        out.serialize_field("blocked", &self.plan.blocked)?;
        out.serialize_field("draining", &self.plan.draining)?;
        out.serialize_field("moves", &self.plan.moves)?;
        match &self.plan.pending {
            Some(pending) => out.serialize_field("pending", pending)?,
            None => out.skip_field("pending")?,
        }
        out.serialize_field("clientContract", &self.client_contract)?;
        out.serialize_field("notes", &self.notes)?;
        out.serialize_field("cost", &self.cost)?;
        match &self.capacity {
            Some(capacity) => out.serialize_field("capacity", capacity)?,
            None => out.skip_field("capacity")?,
        }
        out.end()
    }
}
